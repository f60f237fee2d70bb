"""Shape rules of gathers, scatters, embeddings, padding and resampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import (
    broadcast,
    format_strides,
    pointwise_strides,
    suggested_format,
    wrap_dimension,
)
from primtorch.fake.meta import Shape, TensorMeta
from primtorch.fake.registry import shape_rule
from primtorch.fake.rules.data_dependent import run_time_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primtorch.symbolic import Expression, Sizes

_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@shape_rule("index.Tensor", "_unsafe_index.Tensor")
def index(sizes: Sizes, x: TensorMeta, indices: Sequence[TensorMeta | None]) -> TensorMeta:
    """x[indices]: the broadcast index shape takes the place of the indexed dimensions.

    Each mask stands for the positions that it selects, whose number is known only at run time.
    """
    indices = _positions(sizes, x, indices)
    given = [position for position, item in enumerate(indices) if item is not None]
    if len(indices) > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim} (got {len(indices)})")
    result = broadcast(sizes, *[m.shape for m in indices if m is not None])
    adjacent = given[-1] - given[0] + 1 == len(given)
    indexed = set(given)
    kept = [i for i in range(x.ndim) if i not in indexed]
    before = [i for i in kept if i < given[0]] if adjacent else []
    after = [i for i in kept if i not in before]
    shape = (*(x.shape[i] for i in before), *result, *(x.shape[i] for i in after))
    return TensorMeta(
        shape, _index_strides(sizes, x, indices, shape, before, after, result), x.dtype, x.device
    )


def _positions(
    sizes: Sizes, x: TensorMeta, indices: Sequence[TensorMeta | None]
) -> list[TensorMeta | None]:
    """The indices with every mask replaced by one vector of positions per dimension of it."""
    result: list[TensorMeta | None] = []
    for item in indices:
        if item is None:
            result.append(None)
        elif item.dtype in (torch.bool, torch.uint8):
            count = run_time_size(sizes, "the number of elements that a mask selects", "index")
            column = item.contiguous((count,), torch.int64).strided((count,), (1,))
            result.extend([column] * max(item.ndim, 1))
        elif item.dtype not in _INDEX_DTYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        else:
            result.append(item)
    del x
    return result


def _index_strides(
    sizes: Sizes,
    x: TensorMeta,
    indices: Sequence[TensorMeta | None],
    shape: Shape,
    before: Sequence[int],
    after: Sequence[int],
    result: Shape,
) -> Shape:
    """TensorIterator's order over the restrided source and the index tensors."""
    source = (
        *(x.stride[i] for i in before),
        *(0 for _ in result),
        *(x.stride[i] for i in after),
    )
    operands = [TensorMeta(shape, source, x.dtype, x.device)]
    lead = (1,) * len(before)
    tail = (1,) * len(after)
    for item in indices:
        if item is None:
            continue
        expanded = item.shape
        missing = len(result) - len(expanded)
        full = (*lead, *(1,) * missing, *expanded, *tail)
        stride = (*(0 for _ in lead), *(0,) * missing, *item.stride, *(0 for _ in tail))
        operands.append(TensorMeta(full, stride, item.dtype, item.device))
    return pointwise_strides(sizes, shape, operands)


@shape_rule("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    sizes: Sizes,
    x: TensorMeta,
    indices: Sequence[TensorMeta | None],
    values: TensorMeta,
    accumulate: bool = False,
    unsafe: bool = False,
) -> TensorMeta:
    """A copy of x with elements replaced; one number through one mask may be of another dtype."""
    del unsafe
    mask = None if accumulate else _filled_by(x, indices, values)
    if mask is not None and mask.dtype is torch.uint8:
        raise RuntimeError(
            "masked_fill_ only supports boolean masks, but got mask with dtype unsigned char"
        )
    if x.dtype is not values.dtype and mask is None:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x.dtype} for the destination and {values.dtype} for the source."
        )
    return _cloned(sizes, x)


def _filled_by(
    x: TensorMeta, indices: Sequence[TensorMeta | None], values: TensorMeta
) -> TensorMeta | None:
    """The mask of a write that eager takes for `masked_fill_`: of a number on the CPU, by no other index; else None."""
    given = [index for index in indices if index is not None]
    if len(given) != 1 or given[0].dtype not in (torch.bool, torch.uint8):
        return None
    one = all(type(size) is int and size == 1 for size in values.shape)
    return given[0] if one and values.device.type == "cpu" and given[0].device == x.device else None


