"""Operators over lists of tensors, and fused optimizer steps: one tensor after another.

A compiler fuses what it sees tensor by tensor; the lists exist for eager's sake. Half types are
computed in float32 and each result is rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from primtorch.promotion import (
    Number,
    cast,
    computation_dtype,
)
from primtorch.registry import decomposes, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten

_UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor"),
    *("frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt"),
    *("sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "clone"),
)

# Name of the list operator -> operator for a tensor, operator for a number.
_BINARY = {
    "add": ("add.Tensor", "add.Scalar"),
    "sub": ("sub.Tensor", "sub.Scalar"),
    "mul": ("mul.Tensor", "mul.Scalar"),
    "div": ("div.Tensor", "div.Scalar"),
    "maximum": ("maximum", "clamp_min"),
    "minimum": ("minimum", "clamp_max"),
    "clamp_min": ("maximum", "clamp_min"),
    "clamp_max": ("minimum", "clamp_max"),
    "pow": ("pow.Tensor_Tensor", "pow.Tensor_Scalar"),
    "lerp": ("lerp.Tensor", "lerp.Scalar"),
}


def _named(name: str) -> Callable[..., Tensor]:
    found = overload(f"aten.{name}")
    assert found is not None, f"aten.{name} is in every supported torch"
    return found


def _register_unary(name: str) -> None:
    called = _named(name)

    def each(self: Sequence[Tensor], **options: Any) -> list[Tensor]:
        return [called(tensor, **options) for tensor in self]

    each.__name__ = each.__qualname__ = f"_foreach_{name}"
    decomposes(f"aten._foreach_{name}.default")(each)


def _register_binary(name: str, with_tensor: str, with_number: str) -> None:
    tensor_form, number_form = _named(with_tensor), _named(with_number)

    def each_number(self: Sequence[Tensor], scalar: Number) -> list[Tensor]:
        return [number_form(tensor, scalar) for tensor in self]

    def each_numbers(self: Sequence[Tensor], scalars: Sequence[Number]) -> list[Tensor]:
        return [number_form(tensor, number) for tensor, number in zip(self, scalars, strict=True)]

    def each_pair(self: Sequence[Tensor], other: Sequence[Tensor], **alpha: Number) -> list[Tensor]:
        return [tensor_form(left, right, **alpha) for left, right in zip(self, other, strict=True)]

    def each_tensor(self: Sequence[Tensor], other: Tensor, **alpha: Number) -> list[Tensor]:
        return [tensor_form(tensor, other, **alpha) for tensor in self]

    for tail, function in (
        ("Scalar", each_number),
        ("ScalarList", each_numbers),
        ("List", each_pair),
        ("Tensor", each_tensor),
    ):
        decomposes(f"aten._foreach_{name}.{tail}")(function)


def _register_fused_product(name: str) -> None:
    called = _named(name)

    def each(
        self: Sequence[Tensor],
        tensor1: Sequence[Tensor],
        tensor2: Sequence[Tensor],
        value: Number = 1,
    ) -> list[Tensor]:
        return [
            called(*operands, value=value) for operands in zip(self, tensor1, tensor2, strict=True)
        ]

    def each_numbers(
        self: Sequence[Tensor],
        tensor1: Sequence[Tensor],
        tensor2: Sequence[Tensor],
        scalars: Sequence[Number],
    ) -> list[Tensor]:
        return [
            called(first, second, third, value=number)
            for first, second, third, number in zip(self, tensor1, tensor2, scalars, strict=True)
        ]

    decomposes(f"aten._foreach_{name}.Scalar")(each)
    decomposes(f"aten._foreach_{name}.ScalarList")(each_numbers)


for _name in _UNARY:
    _register_unary(_name)
for _name, _forms in _BINARY.items():
    if _name != "lerp":
        _register_binary(_name, *_forms)
_register_fused_product("addcmul")
_register_fused_product("addcdiv")


@decomposes("aten._foreach_lerp.Scalar")
def foreach_lerp(
    self: Sequence[Tensor], tensors1: Sequence[Tensor], weight: Number
) -> list[Tensor]:
    """Interpolation by one number."""
    return [aten.lerp.Scalar(start, end, weight) for start, end in zip(self, tensors1, strict=True)]


@decomposes("aten._foreach_lerp.ScalarList")
def foreach_lerp_numbers(
    self: Sequence[Tensor], tensors1: Sequence[Tensor], weight: Sequence[Number]
) -> list[Tensor]:
    """Interpolation, each pair by its own number."""
    return [aten.lerp.Scalar(*operands) for operands in zip(self, tensors1, weight, strict=True)]


@decomposes("aten._foreach_lerp.List")
def foreach_lerp_tensors(
    self: Sequence[Tensor], tensors1: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    """Interpolation by tensors."""
    return [aten.lerp.Tensor(*operands) for operands in zip(self, tensors1, weights, strict=True)]


@decomposes("aten._foreach_pow.ScalarAndTensor")
def foreach_pow_of_number(self: Number, exponent: Sequence[Tensor]) -> list[Tensor]:
    """A number raised to each tensor."""
    return [aten.pow.Scalar(self, tensor) for tensor in exponent]


@decomposes("aten._foreach_norm.Scalar")
def foreach_norm(
    self: Sequence[Tensor], ord: Number = 2, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """The norm of each tensor."""
    return [
        aten.linalg_vector_norm.default(tensor, ord, None, False, dtype=dtype) for tensor in self
    ]


@decomposes("aten._foreach_max.default")
def foreach_max(self: Sequence[Tensor]) -> list[Tensor]:
    """The largest element of each tensor."""
    return [aten.max.default(tensor) for tensor in self]


@decomposes("aten._foreach_zero.default")
def foreach_zero(self: Sequence[Tensor]) -> list[Tensor]:
    """Zeros like each tensor."""
    return [aten.full_like.default(tensor, 0) for tensor in self]


@decomposes("aten._foreach_copy.default")
def foreach_copy(
    self: Sequence[Tensor], src: Sequence[Tensor], non_blocking: bool = False
) -> list[Tensor]:
    """Each source in the dtype and shape of its destination."""
    return [aten.copy.default(*pair, non_blocking) for pair in zip(self, src, strict=True)]


def _unscaled(grad: Tensor, scale: Tensor | None, *, maximize: bool) -> Tensor:
    """The gradient without the loss scale, in its computation dtype, its sign turned to maximise."""
    wide = cast(grad, computation_dtype(grad.dtype))
    if scale is not None:
        wide = wide / scale
    return -wide if maximize else wide


def _kept(found_inf: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    """The new value, or the old one where the scaler found an infinity."""
    rounded = cast(new, old.dtype)
    if found_inf is None:
        return rounded
    return aten.where.self(aten.eq.Scalar(found_inf, 1), old, rounded)


@decomposes("aten._fused_sgd.default", "aten._fused_sgd.tensor_lr")
def fused_sgd(
    self: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffer_list: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Stochastic gradient descent with momentum: new parameters, unscaled gradients, new buffers."""
    new_parameters, new_grads, new_buffers = [], [], []
    for position, (parameter, grad) in enumerate(zip(self, grads, strict=True)):
        unscaled = _unscaled(grad, grad_scale, maximize=False)
        new_grads.append(grad if grad_scale is None else cast(unscaled, grad.dtype))
        step = -unscaled if maximize else unscaled
        wide = cast(parameter, computation_dtype(parameter.dtype))
        if weight_decay:
            step = step + wide * weight_decay
        if momentum_buffer_list:
            old = momentum_buffer_list[position]
            buffer = step
            if not is_first_step:
                buffer = cast(old, step.dtype) * momentum + step * (1 - dampening)
            new_buffers.append(_kept(found_inf, old, buffer))
            step = step + buffer * momentum if nesterov else buffer
        new_parameters.append(_kept(found_inf, parameter, wide - step * lr))
    return new_parameters, new_grads, new_buffers


