"""Shape rules of pointwise operators: one rule by promotion kind, over tables of operator names.

All operands that are tensors broadcast; the output takes TensorIterator's memory order.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import (
    broadcast,
    common_device,
    format_strides,
    pointwise_strides,
)
from primtorch.fake.meta import TensorMeta
from primtorch.fake.promotion import floating, real_of, result_dtype
from primtorch.fake.registry import register, shape_rule, symbolic_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primtorch.symbolic import Sizes


def pointwise(
    sizes: Sizes, operands: Sequence[Any], dtype: torch.dtype, common: torch.dtype | None = None
) -> TensorMeta:
    """The result of a pointwise operator on these operands; others than tensors are scalars."""
    tensors = [operand for operand in operands if operand.__class__ is TensorMeta]
    first = tensors[0]
    if len(tensors) == 1:
        shape, device = first.shape, first.device
    else:
        shape = broadcast(sizes, *[tensor.shape for tensor in tensors])
        device = common_device(tensors)
    if common is not None and device.type == "cpu":
        # On the CPU operands of other dtypes are cast first, and a cast makes overlapping or
        # gappy memory dense.
        tensors = [m if m.dtype is common else _cast(sizes, m) for m in tensors]
    with_number = any(
        operand is not None and operand.__class__ is not TensorMeta for operand in operands
    )
    stride = pointwise_strides(sizes, shape, tensors, with_number=with_number)
    return TensorMeta(shape, stride, dtype, device)


def _cast(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    return TensorMeta(x.shape, format_strides(sizes, x, x.shape, None), x.dtype, x.device)


def _same(sizes: Sizes, *args: Any, **kwargs: Any) -> TensorMeta:
    """Computes and returns in the promoted dtype of all tensors and numbers."""
    del kwargs
    dtype = result_dtype(args)
    return pointwise(sizes, args, dtype, dtype)


def _same_alone(sizes: Sizes, *args: Any, **kwargs: Any) -> TensorMeta:
    """As `_same`, but the numbers are parameters: they have no part in the memory order."""
    del kwargs
    dtype = result_dtype(args)
    return pointwise(sizes, [a for a in args if a.__class__ is TensorMeta], dtype, dtype)


def _like(sizes: Sizes, x: TensorMeta, *parameters: Any, **more: Any) -> TensorMeta:
    """In memory that is made like that of the input; the numbers are parameters."""
    del parameters, more
    return TensorMeta(x.shape, format_strides(sizes, x, x.shape, None), x.dtype, x.device)


def _kept(sizes: Sizes, *args: Any, **kwargs: Any) -> TensorMeta:
    """Returns in the promoted dtype of the tensors; the numbers are parameters."""
    del kwargs
    tensors = [argument for argument in args if argument.__class__ is TensorMeta]
    return pointwise(sizes, tensors, result_dtype(tensors))


def _floated(sizes: Sizes, *args: Any, **kwargs: Any) -> TensorMeta:
    """As `_same`, with integers promoted to the default floating dtype."""
    del kwargs
    dtype = floating(result_dtype(args))
    return pointwise(sizes, args, dtype, dtype)


def _kept_floated(sizes: Sizes, *args: Any, **kwargs: Any) -> TensorMeta:
    """As `_kept`, with integers promoted to the default floating dtype."""
    del kwargs
    tensors = [argument for argument in args if argument.__class__ is TensorMeta]
    return pointwise(sizes, tensors, floating(result_dtype(tensors)))


def _truth(sizes: Sizes, *args: Any, **kwargs: Any) -> TensorMeta:
    """Returns bool."""
    del kwargs
    return pointwise(sizes, args, torch.bool, result_dtype(args))


def _real(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """Returns the real dtype of a complex input."""
    return pointwise(sizes, (x,), real_of(x.dtype))


def _for_overloads(rule: Callable[..., Any], names: str, overloads: str) -> None:
    for name in names.split():
        register(rule, *(f"{name}.{overload}" for overload in overloads.split()))


_for_overloads(_real, "abs", "default")
_for_overloads(
    _kept,
    """relu sign sgn ceil floor trunc frac bitwise_not positive square conj_physical
    hardswish hardsigmoid elu celu leaky_relu gelu silu mish softplus softshrink
    hardshrink threshold relu6 _conj_physical fill
    _prelu_kernel""",
    "default",
)
_for_overloads(_kept, "round", "default decimals")
_for_overloads(_like, "nan_to_num hardtanh", "default")


@shape_rule("rrelu_with_noise_functional")
def rrelu_with_noise_functional(
    sizes: Sizes, x: TensorMeta, noise: TensorMeta, *options: Any, **more: Any
) -> tuple[TensorMeta, TensorMeta]:
    """The result, and the slopes that were drawn."""
    del options, more
    return _kept(sizes, x), _kept(sizes, noise)


@shape_rule("neg")
def neg(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """-x of numbers."""
    if x.dtype is torch.bool:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        )
    return _kept(sizes, x)


_for_overloads(
    _kept_floated,
    """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh sqrt rsqrt reciprocal sigmoid erf erfc erfinv lgamma digamma i0 special_i0e special_i1
    special_i1e special_ndtri special_erfcx special_entr special_log_ndtr logit sinc polygamma
    rad2deg deg2rad special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_airy_ai special_spherical_bessel_j0""",
    "default",
)
_for_overloads(_truth, "isposinf isneginf isinf isnan isfinite logical_not signbit", "default")


def _refuse_alpha(dtype: torch.dtype, alpha: Any) -> None:
    """Raises what eager raises for a factor that the result's dtype has no room for."""
    if isinstance(alpha, bool) and dtype is not torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )


