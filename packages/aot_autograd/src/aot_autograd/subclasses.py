"""Tensor subclasses that are made of tensors: compiled as the tensors that they are made of.

Comes in: a flat function, some of whose inputs have `__tensor_flatten__` (nested ones too). Goes out: a function of
their parts, which rebuilds the subclasses for the program, and a callable that takes parts out of real inputs and
rebuilds real outputs. `Unwrap` and `Wrap` carry gradients across: a gradient of a subclass is a subclass. What the
subclass's own `__torch_dispatch__` does with its parts is recorded operator by operator. Invariant: graphs and
compilers see plain tensors only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import (
    has_own_operators,
    increment_version,
    is_sole_owner,
    shares_version,
    view_maker,
)
from aot_autograd.errors import UnsupportedOperator
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot_autograd.runtime import Boxed

    FlatFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Given:
    """A part that is no tensor: the same object in every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class Layout:
    """How a subclass is made: its type, its parts by name (None: a plain tensor), and the rest."""

    kind: Any
    names: tuple[str, ...]
    parts: tuple[Layout | Given | None, ...]
    context: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] = field(compare=False)


@dataclass(frozen=True, slots=True)
class View:
    """An output that is a view of an input: made of the real one, so that autograd knows it as such."""

    input: int
    make: Callable[[torch.Tensor], torch.Tensor]


class ReturnedError(Exception):
    """A function without subclasses among its inputs returns one: it must be translated."""


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


def _for_one_owner(part: Any) -> Any:
    """A gradient's part that only this gradient holds.

    Autograd copies a gradient that several tensors get, or somebody else holds, before it adds to it in place;
    inside of a subclass it would not see that.
    """
    if isinstance(part, FakeTensor):
        return part
    if hasattr(part, "_has_owner") or not is_sole_owner(part):
        return part.clone()
    part._has_owner = True
    return part


def _has_gradient(part: torch.Tensor) -> bool:
    return part.dtype.is_floating_point or part.dtype.is_complex


class Unwrap(torch.autograd.Function):
    """A subclass -> its plain parts; the gradients of the parts make the subclass's gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, gradient: list[Layout]) -> Any:
        """The parts, as tensors of their own on the same memory.

        `gradient` holds the layout of the gradient; while it is empty, it is the tensor's.
        """
        parts: list[Any] = []
        ctx.layout, ctx.gradient = take_apart(tensor, parts), gradient
        made = tuple(part.detach() for part in parts)
        ctx.metas = [(part.shape, part.dtype, part.device) for part in made]
        ctx.mark_non_differentiable(*[part for part in made if not _has_gradient(part)])
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The subclass's gradient; an absent part is zeros."""
        if all(gradient is None for gradient in gradients):
            return None, None
        filled = [
            torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
            for gradient, (shape, dtype, device) in zip(gradients, ctx.metas, strict=True)
        ]
        if not torch.is_grad_enabled():
            filled = list(map(_for_one_owner, filled))
        layout = ctx.gradient[0] if ctx.gradient else ctx.layout
        return Wrap.apply(layout, None, layout, *filled), None


