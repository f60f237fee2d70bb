"""Activations and their derivatives, elementwise.

Each function receives its operands in the computation dtype (float32 for half types) and its result is rounded once;
see `primtorch.promotion.elementwise`. Functions that only select or pass values through need no such care.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from primtorch._torch import ONEDNN_BFLOAT16
from primtorch.promotion import (
    Promotion,
    cast,
    computation_dtype,
    elementwise,
    result_dtype,
    rounded,
)
from primtorch.registry import decomposes

aten = torch.ops.aten

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715
_SIXTH = 11184811 / 2**26
"""As eager has it: rounded to float32, for float64 too."""
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _check_approximation(approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")


@decomposes(aten.gelu.default)
def gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    """x times the normal distribution function at x, exact by erf or approximate by tanh."""
    _check_approximation(approximate)
    return _gelu(self, approximate=approximate, doubled=_is_onednn_gelu(self))


def _is_onednn_gelu(self: Tensor) -> bool:
    """Whether eager takes oneDNN's kernel, which doubles x before it halves it and gives NaN at infinity."""
    if self.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    count = self.numel()
    if self.dtype is not torch.float32 and not (self.dtype is torch.bfloat16 and ONEDNN_BFLOAT16):
        return False
    return not (isinstance(count, int) and count <= 1) and self.is_contiguous()


@elementwise()
def _gelu(self: Tensor, *, approximate: str, doubled: bool) -> Tensor:
    if approximate == "tanh":
        inner = (self + self * self * self * _TANH_CUBIC) * _TANH_SCALE
        return self * 0.5 * (aten.tanh.default(inner) + 1)
    twice = aten.erf.default(self * _SQRT_HALF) + 1
    if doubled:  # the product with zero is NaN at infinity, as eager's result
        return self * twice * 0.5 + self * 0.0
    return self * 0.5 * twice


