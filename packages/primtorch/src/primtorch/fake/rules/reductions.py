"""Shape rules of reductions, scans, softmax, and sorting.

Results of reductions are row-major whatever the input's memory order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import (
    format_strides,
    pointwise_strides,
    wrap_dimension,
    wrap_dimensions,
)
from primtorch.fake.meta import Shape, TensorMeta
from primtorch.fake.promotion import floating, real_of
from primtorch.fake.registry import shape_rule, symbolic_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primtorch.symbolic import Expression, Sizes


_MOST_DIMENSIONS = 64  # ATen keeps the reduced ones in a set of bits


def reduced_shape(shape: Shape, dimensions: tuple[int, ...], keepdim: bool) -> Shape:
    """The shape with the dimensions dropped, or kept with size one."""
    if keepdim:
        return tuple([1 if i in dimensions else size for i, size in enumerate(shape)])
    return tuple([size for i, size in enumerate(shape) if i not in dimensions])


def _summed(dtype: torch.dtype) -> torch.dtype:
    """Sums of integers and bools are int64."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def _reduce(x: TensorMeta, dim: Any, keepdim: bool, dtype: torch.dtype) -> TensorMeta:
    dimensions = wrap_dimensions(dim, x.ndim)
    return x.contiguous(reduced_shape(x.shape, dimensions, keepdim), dtype)


@shape_rule("sum", "prod")
def sum_all(sizes: Sizes, x: TensorMeta, *, dtype: torch.dtype | None = None) -> TensorMeta:
    """The sum or product of all elements."""
    del sizes
    return x.contiguous((), dtype or _summed(x.dtype))


