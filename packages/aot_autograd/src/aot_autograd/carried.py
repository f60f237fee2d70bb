"""Gradients that are made in another way than the tensor they belong to.

Comes in: a gradient for which a node of the graph of parts has no place: a plain one of a subclass, a subclass of
another kind, context or other parts. Goes out: a `Carrier`, which has the shape of one part and holds the gradient
whole, from `Wrap` to the compiled node or from there to `Unwrap`. Invariant: nothing computes with a carrier; who finds
one among gradients takes it apart like any other tensor made of tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from aot_autograd.errors import AotError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Carrier", "carried", "carrier_of"]

Shape = tuple[tuple[int, ...], torch.dtype, torch.device]


class Carrier(torch.Tensor):
    """A tensor that says it is a part's gradient and holds the whole gradient."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    gradient: torch.Tensor
    part: Shape

    @staticmethod
    def __new__(cls: type[Self], gradient: torch.Tensor, part: Shape) -> Self:
        """A carrier with the shape, dtype and device of a part."""
        shape, dtype, device = part
        made: Self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.gradient, made.part = gradient, part
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Shape]:
        """Its only part, and what else it is made with."""
        return ["gradient"], self.part

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], part: Shape, *_: object) -> Carrier:
        """A carrier of this gradient."""
        return Carrier(inner["gradient"], part)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, _types: Any, args: tuple[Any, ...] = (), _kwargs: Any = None
    ) -> Carrier:
        """Only what leaves a tensor as it is.

        Raises:
            AotError: for all else; nothing has a reason to call it.
        """
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Carrier(func(args[0].gradient), args[0].part)
        raise AotError(
            f"{func} on a gradient on its way to another node",
            "only autograd's engine should meet it",
            "please report it with the output of compile_api.explain",
        )


class Carry(torch.autograd.Function):
    """A gradient -> its carrier; differentiable."""

    @staticmethod
    def forward(_ctx: Any, gradient: torch.Tensor, part: Shape) -> Carrier:
        """The carrier."""
        return Carrier(gradient.detach(), part)

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """What the carrier's own gradient carries."""
        return carried([gradient]), None


class Uncarry(torch.autograd.Function):
    """A carrier -> what it carries; differentiable."""

    @staticmethod
    def forward(ctx: Any, carrier: Carrier) -> torch.Tensor:
        """The gradient that it holds."""
        ctx.part = carrier.part
        return carrier.gradient.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The carrier of its gradient."""
        return carrier_of(gradient, ctx.part)


def carrier_of(gradient: torch.Tensor, part: Shape) -> Carrier:
    """A carrier of the gradient with the shape of a part."""
    if gradient.requires_grad and torch.is_grad_enabled():
        made: Carrier = Carry.apply(gradient, part)
        return made
    return Carrier(gradient, part)


def carried(gradients: Sequence[Any]) -> Any:
    """The gradient that one of these carries; None if none is a carrier."""
    for gradient in gradients:
        if type(gradient) is Carrier:
            follows = gradient.requires_grad and torch.is_grad_enabled()
            return Uncarry.apply(gradient) if follows else gradient.gradient
    return None
