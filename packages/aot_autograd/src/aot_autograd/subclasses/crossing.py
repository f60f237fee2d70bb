"""Gradients and histories that pass between a tensor subclass and its plain parts.

`Unwrap` and `Wrap` are the two ways across: a gradient of a subclass is a subclass, or rides in a `Carrier` where it is
made in another way than was traced. `Rewritten`, `History` and `Anchored` carry what autograd knows of a change in
place. What a compiled backward returns is put together by `MadeOf`. Invariant: values pass as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import is_sole_owner
from aot_autograd.carried import carried, carrier_of
from aot_autograd.sizes import zeros_of
from aot_autograd.subclasses.layouts import (
    Layout,
    part_count,
    parts_of,
    put_together,
    take_apart,
)
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot_autograd.sparse import SparseOf
    from primtorch.fake import TensorMeta

__all__ = [
    "Anchored",
    "History",
    "MadeOf",
    "Rewritten",
    "gradients_of_results",
    "has_gradient",
    "tangent_layout",
    "unwrapped",
    "wrapped",
]


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
        ctx.mark_non_differentiable(*[part for part in made if not has_gradient(part)])
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The subclass's gradient; an absent part is zeros."""
        if all(gradient is None for gradient in gradients):
            return None, None
        whole = carried(gradients)
        if whole is not None:
            return whole, None
        filled = [
            torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
            for gradient, (shape, dtype, device) in zip(gradients, ctx.metas, strict=True)
        ]
        if not torch.is_grad_enabled():
            filled = list(map(for_one_owner, filled))
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
        ctx.metas = _metas(parts)
        ctx.set_materialize_grads(False)
        return put_together(layout, iter([part.detach() for part in parts]))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of the parts."""
        return (None, None, None, *_taken_apart(gradient, ctx))


class Rewritten(torch.autograd.Function):
    """A subclass whose parts' memory was written -> itself, as the result of what made its new parts."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, expected: Layout, *histories: Any) -> Any:
        """The tensor itself.

        `histories` have the shapes of its parts, and stand for how their values came about.
        """
        ctx.mark_dirty(tensor)
        ctx.expected, ctx.gradient, ctx.is_view = expected, None, tensor._is_view()
        ctx.metas = _metas(histories)
        ctx.set_materialize_grads(False)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of the parts; the tensor's former value has no share."""
        # What a view gives for itself is handed to its base, with the rest of the base's gradient.
        nothing = torch.zeros_like(gradient) if ctx.is_view and gradient is not None else None
        return (nothing, None, *_taken_apart(gradient, ctx))


class History(torch.autograd.Function):
    """A part -> a tensor of its shape that has its history and no memory."""

    @staticmethod
    def forward(_ctx: Any, part: torch.Tensor) -> torch.Tensor:
        """One zero, repeated."""
        return part.new_zeros(()).expand(part.shape)

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """The gradient as it is."""
        return gradient


class Anchored(torch.autograd.Function):
    """A part without a history and a tensor that has it -> the part with that history."""

    @staticmethod
    def forward(_ctx: Any, part: torch.Tensor, _history: torch.Tensor) -> torch.Tensor:
        """Another tensor on the part's memory."""
        return part.detach()

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """The gradient, for the history."""
        return None, gradient


def unwrapped(tensor: Any, gradient: list[Layout] | None = None) -> Sequence[Any]:
    """The plain parts, with the tensor's history; `gradient` as in `Unwrap`."""
    if tensor.requires_grad and torch.is_grad_enabled():
        parts: Sequence[Any] = Unwrap.apply(tensor, [] if gradient is None else gradient)
        return parts
    return [part.detach() for part in parts_of(tensor)]


def wrapped(
    layout: Layout | None,
    values: Iterator[Any],
    gradient: list[Layout] | None = None,
    expected: Layout | None = None,
) -> Any:
    """A tensor of this layout from the next of `values`, with their histories; arguments as of `Wrap`."""
    if layout is None:
        return next(values)
    parts = [next(values) for _ in range(part_count(layout))]
    if any(part.requires_grad for part in parts):
        with torch.enable_grad():
            return Wrap.apply(layout, gradient, expected or layout, *parts)
    return put_together(layout, iter([part.detach() for part in parts]))


def tangent_layout(output: Any, layout: Any) -> Layout:
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


def has_gradient(part: torch.Tensor) -> bool:
    """Whether a part's dtype has derivatives."""
    return part.dtype.is_floating_point or part.dtype.is_complex


def _metas(parts: Sequence[Any]) -> list[Any]:
    return [
        (tuple(part.shape), part.dtype, part.device) if has_gradient(part) else None
        for part in parts
    ]


def _taken_apart(gradient: Any, ctx: Any) -> list[Any]:
    """For each part its gradient.

    `ctx` holds the layout that is expected, or a list for the one that is found first; one that
    is made in another way is carried by the first part's.
    """
    if gradient is None:
        return [None for _ in ctx.metas]
    found = take_apart(gradient, [])
    if ctx.gradient is not None and not ctx.gradient and found is not None:
        ctx.gradient[:] = [found]
    expected = ctx.gradient[0] if ctx.gradient else ctx.expected
    if found != expected:
        gradient = _as_expected(gradient, expected)
    fits = take_apart(gradient, []) == expected
    if not fits or len(parts_of(gradient)) != len(ctx.metas):
        first = next(number for number, meta in enumerate(ctx.metas) if meta is not None)
        carrier = carrier_of(gradient, ctx.metas[first])
        return [carrier if number == first else None for number in range(len(ctx.metas))]
    parts = unwrapped(gradient)
    return [None if meta is None else part for part, meta in zip(parts, ctx.metas, strict=True)]


def _as_expected(gradient: Any, layout: Layout) -> Any:
    """A gradient in the layout that was traced, where the subclass has a conversion; else as it is."""
    if not hasattr(gradient, "__coerce_same_metadata_as_tangent__"):
        return gradient
    # The wanted type is named only where it is another one.
    wanted = () if type(gradient) is layout.kind else (layout.kind,)
    converted = gradient.__coerce_same_metadata_as_tangent__(layout.context, *wanted)
    return gradient if converted is None else converted


def for_one_owner(part: Any) -> Any:
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


@dataclass(frozen=True, slots=True)
class MadeOf:
    """How a gradient that a graph returns is put together: its layout, and what its parts are like."""

    layout: Layout
    metas: tuple[TensorMeta, ...]

    def __call__(self, parts: Sequence[Any], sizes: Any) -> Any:
        """The gradient; None where no part is there, and zeros for a part that is not."""
        if all(part is None for part in parts):
            return None
        filled = [
            zeros_of(meta, sizes) if part is None else part
            for part, meta in zip(parts, self.metas, strict=True)
        ]
        return put_together(self.layout, iter(list(map(for_one_owner, filled))))


def gradients_of_results(
    made_of: Sequence[MadeOf | SparseOf | None],
) -> Callable[[Sequence[Any], Any], list[Any]]:
    """A function that makes the gradients of what a backward graph returns."""

    def made(results: Sequence[Any], sizes: Any) -> list[Any]:
        remaining = iter(results)
        return [
            next(remaining) if one is None else one([next(remaining) for _ in one.metas], sizes)
            for one in made_of
        ]

    return made