def _cloned(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    return TensorMeta(x.shape, format_strides(sizes, x, x.shape, None), x.dtype, x.device)


@shape_rule("gather")
def gather(
    sizes: Sizes, x: TensorMeta, dim: int, index: TensorMeta, *, sparse_grad: bool = False
) -> TensorMeta:
    """Elements picked along a dimension; shaped as the index."""
    del sparse_grad
    dim = wrap_dimension(dim, x.ndim)
    if 0 not in index.shape and index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("gather(): Expected dtype int32/int64 for index")
    if max(x.ndim, 1) != max(index.ndim, 1) and 0 not in index.shape:
        raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
    _require_index_within(sizes, x, dim, index)
    return x.contiguous(index.shape)


def _require_index_within(sizes: Sizes, x: TensorMeta, dim: int, index: TensorMeta) -> None:
    """Refuse an index that names elements beyond the other dimensions of x."""
    if 0 in index.shape or not x.ndim or x.ndim != index.ndim:
        return
    for dimension, (have, want) in enumerate(zip(x.shape, index.shape, strict=True)):
        if dimension != dim and have is not want and sizes.less(have, want):
            raise RuntimeError(
                f"Size does not match at dimension {dimension} expected index "
                f"{list(index.shape)} to be no larger than self {list(x.shape)} apart from "
                f"dimension {dim}"
            )


@shape_rule(
    "scatter.src",
    "scatter.value",
    "scatter.reduce",
    "scatter.value_reduce",
    "scatter_add",
    "scatter_reduce.two",
)
def scatter(
    sizes: Sizes, x: TensorMeta, dim: int, index: TensorMeta, *args: Any, **kwargs: Any
) -> TensorMeta:
    """A row-major copy of x with elements replaced or added to."""
    dim = wrap_dimension(dim, x.ndim)
    _require_index_within(sizes, x, dim, index)
    source = args[0] if args else kwargs.get("src")
    if isinstance(source, TensorMeta) and source.dtype is not x.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    if isinstance(source, TensorMeta) and source.ndim == index.ndim and 0 not in index.shape:
        for have, want in zip(source.shape, index.shape, strict=True):
            if have is not want and sizes.less(have, want):
                raise RuntimeError(
                    f"Expected index {list(index.shape)} to be no larger than self "
                    f"{list(x.shape)} apart from dimension {dim} and to be no larger than src "
                    f"{list(source.shape)}"
                )
    return x.contiguous()


@shape_rule(
    "index_add",
    "index_copy",
    "index_reduce",
)
def index_add(sizes: Sizes, x: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
    """A row-major copy of x with slices replaced or added to."""
    del sizes, args, kwargs
    return x.contiguous()


@shape_rule("put", "index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(sizes: Sizes, x: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
    """A copy of x with elements replaced, in the memory order of x."""
    del args, kwargs
    return _cloned(sizes, x)


@shape_rule("index_select")
def index_select(sizes: Sizes, x: TensorMeta, dim: int, index: TensorMeta) -> TensorMeta:
    """Slices picked along a dimension."""
    del sizes
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    dimension = wrap_dimension(dim, x.ndim)
    if not x.shape:
        return x.contiguous()
    count: int | Expression = index.shape[0] if index.shape else 1
    return x.contiguous((*x.shape[:dimension], count, *x.shape[dimension + 1 :]))


@shape_rule("take")
def take(sizes: Sizes, x: TensorMeta, index: TensorMeta) -> TensorMeta:
    """Elements of the flattened tensor."""
    return TensorMeta(
        index.shape, pointwise_strides(sizes, index.shape, (index,)), x.dtype, x.device
    )


@shape_rule("embedding")
def embedding(
    sizes: Sizes,
    weight: TensorMeta,
    indices: TensorMeta,
    padding_idx: Any = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TensorMeta:
    """Rows of the weight."""
    del sizes, padding_idx, scale_grad_by_freq, sparse
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {indices.dtype} instead (while checking arguments for embedding)"
        )
    return weight.contiguous((*indices.shape, weight.shape[1]))


@shape_rule("embedding_dense_backward")
def embedding_dense_backward(
    sizes: Sizes,
    grad_output: TensorMeta,
    indices: TensorMeta,
    num_weights: int | Expression,
    padding_idx: Any,
    scale_grad_by_freq: bool,
) -> TensorMeta:
    """The gradient of the weight."""
    del sizes, indices, padding_idx, scale_grad_by_freq
    return grad_output.contiguous((num_weights, grad_output.shape[-1]))


@shape_rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    sizes: Sizes,
    weight: TensorMeta,
    indices: TensorMeta,
    offsets: TensorMeta,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: TensorMeta | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[TensorMeta, ...]:
    """(bags, offset2bag, bag sizes, indices of maxima)."""
    del sizes, scale_grad_by_freq, sparse
    bags = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    fast = (
        weight.device.type == "cpu"
        and padding_idx < 0
        and weight.stride[-1] == 1
        and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and (per_sample_weights is None or per_sample_weights.stride[0] == 1)
    )
    picked = 0 if fast and mode == 0 else indices.shape[0]
    if mode == 2:
        maxima: Shape = (bags, weight.shape[1])
    else:
        maxima = (bags,) if weight.device.type == "cpu" else (0,)
    return (
        weight.contiguous((bags, weight.shape[1])),
        offsets.contiguous((picked,)),
        offsets.contiguous((bags,)),
        offsets.contiguous(maxima),
    )


@shape_rule("masked_scatter")
def masked_scatter(sizes: Sizes, x: TensorMeta, mask: TensorMeta, source: TensorMeta) -> TensorMeta:
    """Values of the source, in order, where the mask is set."""
    del source
    shape = broadcast(sizes, x.shape, mask.shape)
    del sizes
    return x.contiguous(shape)


@shape_rule("one_hot")
def one_hot(sizes: Sizes, x: TensorMeta, num_classes: int = -1) -> TensorMeta:
    """Indices as unit vectors; the number of classes must be given."""
    from primtorch.errors import DataDependentError

    del sizes
    if isinstance(num_classes, int) and num_classes < 0:
        raise DataDependentError("the largest class index", None, operator="one_hot")
    return x.contiguous((*x.shape, num_classes))


# ---------------------------------------------------------------- padding
@shape_rule("constant_pad_nd")
def constant_pad_nd(
    sizes: Sizes, x: TensorMeta, pad: Sequence[int | Expression], value: Any = 0
) -> TensorMeta:
    """Values added at, or cut off, the ends of the last dimensions."""
    del value
    shape = list(x.shape)
    for index in range(len(pad) // 2):
        dimension = x.ndim - 1 - index
        length = shape[dimension] + pad[2 * index] + pad[2 * index + 1]
        if sizes.less(length, 0):
            raise RuntimeError(
                f"The input size {shape[dimension]}, plus negative padding {pad[2 * index]} and "
                f"{pad[2 * index + 1]} resulted in a negative output size, which is invalid."
            )
        shape[dimension] = length
    stride = format_strides(sizes, x, tuple(shape), suggested_format(sizes, x))
    if not any(isinstance(p, int) and p > 0 for p in pad):
        # Only cut: eager copies a slice, which keeps the order of the strides.
        cut = TensorMeta(tuple(shape), x.stride, x.dtype, x.device)
        kept = format_strides(sizes, cut, cut.shape, None)
        if kept != stride and not any(sizes.less(0, p) for p in pad):
            stride = kept
    return TensorMeta(tuple(shape), stride, x.dtype, x.device)


def _edge_pad(rank: int, name: str) -> Any:
    def rule(sizes: Sizes, x: TensorMeta, padding: Sequence[int | Expression]) -> TensorMeta:
        shape = list(x.shape)
        for index in range(rank):
            dimension = x.ndim - 1 - index
            low, high = padding[2 * index], padding[2 * index + 1]
            if name == "reflection" and not (
                sizes.less(low, shape[dimension]) and sizes.less(high, shape[dimension])
            ):
                raise RuntimeError(
                    "Argument #4: Padding size should be less than the corresponding input "
                    f"dimension, but got: padding ({low}, {high}) at dimension {dimension} of "
                    f"input {list(x.shape)}"
                )
            shape[dimension] = shape[dimension] + low + high
        stride = format_strides(sizes, x, tuple(shape), suggested_format(sizes, x))
        row_major = name == "replication" and x.device.type == "cuda"
        if x.ndim != rank + 2 or rank == 1 or row_major:
            stride = x.contiguous(tuple(shape)).stride
        return TensorMeta(tuple(shape), stride, x.dtype, x.device)

    return rule


for _rank in (1, 2, 3):
    for _name in ("reflection", "replication"):
        shape_rule(f"{_name}_pad{_rank}d")(_edge_pad(_rank, _name))


def _input_like(sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, *args: Any) -> TensorMeta:
    """The gradient of an operator whose input gradient is shaped as the input."""
    del grad_output, args
    stride = format_strides(sizes, x, x.shape, suggested_format(sizes, x))
    return TensorMeta(x.shape, stride, x.dtype, x.device)


def _replicated_like(
    sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, *args: Any
) -> TensorMeta:
    """The same for replication padding, which CUDA stores row-major."""
    return x.contiguous() if x.device.type == "cuda" else _input_like(sizes, grad_output, x, *args)


for _rank in (1, 2, 3):
    shape_rule(f"reflection_pad{_rank}d_backward")(_input_like)
    shape_rule(f"replication_pad{_rank}d_backward")(_replicated_like)


# ---------------------------------------------------------------- resampling
def _upsample(rank: int) -> Any:
    def rule(
        sizes: Sizes, x: TensorMeta, output_size: Sequence[int | Expression], *args: Any
    ) -> TensorMeta:
        del args
        if x.ndim != rank + 2:
            raise RuntimeError(
                f"It is expected input_size equals to {rank + 2}, but got size {x.ndim}"
            )
        shape = (*x.shape[:2], *output_size)
        stride = x.contiguous(shape).stride
        if rank > 1:
            stride = format_strides(sizes, x, shape, suggested_format(sizes, x))
        return TensorMeta(shape, stride, x.dtype, x.device)

    return rule


def _upsample_backward(rank: int) -> Any:
    def rule(
        sizes: Sizes,
        grad_output: TensorMeta,
        output_size: Sequence[int | Expression],
        input_size: Sequence[int | Expression],
        *args: Any,
    ) -> TensorMeta:
        del output_size, args
        shape = tuple(input_size)
        stride = grad_output.contiguous(shape).stride
        if rank > 1:
            stride = format_strides(sizes, grad_output, shape, suggested_format(sizes, grad_output))
        return TensorMeta(shape, stride, grad_output.dtype, grad_output.device)

    return rule


for _name, _rank in {
    "upsample_nearest1d": 1,
    "_upsample_nearest_exact1d": 1,
    "upsample_linear1d": 1,
    "upsample_nearest2d": 2,
    "_upsample_nearest_exact2d": 2,
    "upsample_bilinear2d": 2,
    "_upsample_bilinear2d_aa": 2,
    "upsample_bicubic2d": 2,
    "_upsample_bicubic2d_aa": 2,
    "upsample_nearest3d": 3,
    "_upsample_nearest_exact3d": 3,
    "upsample_trilinear3d": 3,
}.items():
    shape_rule(_name)(_upsample(_rank))
    shape_rule(f"{_name}_backward")(_upsample_backward(_rank))


@shape_rule("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(sizes: Sizes, x: TensorMeta, grid: TensorMeta, *args: Any) -> TensorMeta:
    """Samples of x at the grid's points, row-major."""
    del sizes, args
    return x.contiguous((*x.shape[:2], *grid.shape[1:-1]))


def _shuffled(sizes: Sizes, x: TensorMeta, factor: int, *, up: bool) -> TensorMeta:
    channels, height, width = x.shape[-3:]
    square = factor * factor
    inner: Shape
    if up:
        inner = (channels // square, height * factor, width * factor)
    else:
        inner = (channels * square, height // factor, width // factor)
    shape = (*x.shape[:-3], *inner)
    stride = format_strides(sizes, x, shape, suggested_format(sizes, x))
    if x.ndim != 4 or x.device.type == "cuda":
        stride = x.contiguous(shape).stride
    return TensorMeta(shape, stride, x.dtype, x.device)


@shape_rule("pixel_shuffle")
def pixel_shuffle(sizes: Sizes, x: TensorMeta, upscale_factor: int) -> TensorMeta:
    """Channels to space."""
    return _shuffled(sizes, x, upscale_factor, up=True)


@shape_rule("pixel_unshuffle")
def pixel_unshuffle(sizes: Sizes, x: TensorMeta, downscale_factor: int) -> TensorMeta:
    """Space to channels."""
    return _shuffled(sizes, x, downscale_factor, up=False)


@shape_rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(sizes: Sizes, x: TensorMeta, groups: int) -> TensorMeta:
    """Channels interleaved from groups."""
    del groups
    if x.device.type == "cuda":
        return x.contiguous()
    stride = format_strides(sizes, x, x.shape, suggested_format(sizes, x))
    return TensorMeta(x.shape, stride, x.dtype, x.device)


@shape_rule("max_unpool2d")
def max_unpool2d(
    sizes: Sizes, x: TensorMeta, indices: TensorMeta, output_size: Sequence[Any]
) -> TensorMeta:
    """Maxima put back where they came from."""
    del indices
    shape = (*x.shape[:-2], *output_size)
    stride = x.contiguous(shape).stride
    if x.ndim == 4 and x.device.type == "cpu":
        stride = format_strides(sizes, x, shape, suggested_format(sizes, x))
    return TensorMeta(shape, stride, x.dtype, x.device)


@shape_rule("glu")
def glu(sizes: Sizes, x: TensorMeta, dim: int = -1) -> TensorMeta:
    """One half of a dimension gated by the other."""
    dimension = wrap_dimension(dim, x.ndim)
    shape = list(x.shape)
    shape[dimension] = shape[dimension] // 2
    halved = TensorMeta(tuple(shape), x.stride, x.dtype, x.device)
    return TensorMeta(
        tuple(shape), pointwise_strides(sizes, tuple(shape), (halved,)), x.dtype, x.device
    )


@shape_rule("glu_backward")
def glu_backward(sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, dim: int) -> TensorMeta:
    """The gradient of both halves."""
    del sizes, grad_output, dim
    return x.contiguous()


@shape_rule("lift_fresh_copy")
def lift_fresh_copy(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """A constant as a tensor of the trace."""
    return _cloned(sizes, x)
