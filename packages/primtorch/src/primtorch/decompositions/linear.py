"""Products of matrices and vectors, in terms of mm, bmm and sums.

A product keeps its operands' dtype and is rounded once by the product itself; sums with an addend follow as eager's
kernels order them. `beta == 0` means that the addend isn't read: NaN in it doesn't spread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.views import reshaped
from primtorch.promotion import (
    Number,
    cast,
    computation_dtype,
    real_part,
    result_dtype,
)
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def _blend(self: Tensor, product: Tensor, beta: Number, alpha: Number) -> Tensor:
    """beta * self + alpha * product in the addend's dtype; half types are summed in float32 and rounded once."""
    result = self.dtype
    if not (result.is_floating_point or result.is_complex):
        beta, alpha = int(real_part(beta)), int(real_part(alpha))
    computation = computation_dtype(result)
    out = cast(product, computation)
    if alpha != 1:
        out = out * alpha
    if beta == 0:
        return cast(aten.clone.default(out) if out is product and alpha == 1 else out, result)
    addend = cast(self, computation)
    return cast((addend if beta == 1 else addend * beta) + out, result)


def _same_dtype(name: str, *tensors: Tensor) -> None:
    first = tensors[0].dtype
    for tensor in tensors[1:]:
        if tensor.dtype is not first:
            raise RuntimeError(
                f"{name}: expected operands of the same dtype, but got {first} and {tensor.dtype}"
            )


@decomposes(aten.addmm.default)
def addmm(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * self + alpha * mat1 @ mat2."""
    _same_dtype("addmm", mat1, mat2, self)
    return _blend(self, aten.mm.default(mat1, mat2), beta, alpha)


@decomposes(aten.baddbmm.default)
def baddbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * self + alpha * batch1 @ batch2, matrix by matrix."""
    _same_dtype("baddbmm", batch1, batch2, self)
    return _blend(self, aten.bmm.default(*_widened(batch1, batch2)), beta, alpha)


@decomposes(aten.addbmm.default)
def addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * self + alpha * the sum of the products over the batch: one product over both."""
    if batch1.dim() != 3 or batch2.dim() != 3:
        raise RuntimeError(
            "batch1 must be a 3D tensor" if batch1.dim() != 3 else "batch2 must be a 3D tensor"
        )
    batch, rows, inner = batch1.shape
    if batch2.shape[0] != batch or batch2.shape[1] != inner:
        raise RuntimeError(
            f"Incompatible matrix sizes for bmm ({rows}x{inner} and {batch2.shape[1]}x{batch2.shape[2]})"
        )
    left = reshaped(aten.permute.default(batch1, [1, 0, 2]), [rows, batch * inner])
    right = reshaped(batch2, [batch * inner, batch2.shape[2]])
    return _blend(self, aten.mm.default(*_widened(left, right)), beta, alpha)


def _widened(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Half types in float32: eager's kernels round only what they add to the addend."""
    return cast(left, computation_dtype(left.dtype)), cast(right, computation_dtype(right.dtype))


@decomposes(aten.mv.default)
def mv(self: Tensor, vec: Tensor) -> Tensor:
    """Matrix times vector."""
    if self.dim() != 2 or vec.dim() != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got 1, {self.dim()}, {vec.dim()}")
    if self.shape[1] != vec.shape[0]:
        raise RuntimeError(
            f"size mismatch, got input ({self.shape[0]}), mat ({self.shape[0]}x{self.shape[1]}), vec ({vec.shape[0]})"
        )
    return _contract(self, vec, 1)


def _contract(left: Tensor, right: Tensor, dim: int) -> Tensor:
    """sum(left * right) over `dim`, half types in float32."""
    _same_dtype("expected m1 and m2 to have the same dtype", left, right)
    result = left.dtype
    computation = computation_dtype(result)
    return cast(
        aten.sum.dim_IntList(cast(left, computation) * cast(right, computation), [dim]), result
    )


@decomposes(aten.addmv.default)
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * self + alpha * mat @ vec."""
    return _blend(self, mv(mat, vec), beta, alpha)


@decomposes(aten.dot.default)
def dot(self: Tensor, tensor: Tensor) -> Tensor:
    """Sum of products of two vectors."""
    if self.dim() != 1 or tensor.dim() != 1:
        raise RuntimeError(
            f"1D tensors expected, but got {self.dim()}D and {tensor.dim()}D tensors"
        )
    if self.dtype is not tensor.dtype:
        raise RuntimeError(
            f"dot : expected both vectors to have same dtype, but found {self.dtype} and {tensor.dtype}"
        )
    if self.shape[0] != tensor.shape[0]:
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor [{self.shape[0]}] and src [{tensor.shape[0]}] to have the same "
            f"number of elements, but got {self.shape[0]} and {tensor.shape[0]} elements respectively"
        )
    return _contract(self, tensor, 0)


@decomposes(aten.vdot.default)
def vdot(self: Tensor, other: Tensor) -> Tensor:
    """Sum of products, the first vector conjugated."""
    return dot(aten.conj_physical.default(self) if self.dtype.is_complex else self, other)


@decomposes(aten.addr.default)
def addr(
    self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * self + alpha * the outer product."""
    if vec1.dim() != 1 or vec2.dim() != 1:
        raise RuntimeError(
            f"addr: Expected 1-D argument vec1 and vec2, but got {vec1.dim()}-D and {vec2.dim()}-D"
        )
    outer = aten.unsqueeze.default(vec1, 1) * vec2
    if self.dtype is torch.bool:
        if beta and alpha:
            return aten.logical_or.default(self, outer)
        return outer if alpha else aten.expand.default(self, list(outer.shape))
    if beta == 0:
        return outer * alpha
    return (self if beta == 1 else self * beta) + (outer if alpha == 1 else outer * alpha)


@decomposes(aten._trilinear.default)
def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,  # noqa: ARG001  how eager saves memory, no part of the meaning
) -> Tensor:
    """Product of three tensors, each widened by dimensions of size 1, summed over `sumdim`."""
    operands = []
    for tensor, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        widened = tensor
        for dim in dims:
            widened = aten.unsqueeze.default(widened, dim)
        operands.append(widened)
    result = result_dtype(*operands)
    first, second, third = (cast(operand, computation_dtype(result)) for operand in operands)
    product = first * second * third
    return cast(aten.sum.dim_IntList(product, list(sumdim)) if sumdim else product, result)