def _added(sizes: Sizes, x: Any, other: Any, alpha: Any = 1) -> TensorMeta:
    """Operands and a factor of the second."""
    result = _same(sizes, x, other)
    _refuse_alpha(result.dtype, alpha)
    return result


def _subtracted(sizes: Sizes, x: Any, other: Any, alpha: Any = 1) -> TensorMeta:
    """As `_added`; eager takes no truth values apart."""
    bools = [
        one.dtype is torch.bool if isinstance(one, TensorMeta) else isinstance(one, bool)
        for one in (x, other)
    ]
    if all(bools):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead."
        )
    if any(bools):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying "
            "to invert a mask, use the `~` or `logical_not()` operator instead."
        )
    return _added(sizes, x, other, alpha)


_for_overloads(_added, "add", "Tensor Scalar Scalar_Tensor")
_for_overloads(_subtracted, "sub rsub", "Tensor Scalar Scalar_Tensor")
_for_overloads(
    _same,
    """mul remainder fmod bitwise_and bitwise_or bitwise_xor
    bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__
    floor_divide""",
    "Tensor Scalar Scalar_Tensor",
)
_for_overloads(_same, "bitwise_left_shift bitwise_right_shift", "Tensor_Scalar")
_for_overloads(_same, "pow", "Tensor_Tensor")
_for_overloads(_same_alone, "pow", "Tensor_Scalar")
_for_overloads(_same, "floor_divide maximum minimum fmax fmin gcd lcm hypot nextafter", "default")
_for_overloads(_kept, "_add_relu", "Tensor")
_for_overloads(_same, "_add_relu", "Scalar")
_for_overloads(_floated, "div true_divide copysign", "Tensor Scalar")
_for_overloads(_floated, "atan2 logaddexp logaddexp2 igamma igammac", "default")
_for_overloads(_floated, "xlogy", "Tensor Scalar_Self Scalar_Other")
_for_overloads(
    _floated,
    """special_xlog1py special_zeta special_chebyshev_polynomial_t special_chebyshev_polynomial_u
    special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h
    special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w""",
    "default other_scalar self_scalar x_scalar n_scalar",
)
_for_overloads(_truth, "eq ne lt le gt ge", "Tensor Scalar")
_for_overloads(_truth, "logical_and logical_or logical_xor", "default")
_for_overloads(_kept, "heaviside", "default")
_for_overloads(_same, "clamp clamp_min clamp_max", "Tensor")
_for_overloads(_same_alone, "clamp clamp_min clamp_max", "default")
_for_overloads(_kept, "lerp", "Scalar Tensor")
_for_overloads(_kept, "addcmul", "default")