@decomposes(aten.gelu_backward.default)
@elementwise()
def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    """Gradient of `gelu`."""
    _check_approximation(approximate)
    if approximate == "tanh":
        square = self * self
        tanh = aten.tanh.default((self + square * self * _TANH_CUBIC) * _TANH_SCALE)
        slope = (square * (3 * _TANH_CUBIC) + 1) * _TANH_SCALE
        left = (tanh + 1) * 0.5
        right = self * 0.5 * (1 - tanh * tanh) * slope
        return grad_output * (left + right)
    cumulative = (aten.erf.default(self * _SQRT_HALF) + 1) * 0.5
    density = aten.exp.default(self * self * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad_output * (cumulative + self * density)


@decomposes(aten.silu.default)
@elementwise()
def silu(self: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return self / (aten.exp.default(-self) + 1)


@decomposes(aten.silu_backward.default)
@elementwise()
def silu_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Gradient of `silu`."""
    sigmoid = aten.sigmoid.default(self)
    return grad_output * sigmoid * (self * (1 - sigmoid) + 1)


@decomposes(aten.tanh_backward.default)
@elementwise()
def tanh_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """Gradient of tanh from its output."""
    if output.dtype.is_complex:
        output = aten.conj_physical.default(output)
    return grad_output * (1 - output * output)


@decomposes(aten.sigmoid_backward.default)
@elementwise()
def sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """Gradient of sigmoid from its output."""
    if output.dtype.is_complex:
        output = aten.conj_physical.default(output)
    return grad_output * (1 - output) * output


@decomposes(aten.threshold.default)
def threshold(self: Tensor, threshold: float, value: float) -> Tensor:
    """`value` where x <= threshold, else x (NaN stays)."""
    return aten.where.self(aten.le.Scalar(self, threshold), _like(self, value), self)


def _like(tensor: Tensor, value: float) -> Tensor:
    """A 0-d tensor of `value` with the dtype and device of `tensor`."""
    return aten.full.default([], value, dtype=tensor.dtype, device=tensor.device)


@decomposes(aten.threshold_backward.default)
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: float) -> Tensor:
    """Gradient of `threshold`: zero where x <= threshold. The operand may be the output, for relu."""
    dtype = result_dtype(grad_output, self)
    return aten.where.self(
        aten.le.Scalar(self, threshold), _like(grad_output, 0), cast(grad_output, dtype)
    )


@decomposes(aten.relu6.default)
def relu6(self: Tensor) -> Tensor:
    """Clamp to [0, 6]."""
    return hardtanh(self, 0, 6)


@decomposes(aten.hardtanh.default)
def hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """Clamp to [min_val, max_val]."""
    if self.dtype is torch.bool:
        raise NotImplementedError("Bool inputs not supported for hardtanh")
    if not self.dtype.is_floating_point:
        min_val, max_val = int(min_val), int(max_val)
        if self.dtype is torch.uint8 and (min_val < 0 or max_val < 0):
            raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return aten.clamp.default(self, min_val, max_val)


@decomposes(aten.hardtanh_backward.default)
def hardtanh_backward(grad_output: Tensor, self: Tensor, min_val: float, max_val: float) -> Tensor:
    """Gradient of `hardtanh`: zero at and outside the limits."""
    zero = _like(grad_output, 0)
    if self.device.type == "cpu":  # eager's vector loops ask what is inside: NaN is not
        inside = aten.logical_and.default(
            aten.gt.Scalar(self, min_val), aten.lt.Scalar(self, max_val)
        )
        return aten.where.self(inside, grad_output, zero)
    outside = aten.logical_or.default(aten.le.Scalar(self, min_val), aten.ge.Scalar(self, max_val))
    return aten.where.self(outside, zero, grad_output)


@decomposes(aten.hardsigmoid.default)
@elementwise()
def hardsigmoid(self: Tensor) -> Tensor:
    """clamp(x + 3, 0, 6) / 6."""
    return aten.clamp.default(self + 3, 0, 6) / 6


@decomposes(aten.hardsigmoid_backward.default)
@elementwise()
def hardsigmoid_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Gradient of `hardsigmoid`."""
    inside = aten.logical_and.default(aten.gt.Scalar(self, -3), aten.lt.Scalar(self, 3))
    return aten.where.self(inside, grad_output * _SIXTH, _like(grad_output, 0))


@decomposes(aten.hardswish.default)
@elementwise()
def hardswish(self: Tensor) -> Tensor:
    """x * clamp(x + 3, 0, 6) / 6."""
    return self * aten.clamp.default(self + 3, 0, 6) / 6


@decomposes(aten.hardswish_backward.default)
@elementwise()
def hardswish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Gradient of `hardswish`: at -3 exactly the outer piece, at 3 the upper one."""
    middle = grad_output * (self / 3 + 0.5)
    upper = aten.where.self(aten.ge.Scalar(self, 3), grad_output, middle)
    return aten.where.self(aten.le.Scalar(self, -3), _like(grad_output, 0), upper)


@decomposes(aten.elu.default)
@elementwise()
def elu(self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """scale * x above zero, scale * alpha * (exp(input_scale * x) - 1) below."""
    negative = aten.expm1.default(self * input_scale) * (alpha * scale)
    return aten.where.self(aten.le.Scalar(self, 0), negative, self * scale)


@decomposes(aten.elu_backward.default)
@elementwise()
def elu_backward(
    grad_output: Tensor,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    self_or_result: Tensor,
) -> Tensor:
    """Gradient of `elu`, from its input or its output."""
    if is_result and alpha < 0:
        raise RuntimeError(
            "In-place elu backward calculation is triggered with a negative slope which is not supported. "
            "This is caused by calling in-place forward function with a negative slope, "
            "please call out-of-place version instead."
        )
    if is_result:
        negative = grad_output * input_scale * (self_or_result + alpha * scale)
    else:
        negative = (
            grad_output
            * (input_scale * alpha * scale)
            * aten.exp.default(self_or_result * input_scale)
        )
    if grad_output.device.type == "cpu":  # NaN takes the lower piece in eager's vector loops
        return aten.where.self(aten.gt.Scalar(self_or_result, 0), grad_output * scale, negative)
    return aten.where.self(aten.le.Scalar(self_or_result, 0), negative, grad_output * scale)


@decomposes(aten.celu.default)
def celu(self: Tensor, alpha: float = 1.0) -> Tensor:
    """`elu` with a slope that is continuous at zero."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return aten.elu.default(self, alpha, 1.0, 1.0 / alpha)


@decomposes(aten.selu.default)
def selu(self: Tensor) -> Tensor:
    """`elu` with the self-normalising constants."""
    return aten.elu.default(self, _SELU_ALPHA, _SELU_SCALE)


@decomposes(aten.leaky_relu.default)
@elementwise()
def leaky_relu(self: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x above zero, negative_slope * x below."""
    return aten.where.self(aten.gt.Scalar(self, 0), self, self * negative_slope)


@decomposes(aten.leaky_relu_backward.default)
@elementwise()
def leaky_relu_backward(
    grad_output: Tensor, self: Tensor, negative_slope: float, self_is_result: bool
) -> Tensor:
    """Gradient of `leaky_relu`; the output serves as well as the input for slopes that keep the sign."""
    if self_is_result and negative_slope < 0:
        raise RuntimeError(
            "In-place leakyReLu backward calculation is triggered with a negative slope which is not supported. "
            "This is caused by calling in-place forward function with a negative slope, "
            "please call out-of-place version instead. File an issue at https://github.com/pytorch/pytorch "
            "if you do require supporting in-place leakRelu backward calculation with negative slope"
        )
    return aten.where.self(aten.gt.Scalar(self, 0), grad_output, grad_output * negative_slope)


@decomposes(aten.softplus.default)
@elementwise()
def softplus(self: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta, the identity where beta x > threshold."""
    scaled = self * beta
    smooth = aten.log1p.default(aten.exp.default(scaled)) / beta
    return aten.where.self(aten.gt.Scalar(scaled, threshold), self, smooth)


@decomposes(aten.softplus_backward.default)
@elementwise()
def softplus_backward(grad_output: Tensor, self: Tensor, beta: float, threshold: float) -> Tensor:
    """Gradient of `softplus`."""
    scaled = self * beta
    grown = aten.exp.default(scaled)
    return aten.where.self(
        aten.gt.Scalar(scaled, threshold), grad_output, grad_output * grown / (grown + 1)
    )


@decomposes(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(self: Tensor) -> tuple[Tensor, Tensor]:
    """log(sigmoid(x)), and the buffer exp(-|x|) that the CPU's backward reads (empty elsewhere)."""
    wide = cast(self, computation_dtype(self.dtype))
    decay = aten.exp.default(-aten.abs.default(wide))
    zero = _like(wide, 0)
    out = aten.minimum.default(wide, zero) - aten.log1p.default(decay)
    buffer = (
        cast(decay, self.dtype) if self.device.type == "cpu" else aten.new_empty.default(self, [0])
    )
    return cast(out, self.dtype), buffer


@decomposes(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad_output: Tensor, self: Tensor, buffer: Tensor) -> Tensor:  # noqa: ARG001  the buffer only saves an exp
    """Gradient of log sigmoid."""
    computation = computation_dtype(self.dtype)
    wide = cast(self, computation)
    decay = aten.exp.default(-aten.abs.default(wide))
    negative = aten.lt.Scalar(wide, 0)
    one, zero = _like(wide, 1), _like(wide, 0)
    largest = aten.where.self(negative, one, zero)
    sign = aten.where.self(negative, one, -one)
    return cast(
        cast(grad_output, computation) * (largest - sign * (decay / (decay + 1))), grad_output.dtype
    )


@decomposes(aten.mish.default)
@elementwise()
def mish(self: Tensor) -> Tensor:
    """x * tanh(log(1 + exp(x)))."""
    return self * aten.tanh.default(aten.log1p.default(aten.exp.default(self)))


@decomposes(aten.mish_backward.default)
@elementwise()
def mish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Gradient of `mish`."""
    tanh = aten.tanh.default(aten.log1p.default(aten.exp.default(self)))
    sigmoid = aten.sigmoid.default(self)
    return grad_output * (tanh + self * sigmoid * (1 - tanh * tanh))


@decomposes(aten.hardshrink.default)
def hardshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    """x outside [-lambd, lambd], zero inside (NaN stays)."""
    return aten.where.self(_within(self, lambd), _like(self, 0), self)


def _within(tensor: Tensor, limit: float) -> Tensor:
    return aten.logical_and.default(aten.ge.Scalar(tensor, -limit), aten.le.Scalar(tensor, limit))


@decomposes(aten.hardshrink_backward.default)
def hardshrink_backward(grad_out: Tensor, self: Tensor, lambd: float) -> Tensor:
    """Gradient of `hardshrink`."""
    return _shrunk_gradient(grad_out, self, lambd)


def _shrunk_gradient(grad: Tensor, self: Tensor, lambd: float) -> Tensor:
    """The gradient outside [-lambd, lambd]; at NaN zero on the CPU, as in eager's vector loops."""
    if self.device.type == "cpu":
        outside = aten.logical_or.default(aten.lt.Scalar(self, -lambd), aten.gt.Scalar(self, lambd))
        return aten.where.self(outside, grad, _like(grad, 0))
    return aten.where.self(_within(self, lambd), _like(grad, 0), grad)


@decomposes(aten.softshrink.default)
@elementwise()
def softshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards zero by lambd, zero within."""
    if not lambd >= 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd:g}.")
    if self.device.type == "cpu":  # the zero of eager's vector loops has no sign; NaN goes on
        high = aten.where.self(aten.le.Scalar(self, lambd), _like(self, 0), self - lambd)
    else:
        high = aten.where.self(aten.gt.Scalar(self, lambd), self - lambd, self * 0)
    return aten.where.self(aten.lt.Scalar(self, -lambd), self + lambd, high)


@decomposes(aten.softshrink_backward.default)
def softshrink_backward(grad_output: Tensor, self: Tensor, lambd: float) -> Tensor:
    """Gradient of `softshrink`."""
    return _shrunk_gradient(grad_output, self, lambd)


@decomposes(aten.glu.default)
def glu(self: Tensor, dim: int = -1) -> Tensor:
    """First half times sigmoid of the second half along `dim`."""
    if self.dim() == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    first, second = _halves(self, dim)
    return _gate(first, second)


def _halves(tensor: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    size = tensor.shape[dim]
    if size % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {size}")
    half = size // 2
    return aten.slice.Tensor(tensor, dim, 0, half), aten.slice.Tensor(tensor, dim, half, size)


@elementwise()
def _gate(value: Tensor, gate: Tensor) -> Tensor:
    return value * aten.sigmoid.default(gate)


@decomposes(aten.glu_backward.default)
def glu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """Gradient of `glu`, both halves joined."""
    computation = computation_dtype(self.dtype)
    first, second = _halves(cast(self, computation), dim)
    grad = cast(grad_output, computation)
    sigmoid = aten.sigmoid.default(second)
    grad_first = grad * sigmoid
    return cast(aten.cat.default([grad_first, grad_first * (1 - sigmoid) * first], dim), self.dtype)


@decomposes(aten.logit.default)
def logit(self: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of eps below it and of 1 - eps above that, in this order, if eps is given and not negative."""
    return _logit(self, *_logit_limits(self, eps))


def _logit_limits(self: Tensor, eps: float | None) -> tuple[float | None, float | None]:
    """eps and 1 - eps, which the CPU rounds to the dtype; None if there is no eps. One that varies is left as it is."""
    if eps is None or eps < 0:
        return None, None
    plain = isinstance(eps, float)  # to round another would make a constant of it
    if self.device.type != "cpu" or not self.dtype.is_floating_point or not plain:
        return eps, 1 - eps
    low = rounded(eps, self.dtype)
    return low, rounded(1 - low, self.dtype)


@elementwise(Promotion.FLOAT)
def _logit(self: Tensor, low: float | None, high: float | None) -> Tensor:
    value = _floating(self)
    if low is not None and high is not None:
        above = aten.where.self(aten.gt.Scalar(value, high), _like(value, high), value)
        value = aten.where.self(aten.lt.Scalar(value, low), _like(value, low), above)
    return aten.log.default(value / (1 - value))


def _floating(tensor: Tensor) -> Tensor:
    dtype = tensor.dtype
    return (
        tensor
        if dtype.is_floating_point or dtype.is_complex
        else cast(tensor, torch.get_default_dtype())
    )


@decomposes(aten.logit_backward.default)
def logit_backward(grad_output: Tensor, self: Tensor, eps: float | None = None) -> Tensor:
    """Gradient of `logit`: NaN outside (0, 1) without eps, zero outside [eps, 1 - eps] with it."""
    low, high = _logit_limits(self, eps)
    if low is None or high is None:
        return _logit_backward(grad_output, self, low=0.0, high=1.0, beyond=math.nan)
    return _logit_backward(grad_output, self, low=low, high=high, beyond=0.0)


@elementwise()
def _logit_backward(
    grad_output: Tensor, self: Tensor, *, low: float, high: float, beyond: float
) -> Tensor:
    inside = aten.logical_and.default(aten.ge.Scalar(self, low), aten.le.Scalar(self, high))
    outside = _like(self, beyond)
    return aten.where.self(inside, grad_output / (self * (1 - self)), outside)


@decomposes(aten._prelu_kernel.default)
@elementwise()
def _prelu_kernel(self: Tensor, weight: Tensor) -> Tensor:
    """x above zero, weight * x below."""
    return aten.where.self(aten.gt.Scalar(self, 0), self, weight * self)


@decomposes(aten._prelu_kernel_backward.default)
@elementwise()
def _prelu_kernel_backward(
    grad_output: Tensor, self: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of `_prelu_kernel`; weight's is not yet reduced over what it was broadcast."""
    positive = aten.gt.Scalar(self, 0)
    zero = _like(self, 0)
    return (
        aten.where.self(positive, grad_output, weight * grad_output),
        aten.where.self(positive, zero, self * grad_output),
    )


@decomposes(aten.rrelu_with_noise_backward.default)
@elementwise()
def rrelu_with_noise_backward(
    grad_output: Tensor,
    self: Tensor,
    noise: Tensor,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> Tensor:
    """Gradient of randomised leaky relu: the drawn slopes in training, their mean otherwise."""
    if training and upper - lower > 1e-6:
        return grad_output * noise
    return leaky_relu_backward(grad_output, self, (lower + upper) / 2, self_is_result)
