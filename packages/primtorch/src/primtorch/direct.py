"""Operators handed to the context of their fakes without C++ in between, and their derivatives.

C++ takes an argument that a schema calls `float` as a number; a context takes it as it is, a number that varies
included. Comes in: an operator and its arguments, of which one is a fake tensor. Goes out: what the context makes of
it, with a node of autograd where a tensor needs a gradient. Invariant: nothing here asks for a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch._torch import handed_over
from primtorch.fake.tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from primtorch.fake.tensor import FakeContext

__all__ = ["context_of", "differentiable", "direct"]


def context_of(value: object) -> FakeContext | None:
    """The context of the first fake."""
    if isinstance(value, FakeTensor):
        return value.context
    if isinstance(value, list | tuple):
        return next(filter(None, map(context_of, value)), None)
    return None


def direct(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The operator's results, below autograd; with a derivative to come, a number becomes a constant."""
    context = context_of((*args, *kwargs.values()))
    assert context is not None, "who calls this has looked for a fake"
    if torch.is_grad_enabled() and any(
        isinstance(one, torch.Tensor) and one.requires_grad for one in args
    ):
        return operator(*args, **kwargs)
    with handed_over():
        return context.handle(operator, args, kwargs)


class _Operator(torch.autograd.Function):
    """An operator and its derivative as one node of autograd."""

    @staticmethod
    def forward(
        ctx: Any, operator: Any, args: Any, places: Any, derivative: Any, *tensors: Any
    ) -> Any:
        """Run the operator on `args` with `tensors` in their places."""
        whole = list(args)
        for place, tensor in zip(places, tensors, strict=True):
            whole[place] = tensor
        results = direct(operator, *whole)
        kept = results if isinstance(results, tuple) else (results,)
        ctx.derivative = derivative
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        ctx.mark_non_differentiable(*kept[1:])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients for the tensors."""
        if grads[0] is None:
            return (None,) * (4 + ctx.count)
        saved = ctx.saved_tensors
        found = ctx.derivative(saved[: ctx.count], saved[ctx.count :], grads[0])
        return (None, None, None, None, *(found if isinstance(found, tuple) else (found,)))


def differentiable(
    operator: OpOverload,
    args: tuple[Any, ...],
    places: tuple[int, ...],
    derivative: Callable[..., Any],
) -> Any:
    """The operator's results; `derivative(tensors, results, grad)` gives the gradients of the first.

    Args:
        operator: the operator.
        args: its positional arguments.
        places: which of them are differentiable tensors, or None in their place.
        derivative: gets the tensors at `places`, all results, and the gradient of the first.
    """
    tensors = [args[place] for place in places]
    rest = tuple([None if place in places else one for place, one in enumerate(args)])
    return _Operator.apply(operator, rest, places, derivative, *tensors)