# Backwards of pointwise operators: gradient and saved tensors broadcast and promote alike.
_for_overloads(
    _kept,
    """sigmoid_backward tanh_backward gelu_backward silu_backward threshold_backward elu_backward
    hardtanh_backward hardswish_backward hardsigmoid_backward leaky_relu_backward softplus_backward
    softshrink_backward hardshrink_backward mish_backward
    rrelu_with_noise_backward""",
    "default",
)
_for_overloads(_kept, "logit_backward", "default")


@shape_rule("div.Tensor_mode", "div.Scalar_mode")
def div_mode(
    sizes: Sizes, x: TensorMeta, other: Any, *, rounding_mode: str | None = None
) -> TensorMeta:
    """Division; with a rounding mode integers stay integers."""
    dtype = result_dtype((x, other))
    return pointwise(sizes, (x, other), floating(dtype) if rounding_mode is None else dtype)


@shape_rule("addcdiv")
def addcdiv(
    sizes: Sizes, x: TensorMeta, tensor1: TensorMeta, tensor2: TensorMeta, *, value: Any = 1
) -> TensorMeta:
    """Add value * tensor1 / tensor2, of floating tensors."""
    del value
    if not (tensor1.dtype.is_floating_point or tensor1.dtype.is_complex) and not (
        tensor2.dtype.is_floating_point or tensor2.dtype.is_complex
    ):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future release addcdiv "
            "will perform a true division of tensor1 and tensor2."
        )
    return _kept(sizes, x, tensor1, tensor2)


@shape_rule("where.self")
def where(sizes: Sizes, condition: TensorMeta, x: TensorMeta, other: TensorMeta) -> TensorMeta:
    """Elements of x or other; the condition takes part in the memory order."""
    return pointwise(sizes, (condition, x, other), result_dtype((x, other)))


@shape_rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(sizes: Sizes, x: TensorMeta, mask: TensorMeta, value: Any) -> TensorMeta:
    """Keep x where the mask is false, in row-major memory."""
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    del value
    return x.contiguous(broadcast(sizes, x.shape, mask.shape))


