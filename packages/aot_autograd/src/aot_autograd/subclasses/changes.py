"""What a program does in place to inputs that are tensor subclasses.

Comes in: an input before the program ran (`State`) and after. Goes out: a `Change`, and the histories and new parts
as results of the traced function; `apply_change` does the same to the caller's tensor at each call. Invariant: eager's
refusals of writes to leaves are raised as eager raises them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from aot_autograd._torch import increment_version, preserve_version
from aot_autograd.errors import UnsupportedOperator
from aot_autograd.subclasses.crossing import History, Rewritten, tangent_layout, unwrapped
from aot_autograd.subclasses.layouts import Layout, is_wrapper, take_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Change",
    "Leaf",
    "State",
    "apply_change",
    "changed_in_place",
    "count_up",
    "leaf_of",
    "require_whole",
    "version_of",
]


Leaf = Literal["", "leaf", "view"]
"""Whether autograd refuses in-place changes of an input: a leaf that requires a gradient, or a view of one."""


@dataclass(frozen=True, slots=True)
class Change:
    """How the program changes an input that is a subclass in place.

    Attributes:
        versions: How often.
        histories: Number of its new parts that have a history; 0 where autograd does not follow the change.
        tangent: The layout of its gradient, where autograd follows it.
        detached: Whether the program cuts it from its history.
        replaced: The parts that the class puts in the place of others: the way to each, by names.
        turned: The parts that get another geometry in the same memory (`t_`): the way, sizes, strides.
    """

    versions: int
    histories: int = 0
    tangent: Layout | None = None
    detached: bool = False
    replaced: tuple[tuple[str, ...], ...] = ()
    turned: tuple[tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """What tells whether an input was changed: its version, its history, its parts."""

    version: int
    grad_fn: Any
    parts: tuple[tuple[tuple[str, ...], Any, Any], ...]

    @staticmethod
    def of(arg: Any) -> State:
        """The state of an input; nothing is asked of one that is no subclass."""
        if not is_wrapper(arg):
            return State(0, None, ())
        parts = tuple((way, part, _geometry(part)) for way, part in _paths(arg, ()))
        return State(version_of(arg), arg.grad_fn, parts)


def leaf_of(value: torch.Tensor) -> Leaf:
    """Why autograd refuses to change it in place; empty where it does not."""
    if not value.requires_grad:
        return ""
    if value.is_leaf:
        return "leaf"
    base = value._base
    return "view" if base is not None and base.is_leaf and base.requires_grad else ""


def changed_in_place(
    layout: Layout, arg: Any, before: State, leaf: Leaf, results: list[Any]
) -> Change | None:
    """How the program changed an input; the histories of its new parts are appended to the results.

    Raises:
        RuntimeError: eager's own, where a leaf was written that requires a gradient.
        UnsupportedOperator: it is made in another way than before, or has another layout.
    """
    changed = version_of(arg) - before.version
    through_autograd = arg.requires_grad and arg.grad_fn is not before.grad_fn
    if through_autograd and leaf:
        _write_to_a_leaf("view" if arg.grad_fn.name().endswith("CopySlices") else leaf)
    if take_apart(arg, []) != layout or tuple(arg.stride()) != layout.stride:
        raise _remade(layout)
    replaced = _replaced(before, arg)
    turned = _turned(before, arg, layout)
    detached = before.grad_fn is not None and not arg.requires_grad
    if not (changed or through_autograd or detached or replaced or turned):
        return None
    results.extend(part for _, part in replaced)
    histories: list[Any] = []
    tangent = None
    if through_autograd:
        tangent = tangent_layout(arg, layout)
        with torch.enable_grad():
            parts = unwrapped(arg, [tangent])
            histories = [History.apply(part) for part in parts if part.requires_grad]
        results.extend(histories)
    ways = tuple(way for way, _ in replaced)
    return Change(changed, len(histories), tangent, detached, ways, turned)


def _replaced(before: State, arg: Any) -> list[tuple[tuple[str, ...], Any]]:
    """The plain parts that are other tensors than before, and the names that lead to them."""
    former = {way: part for way, part, _ in before.parts}
    return [
        (way, part)
        for way, part in _paths(arg, ())
        if not is_wrapper(part) and part is not former[way]
    ]


def _turned(before: State, arg: Any, layout: Layout) -> tuple[Any, ...]:
    """The parts that have another geometry than before, in the same memory.

    Raises:
        UnsupportedOperator: one begins elsewhere in memory, is of another dtype, or its sizes vary.
    """
    former = {way: (part, geometry) for way, part, geometry in before.parts}
    found: list[Any] = []
    for way, part in _paths(arg, ()):
        was, (shape, stride, *rest) = former[way]
        now_shape, now_stride, *now_rest = _geometry(part)
        if part is not was or (shape, stride, rest) == (now_shape, now_stride, now_rest):
            continue
        if is_wrapper(part) or rest != now_rest:
            raise _remade(layout)
        if not all(type(number) is int for number in (*now_shape, *now_stride)):
            raise _remade(layout)
        found.append((way, now_shape, now_stride))
    return tuple(found)


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    offset = 0 if is_wrapper(tensor) else tensor.storage_offset()
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, offset


def _paths(tensor: Any, way: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The parts of a tensor at all depths, and the names that lead to them."""
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):
            yield (*way, name), part
            if is_wrapper(part):
                yield from _paths(part, (*way, name))


def _remade(layout: Layout) -> UnsupportedOperator:
    return UnsupportedOperator(
        f"a change of the shape or the make of a {layout.kind.__name__} in place",
        "the caller's own would have to be taken apart and put together as another",
        "use the out-of-place operator",
    )


def require_whole(layout: Layout, made: Any) -> None:
    """Raise unless a tensor put together of its parts is the one that was taken apart, in sizes and strides.

    Raises:
        UnsupportedOperator: the class makes another; one whose parts were turned by `t_` keeps its own sizes in eager.
    """
    with torch._C.DisableTorchFunctionSubclass():
        same = tuple(made.shape) == layout.shape and tuple(made.stride()) == layout.stride
    if not same:
        raise _remade(layout)


def _write_to_a_leaf(leaf: Leaf) -> None:
    """Raise what eager raises."""
    with torch.enable_grad():
        one = torch.zeros(1, requires_grad=True)
        (one[0] if leaf == "view" else one).mul_(1)


def apply_change(change: Change, arg: Any, values: Iterator[Any]) -> None:
    """Make an input what the program made of it; its parts' memory is written already."""
    for way in change.replaced:
        owner = arg
        for name in way[:-1]:
            owner = getattr(owner, name)
        setattr(owner, way[-1], next(values))
    for way, shape, stride in change.turned:
        part = arg
        for name in way:
            part = getattr(part, name)
        with preserve_version(part):  # counted by the whole tensor
            part.as_strided_(shape, stride)
    histories = [next(values) for _ in range(change.histories)]
    if change.detached:
        arg.detach_()
    if histories:
        with torch.enable_grad(), preserve_version(arg):
            Rewritten.apply(arg, change.tangent, *histories)
    count_up(arg, change.versions)


def count_up(tensor: Any, changes: int) -> None:
    """Tell autograd of so many changes in place."""
    for _ in range(changes):
        increment_version(tensor)


def version_of(value: Any) -> int:
    """How often a tensor was changed in place; 0 where nobody counts."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0