@decomposes("aten._fused_adagrad.default", "aten._fused_adagrad.tensor_lr")
def fused_adagrad(
    self: Sequence[Tensor],
    grads: Sequence[Tensor],
    state_sums: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:
    """AdaGrad: new parameters, unscaled gradients, new sums of squares, and the counts, which stay."""
    new_parameters, new_grads, new_sums = [], [], []
    for parameter, grad, total, count in zip(self, grads, state_sums, state_steps, strict=True):
        unscaled = _unscaled(grad, grad_scale, maximize=False)
        new_grads.append(grad if grad_scale is None else cast(unscaled, grad.dtype))
        step = -unscaled if maximize else unscaled
        wide = cast(parameter, computation_dtype(parameter.dtype))
        if weight_decay:
            step = step + wide * weight_decay
        squares = cast(total, step.dtype) + step * step
        rate = _exact(lr) / ((_exact(count) - 1) * lr_decay + 1)
        moved = wide - rate * step / (aten.sqrt.default(squares) + eps)
        new_sums.append(_kept(found_inf, total, squares))
        new_parameters.append(_kept(found_inf, parameter, moved))
    results: tuple[list[Tensor], ...] = (new_parameters, new_grads, new_sums)
    return results if isinstance(lr, Tensor) else (*results, list(state_steps))


def _exact(number: float | Tensor) -> float | Tensor:
    """A number that lives in a tensor, as precise as Python's floats: eager takes it from there.

    One minus a power close to one loses half of float32's digits.
    """
    if isinstance(number, Tensor) and number.dim() == 0 and number.is_floating_point():
        return cast(number, torch.float64)
    return number


def _adam_step(
    state: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor],
    grad: Tensor,
    options: dict[str, Any],
    *,
    decoupled: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """One tensor's new parameter, moments and largest second moment."""
    parameter, first, second, largest, _ = state
    count = _exact(state[-1])
    lr, beta1, beta2 = _exact(options["lr"]), options["beta1"], options["beta2"]
    wide = cast(parameter, computation_dtype(parameter.dtype))
    if options["weight_decay"]:
        if decoupled:
            wide = wide - wide * (lr * options["weight_decay"])
        else:
            grad = grad + wide * options["weight_decay"]
    average = cast(first, grad.dtype)
    average = average + (grad - average) * (1 - beta1)
    squares = cast(second, grad.dtype) * beta2 + grad * grad * (1 - beta2)
    correction_1 = aten.sub.Tensor(1.0, aten.pow.Scalar(beta1, count))
    correction_2 = aten.sub.Tensor(1.0, aten.pow.Scalar(beta2, count))
    used = squares
    if largest is not None:
        largest = used = aten.maximum.default(cast(largest, grad.dtype), squares)
    denominator = aten.sqrt.default(used) / aten.sqrt.default(correction_2) + options["eps"]
    size = aten.reciprocal.default(correction_1) * lr
    return wide - average * size / denominator, average, squares, largest


def _fused_adam(
    self: Sequence[Tensor],
    grads: Sequence[Tensor],
    moments: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
    state_steps: Sequence[Tensor],
    options: dict[str, Any],
    *,
    decoupled: bool,
) -> tuple[list[Tensor], ...]:
    grad_scale, found_inf = options.get("grad_scale"), options.get("found_inf")
    results: tuple[list[Tensor], ...] = ([], [], [], [], [])
    for position, (parameter, grad) in enumerate(zip(self, grads, strict=True)):
        unscaled = _unscaled(grad, grad_scale, maximize=False)
        results[1].append(grad if grad_scale is None else cast(unscaled, grad.dtype))
        step = -unscaled if options["maximize"] else unscaled
        first, second = moments[0][position], moments[1][position]
        largest = moments[2][position] if options["amsgrad"] else None
        state = (parameter, first, second, largest, state_steps[position])
        new = _adam_step(state, step, options, decoupled=decoupled)
        results[0].append(_kept(found_inf, parameter, new[0]))
        results[2].append(_kept(found_inf, first, new[1]))
        results[3].append(_kept(found_inf, second, new[2]))
        if largest is not None and new[3] is not None:
            results[4].append(_kept(found_inf, largest, new[3]))
    return results


@decomposes("aten._fused_adam.default", "aten._fused_adam.tensor_lr")
def fused_adam(
    self: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    **options: Any,
) -> tuple[list[Tensor], ...]:
    """Adam: new parameters, unscaled gradients, new moments."""
    moments = (exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    return _fused_adam(self, grads, moments, state_steps, options, decoupled=False)


@decomposes("aten._fused_adamw.default", "aten._fused_adamw.tensor_lr")
def fused_adamw(
    self: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    **options: Any,
) -> tuple[list[Tensor], ...]:
    """AdamW, the decay apart from the gradient: new parameters, unscaled gradients, new moments."""
    moments = (exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    return _fused_adam(self, grads, moments, state_steps, options, decoupled=True)