class Wrap(torch.autograd.Function):
    """Plain parts -> a subclass; its gradient is taken apart."""

    @staticmethod
    def forward(
        ctx: Any, layout: Layout, gradient: list[Layout] | None, expected: Layout, *parts: Any
    ) -> Any:
        """The subclass; the layout of its gradient is put into `gradient` when it is known.

        Without such a list the gradient must have the layout `expected`.
        """
        ctx.expected, ctx.gradient = expected, gradient
        ctx.differentiable = [_has_gradient(part) for part in parts]
        ctx.set_materialize_grads(False)
        return put_together(layout, iter([part.detach() for part in parts]))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of the parts."""
        if gradient is None:
            return (None, None, None, *[None for _ in ctx.differentiable])
        found = take_apart(gradient, [])
        if ctx.gradient is not None and found is not None:
            ctx.gradient[:] = [found]
        elif found != ctx.expected:
            gradient = _as_expected(gradient, ctx.expected)
        parts = _unwrapped(gradient)
        pairs = zip(parts, ctx.differentiable, strict=True)
        return (None, None, None, *[part if own else None for part, own in pairs])


def _as_expected(gradient: Any, layout: Layout) -> Any:
    """A gradient in the layout that was traced, by the subclass's own conversion.

    Raises:
        UnsupportedOperator: if there is none.
    """
    converted = None
    if hasattr(gradient, "__coerce_same_metadata_as_tangent__"):
        # The wanted type is named only where it is another one.
        wanted = () if type(gradient) is layout.kind else (layout.kind,)
        converted = gradient.__coerce_same_metadata_as_tangent__(layout.context, *wanted)
    if converted is None or type(converted) is not layout.kind:
        raise UnsupportedOperator(
            f"the gradient of a {layout.kind.__name__}",
            f"it is a {type(gradient).__name__} made in another way than the one that was traced",
            "let the loss be computed by the subclass's own operators",
        )
    return converted


def _parts_of(tensor: Any) -> list[Any]:
    parts: list[Any] = []
    take_apart(tensor, parts)
    return parts


def _unwrapped(tensor: Any, gradient: list[Layout] | None = None) -> Sequence[Any]:
    if tensor.requires_grad and torch.is_grad_enabled():
        parts: Sequence[Any] = Unwrap.apply(tensor, [] if gradient is None else gradient)
        return parts
    return [part.detach() for part in _parts_of(tensor)]


@dataclass(slots=True)
class Translation:
    """A function of parts, and what is needed to call it with subclasses.

    Attributes:
        inputs: For each of the caller's inputs its layout; None for a plain value.
        outputs: For each output of the program its layout, the input that it is or views, or
            None; known once the function was traced.
        versions: How often the program changes each input that is a subclass in place.
        changes: How often each output was changed in place since it was made.
        tangents: For each output that is a subclass the layout in which its gradient comes in.
        gradients: For each input the layout of its gradient, once it is known.
    """

    function: FlatFunction
    inputs: list[Layout | None]
    outputs: list[Layout | View | int | None] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)
    changes: list[int] = field(default_factory=list)
    tangents: list[Layout | None] = field(default_factory=list)
    gradients: list[list[Layout]] = field(default_factory=list)

    def parts(self, args: Sequence[Any]) -> list[Any]:
        """The caller's inputs as plain values."""
        flat: list[Any] = []
        for layout, value, gradient in zip(self.inputs, args, self.gradients, strict=True):
            if layout is None:
                flat.append(value)
            else:
                flat.extend(_unwrapped(value, gradient))
        return flat

    def __call__(self, *flat: Any) -> Sequence[Any]:
        """Traced: rebuild the subclasses, run the program, take its outputs apart."""
        values = iter(flat)
        args = [
            _rebuilt(layout, values, gradient)
            for layout, gradient in zip(self.inputs, self.gradients, strict=True)
        ]
        before = [_version(arg) for arg in args]
        results: list[Any] = []
        self.outputs, self.tangents, self.changes = [], [], []
        for output in self.function(*args):
            position = next((n for n, arg in enumerate(args) if arg is output), None)
            tangent = None
            view = self._view_of_input(output, args) if position is None else None
            if position is not None and self.inputs[position] is not None:
                self.outputs.append(position)
            elif view is not None:
                self.outputs.append(view)
            elif is_wrapper(output):
                layout = take_apart(output, [])
                tangent = _tangent_layout(output, layout)
                self.outputs.append(layout)
                results.extend(_unwrapped(output, [tangent]))
            else:
                self.outputs.append(None)
                results.append(output)
            self.tangents.append(tangent)
            self.changes.append(_version(output) if tangent is not None else 0)
        self.versions = {}
        for position, (layout, arg) in enumerate(zip(self.inputs, args, strict=True)):
            if layout is not None:
                self._observe(position, layout, arg, _version(arg) - before[position])
        return results

    def _view_of_input(self, output: Any, args: Sequence[Any]) -> View | None:
        """How an output is made of an input that is a subclass, where autograd knows it as its view."""
        if not is_wrapper(output):
            return None
        if not output._is_view():
            return self._detached_input(output, args)
        base = output._base
        position = next((n for n, arg in enumerate(args) if arg is base), None)
        if position is None or self.inputs[position] is None:
            return None
        if output.requires_grad is not (base.requires_grad and torch.is_grad_enabled()):
            return None
        return View(position, view_maker(output))

    def _detached_input(self, output: Any, args: Sequence[Any]) -> View | None:
        """The input that an output is by `detach()`: they count their changes together."""
        if output.requires_grad or output.is_inference():
            return None
        for position, (arg, layout) in enumerate(zip(args, self.inputs, strict=True)):
            if layout is not None and shares_version(output, arg):
                same = output.shape == arg.shape and output.stride() == arg.stride()
                return View(position, torch.Tensor.detach) if same else None
        return None

    def _observe(self, position: int, layout: Layout, arg: Any, changes: int) -> None:
        if changes and (arg.requires_grad or tuple(arg.shape) != layout.shape):
            raise UnsupportedOperator(
                f"an in-place change of a {layout.kind.__name__}",
                "autograd follows it, or its shape changes",
                "write out of place",
            )
        if changes:
            self.versions[position] = changes

    def rebuilt(self, args: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
        """The program's outputs from those of the compiled parts."""
        remaining = iter(values)
        results: list[Any] = []
        for output, tangent, changes in zip(self.outputs, self.tangents, self.changes, strict=True):
            if isinstance(output, int):
                results.append(args[output])
            elif isinstance(output, View):
                results.append(output.make(args[output.input]))
            else:
                results.append(_rebuilt(output, remaining, expected=tangent))
                for _ in range(changes):
                    increment_version(results[-1])
        for position, changes in self.versions.items():
            for _ in range(changes):
                increment_version(args[position])
        return tuple(results)


def _tangent_layout(output: Any, layout: Any) -> Layout:
    """How the gradient of an output is made: as the output, unless its class says otherwise."""
    found = None
    if hasattr(output, "__coerce_tangent_metadata__"):
        ours: list[Any] = []
        theirs: list[Any] = []
        take_apart(output, ours)
        with torch.no_grad():
            found = take_apart(output.detach().__coerce_tangent_metadata__(), theirs)
        if [part.shape for part in ours] != [part.shape for part in theirs]:
            found = None  # the parts' gradients have the parts' shapes
    return layout if found is None else found


def _version(value: Any) -> int:
    """How often a tensor was changed in place; 0 where nobody counts."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def _rebuilt(
    layout: Layout | None,
    values: Iterator[Any],
    gradient: list[Layout] | None = None,
    expected: Layout | None = None,
) -> Any:
    if layout is None:
        return next(values)
    parts = [next(values) for _ in range(_count(layout))]
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        return Wrap.apply(layout, gradient, expected or layout, *parts)
    return put_together(layout, iter([part.detach() for part in parts]))


def _count(layout: Layout | Given | None) -> int:
    match layout:
        case None:
            return 1
        case Given():
            return 0
        case Layout():
            return sum(_count(part) for part in layout.parts)


def translated(function: FlatFunction, example_inputs: Sequence[Any]) -> Translation:
    """The function of the parts of its inputs."""
    layouts = [take_apart(value, []) if is_wrapper(value) else None for value in example_inputs]
    return Translation(function, layouts, gradients=[[] for _ in layouts])


def callable_of(translation: Translation, compiled: Boxed) -> Boxed:
    """The boxed callable that takes and gives subclasses, from the one that does with parts."""

    def call(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return translation.rebuilt(given, compiled(translation.parts(given)))

    call.boxed = True  # type: ignore[attr-defined]
    return call