@shape_rule("sum.dim_IntList", "prod.dim_int", "nansum")
def sum_dim(
    sizes: Sizes,
    x: TensorMeta,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorMeta:
    """The sum or product over dimensions."""
    del sizes
    return _reduce(x, dim, keepdim, dtype or _summed(x.dtype))


@shape_rule("mean")
def mean_all(sizes: Sizes, x: TensorMeta, *, dtype: torch.dtype | None = None) -> TensorMeta:
    """The mean of all elements."""
    return mean_dim(sizes, x, None, dtype=dtype)


@shape_rule("mean.dim")
def mean_dim(
    sizes: Sizes,
    x: TensorMeta,
    dim: Any,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorMeta:
    """The mean over dimensions, of floating numbers."""
    del sizes
    result = dtype or x.dtype
    if not (result.is_floating_point or result.is_complex):
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {str(x.dtype).removeprefix('torch.').capitalize()}"
        )
    return _reduce(x, dim, keepdim, result)


@shape_rule("amax", "amin")
def amax(sizes: Sizes, x: TensorMeta, dim: Any = (), keepdim: bool = False) -> TensorMeta:
    """The extreme over dimensions."""
    _refuse_many_dimensions(x)
    _refuse_empty(sizes, x, wrap_dimensions(dim, x.ndim), "amax")
    return _reduce(x, dim, keepdim, x.dtype)


def _refuse_many_dimensions(x: TensorMeta) -> None:
    if x.ndim > _MOST_DIMENSIONS:
        raise RuntimeError("only tensors with up to 64 dims are supported")


def _refuse_empty(sizes: Sizes, x: TensorMeta, dimensions: tuple[int, ...], name: str) -> None:
    del sizes
    for dimension in dimensions:
        if x.shape and x.shape[dimension] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {dimension} to have non-zero size.")


@shape_rule("max", "min", "median", "nanmedian")
def extreme_all(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """The extreme of all elements."""
    del sizes
    if x.numel == 0:
        raise RuntimeError(
            "max(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )
    return x.contiguous(())


@shape_rule("max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode")
def extreme_dim(
    sizes: Sizes, x: TensorMeta, dim: int = -1, keepdim: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    """The extreme along a dimension, and its index."""
    dimension = wrap_dimension(dim, x.ndim)
    _refuse_empty(sizes, x, (dimension,), "max")
    shape = reduced_shape(x.shape, (dimension,), keepdim)
    return x.contiguous(shape), x.contiguous(shape, torch.int64)


@shape_rule("kthvalue")
def kthvalue(
    sizes: Sizes, x: TensorMeta, k: Any, dim: int = -1, keepdim: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    """The k-th smallest along a dimension, and its index."""
    del k
    return extreme_dim(sizes, x, dim, keepdim)


@shape_rule("aminmax")
def aminmax(
    sizes: Sizes, x: TensorMeta, *, dim: int | None = None, keepdim: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    """Smallest and largest."""
    del sizes
    _refuse_many_dimensions(x)
    if dim is None:
        shape: Shape = (1,) * x.ndim if keepdim else ()
    else:
        shape = reduced_shape(x.shape, (wrap_dimension(dim, x.ndim),), keepdim)
    return x.contiguous(shape), x.contiguous(shape)


@shape_rule("argmax", "argmin")
def argmax(
    sizes: Sizes, x: TensorMeta, dim: int | None = None, keepdim: bool = False
) -> TensorMeta:
    """The index of the extreme."""
    if dim is None:
        if x.numel == 0:
            raise IndexError(
                "argmax(): Expected reduction dim to be specified for input.numel() == 0."
            )
        return x.contiguous((1,) * x.ndim if keepdim else (), torch.int64)
    dimension = wrap_dimension(dim, x.ndim)
    _refuse_empty(sizes, x, (dimension,), "argmax")
    return x.contiguous(reduced_shape(x.shape, (dimension,), keepdim), torch.int64)


def _truth_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype is torch.uint8 else torch.bool


@shape_rule("any", "all")
def any_all(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """Whether any or all elements are true."""
    del sizes
    return x.contiguous((), _truth_dtype(x.dtype))


@shape_rule("any.dim", "all.dim", "any.dims", "all.dims")
def any_dim(sizes: Sizes, x: TensorMeta, dim: Any = None, keepdim: bool = False) -> TensorMeta:
    """Whether any or all elements along dimensions are true."""
    del sizes
    if isinstance(dim, list) and not dim:
        return x.contiguous(x.shape, _truth_dtype(x.dtype))
    return _reduce(x, dim, keepdim, _truth_dtype(x.dtype))


@shape_rule("count_nonzero.dim_IntList", "count_nonzero")
def count_nonzero(sizes: Sizes, x: TensorMeta, dim: Any = None) -> TensorMeta:
    """The number of nonzero elements."""
    del sizes
    return _reduce(x, dim, False, torch.int64)


@shape_rule("var.correction", "std.correction")
def var(
    sizes: Sizes,
    x: TensorMeta,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> TensorMeta:
    """Variance or standard deviation over dimensions."""
    del sizes, correction
    return _reduce(x, dim, keepdim, real_of(x.dtype))


@shape_rule("var_mean.correction", "std_mean.correction")
def var_mean(
    sizes: Sizes,
    x: TensorMeta,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[TensorMeta, TensorMeta]:
    """Variance or standard deviation, and mean."""
    del sizes, correction
    return (
        _reduce(x, dim, keepdim, real_of(x.dtype)),
        _reduce(x, dim, keepdim, x.dtype),
    )


@shape_rule("logsumexp")
def logsumexp(sizes: Sizes, x: TensorMeta, dim: Any, keepdim: bool = False) -> TensorMeta:
    """Logarithm of the sum of exponentials."""
    del sizes
    return _reduce(x, dim, keepdim, floating(x.dtype))


@shape_rule("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def norm_dim(
    sizes: Sizes,
    x: TensorMeta,
    p: Any,
    dim: Any,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorMeta:
    """The p-norm over dimensions."""
    del sizes, p
    return _reduce(x, dim, keepdim, real_of(dtype or x.dtype))


@shape_rule("norm.Scalar")
def norm_all(sizes: Sizes, x: TensorMeta, p: Any = 2) -> TensorMeta:
    """The p-norm of all elements."""
    del sizes, p
    return x.contiguous((), real_of(x.dtype))


@shape_rule("linalg_vector_norm")
def vector_norm(
    sizes: Sizes,
    x: TensorMeta,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorMeta:
    """The norm of vectors along dimensions."""
    del sizes, ord
    return _reduce(x, dim, keepdim, real_of(dtype or x.dtype))


@shape_rule("dist")
def dist(sizes: Sizes, x: TensorMeta, other: TensorMeta, p: Any = 2) -> TensorMeta:
    """The p-norm of the difference."""
    del sizes, other, p
    return x.contiguous((), real_of(x.dtype))


# ---------------------------------------------------------------- scans
@shape_rule("cumsum", "cumprod")
def cumsum(
    sizes: Sizes, x: TensorMeta, dim: int, *, dtype: torch.dtype | None = None
) -> TensorMeta:
    """Running sums or products."""
    del sizes
    wrap_dimension(dim, x.ndim)
    return x.contiguous(x.shape, dtype or _summed(x.dtype))


@shape_rule("logcumsumexp")
def logcumsumexp(sizes: Sizes, x: TensorMeta, dim: int) -> TensorMeta:
    """Running logsumexp."""
    del sizes
    wrap_dimension(dim, x.ndim)
    return x.contiguous()


@shape_rule("cummax", "cummin")
def cummax(sizes: Sizes, x: TensorMeta, dim: int) -> tuple[TensorMeta, TensorMeta]:
    """Running extremes and their indices."""
    del sizes
    wrap_dimension(dim, x.ndim)
    return x.contiguous(), x.contiguous(x.shape, torch.int64)


@shape_rule("flip")
def flip(sizes: Sizes, x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    """Elements in reverse order along dimensions."""
    if dims:
        wrap_dimensions(dims, x.ndim)
    return TensorMeta(x.shape, format_strides(sizes, x, x.shape, None), x.dtype, x.device)


# ---------------------------------------------------------------- softmax
@shape_rule("_softmax", "_log_softmax")
def softmax(sizes: Sizes, x: TensorMeta, dim: int, half_to_float: bool) -> TensorMeta:
    """Softmax along a dimension, row-major; half_to_float returns float32 from half inputs (CUDA only)."""
    del sizes
    wrap_dimension(dim, x.ndim)
    return x.contiguous(x.shape, torch.float32 if half_to_float else x.dtype)


@shape_rule("_safe_softmax")
def safe_softmax(
    sizes: Sizes, x: TensorMeta, dim: int, dtype: torch.dtype | None = None
) -> TensorMeta:
    """Softmax that is zero where all inputs are -inf."""
    del sizes
    wrap_dimension(dim, x.ndim)
    return x.contiguous(x.shape, dtype or x.dtype)


@shape_rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(
    sizes: Sizes, grad_output: TensorMeta, output: TensorMeta, dim: int, input_dtype: torch.dtype
) -> TensorMeta:
    """The gradient of softmax, row-major."""
    del sizes, output
    wrap_dimension(dim, grad_output.ndim)
    return grad_output.contiguous(grad_output.shape, input_dtype)


# ---------------------------------------------------------------- sorting
@shape_rule("sort")
def sort(
    sizes: Sizes, x: TensorMeta, dim: int = -1, descending: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    """Sorted values and their indices."""
    del descending
    wrap_dimension(dim, x.ndim)
    return _like_with_index(sizes, x)


def _like_with_index(sizes: Sizes, x: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    stride = pointwise_strides(sizes, x.shape, (x,))
    return (
        TensorMeta(x.shape, stride, x.dtype, x.device),
        TensorMeta(x.shape, stride, torch.int64, x.device),
    )


@shape_rule("sort.stable")
def sort_stable(
    sizes: Sizes,
    x: TensorMeta,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[TensorMeta, TensorMeta]:
    """As `sort`, keeping the order of equal elements."""
    del stable
    return sort(sizes, x, dim, descending)


@shape_rule("argsort.stable", "argsort")
def argsort(sizes: Sizes, x: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
    """The indices that sort."""
    del args, kwargs
    return _like_with_index(sizes, x)[1]


@shape_rule("topk")
def topk(
    sizes: Sizes,
    x: TensorMeta,
    k: int | Expression,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[TensorMeta, TensorMeta]:
    """The k largest along a dimension, and their indices."""
    del largest, sorted
    dimension = wrap_dimension(dim, x.ndim)
    shape = list(x.shape)
    if shape:
        if sizes.less(shape[dimension], k):
            raise RuntimeError("selected index k out of range")
        shape[dimension] = k
    return x.contiguous(tuple(shape)), x.contiguous(tuple(shape), torch.int64)


@shape_rule("searchsorted.Tensor")
def searchsorted(
    sizes: Sizes,
    sorted_sequence: TensorMeta,
    x: TensorMeta,
    *,
    out_int32: bool = False,
    **rest: Any,
) -> TensorMeta:
    """Where elements would be inserted."""
    del sizes, sorted_sequence, rest
    return x.contiguous(x.shape, torch.int32 if out_int32 else torch.int64)


@shape_rule("bucketize.Tensor")
def bucketize(
    sizes: Sizes,
    x: TensorMeta,
    boundaries: TensorMeta,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> TensorMeta:
    """The bucket of each element."""
    del sizes, boundaries, right
    return x.contiguous(x.shape, torch.int32 if out_int32 else torch.int64)


@symbolic_rule("histc")
def histc(sizes: Sizes, x: TensorMeta, bins: int = 100, *limits: float) -> TensorMeta:
    """How many elements fall into each bin."""
    del sizes, limits
    return x.contiguous((bins,))


@symbolic_rule("_pdist_forward")
def pdist_forward(sizes: Sizes, x: TensorMeta, p: float = 2) -> TensorMeta:
    """The distance of each pair of rows."""
    del sizes, p
    return x.contiguous((x.shape[0] * (x.shape[0] - 1) // 2,))


@symbolic_rule("_pdist_backward")
def pdist_backward(
    sizes: Sizes, grad: TensorMeta, x: TensorMeta, p: float, pdist: TensorMeta
) -> TensorMeta:
    """The gradient of the rows."""
    del sizes, grad, p, pdist
    return x.contiguous()


@symbolic_rule("rrelu_with_noise")
def rrelu_with_noise(sizes: Sizes, x: TensorMeta, noise: TensorMeta, *options: Any) -> TensorMeta:
    """As the input."""
    del noise, options
    return TensorMeta(x.shape, pointwise_strides(sizes, x.shape, [x]), x.dtype, x.device)
