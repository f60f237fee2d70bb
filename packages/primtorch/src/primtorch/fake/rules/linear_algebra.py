"""Shape rules of factorisations whose memory order is the library's: column-major matrices.

Others of this family go by their meta kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primtorch.fake.meta import Shape, TensorMeta
from primtorch.fake.promotion import complex_of, real_of
from primtorch.fake.registry import shape_rule
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
