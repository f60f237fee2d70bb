"""Shape rules of factories, copies, random numbers and joins."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import (
    broadcast,
    common_device,
    format_strides,
    suggested_format,
    wrap_dimension,
)
from primtorch.fake.meta import Shape, TensorMeta, logical_device
from primtorch.fake.promotion import number_dtype, result_dtype
from primtorch.fake.registry import shape_rule
from primtorch.fake.rules.views import diagonal, select, slice_
from primtorch.symbolic import (
    Expression,
    Real,
    Sizes,
    channels_last_strides,
    contiguous_strides,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_FINEST = 1 << 10
"""The finest fraction of a float that is counted in exactly."""


def _new(
    shape: Sequence[int | Expression],
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    memory_format: torch.memory_format | None = None,
) -> TensorMeta:
    sizes = tuple(shape)
    for size in sizes:
        if isinstance(size, int) and size < 0:
            raise RuntimeError(
                f"Trying to create tensor with negative dimension {size}: {list(sizes)}"
            )
    stride = contiguous_strides(sizes)
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        stride = channels_last_strides(sizes)
    return TensorMeta(sizes, stride, dtype or torch.get_default_dtype(), logical_device(device))


@shape_rule(
    "empty.memory_format",
    "zeros",
    "ones",
    "rand",
    "randn",
    "rand.generator",
    "randn.generator",
)
def empty(
    sizes: Sizes,
    size: Sequence[int | Expression],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    memory_format: torch.memory_format | None = None,
    **rest: Any,
) -> TensorMeta:
    """A new tensor of this size."""
    del sizes, rest
    return _new(size, dtype, device, memory_format)


@shape_rule("empty_strided")
def empty_strided(
    sizes: Sizes,
    size: Sequence[int | Expression],
    stride: Sequence[int | Expression],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """A new tensor of this geometry."""
    del sizes, rest
    return TensorMeta(
        tuple(size), tuple(stride), dtype or torch.get_default_dtype(), logical_device(device)
    )


@shape_rule("empty_permuted")
def empty_permuted(
    sizes: Sizes,
    size: Sequence[int | Expression],
    physical_layout: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """A new tensor whose dimensions lie in memory in the given order, outermost first."""
    del sizes, rest
    stride: list[int | Expression] = [0] * len(size)
    step: int | Expression = 1
    for dimension in reversed(physical_layout):
        stride[dimension] = step
        step = step * size[dimension]
    return TensorMeta(
        tuple(size), tuple(stride), dtype or torch.get_default_dtype(), logical_device(device)
    )


@shape_rule("full")
def full(
    sizes: Sizes,
    size: Sequence[int | Expression],
    fill_value: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """A new tensor of one value, whose type decides the dtype if none is given."""
    del sizes, rest
    return _new(size, dtype or number_dtype(fill_value), device)


@shape_rule("scalar_tensor")
def scalar_tensor(
    sizes: Sizes, s: Any, *, dtype: torch.dtype | None = None, device: Any = None, **rest: Any
) -> TensorMeta:
    """A 0-d tensor of a number."""
    del sizes, s, rest
    return _new((), dtype, device)


@shape_rule("randint")
def randint(
    sizes: Sizes,
    high: Any,
    size: Sequence[Any],
    *,
    dtype: Any = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """Random integers."""
    del sizes, high, rest
    return _new(size, dtype or torch.int64, device)


@shape_rule("randint.low")
def randint_low(
    sizes: Sizes,
    low: Any,
    high: Any,
    size: Sequence[Any],
    *,
    dtype: Any = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """Random integers."""
    del sizes, low, high, rest
    return _new(size, dtype or torch.int64, device)


@shape_rule("randperm")
def randperm(
    sizes: Sizes, n: Any, *, dtype: Any = None, device: Any = None, **rest: Any
) -> TensorMeta:
    """A random permutation."""
    del sizes, rest
    return _new((n,), dtype or torch.int64, device)


@shape_rule("eye")
def eye(sizes: Sizes, n: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> TensorMeta:
    """The identity matrix."""
    del sizes, rest
    return _new((n, n), dtype, device)


@shape_rule("eye.m")
def eye_m(
    sizes: Sizes, n: Any, m: Any, *, dtype: Any = None, device: Any = None, **rest: Any
) -> TensorMeta:
    """Ones on the diagonal of a matrix."""
    del sizes, rest
    return _new((n, m), dtype, device)


def _arange_length(sizes: Sizes, start: Any, end: Any, step: Any) -> int | Expression:
    if isinstance(step, (int, float)) and step == 0:
        raise RuntimeError("step must be nonzero")
    if any(isinstance(value, float) for value in (start, end, step)):
        start, end, step = _in_common_units(sizes, start, end, step)
    if all(isinstance(value, (int, float)) for value in (start, end, step)):
        if end < start if step > 0 else end > start:
            raise RuntimeError("upper bound and lower bound inconsistent with step sign")
        if any(isinstance(value, float) for value in (start, end, step)):
            return math.ceil((end - start) / step)
    length = -((start - end) // step)
    return length if isinstance(length, int) else sizes.larger(length, 0)


def _in_common_units(sizes: Sizes, *values: Any) -> tuple[Any, ...]:
    """Floats beside symbolic sizes as multiples of a power of two, of which all are integers.

    Eager divides in double precision: where that might round to another side of an integer the sizes are fixed.
    """
    if not any(isinstance(value, Expression) for value in values):
        return values
    ratios = [value.as_integer_ratio() for value in values if isinstance(value, float)]
    unit = max(below for _, below in ratios)
    if unit > _FINEST or any(abs(above) > _FINEST**2 for above, _ in ratios):
        return tuple(
            sizes.constant(value) if isinstance(value, Expression) else value for value in values
        )
    return tuple(
        int(value * unit) if isinstance(value, float) else value * unit for value in values
    )


def _arange(
    sizes: Sizes, start: Any, end: Any, step: Any, dtype: torch.dtype | None, device: Any
) -> TensorMeta:
    if dtype is None:
        integral = not any(isinstance(value, (float, Real)) for value in (start, end, step))
        dtype = torch.int64 if integral else torch.get_default_dtype()
    if dtype is torch.int64:  # as eager: what is counted are integers
        start, end, step = (
            int(value) if isinstance(value, float) else value for value in (start, end, step)
        )
    return _new((_arange_length(sizes, start, end, step),), dtype, device)


@shape_rule("arange")
def arange(
    sizes: Sizes, end: Any, *, dtype: Any = None, device: Any = None, **rest: Any
) -> TensorMeta:
    """0, 1, ... below end."""
    del rest
    return _arange(sizes, 0, end, 1, dtype, device)


@shape_rule("arange.start")
def arange_start(
    sizes: Sizes, start: Any, end: Any, *, dtype: Any = None, device: Any = None, **rest: Any
) -> TensorMeta:
    """From start below end."""
    del rest
    return _arange(sizes, start, end, 1, dtype, device)


@shape_rule("arange.start_step")
def arange_step(
    sizes: Sizes,
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """From start below end by steps."""
    del rest
    return _arange(sizes, start, end, step, dtype, device)


@shape_rule("linspace", "logspace")
def linspace(
    sizes: Sizes,
    start: Any,
    end: Any,
    steps: Any,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """Evenly spaced numbers."""
    del sizes, base, rest
    if dtype is None and (isinstance(start, complex) or isinstance(end, complex)):
        dtype = number_dtype(1j)
    return _new((steps,), dtype, device)


# ---------------------------------------------------------------- like another tensor
@shape_rule(
    "empty_like",
    "zeros_like",
    "ones_like",
    "rand_like",
    "randn_like",
    "full_like",
    "randint_like",
    "randint_like.low_dtype",
)
def like(
    sizes: Sizes,
    x: TensorMeta,
    *values: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    memory_format: torch.memory_format | None = None,
    **rest: Any,
) -> TensorMeta:
    """A new tensor with the shape, and by default the memory order, dtype and device of another."""
    del values, rest
    stride = format_strides(sizes, x, x.shape, memory_format)
    return TensorMeta(
        x.shape, stride, dtype or x.dtype, x.device if device is None else logical_device(device)
    )


@shape_rule("new_empty", "new_zeros", "new_ones")
def new_empty(
    sizes: Sizes,
    x: TensorMeta,
    size: Sequence[int | Expression],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """A new tensor of this size, by default with the dtype and device of another."""
    del sizes, rest
    return _new(size, dtype or x.dtype, x.device if device is None else device)


@shape_rule("new_full")
def new_full(
    sizes: Sizes,
    x: TensorMeta,
    size: Sequence[int | Expression],
    fill_value: Any,
    **kwargs: Any,
) -> TensorMeta:
    """A new tensor of one value."""
    del fill_value
    return new_empty(sizes, x, size, **kwargs)


@shape_rule("new_empty_strided")
def new_empty_strided(
    sizes: Sizes,
    x: TensorMeta,
    size: Sequence[int | Expression],
    stride: Sequence[int | Expression],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """A new tensor of this geometry."""
    del sizes, rest
    return TensorMeta(
        tuple(size),
        tuple(stride),
        dtype or x.dtype,
        x.device if device is None else logical_device(device),
    )


@shape_rule("clone")
def clone(
    sizes: Sizes, x: TensorMeta, *, memory_format: torch.memory_format | None = None
) -> TensorMeta:
    """A copy; by default in the same memory order."""
    return TensorMeta(x.shape, format_strides(sizes, x, x.shape, memory_format), x.dtype, x.device)


@shape_rule("contiguous")
def contiguous(
    sizes: Sizes, x: TensorMeta, *, memory_format: torch.memory_format = torch.contiguous_format
) -> TensorMeta:
    """The tensor in a memory format, copied if it isn't in it."""
    stride = format_strides(sizes, x, x.shape, memory_format)
    return x if stride == x.stride else TensorMeta(x.shape, stride, x.dtype, x.device)


