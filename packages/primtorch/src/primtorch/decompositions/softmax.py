"""Softmax, its logarithm, log-sum-exp and their derivatives.

The largest element is taken away before exponentiation, half types are computed in float32, and the result is
row-major whatever the operand's strides, as eager's kernels write it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from primtorch.decompositions.views import contiguous
from primtorch.promotion import cast, computation_dtype
from primtorch.registry import decomposes

aten = torch.ops.aten


def _widened(self: Tensor, half_to_float: bool) -> tuple[Tensor, torch.dtype]:
    """The operand, row-major in its computation dtype, and the dtype of the result."""
    if half_to_float and self.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("conversion is supported for half and bfloat16 types only")
    result = torch.float32 if half_to_float else self.dtype
    return contiguous(cast(self, computation_dtype(self.dtype))), result


def _nothing(self: Tensor, dtype: torch.dtype) -> Tensor:
    """No elements, in row-major strides: any strides count as contiguous then."""
    return aten.full.default(list(self.shape), 0, dtype=dtype, device=self.device)


@decomposes(aten._softmax.default)
def _softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`."""
    wide, result = _widened(self, half_to_float)
    if wide.numel() == 0:
        return _nothing(self, result)
    powers = aten.exp.default(wide - aten.amax.default(wide, [dim], True))
    return cast(powers / aten.sum.dim_IntList(powers, [dim], True), result)


@decomposes(aten._log_softmax.default)
def _log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """x - log(sum(exp(x))) along `dim`."""
    wide, result = _widened(self, half_to_float)
    if wide.numel() == 0:
        return _nothing(self, result)
    shifted = wide - aten.amax.default(wide, [dim], True)
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True)
    return cast(shifted - aten.log.default(total), result)


@decomposes(aten._safe_softmax.default)
def _safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax in which a row of nothing but -inf gives zeros instead of NaN."""
    operand = self if dtype is None else cast(self, dtype)
    out = _softmax(operand, dim, False)
    masked = aten.all.dims(aten.eq.Scalar(operand, -math.inf), [dim], True)
    return aten.where.self(
        masked, aten.full.default([], 0, dtype=out.dtype, device=out.device), out
    )


@decomposes(aten._softmax_backward_data.default)
def _softmax_backward_data(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """Gradient of softmax from its output."""
    computation = computation_dtype(output.dtype)
    output_wide = contiguous(cast(output, computation))
    product = contiguous(cast(grad_output, computation)) * output_wide
    return cast(product - output_wide * aten.sum.dim_IntList(product, [dim], True), input_dtype)


@decomposes(aten._log_softmax_backward_data.default)
def _log_softmax_backward_data(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """Gradient of log softmax from its output."""
    computation = computation_dtype(output.dtype)
    grad = contiguous(cast(grad_output, computation))
    powers = aten.exp.default(contiguous(cast(output, computation)))
    return cast(grad - powers * aten.sum.dim_IntList(grad, [dim], True), input_dtype)


@decomposes(aten.logsumexp.default)
def logsumexp(self: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over `dim`; an infinite maximum is not taken away, so that inf - inf never arises."""
    dtype = self.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    wide = cast(self, computation_dtype(dtype))
    if wide.numel() == 0:
        return cast(
            aten.log.default(aten.sum.dim_IntList(aten.exp.default(wide), dim, keepdim)), dtype
        )
    if dtype.is_complex:
        real = aten.select.int(aten.view_as_real.default(wide), -1, 0)
        largest = aten.amax.default(real, dim, True)
    else:
        largest = aten.amax.default(wide, dim, True)
    infinite = aten.eq.Scalar(aten.abs.default(largest), math.inf)
    zero = aten.full.default([], 0, dtype=largest.dtype, device=largest.device)
    shift = aten.where.self(infinite, zero, largest)
    total = aten.sum.dim_IntList(aten.exp.default(wide - shift), dim, True)
    out = aten.log.default(total) + shift
    if not keepdim:
        out = aten.squeeze.dims(out, dim or list(range(self.dim())))
    return cast(out, dtype)
