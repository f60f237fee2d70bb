"""Reductions: means, deviations, norms, extremes, counts, in terms of sum, prod, amax, argmax and var_mean.

Half types accumulate in float32 and are rounded once. An empty reduction, a NaN, and the choice among equal
elements are as in eager.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.views import reshaped, wrapped
from primtorch.promotion import (
    Number,
    cast,
    computation_dtype,
    real_dtype,
    real_part,
)
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def _all_dims(tensor: Tensor, dim: Sequence[int] | None) -> list[int]:
    """The dimensions that `dim` names; all of them for None or an empty list."""
    rank = tensor.dim()
    return [wrapped(d, rank) for d in dim] if dim else list(range(rank))


def _count(tensor: Tensor, dims: Sequence[int]) -> int:
    return math.prod(tensor.shape[d] for d in dims) if tensor.dim() else 1


@decomposes(aten.sum.default)
def sum_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Sum of all elements."""
    return aten.sum.dim_IntList(self, list(range(self.dim())), dtype=dtype)


@decomposes(aten.mean.default)
def mean_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Mean of all elements."""
    return mean(self, list(range(self.dim())), dtype=dtype)


@decomposes(aten.mean.dim)
def mean(
    self: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Mean over `dim`."""
    result = dtype or self.dtype
    if not (result.is_floating_point or result.is_complex):
        kind = "Input" if dtype is None else "Optional"
        raise RuntimeError(
            f"mean(): could not infer output dtype. {kind} dtype must be either a floating point or complex dtype. "
            f"Got: {str(result).removeprefix('torch.').capitalize()}"
        )
    dims = _all_dims(self, dim)
    total = aten.sum.dim_IntList(self, dims, keepdim, dtype=computation_dtype(result))
    return cast(total / _count(self, dims), result)


