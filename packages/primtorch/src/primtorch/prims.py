"""The closed list of primitive operators: what every other operator is written in.

A prim is an overload of `aten` or `primtorch`. Prims come in families; the operators of one family share one rule for
shape, dtype and stride, and differ in what they compute. The list is closed: at most 250 names, none of which has a
decomposition; a backend that implements it can run every program that the "prims" table produces.

Conventions. `add/sub/mul/div.Tensor` and `div.Tensor_mode` accept a Python number in place of either tensor; it takes
part in type promotion as a number (see `primtorch.promotion`). Operands broadcast.
A view prim aliases its operand and computes only strides. Nothing else aliases or mutates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import primtorch.library
from primtorch.registry import overload

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["FAMILIES", "PRIMS", "Family", "family_of", "is_prim"]

assert primtorch.library.__all__, (
    "the primtorch namespace is defined before its operators are looked up"
)


@dataclass(frozen=True, slots=True)
class Family:
    """Prims under one rule: how shape and strides follow, what dtype results, whether autograd differentiates it."""

    name: str
    shape_and_stride: str
    dtype: str
    derivative: str
    operators: tuple[str, ...]


_ELEMENTWISE = (
    "operands broadcast; strides keep the operands' common order of dimensions, dense; "
    "row-major where they disagree"
)

FAMILIES: tuple[Family, ...] = (
    Family(
        "unary, dtype kept",
        _ELEMENTWISE,
        "the operand's",
        "elementwise, zero where the function is a step",
        (
            "abs",
            "neg",
            "sign",
            "sgn",
            "ceil",
            "floor",
            "trunc",
            "round",
            "relu",
            "positive",
            "conj_physical",
            "bitwise_not",
        ),
    ),
    Family(
        "unary, to floating",
        _ELEMENTWISE,
        "the operand's; the default floating dtype for integers and bool; half types compute in float32",
        "elementwise, closed form",
        (
            "sqrt",
            "rsqrt",
            "reciprocal",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "asinh",
            "acosh",
            "atanh",
            "tanh",
            "sigmoid",
            "erf",
            "erfc",
            "erfinv",
            "lgamma",
            "digamma",
            "i0",
            "special_i0e",
            "special_i1",
            "special_i1e",
            "special_ndtri",
            "special_erfcx",
            "special_log_ndtr",
            "special_bessel_j0",
            "special_bessel_j1",
        ),
    ),
    Family(
        "special functions",
        _ELEMENTWISE,
        "the operand's; the default floating dtype for integers and bool",
        "by the functions' recurrences, where defined",
        (
            "special_airy_ai",
            "special_bessel_y0",
            "special_bessel_y1",
            "special_modified_bessel_i0",
            "special_modified_bessel_i1",
            "special_modified_bessel_k0",
            "special_modified_bessel_k1",
            "special_scaled_modified_bessel_k0",
            "special_scaled_modified_bessel_k1",
            "special_spherical_bessel_j0",
        ),
    ),
    Family(
        "unary, to bool",
        _ELEMENTWISE,
        "bool",
        "none",
        ("logical_not", "isnan", "isinf", "signbit"),
    ),
    Family(
        "binary arithmetic",
        _ELEMENTWISE,
        "the promoted dtype; div without rounding goes to floating; half types compute in float32",
        "elementwise, summed over broadcast dimensions",
        (
            "add.Tensor",
            "sub.Tensor",
            "mul.Tensor",
            "div.Tensor",
            "div.Tensor_mode",
            "remainder.Tensor",
            "fmod.Tensor",
            "pow.Tensor_Tensor",
            "pow.Tensor_Scalar",
            "pow.Scalar",
            "atan2",
            "hypot",
            "maximum",
            "minimum",
            "fmax",
            "fmin",
            "copysign.Tensor",
            "nextafter",
            "gcd",
            "igamma",
            "igammac",
            "special_zeta",
            "polygamma",
            "ldexp.Tensor",
        ),
    ),
    Family(
        "bits",
        _ELEMENTWISE,
        "the promoted integer dtype or bool",
        "none",
        (
            "bitwise_and.Tensor",
            "bitwise_or.Tensor",
            "bitwise_xor.Tensor",
            "bitwise_left_shift.Tensor",
            "bitwise_right_shift.Tensor",
        ),
    ),
    Family(
        "comparison and logic",
        _ELEMENTWISE,
        "bool",
        "none",
        (
            "eq.Tensor",
            "ne.Tensor",
            "lt.Tensor",
            "le.Tensor",
            "gt.Tensor",
            "ge.Tensor",
            "eq.Scalar",
            "ne.Scalar",
            "lt.Scalar",
            "le.Scalar",
            "gt.Scalar",
            "ge.Scalar",
            "logical_and",
            "logical_or",
            "logical_xor",
        ),
    ),
    Family(
        "selection",
        _ELEMENTWISE,
        "the promoted dtype of the values",
        "passes where selected",
        ("where.self", "clamp", "clamp.Tensor"),
    ),
    Family(
        "conversion and copy",
        "the operand's shape; strides preserved if dense, or as memory_format says",
        "as asked; floating to integer truncates, complex to real drops the imaginary part",
        "converts back",
        ("_to_copy", "clone", "copy", "complex", "frexp.Tensor"),
    ),
    Family(
        "creation",
        "as asked, row-major unless strides or memory_format are given",
        "as asked",
        "none",
        (
            "full",
            "full_like",
            "arange.start_step",
            "scalar_tensor",
            "empty.memory_format",
            "empty_strided",
            "empty_like",
            "eye.m",
            "randperm",
        ),
    ),
    Family(
        "view",
        "aliases the operand; shape and strides computed, no data moved",
        "the operand's (view.dtype: as asked; view_as_real and view_as_complex: the counterpart)",
        "the inverse view, or zeros with the gradient written in",
        (
            "view",
            "permute",
            "expand",
            "slice.Tensor",
            "select.int",
            "squeeze.dims",
            "unsqueeze",
            "as_strided",
            "diagonal",
            "unfold",
            "alias",
            "view.dtype",
            "view_as_real",
            "view_as_complex",
            "_conj",
            "_neg_view",
        ),
    ),
    Family(
        "assembly",
        "sizes add up along one dimension, or are padded; row-major (cat: the operands' common memory format)",
        "the promoted dtype",
        "slices of the gradient",
        (
            "cat",
            "constant_pad_nd",
            "flip",
            "repeat",
            "slice_scatter",
            "select_scatter",
            "diagonal_scatter",
            "as_strided_scatter",
        ),
    ),
    Family(
        "indexing",
        "the index's shape replaces the indexed dimensions; row-major",
        "the source's",
        "scatter-add of the gradient, or gather",
        (
            "index.Tensor",
            "index_put",
            "index_select",
            "gather",
            "scatter.src",
            "scatter.value",
            "scatter_add",
            "scatter_reduce.two",
            "masked_scatter",
            "searchsorted.Tensor",
        ),
    ),
    Family(
        "reduction",
        "reduced dimensions are dropped, or kept with size 1; strides follow the operand's order",
        "as asked or the operand's; sums of integers are int64; half types accumulate in float32",
        "the gradient spread back, by the formula of each",
        (
            "sum.dim_IntList",
            "prod.dim_int",
            "prod",
            "amax",
            "amin",
            "argmax",
            "argmin",
            "any.dims",
            "all.dims",
            "var_mean.correction",
        ),
    ),
    Family(
        "scan and order",
        "the operand's shape; row-major",
        "the operand's, indices int64; sums and products of integers are int64",
        "the reverse scan, or scatter by the indices",
        (
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "logcumsumexp",
            "sort.stable",
            "topk",
            "kthvalue",
            "median.dim",
            "nanmedian.dim",
            "mode",
        ),
    ),
    Family(
        "matrix product",
        "row-major; inner sizes agree",
        "the operands' (equal) dtype; half types accumulate in float32",
        "products with the transposed operand",
        ("mm", "bmm"),
    ),
    Family(
        "convolution",
        "the usual size formula; memory format follows input and weight, per device",
        "the operands' (equal) dtype",
        "convolution_backward",
        ("convolution", "convolution_backward"),
    ),
    Family(
        "window",
        "the usual size formula of pooling; input's memory format",
        "the operand's, indices int64",
        "the backward operator, or scatter by the indices",
        (
            "max_pool2d_with_indices",
            "max_pool2d_with_indices_backward",
            "max_pool3d_with_indices",
            "max_pool3d_with_indices_backward",
            "avg_pool2d",
            "avg_pool2d_backward",
            "avg_pool3d",
            "avg_pool3d_backward",
            "_adaptive_avg_pool2d",
            "_adaptive_avg_pool2d_backward",
            "_adaptive_avg_pool3d",
            "_adaptive_avg_pool3d_backward",
            "fractional_max_pool2d",
            "fractional_max_pool2d_backward",
            "fractional_max_pool3d",
            "fractional_max_pool3d_backward",
            "adaptive_max_pool2d",
            "adaptive_max_pool2d_backward",
            "adaptive_max_pool3d",
            "adaptive_max_pool3d_backward",
        ),
    ),
    Family(
        "Fourier transform",
        "the transformed sizes; row-major in the order of the transform",
        "complex, or the real counterpart",
        "the conjugate transform",
        ("_fft_c2c", "_fft_r2c", "_fft_c2r"),
    ),
    Family(
        "dense linear algebra",
        "as LAPACK returns: column-major factors",
        "the operand's floating or complex dtype",
        "by autograd's formula over the factors",
        (
            "_linalg_eigh",
            "_linalg_svd",
            "linalg_eig",
            "linalg_qr",
            "linalg_cholesky_ex",
            "linalg_lu_factor_ex",
            "linalg_lu_solve",
            "lu_unpack",
            "linalg_matrix_exp",
            "linalg_inv_ex",
            "_linalg_solve_ex",
            "_linalg_check_errors",
            "cholesky_solve",
            "triangular_solve",
            "linalg_solve_triangular",
            "linalg_ldl_factor_ex",
            "linalg_ldl_solve",
            "linalg_householder_product",
            "geqrf",
            "ormqr",
            "linalg_lstsq",
            "cholesky_inverse",
        ),
    ),
    Family(
        "sizes known only at run time",
        "the first dimension depends on the data",
        "the operand's, indices int64",
        "scatter by the positions",
        (
            "nonzero",
            "masked_select",
            "_unique2",
            "unique_consecutive",
            "bincount",
            "repeat_interleave.Tensor",
        ),
    ),
    Family("read", "a Python number", "Python's", "none", ("_local_scalar_dense", "equal")),
    Family(
        "checked at run time",
        "the value's, row-major",
        "the value's",
        "none",
        ("primtorch.checked",),
    ),
    Family(
        "random numbers by counter",
        "as asked, row-major, on the seed's device",
        "as asked",
        "none",
        (
            "primtorch.draw_seed",
            "primtorch.philox_uniform",
            "primtorch.philox_normal",
            "primtorch.philox_randint",
        ),
    ),
)


def _resolve(family: Family) -> frozenset[OpOverload]:
    names = (n if n.startswith("primtorch.") else f"aten.{n}" for n in family.operators)
    return frozenset(o for o in map(overload, names) if o is not None)


_FAMILY_OF: dict[OpOverload, Family] = {
    operator: family for family in FAMILIES for operator in _resolve(family)
}

PRIMS: frozenset[OpOverload] = frozenset(_FAMILY_OF)


def is_prim(operator: OpOverload) -> bool:
    """Whether `operator` is in the closed primitive set."""
    return operator in PRIMS


def family_of(operator: OpOverload) -> Family:
    """The family of a prim, which states its rules. Raises KeyError for any other operator."""
    return _FAMILY_OF[operator]