@shape_rule("_to_copy")
def to_copy(
    sizes: Sizes,
    x: TensorMeta,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    memory_format: torch.memory_format | None = None,
    **rest: Any,
) -> TensorMeta:
    """A copy with another dtype, device or memory order; C++ may pass a number for a 0-d tensor."""
    del rest
    if isinstance(x, (int, float, complex)):
        x = TensorMeta((), (), number_dtype(x), torch.device("cpu"))
    stride = format_strides(sizes, x, x.shape, memory_format)
    return TensorMeta(
        x.shape, stride, dtype or x.dtype, x.device if device is None else logical_device(device)
    )


@shape_rule("copy")
def copy(sizes: Sizes, x: TensorMeta, src: TensorMeta, non_blocking: bool = False) -> TensorMeta:
    """The values of src in a tensor like x."""
    del src, non_blocking
    return clone(sizes, x)


@shape_rule("fill.Scalar", "fill.Tensor")
def fill(sizes: Sizes, x: TensorMeta, value: Any) -> TensorMeta:
    """One value in a tensor like x."""
    del value
    return clone(sizes, x)


# ---------------------------------------------------------------- random numbers like a tensor
@shape_rule(
    "bernoulli", "bernoulli.p", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet"
)
def drawn_in_rows(sizes: Sizes, x: TensorMeta, *args: Any, **rest: Any) -> TensorMeta:
    """Numbers drawn for each element of x, row-major."""
    del sizes, args, rest
    return x.contiguous()