@decomposes(aten.nansum.default)
def nansum(
    self: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sum over `dim`, NaN counted as zero."""
    if self.dtype.is_complex:
        raise RuntimeError("nansum does not support complex inputs")
    operand = self
    if self.dtype.is_floating_point:
        zero = aten.full.default([], 0, dtype=self.dtype, device=self.device)
        operand = aten.where.self(aten.isnan.default(self), zero, self)
    return aten.sum.dim_IntList(operand, _all_dims(self, dim), keepdim, dtype=dtype)


@decomposes(aten.var.correction)
def var(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Variance over `dim`."""
    variance, _ = aten.var_mean.correction(self, dim, correction=correction, keepdim=keepdim)
    return variance


def _deviation(
    self: Tensor, dim: Sequence[int] | None, correction: Number | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean, rounded once: on a CPU from double, where squares don't overflow."""
    dtype = self.dtype
    wide = cast(self, computation_dtype(dtype))
    if wide.dtype is torch.float32 and self.device.type == "cpu":
        wide = cast(wide, torch.float64)
    variance, mean = aten.var_mean.correction(wide, dim, correction=correction, keepdim=keepdim)
    return cast(aten.sqrt.default(variance), real_dtype(dtype)), cast(mean, dtype)


@decomposes(aten.std.correction)
def std(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Standard deviation over `dim`."""
    return _deviation(self, dim, correction, keepdim)[0]


@decomposes(aten.std_mean.correction)
def std_mean(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean over `dim`."""
    return _deviation(self, dim, correction, keepdim)


@decomposes(aten.max.default)
def max_all(self: Tensor) -> Tensor:
    """Largest element; NaN if there is one."""
    _refuse_empty(self, "max")
    return aten.amax.default(self, list(range(self.dim())))


@decomposes(aten.min.default)
def min_all(self: Tensor) -> Tensor:
    """Smallest element; NaN if there is one."""
    _refuse_empty(self, "min")
    return aten.amin.default(self, list(range(self.dim())))


def _refuse_empty(tensor: Tensor, name: str) -> None:
    if tensor.numel() == 0:
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
            "reduction dim with the 'dim' argument."
        )


@decomposes(aten.max.dim)
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Largest elements along `dim` and the first positions where they stand."""
    dim = wrapped(dim, self.dim())
    return _named_pair("max", aten.amax.default(self, [dim], keepdim), _argmax(self, dim, keepdim))


@decomposes(aten.min.dim)
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest elements along `dim` and the first positions where they stand."""
    dim = wrapped(dim, self.dim())
    operand = cast(self, torch.uint8) if self.dtype is torch.bool else self
    return _named_pair(
        "min", aten.amin.default(self, [dim], keepdim), aten.argmin.default(operand, dim, keepdim)
    )


def _argmax(self: Tensor, dim: int, keepdim: bool) -> Tensor:
    operand = cast(self, torch.uint8) if self.dtype is torch.bool else self
    return aten.argmax.default(operand, dim, keepdim)


def _named_pair(name: str, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Values and indices as the named tuple of torch.max and torch.min."""
    kind = torch.return_types.max if name == "max" else torch.return_types.min
    pair: tuple[Tensor, Tensor] = kind((values, indices))
    return pair


@decomposes(aten.aminmax.default)
def aminmax(
    self: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Smallest and largest elements, over `dim` or everything."""
    if dim is None:
        if self.numel() == 0:
            raise RuntimeError(
                "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity."
            )
        dims = list(range(self.dim()))
        if not keepdim:
            return aten.amin.default(self, dims), aten.amax.default(self, dims)
        return aten.amin.default(self, dims, True), aten.amax.default(self, dims, True)
    return aten.amin.default(self, [dim], keepdim), aten.amax.default(self, [dim], keepdim)


@decomposes(aten.any.default)
def any_all(self: Tensor) -> Tensor:
    """Whether any element is nonzero."""
    return aten.any.dims(self, list(range(self.dim())))


@decomposes(aten.any.dim)
def any_dim(self: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Whether any element along `dim` is nonzero."""
    return aten.any.dims(self, [dim], keepdim)


@decomposes(aten.all.default)
def all_all(self: Tensor) -> Tensor:
    """Whether all elements are nonzero."""
    return aten.all.dims(self, list(range(self.dim())))


@decomposes(aten._is_all_true.default)
def is_all_true(self: Tensor) -> Tensor:
    """Whether all elements of a mask are true."""
    _require_mask(self)
    return aten.all.dims(self, list(range(self.dim())))


@decomposes(aten._is_any_true.default)
def is_any_true(self: Tensor) -> Tensor:
    """Whether any element of a mask is true."""
    _require_mask(self)
    return aten.any.dims(self, list(range(self.dim())))


def _require_mask(value: Tensor) -> None:
    if value.dtype is not torch.bool:
        raise RuntimeError(f"expected a tensor of bool, but got {value.dtype}")


@decomposes(aten.all.dim)
def all_dim(self: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Whether all elements along `dim` are nonzero."""
    return aten.all.dims(self, [dim], keepdim)


@decomposes(aten.count_nonzero.default)
def count_nonzero(self: Tensor, dim: int | None = None) -> Tensor:
    """How many elements are nonzero, over `dim` or everything."""
    return count_nonzero_dims(self, list(range(self.dim())) if dim is None else [dim])


@decomposes(aten.count_nonzero.dim_IntList)
def count_nonzero_dims(self: Tensor, dim: Sequence[int]) -> Tensor:
    """How many elements are nonzero over `dim`."""
    nonzero = self if self.dtype is torch.bool else aten.ne.Scalar(self, 0)
    return aten.sum.dim_IntList(nonzero, _all_dims(self, dim))


@decomposes(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    self: Tensor,
    ord: Number = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """(sum |x|^ord)^(1/ord) over `dim`; largest or smallest |x| for an infinite order, the count of nonzeros for 0."""
    if not (self.dtype.is_floating_point or self.dtype.is_complex):
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {_name(self.dtype)}"
        )
    order = ord if isinstance(ord, torch.SymFloat) else float(real_part(ord))
    dims = _all_dims(self, dim)
    result = real_dtype(dtype or self.dtype)
    computation = computation_dtype(dtype or self.dtype)
    if (
        self.numel() == 0
        and (order < 0 or order == math.inf)
        and (_count(self, dims) == 0 or not dims)
    ):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {_order_text(order)} norm on an empty "
            + ("tensor" if not dim else "dimension")
            + " because the operation does not have an identity"
        )
    wide = cast(self, computation)
    if computation.is_complex and order != 0:
        magnitude = aten.abs.default(wide)
    elif order in (0, 2) or (isinstance(order, float) and order % 2 == 0 and not math.isinf(order)):
        magnitude = wide
    else:
        magnitude = aten.abs.default(wide)
    return cast(_norm(magnitude, order, dims, keepdim), result)


def _norm(magnitude: Tensor, order: float, dims: list[int], keepdim: bool) -> Tensor:
    if order == math.inf:
        return aten.amax.default(magnitude, dims, keepdim)
    if order == -math.inf:
        return aten.amin.default(magnitude, dims, keepdim)
    if order == 0:
        real = real_dtype(magnitude.dtype)
        return aten.sum.dim_IntList(cast(aten.ne.Scalar(magnitude, 0), real), dims, keepdim)
    if order == 1:
        return aten.sum.dim_IntList(magnitude, dims, keepdim)
    if order == 2:
        return aten.sqrt.default(aten.sum.dim_IntList(magnitude * magnitude, dims, keepdim))
    if order < 0:  # of the reciprocal: a power in the denominator overflows earlier
        powered = aten.pow.Tensor_Scalar(aten.reciprocal.default(magnitude), -order)
    else:
        powered = aten.pow.Tensor_Scalar(magnitude, order)
    powers = aten.sum.dim_IntList(powered, dims, keepdim)
    return aten.pow.Tensor_Scalar(powers, 1 / order)


def _order_text(order: float) -> str:
    return str(order)


def _name(dtype: torch.dtype) -> str:
    return {torch.int64: "Long", torch.int32: "Int", torch.bool: "Bool"}.get(
        dtype, str(dtype).removeprefix("torch.")
    )


@decomposes(aten.norm.ScalarOpt_dim)
def norm(self: Tensor, p: Number | None, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    """The p-norm over `dim`, 2 if no order is given."""
    return aten.linalg_vector_norm.default(self, 2 if p is None else p, dim, keepdim)


@decomposes(aten.norm.Scalar)
def norm_all(self: Tensor, p: Number = 2) -> Tensor:
    """The p-norm of all elements."""
    return aten.linalg_vector_norm.default(self, p, None, False)


@decomposes(aten.norm.ScalarOpt_dtype)
def norm_dtype(self: Tensor, p: Number | None, *, dtype: torch.dtype) -> Tensor:
    """The p-norm of all elements, computed in `dtype`."""
    return aten.linalg_vector_norm.default(self, 2 if p is None else p, None, False, dtype=dtype)


@decomposes(aten.norm.ScalarOpt_dim_dtype)
def norm_dim_dtype(
    self: Tensor, p: Number | None, dim: Sequence[int], keepdim: bool, *, dtype: torch.dtype
) -> Tensor:
    """The p-norm over `dim`, computed in `dtype`."""
    return aten.linalg_vector_norm.default(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@decomposes(aten.dist.default)
def dist(self: Tensor, other: Tensor, p: Number = 2) -> Tensor:
    """The p-norm of the difference."""
    return aten.linalg_vector_norm.default(self - other, p, None, False)


@decomposes(aten.median.default)
def median(self: Tensor) -> Tensor:
    """The lower median of all elements; NaN if there is one or none."""
    if self.numel() == 0:
        return aten.full.default([], math.nan, dtype=self.dtype, device=self.device)
    return aten.median.dim(reshaped(self, [-1]), 0)[0]


@decomposes(aten.nanmedian.default)
def nanmedian(self: Tensor) -> Tensor:
    """The lower median of all elements that aren't NaN."""
    if self.numel() == 0:
        return aten.full.default([], math.nan, dtype=self.dtype, device=self.device)
    return aten.nanmedian.dim(reshaped(self, [-1]), 0)[0]


@decomposes(aten.sort.default)
def sort(self: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sorted values along `dim` and where they stood; equal elements in any order."""
    pair: tuple[Tensor, Tensor] = aten.sort.stable(
        self, stable=False, dim=dim, descending=descending
    )
    return pair


@decomposes(aten.argsort.stable)
def argsort(self: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    """The permutation that sorts along `dim`."""
    return aten.sort.stable(self, stable=stable, dim=dim, descending=descending)[1]


@decomposes("aten.allclose.default")
def allclose(
    self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are close: |a - b| <= atol + rtol |b|, or equal."""
    close = aten.eq.Tensor(self, other)
    if equal_nan and (self.dtype.is_floating_point or self.dtype.is_complex):
        both = aten.logical_and.default(aten.isnan.default(self), aten.isnan.default(other))
        close = aten.logical_or.default(close, both)
    if rtol or atol:
        allowed = aten.abs.default(other * rtol) + atol
        distance = aten.abs.default(self - other)
        finite = aten.ne.Scalar(distance, math.inf)
        near = aten.logical_and.default(finite, aten.le.Tensor(distance, allowed))
        close = aten.logical_or.default(close, near)
    return bool(aten._local_scalar_dense.default(aten.all.dims(close, list(range(close.dim())))))