@shape_rule("log_sigmoid_forward")
def log_sigmoid_forward(sizes: Sizes, x: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    """(output, buffer); the CPU keeps exp(-|x|) in the buffer, CUDA nothing."""
    if x.device.type == "cpu":
        return x.contiguous(), x.contiguous()
    return pointwise(sizes, (x,), x.dtype), x.contiguous((0,))


@shape_rule("log_sigmoid_backward")
def log_sigmoid_backward(
    sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, buffer: TensorMeta
) -> TensorMeta:
    """The gradient of the input."""
    operands = (grad_output, x, buffer) if x.device.type == "cpu" else (grad_output, x)
    return pointwise(sizes, operands, x.dtype)


@shape_rule("angle")
def angle(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """The argument of each number."""
    if x.dtype.is_complex:
        return x.contiguous(x.shape, real_of(x.dtype))
    return pointwise(sizes, (x,), floating(x.dtype))


def _require_real_parts(first: TensorMeta, second: TensorMeta) -> None:
    if not {first.dtype, second.dtype} <= {torch.float16, torch.float32, torch.float64}:
        raise RuntimeError(
            "Expected both inputs to be Half, Float or Double tensors but got "
            f"{first.dtype} and {second.dtype}"
        )
    if first.dtype is not second.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {first.dtype} but got scalar type {second.dtype} for "
            "second argument"
        )


@shape_rule("complex")
def complex_(sizes: Sizes, real: TensorMeta, imag: TensorMeta) -> TensorMeta:
    """Complex numbers from their parts."""
    from primtorch.fake.promotion import complex_of

    _require_real_parts(real, imag)
    return pointwise(sizes, (real, imag), complex_of(real.dtype))


@shape_rule("polar")
def polar(sizes: Sizes, abs: TensorMeta, angle: TensorMeta) -> TensorMeta:
    """Complex numbers from absolute value and argument."""
    return complex_(sizes, abs, angle)


@shape_rule("frexp.Tensor")
def frexp(sizes: Sizes, x: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    """Mantissa and exponent."""
    return pointwise(sizes, (x,), x.dtype), pointwise(sizes, (x,), torch.int32)


def _loss_backward(sizes: Sizes, grad: TensorMeta, x: TensorMeta, *rest: Any) -> TensorMeta:
    tensors = [m for m in (grad, x, *rest) if m.__class__ is TensorMeta]
    return pointwise(sizes, (grad, x, *rest[:1]), result_dtype(tensors))


for _name in ("mse_loss_backward", "smooth_l1_loss_backward"):
    register(_loss_backward, _name)
register(partial(_loss_backward), "soft_margin_loss_backward")


@shape_rule("multilabel_margin_loss_forward")
def multilabel_margin_loss(
    sizes: Sizes, x: TensorMeta, target: TensorMeta, reduction: int
) -> tuple[TensorMeta, TensorMeta]:
    """(the loss of each row, or one number; which classes are targets)."""
    del sizes
    each = x.shape[:-1] if reduction == 0 else ()
    return x.contiguous(each), x.contiguous(target.shape)


@shape_rule("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    sizes: Sizes, grad: TensorMeta, x: TensorMeta, *args: Any
) -> TensorMeta:
    """The gradient of the input, row-major."""
    del sizes, grad, args
    return x.contiguous()


@shape_rule("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    sizes: Sizes, grad: TensorMeta, log_probabilities: TensorMeta, *args: Any
) -> TensorMeta:
    """The gradient of the log probabilities, row-major."""
    del sizes, grad, args
    return log_probabilities.contiguous()


@shape_rule("huber_loss_backward")
def huber_loss_backward(
    sizes: Sizes, grad: TensorMeta, x: TensorMeta, target: TensorMeta, *args: Any
) -> TensorMeta:
    """The gradient of the input, row-major."""
    del grad, args
    return x.contiguous(broadcast(sizes, x.shape, target.shape))


@shape_rule("pow.Scalar")
def pow_scalar(sizes: Sizes, base: Any, exponent: TensorMeta) -> TensorMeta:
    """A number to the power of each element, row-major."""
    del sizes
    return exponent.contiguous(exponent.shape, result_dtype((base, exponent)))


@shape_rule("mvlgamma")
def mvlgamma(sizes: Sizes, x: TensorMeta, p: int) -> TensorMeta:
    """The multivariate log-gamma function, row-major."""
    del sizes, p
    return x.contiguous(x.shape, floating(x.dtype))


def _loss(sizes: Sizes, x: TensorMeta, target: TensorMeta, reduction: int = 1, *rest: Any) -> Any:
    """Pointwise losses with a reduction: 0 none, 1 mean, 2 sum."""
    del rest
    each = pointwise(sizes, (x, target), result_dtype((x, target)))
    return each if reduction == 0 else each.contiguous(())


for _name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
    register(_loss, _name)


@symbolic_rule("ldexp.Tensor")
def ldexp(sizes: Sizes, x: TensorMeta, other: TensorMeta) -> TensorMeta:
    """x times 2 to the other; an integer exponent counts as the default floating dtype."""
    exponent = floating(other.dtype)
    return pointwise(sizes, (x, other), result_dtype((x, other.with_dtype(exponent))))
