"""How a tensor subclass is made of other tensors, and the way there and back.

Comes in: a tensor with `__tensor_flatten__`, its parts perhaps of that kind again. Goes out: its plain parts in one
order, and a `Layout`, equal for tensors that are made in the same way, which puts such parts together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import has_own_operators
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Given", "Layout", "is_wrapper", "part_count", "parts_of", "put_together", "take_apart"]


@dataclass(frozen=True, slots=True)
class Given:
    """A part that is no tensor: the same object in every call."""

    value: Any

    def __hash__(self) -> int:
        """Of its type: the value may have no hash."""
        return hash(type(self.value))


@dataclass(frozen=True, slots=True)
class Layout:
    """How a subclass is made: its type, its parts by name (None: a plain tensor), and the rest."""

    kind: Any
    names: tuple[str, ...]
    parts: tuple[Layout | Given | None, ...]
    context: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] = field(compare=False)

    def __hash__(self) -> int:
        """Without the context, which may have no hash."""
        return hash((self.kind, self.names, self.parts, self.shape))


def is_wrapper(value: Any) -> bool:
    """Whether a value is a tensor made of tensors that says how to take it apart."""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, FakeTensor)
        and has_own_operators(type(value))
        and hasattr(value, "__tensor_flatten__")
        and hasattr(type(value), "__tensor_unflatten__")
    )


def take_apart(tensor: Any, parts: list[Any]) -> Layout | None:
    """The layout of a tensor, whose plain parts are appended; None for a plain tensor."""
    if not is_wrapper(tensor):
        parts.append(tensor)
        return None
    with torch._C.DisableTorchFunctionSubclass():  # its class must not answer for it
        names, context = tensor.__tensor_flatten__()
        inner = tuple(_part_of(getattr(tensor, name), parts) for name in names)
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return Layout(type(tensor), tuple(names), inner, context, shape, stride)


def _part_of(value: Any, parts: list[Any]) -> Layout | Given | None:
    return take_apart(value, parts) if isinstance(value, torch.Tensor) else Given(value)


def parts_of(tensor: Any) -> list[Any]:
    """The plain parts of a tensor."""
    parts: list[Any] = []
    take_apart(tensor, parts)
    return parts


def put_together(layout: Layout | Given | None, parts: Iterator[Any]) -> Any:
    """A tensor of this layout from its plain parts."""
    if layout is None:
        return next(parts)
    if isinstance(layout, Given):
        return layout.value
    inner = {
        name: put_together(part, parts)
        for name, part in zip(layout.names, layout.parts, strict=True)
    }
    with torch._C.DisableTorchFunctionSubclass():
        return layout.kind.__tensor_unflatten__(inner, layout.context, layout.shape, layout.stride)


def part_count(layout: Layout | Given | None) -> int:
    """Number of plain parts."""
    match layout:
        case None:
            return 1
        case Given():
            return 0
        case Layout():
            return sum(part_count(part) for part in layout.parts)