@shape_rule("_standard_gamma_grad", "_dirichlet_grad")
def gradient_of_drawn(sizes: Sizes, x: TensorMeta, *args: Any) -> TensorMeta:
    """The gradient of numbers drawn in rows by their parameters, row-major."""
    del sizes, args
    return x.contiguous()


@shape_rule(
    "bernoulli.Tensor",
    "uniform",
    "normal_functional",
    "exponential",
    "geometric",
    "log_normal",
    "cauchy",
    "random",
    "random.from",
    "random.to",
)
def random_like(sizes: Sizes, x: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
    """Random numbers with the geometry of x."""
    del args, kwargs
    return clone(sizes, x)


@shape_rule("normal.float_float")
def normal_float(
    sizes: Sizes,
    mean: float,
    std: float,
    size: Sequence[Any],
    *,
    dtype: Any = None,
    device: Any = None,
    **rest: Any,
) -> TensorMeta:
    """Normal random numbers of a size."""
    del sizes, mean, std, rest
    return _new(size, dtype, device)


@shape_rule("normal.Tensor_float")
def normal_tensor(sizes: Sizes, mean: TensorMeta, std: float = 1, **rest: Any) -> TensorMeta:
    """Normal random numbers around each mean, row-major."""
    del sizes, std, rest
    return mean.contiguous()


@shape_rule("normal.float_Tensor")
def normal_deviations(sizes: Sizes, mean: float, std: TensorMeta, **rest: Any) -> TensorMeta:
    """Normal random numbers with each deviation, row-major."""
    del sizes, mean, rest
    return std.contiguous()


@shape_rule("normal.Tensor_Tensor")
def normal_tensors(sizes: Sizes, mean: TensorMeta, std: TensorMeta, **rest: Any) -> TensorMeta:
    """Normal random numbers around each mean with each deviation, row-major."""
    del rest
    return mean.contiguous(broadcast(sizes, mean.shape, std.shape))


@shape_rule("native_dropout")
def native_dropout(
    sizes: Sizes, x: TensorMeta, p: float, train: bool | None
) -> tuple[TensorMeta, TensorMeta]:
    """(output, mask)."""
    del p
    result = clone(sizes, x)
    if train is False:
        return result, x.contiguous(x.shape, torch.bool)
    return result, result.with_dtype(torch.bool)


@shape_rule("native_dropout_backward")
def native_dropout_backward(
    sizes: Sizes, grad_output: TensorMeta, mask: TensorMeta, scale: float
) -> TensorMeta:
    """The gradient where the mask is set."""
    del mask
    result = clone(sizes, grad_output)
    if grad_output.device.type == "cuda":
        chosen = suggested_format(sizes, grad_output)
        result = clone(sizes, grad_output, memory_format=chosen)
    return result.with_dtype(result_dtype((grad_output, scale)))


@shape_rule("multinomial")
def multinomial(
    sizes: Sizes, x: TensorMeta, num_samples: Any, replacement: bool = False, **rest: Any
) -> TensorMeta:
    """Indices drawn by weight."""
    del sizes, replacement, rest
    return x.contiguous((*x.shape[:-1], num_samples), torch.int64)


# ---------------------------------------------------------------- joins
@shape_rule("cat")
def cat(sizes: Sizes, tensors: Sequence[TensorMeta], dim: int = 0) -> TensorMeta:
    """Tensors one after the other along a dimension; legacy empty vectors are passed over."""
    if not tensors:
        raise RuntimeError("expected a non-empty list of Tensors")
    real = [m for m in tensors if m.shape != (0,)] or [tensors[0]]
    first = real[0]
    if not first.shape:
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
    dimension = wrap_dimension(dim, first.ndim)
    total: int | Expression = 0
    for position, meta in enumerate(real):
        if meta.ndim != first.ndim:
            raise RuntimeError(
                f"Tensors must have same number of dimensions: got {first.ndim} and {meta.ndim}"
            )
        for index, (have, want) in enumerate(zip(meta.shape, first.shape, strict=True)):
            if index != dimension and not (have is want or sizes.same(have, want)):
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dimension}. Expected size "
                    f"{want} but got size {have} for tensor number {position} in the list."
                )
        total = total + meta.shape[dimension]
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    dtype = result_dtype(tensors)
    formats = {suggested_format(sizes, meta) for meta in tensors}  # those passed over have a say
    chosen = formats.pop() if len(formats) == 1 else torch.contiguous_format
    stride = format_strides(sizes, first, shape, chosen)
    return TensorMeta(shape, stride, dtype, common_device(tensors))


