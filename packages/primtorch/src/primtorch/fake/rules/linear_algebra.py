"""Shape rules of factorisations and solutions, whose memory order is the library's: column-major matrices.

Most are asked with symbolic sizes alone; with plain ones the meta kernels of this family know as much, and check the
arguments too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.errors import UnsupportedOperatorError
from primtorch.fake.geometry import broadcast
from primtorch.fake.meta import Shape, TensorMeta
from primtorch.fake.promotion import complex_of, real_of
from primtorch.fake.registry import shape_rule, symbolic_rule
from primtorch.symbolic import minimum

if TYPE_CHECKING:
    from primtorch.symbolic import Sizes


def column_major(x: TensorMeta, shape: Shape) -> TensorMeta:
    """New matrices stored column by column."""
    turned = x.contiguous((*shape[:-2], shape[-1], shape[-2])).stride
    return TensorMeta(shape, (*turned[:-2], turned[-1], turned[-2]), x.dtype, x.device)


@shape_rule("_linalg_svd")
def linalg_svd(
    sizes: Sizes,
    A: TensorMeta,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """(U, S, Vh); LAPACK stores Vh by columns, cuSOLVER by rows."""
    del sizes, driver
    batch, rows, columns = A.shape[:-2], A.shape[-2], A.shape[-1]
    least = minimum(rows, columns)
    values = A.contiguous((*batch, least), real_of(A.dtype))
    if not compute_uv:
        return A.contiguous((0,)), values, A.contiguous((0,))
    left = (*batch, rows, rows if full_matrices else least)
    right = (*batch, columns if full_matrices else least, columns)
    turned = A.contiguous(right) if A.device.type == "cuda" else column_major(A, right)
    return column_major(A, left), values, turned


@shape_rule("geqrf")
def geqrf(sizes: Sizes, x: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    """(reflectors and R, stored by columns; the reflectors' factors)."""
    del sizes
    least = minimum(x.shape[-2], x.shape[-1])
    return column_major(x, x.shape), x.contiguous((*x.shape[:-2], least))


@shape_rule("linalg_eig")
def linalg_eig(sizes: Sizes, x: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    """(eigenvalues, eigenvectors), complex; the CPU stores the vectors by columns."""
    del sizes
    dtype = complex_of(x.dtype)
    vectors = x.contiguous() if x.device.type == "cuda" else column_major(x, x.shape)
    vectors = vectors.with_dtype(dtype)
    return x.contiguous(x.shape[:-1], dtype), vectors


def _turned(x: TensorMeta, shape: Shape, by_column: bool) -> TensorMeta:
    """New matrices stored by columns or by rows."""
    return column_major(x, shape) if by_column else x.contiguous(shape)


def _status(x: TensorMeta) -> TensorMeta:
    """One number for each matrix: 0 if all went well."""
    return x.contiguous(x.shape[:-2], torch.int32)


@symbolic_rule("_linalg_eigh")
def linalg_eigh(
    sizes: Sizes, A: TensorMeta, UPLO: str = "L", compute_v: bool = True
) -> tuple[TensorMeta, TensorMeta]:
    """(eigenvalues, eigenvectors)."""
    del sizes, UPLO
    vectors = column_major(A, A.shape) if compute_v else A.contiguous((0,))
    return A.contiguous(A.shape[:-1], real_of(A.dtype)), vectors


@symbolic_rule("linalg_cholesky_ex", "linalg_inv_ex")
def factor_and_status(sizes: Sizes, A: TensorMeta, **options: Any) -> tuple[TensorMeta, TensorMeta]:
    """(factor or inverse, status)."""
    del sizes, options
    return column_major(A, A.shape), _status(A)


@symbolic_rule("linalg_ldl_factor_ex", "linalg_lu_factor_ex")
def factor_with_pivots(
    sizes: Sizes, A: TensorMeta, **options: Any
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """(factors, pivots, status)."""
    del sizes, options
    least = minimum(A.shape[-2], A.shape[-1])
    return column_major(A, A.shape), A.contiguous((*A.shape[:-2], least), torch.int32), _status(A)


@symbolic_rule("cholesky_inverse")
def cholesky_inverse(sizes: Sizes, x: TensorMeta, upper: bool = False) -> TensorMeta:
    """The inverse, from the factor."""
    del sizes, upper
    return column_major(x, x.shape)


@symbolic_rule("linalg_matrix_exp")
def linalg_matrix_exp(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """The exponential, row-major."""
    del sizes
    return x.contiguous()


def _batched(sizes: Sizes, B: TensorMeta, A: TensorMeta) -> Shape:
    """The shape of right-hand sides broadcast against a batch of matrices."""
    return (*broadcast(sizes, B.shape[:-2], A.shape[:-2]), *B.shape[-2:])


@symbolic_rule("cholesky_solve")
def cholesky_solve(
    sizes: Sizes, x: TensorMeta, input2: TensorMeta, upper: bool = False
) -> TensorMeta:
    """Solutions, by columns."""
    del upper
    return column_major(x, _batched(sizes, x, input2))


@symbolic_rule("triangular_solve")
def triangular_solve(
    sizes: Sizes, x: TensorMeta, A: TensorMeta, *flags: bool
) -> tuple[TensorMeta, TensorMeta]:
    """(solutions, a copy of the matrices), both broadcast."""
    del flags
    return column_major(x, _batched(sizes, x, A)), column_major(A, _batched(sizes, A, x))


@symbolic_rule("linalg_solve_triangular")
def linalg_solve_triangular(
    sizes: Sizes, A: TensorMeta, B: TensorMeta, **options: bool
) -> TensorMeta:
    """Solutions, by columns."""
    del options
    return column_major(B, _batched(sizes, B, A))


@symbolic_rule("linalg_ldl_solve")
def linalg_ldl_solve(
    sizes: Sizes, LD: TensorMeta, pivots: TensorMeta, B: TensorMeta, **options: bool
) -> TensorMeta:
    """Solutions, by columns."""
    del pivots, options
    return column_major(B, _batched(sizes, B, LD))


@symbolic_rule("linalg_lu_solve")
def linalg_lu_solve(
    sizes: Sizes,
    LU: TensorMeta,
    pivots: TensorMeta,
    B: TensorMeta,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> TensorMeta:
    """Solutions, by columns; by rows where the unknown stands on the left."""
    del pivots, adjoint
    return _turned(B, _batched(sizes, B, LU), left)


@symbolic_rule("_linalg_solve_ex")
def linalg_solve_ex(
    sizes: Sizes,
    A: TensorMeta,
    B: TensorMeta,
    *,
    left: bool = True,
    check_errors: bool = False,
) -> tuple[TensorMeta, TensorMeta, TensorMeta, TensorMeta]:
    """(solutions, factors, pivots, status); one right-hand side a matrix if B has a dimension less."""
    del check_errors
    factors, pivots, status = factor_with_pivots(sizes, A)
    if B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1]):
        # The vectors of a batch are laid out as if they were the rows of one matrix.
        shape = A.shape[:-1]
        return _turned(B, shape, left and len(shape) > 1), factors, pivots, status
    return _turned(B, _batched(sizes, B, A), left), factors, pivots, status


@symbolic_rule("lu_unpack")
def lu_unpack(
    sizes: Sizes,
    LU_data: TensorMeta,
    LU_pivots: TensorMeta,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """(permutation, lower, upper), by rows; what isn't asked for is empty."""
    del sizes, LU_pivots
    batch, rows, columns = LU_data.shape[:-2], LU_data.shape[-2], LU_data.shape[-1]
    least = minimum(rows, columns)
    none = LU_data.contiguous((0,))
    order = LU_data.contiguous((*batch, rows, rows)) if unpack_pivots else none
    if not unpack_data:
        return order, none, none
    lower = LU_data.contiguous((*batch, rows, least))
    return order, lower, LU_data.contiguous((*batch, least, columns))


@symbolic_rule("linalg_qr")
def linalg_qr(sizes: Sizes, A: TensorMeta, mode: str = "reduced") -> tuple[TensorMeta, TensorMeta]:
    """(Q, R), by columns."""
    del sizes
    batch, rows, columns = A.shape[:-2], A.shape[-2], A.shape[-1]
    least = minimum(rows, columns)
    inner = rows if mode == "complete" else least
    q = A.contiguous((0,)) if mode == "r" else column_major(A, (*batch, rows, inner))
    return q, column_major(A, (*batch, inner, columns))


@symbolic_rule("linalg_householder_product")
def linalg_householder_product(sizes: Sizes, x: TensorMeta, tau: TensorMeta) -> TensorMeta:
    """The columns of the product of reflectors."""
    del sizes, tau
    return column_major(x, x.shape)


@symbolic_rule("ormqr")
def ormqr(
    sizes: Sizes, x: TensorMeta, tau: TensorMeta, other: TensorMeta, *flags: bool
) -> TensorMeta:
    """The other operand times the product of reflectors."""
    del sizes, x, tau, flags
    return column_major(other, other.shape)


@symbolic_rule("linalg_lstsq")
def linalg_lstsq(
    sizes: Sizes,
    x: TensorMeta,
    b: TensorMeta,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[TensorMeta, TensorMeta, TensorMeta, TensorMeta]:
    """(solution, residuals, rank, singular values) by the default driver."""
    del rcond
    if driver not in (None, "gelsy"):
        raise UnsupportedOperatorError("aten.linalg_lstsq", f"its driver is {driver}")
    rows, columns = x.shape[-2], x.shape[-1]
    longest = sizes.larger(rows, columns)
    vector = b.ndim == x.ndim - 1
    count = () if vector else (b.shape[-1],)
    space = column_major(b, (*b.shape[: x.ndim - 2], longest, *(count or (1,))))
    stride = space.stride[:-1] if vector else space.stride
    solution = TensorMeta((*space.shape[:-2], columns, *count), stride, b.dtype, b.device)
    none = x.contiguous((0,))
    return solution, none, x.contiguous(x.shape[:-2], torch.int64), none


@symbolic_rule("_linalg_check_errors")
def linalg_check_errors(sizes: Sizes, info: TensorMeta, api_name: str, *, is_matrix: bool) -> None:
    """Nothing: it raises where a status isn't 0."""
    del sizes, info, api_name, is_matrix
