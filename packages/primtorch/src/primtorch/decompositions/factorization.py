"""Linear algebra in terms of the factorisation prims: determinants, inverses, solutions, pseudo-inverses.

What eager returns beside its result (factors, pivots, status) is returned here too, since
autograd's formulas read it. A singular matrix raises where the factorisation's status is checked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from primtorch.decompositions.views import contiguous_copy
from primtorch.promotion import (
    cast,
    real_dtype,
)
from primtorch.registry import decomposes

aten = torch.ops.aten


def _adjoint(matrix: Tensor) -> Tensor:
    order = [*range(matrix.dim() - 2), matrix.dim() - 1, matrix.dim() - 2]
    turned = aten.permute.default(matrix, order)
    return aten.conj_physical.default(turned) if matrix.dtype.is_complex else turned


def _require_square(name: str, matrix: Tensor) -> None:
    if matrix.dim() < 2:
        raise RuntimeError(f"{name}: The input tensor A must have at least 2 dimensions.")
    if matrix.shape[-1] != matrix.shape[-2]:
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {matrix.shape[-2]} by "
            f"{matrix.shape[-1]} matrices"
        )


def _sign_of_permutation(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    """The sign of the permutation that LAPACK's pivots (1-based row exchanges) describe."""
    rows = aten.arange.start_step(
        1, pivots.shape[-1] + 1, 1, dtype=pivots.dtype, device=pivots.device
    )
    exchanges = aten.sum.dim_IntList(aten.ne.Tensor(pivots, rows), [-1])
    odd = aten.ne.Scalar(aten.bitwise_and.Scalar(exchanges, 1), 0)
    one = aten.full.default([], 1, dtype=dtype, device=pivots.device)
    return aten.where.self(odd, -one, one)


def _column_major(matrix: Tensor) -> Tensor:
    """The transpose of a row-major real matrix: its factors are what autograd's formulas expect."""
    if matrix.is_contiguous() and not matrix.dtype.is_complex:
        return _adjoint(matrix)
    return matrix


@decomposes(aten._linalg_det.default)
def _linalg_det(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The determinant by LU, with the factors and pivots."""
    _require_square("linalg.det", A)
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(_column_major(A))
    diagonal = aten.diagonal.default(factors, 0, -2, -1)
    det = aten.prod.dim_int(diagonal, -1) * _sign_of_permutation(pivots, A.dtype)
    return det, factors, pivots


@decomposes(aten._linalg_slogdet.default)
def _linalg_slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sign and logarithm of the determinant's magnitude by LU, with the factors and pivots."""
    _require_square("linalg.slogdet", A)
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(_column_major(A))
    diagonal = aten.diagonal.default(factors, 0, -2, -1)
    sign = aten.prod.dim_int(aten.sgn.default(diagonal), -1) * _sign_of_permutation(pivots, A.dtype)
    logarithm = aten.sum.dim_IntList(aten.log.default(aten.abs.default(diagonal)), [-1])
    return sign, logarithm, factors, pivots


@decomposes("aten.cholesky.default")
def cholesky(self: Tensor, upper: bool = False) -> Tensor:
    """The triangular factor of a positive definite matrix."""
    _require_square("cholesky", self)
    factor, status = aten.linalg_cholesky_ex.default(self, upper=upper)
    aten._linalg_check_errors.default(status, "cholesky", is_matrix=self.dim() == 2)
    return factor


@decomposes("aten.linalg_lu.default")
def linalg_lu(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U with A = P L U."""
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(A, pivot=pivot)
    permutation, lower, upper = aten.lu_unpack.default(factors, pivots, True, pivot)
    return permutation, lower, upper


@decomposes("aten.linalg_pinv.atol_rtol_tensor")
def linalg_pinv(
    self: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """The pseudo-inverse by singular (hermitian: eigen) values above max(atol, rtol * largest)."""
    if self.dim() < 2:
        raise RuntimeError("linalg.pinv: The input tensor A must have at least 2 dimensions.")
    if self.numel() == 0:
        shape = [*self.shape[:-2], self.shape[-1], self.shape[-2]]
        return aten.full.default(shape, 0, dtype=self.dtype, device=self.device)
    real = real_dtype(self.dtype)
    if hermitian:
        values, vectors = aten._linalg_eigh.default(self, "L", True)
        magnitudes = aten.abs.default(values)
        largest = aten.amax.default(magnitudes, [-1], True)
        left, right = vectors, _adjoint(vectors)
    else:
        left, values, right = aten._linalg_svd.default(self, False, True)
        magnitudes = values
        largest = aten.slice.Tensor(values, -1, 0, 1)
    zero = aten.full.default([], 0, dtype=real, device=self.device)
    absolute = zero if atol is None else cast(atol, real)
    if rtol is not None:
        relative = cast(rtol, real)
    else:
        epsilon = torch.finfo(real).eps * max(self.shape[-2], self.shape[-1])
        default = aten.full.default([], epsilon, dtype=real, device=self.device)
        relative = (
            default if atol is None else aten.where.self(aten.gt.Scalar(absolute, 0), zero, default)
        )
    if absolute.dim():
        absolute = aten.unsqueeze.default(absolute, -1)
    if relative.dim():
        relative = aten.unsqueeze.default(relative, -1)
    threshold = aten.maximum.default(absolute, relative * largest)
    inverted = aten.where.self(
        aten.gt.Tensor(magnitudes, threshold), aten.reciprocal.default(values), zero
    )
    scaled = _adjoint(right) * aten.unsqueeze.default(inverted, -2)
    return _product(scaled, _adjoint(left))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Products of batches of matrices."""
    if left.dim() == 2:
        return aten.mm.default(left, right)
    batch = list(left.shape[:-2])
    flat_left = aten.view.default(contiguous_copy(left), [-1, *left.shape[-2:]])
    flat_right = aten.view.default(contiguous_copy(right), [-1, *right.shape[-2:]])
    out = aten.bmm.default(flat_left, flat_right)
    return aten.view.default(out, [*batch, left.shape[-2], right.shape[-1]])


@decomposes("aten._euclidean_dist.default")
def _euclidean_dist(x1: Tensor, x2: Tensor) -> Tensor:
    """Distances between all pairs of rows by |a|^2 - 2ab + |b|^2."""
    norms_1 = aten.sum.dim_IntList(x1 * x1, [-1], True)
    norms_2 = aten.sum.dim_IntList(x2 * x2, [-1], True)
    transposed = aten.permute.default(x2, [*range(x2.dim() - 2), x2.dim() - 1, x2.dim() - 2])
    order = [*range(x2.dim() - 2), x2.dim() - 1, x2.dim() - 2]
    squared = norms_1 + aten.permute.default(norms_2, order) - _product(x1, transposed) * 2
    return aten.sqrt.default(aten.clamp.default(squared, 0, None))