@shape_rule("stack")
def stack(sizes: Sizes, tensors: Sequence[TensorMeta], dim: int = 0) -> TensorMeta:
    """Tensors of one shape along a new dimension."""
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    first = tensors[0]
    position = wrap_dimension(dim, first.ndim + 1)
    for index, meta in enumerate(tensors):
        if meta.ndim != first.ndim or not all(
            sizes.same(a, b) for a, b in zip(meta.shape, first.shape, strict=True)
        ):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry "
                f"0 and {list(meta.shape)} at entry {index}"
            )
    if position < first.ndim:  # eager joins along the dimension that is there, and divides it
        joined = cat(sizes, tensors, position)
        size, step = first.shape[position], joined.stride[position]
        shape = (*joined.shape[:position], len(tensors), size, *joined.shape[position + 1 :])
        return joined.strided(
            shape, (*joined.stride[:position], step * size, *joined.stride[position:])
        )
    return cat(sizes, [_with_new_dimension(meta, position) for meta in tensors], position)


def _with_new_dimension(x: TensorMeta, position: int) -> TensorMeta:
    step = x.shape[position] * x.stride[position] if position < x.ndim else 1
    return x.strided(
        (*x.shape[:position], 1, *x.shape[position:]),
        (*x.stride[:position], step, *x.stride[position:]),
    )


@shape_rule("repeat")
def repeat(sizes: Sizes, x: TensorMeta, repeats: Sequence[int | Expression]) -> TensorMeta:
    """The tensor tiled."""
    del sizes
    if len(repeats) < x.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            "tensor"
        )
    padded: Shape = (1,) * (len(repeats) - x.ndim) + x.shape
    return x.contiguous(tuple(size * times for size, times in zip(padded, repeats, strict=True)))


@shape_rule("tril", "triu")
def tril(sizes: Sizes, x: TensorMeta, diagonal: int = 0) -> TensorMeta:
    """One triangle of each matrix, row-major."""
    del sizes, diagonal
    return x.contiguous()


@shape_rule("roll")
def roll(sizes: Sizes, x: TensorMeta, shifts: Any, dims: Any = ()) -> TensorMeta:
    """Elements moved around; on a CPU two slices are joined for each dimension, else it is row-major."""
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    if x.device.type != "cpu" or not dims or len(shifts) != len(dims):
        return x.contiguous()
    for shift, dim in zip(shifts, dims, strict=True):
        if 0 in x.shape or suggested_format(sizes, x) is torch.contiguous_format:
            return x.contiguous()
        size = x.shape[wrap_dimension(dim, x.ndim)]
        start = (size - shift) % size
        if sizes.same(start, 0):
            return x.contiguous()
        x = cat(sizes, [slice_(sizes, x, dim, start, size), slice_(sizes, x, dim, 0, start)], dim)
    return x


@shape_rule("rot90")
def rot90(sizes: Sizes, x: TensorMeta, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorMeta:
    """A plane turned by quarter turns."""
    first, second = (wrap_dimension(dim, x.ndim) for dim in dims)
    shape = list(x.shape)
    if k % 2:
        shape[first], shape[second] = shape[second], shape[first]
    if k % 4 in (0, 2):
        return clone(sizes, x)
    stride = list(format_strides(sizes, x, x.shape, None))
    stride[first], stride[second] = stride[second], stride[first]
    return TensorMeta(tuple(shape), tuple(stride), x.dtype, x.device)


# ---------------------------------------------------------------- scatter of slices
def _with_part(sizes: Sizes, x: TensorMeta, src: TensorMeta, part: TensorMeta) -> TensorMeta:
    """A copy of x with one part replaced, by as many elements; it has the strides of x, gaps included."""
    if src.ndim != part.ndim or not all(
        have is want or sizes.same(have, want)
        for have, want in zip(src.shape, part.shape, strict=True)
    ):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(src.shape)}, slice size = {list(part.shape)}"
        )
    for size, step in zip(x.shape, x.stride, strict=True):
        if step == 0 and size != 1:  # overlapping memory is made dense
            return clone(sizes, x)
    return x


@shape_rule("slice_scatter")
def slice_scatter(
    sizes: Sizes,
    x: TensorMeta,
    src: TensorMeta,
    dim: int = 0,
    start: int | Expression | None = None,
    end: int | Expression | None = None,
    step: int | Expression = 1,
) -> TensorMeta:
    """x with a slice replaced."""
    return _with_part(sizes, x, src, slice_(sizes, x, dim, start, end, step))


@shape_rule("select_scatter")
def select_scatter(
    sizes: Sizes, x: TensorMeta, src: TensorMeta, dim: int, index: int | Expression
) -> TensorMeta:
    """x with one place of a dimension replaced."""
    return _with_part(sizes, x, src, select(sizes, x, dim, index))


@shape_rule("diagonal_scatter")
def diagonal_scatter(
    sizes: Sizes, x: TensorMeta, src: TensorMeta, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorMeta:
    """x with a diagonal replaced."""
    return _with_part(sizes, x, src, diagonal(sizes, x, offset, dim1, dim2))


@shape_rule("as_strided_scatter")
def as_strided_scatter(
    sizes: Sizes, x: TensorMeta, src: TensorMeta, size: Shape, *geometry: Any, **named: Any
) -> TensorMeta:
    """x with the elements of a view of any geometry replaced."""
    del geometry, named
    return _with_part(sizes, x, src, x.contiguous(tuple(size)))


@shape_rule("slice_backward", "select_backward", "diagonal_backward", "unfold_backward")
def zeros_backward(
    sizes: Sizes, grad_output: TensorMeta, input_sizes: Sequence[int | Expression], *args: Any
) -> TensorMeta:
    """Zeros of the input's size with the gradient in its place."""
    del sizes, args
    return grad_output.contiguous(tuple(input_sizes))
