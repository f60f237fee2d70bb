"""Reads and writes at computed places: index, gather, embedding, scatter.

Indices are checked where eager checks them, with the exception that eager raises.
"""

# ruff: noqa: ARG001  # a lowering has its operator's signature

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.errors import UnsupportedOperationError
from inductor.ir.index import storage_length
from inductor.ir.operations import BoundsCheck
from inductor.lowering.pointwise import Operand, broadcast_shape, cost, reader
from inductor.lowering.registry import lowers
from inductor.lowering.values import Value
from primtorch.symbolic import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inductor.ir.nodes import Buffer
    from inductor.ir.operations import Size, StoreMode
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Coordinates

aten = torch.ops.aten

_INDEX = "index {index} is out of bounds for dimension {dimension} with size {size}"
_EMBEDDING = BoundsCheck("IndexError", "index out of range in self")


def _gather_check(axis: int) -> BoundsCheck:
    return BoundsCheck("RuntimeError", _INDEX, axis)


def _require_elements(x: Value, axes: Sequence[int]) -> None:
    """Refuse an indexed dimension that may be empty.

    A kernel reads place 0 where an index is out of bounds, before the call is repeated for its
    exception; an empty dimension has no place 0.
    """
    for axis in axes:
        low, _ = bounds(x.shape[axis])
        if low is None or low < 1:
            raise UnsupportedOperationError("index", "into a dimension that may be empty")


@lowers(aten.embedding.default)
def embedding(
    builder: Builder,
    weight: Value,
    indices: Value,
    padding_idx: Size = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """Rows of a table."""
    del padding_idx, scale_grad_by_freq, sparse
    fact = builder.fact
    _require_elements(weight, range(len(weight.shape)))
    rank = len(indices.shape)
    rows = weight.shape[0]

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        index = recorder.to_dtype(indices.load(recorder, place[:rank]), torch.int64)
        row = recorder.indirect(index, rows, wrap=False, check=_EMBEDDING)
        return weight.load(recorder, (row, *place[rank:]))

    return _gathered(builder, load, (weight, indices), fact.stride)


def _gathered(
    builder: Builder,
    load: Callable[[Recorder, Coordinates], Scalar],
    operands: Sequence[Operand],
    stride: Sequence[Size],
) -> Value:
    fact = builder.fact

    def converted(recorder: Recorder, place: Coordinates) -> Scalar:
        return recorder.to_dtype(load(recorder, place), fact.dtype)

    operations, loads = cost(operands)
    # A read at a computed place costs as much as several in order.
    return builder.pointwise(
        converted,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=operations + 4,
        loads=loads + 1,
        stride=stride,
    )


def vector(x: Value) -> Value:
    """A tensor without dimensions as one of a single element, which is how eager indexes it."""
    if x.shape:
        return x
    view = None if x.view is None else replace(x.view, shape=(1,), stride=(1,))
    function = None if view is not None else lambda recorder, _: x.load(recorder, ())
    return Value((1,), x.dtype, x.device, view, function, x.operations, x.loads)


def like(x: Value, result: Value) -> Value:
    """A result for `vector(x)` as one for `x`."""
    if x.shape or result.view is None:
        return result
    return Value((), result.dtype, result.device, replace(result.view, shape=(), stride=()))


def _stored_source(builder: Builder, x: Value) -> Value:
    """What is read at computed places: computed again for each read only if that is cheap."""
    if not x.stored and x.operations > 4:
        builder.realize(x)
    return x


def _index_plan(
    x: Value, indices: Sequence[Value | None]
) -> tuple[tuple[Size, ...], list[int], int]:
    """(shape of the indices together, indexed axes, first axis of theirs in the result)."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if not axes:
        raise UnsupportedOperationError("index", "without an index")
    for axis in axes:
        index = indices[axis]
        assert index is not None
        if index.dtype in (torch.bool, torch.uint8):
            raise UnsupportedOperationError("index", "by a mask: the result's size is data")
    together = broadcast_shape([index.shape for index in indices if index is not None])
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    return together, axes, axes[0] if adjacent else 0


def _index_reader(
    x: Value, indices: Sequence[Value | None]
) -> tuple[Callable[[Recorder, Coordinates], Coordinates], tuple[Size, ...]]:
    """How coordinates of `x[indices]` become coordinates of `x`; and the result's shape."""
    together, axes, first = _index_plan(x, indices)
    _require_elements(x, axes)
    readers = {}
    for axis in axes:
        index = indices[axis]
        assert index is not None
        readers[axis] = reader(index, together)
    rest = [axis for axis in range(len(x.shape)) if axis not in readers]
    count = len(together)
    shape = (
        *(x.shape[axis] for axis in rest[:first]),
        *together,
        *(x.shape[axis] for axis in rest[first:]),
    )

    def coordinates(recorder: Recorder, place: Coordinates) -> Coordinates:
        result: list[Size] = [0] * len(x.shape)
        inner = place[first : first + count]
        others = (*place[:first], *place[first + count :])
        for axis, coordinate in zip(rest, others, strict=True):
            result[axis] = coordinate
        for axis in axes:
            index = recorder.to_dtype(readers[axis](recorder, inner), torch.int64)
            check = BoundsCheck("IndexError", _INDEX, axis)
            result[axis] = recorder.indirect(index, x.shape[axis], wrap=True, check=check)
        return tuple(result)

    return coordinates, shape


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(builder: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """`x[i, j, ...]` with tensors as indices."""
    coordinates, _ = _index_reader(x, indices)
    source = _stored_source(builder, x)
    return _gathered(
        builder,
        lambda recorder, place: source.load(recorder, coordinates(recorder, place)),
        (source, *(index for index in indices if index is not None)),
        builder.fact.stride,
    )


@lowers(aten.index_select.default)
def index_select(builder: Builder, x: Value, dim: int, indices: Value) -> Value:
    """Chosen places of one dimension."""
    x = vector(x)
    axis = dim % len(x.shape)
    _require_elements(x, (axis,))
    _require_elements(x, range(len(x.shape)))  # of an empty result, too, the indices are checked
    source = _stored_source(builder, x)
    check = BoundsCheck("IndexError", "index out of range in self")

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        place = place or (0,)
        at = (place[axis],) if indices.shape else ()
        chosen = recorder.to_dtype(indices.load(recorder, at), torch.int64)
        where = recorder.indirect(chosen, x.shape[axis], wrap=False, check=check)
        return source.load(recorder, (*place[:axis], where, *place[axis + 1 :]))

    return _gathered(builder, load, (source, indices), builder.fact.stride)


@lowers(aten.gather.default)
def gather(
    builder: Builder, x: Value, dim: int, indices: Value, *, sparse_grad: bool = False
) -> Value:
    """`x` with one coordinate replaced by an index."""
    x, indices = vector(x), vector(indices)
    axis = dim % len(x.shape)
    _require_elements(x, (axis,))
    source = _stored_source(builder, x)

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        place = place or (0,)
        chosen = recorder.to_dtype(indices.load(recorder, place), torch.int64)
        where = recorder.indirect(chosen, x.shape[axis], wrap=False, check=_gather_check(axis))
        return source.load(recorder, (*place[:axis], where, *place[axis + 1 :]))

    return _gathered(builder, load, (source, indices), builder.fact.stride)


# ---- writes
def _result(builder: Builder, x: Value) -> Buffer:
    """A copy of `x` that is then written into."""
    return builder.copy(x, None)


def scattered(
    builder: Builder,
    x: Value,
    shape: Sequence[Size],
    place: Callable[[Recorder, Coordinates], Coordinates],
    source: Callable[[Recorder, Coordinates], Scalar],
    mode: StoreMode,
) -> Value:
    """A copy of `x` with, for each point of `shape`, `source` written at (or combined with) its place."""
    if mode != "set" and x.dtype == torch.bool:
        raise UnsupportedOperationError("scatter", "combining truth values")
    exact = mode == "set" or (mode in {"max", "min"} and not builder.on_gpu(x.device))
    if not exact and x.dtype.itemsize < 4:
        return _combined_wide(builder, x, shape, place, source, mode)
    target = _result(builder, x)
    if not any(isinstance(extent, int) and extent == 0 for extent in shape):
        builder.scatter(target, shape, place, source, mode)
    return builder.stored(target)


def _combined_wide(
    builder: Builder,
    x: Value,
    shape: Sequence[Size],
    place: Callable[[Recorder, Coordinates], Coordinates],
    source: Callable[[Recorder, Coordinates], Scalar],
    mode: StoreMode,
) -> Value:
    """What combines elements of 8 or 16 bits does so in 32: each result is rounded (or wrapped) once."""
    wide = torch.float32 if x.dtype.is_floating_point else torch.int32
    before = converted(builder, x, lambda recorder, scalar: recorder.to_dtype(scalar, wide), wide)
    result = scattered(builder, before, shape, place, source, mode)
    narrow = converted(
        builder, result, lambda recorder, scalar: recorder.to_dtype(scalar, x.dtype), x.dtype
    )
    builder.realize(narrow)  # `like` looks at its memory
    return narrow


def converted(
    builder: Builder, x: Value, convert: Callable[[Recorder, Scalar], Scalar], dtype: torch.dtype
) -> Value:
    """`x` with a function applied to each element, laid out alike."""
    operations, loads = cost((x,))
    return builder.pointwise(
        lambda recorder, place: convert(recorder, x.load(recorder, place)),
        shape=x.shape,
        dtype=dtype,
        device=x.device,
        operations=operations + 1,
        loads=loads,
        stride=x.stride,
    )


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    builder: Builder,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    """`x` with `values` written (or added) at indices."""
    chosen = _one_value_by_mask(builder, x, indices, values, accumulate)
    if chosen is not None:
        return chosen
    coordinates, shape = _index_reader(x, indices)
    source = reader(values, shape)
    for operand in (values, *(index for index in indices if index is not None)):
        if not operand.stored and operand.operations > 8:
            builder.realize(operand)
    return scattered(builder, x, shape, coordinates, source, "add" if accumulate else "set")


def _one_value_by_mask(
    builder: Builder,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool,
) -> Value | None:
    """`x[mask] = number` is a choice at each place; None if it isn't that."""
    if accumulate or len(indices) != 1 or any(extent != 1 for extent in values.shape):
        return None
    (mask,) = indices
    if mask is None or mask.dtype != torch.bool or mask.shape != x.shape[: len(mask.shape)]:
        return None
    rank = len(mask.shape)

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        inside = mask.load(recorder, place[:rank])
        value = recorder.to_dtype(values.load(recorder, (0,) * len(values.shape)), x.dtype)
        return recorder.op("where", inside, value, x.load(recorder, place))

    return _gathered(builder, load, (x, mask, values), builder.fact.stride)


def one_axis(x: Value, dim: int, indices: Value) -> tuple[int, Any]:
    """(the axis, how coordinates of `indices` become coordinates of `x`)."""
    axis = dim % len(x.shape)
    _require_elements(x, (axis,))

    def place(recorder: Recorder, coordinates: Coordinates) -> Coordinates:
        chosen = recorder.to_dtype(indices.load(recorder, coordinates), torch.int64)
        where = recorder.indirect(chosen, x.shape[axis], wrap=False, check=_gather_check(axis))
        return (*coordinates[:axis], where, *coordinates[axis + 1 :])

    return axis, place


@lowers(aten.scatter.src)
def scatter_source(builder: Builder, x: Value, dim: int, indices: Value, source: Value) -> Value:
    """`x` with elements of `source` written at indices along one dimension."""
    target, indices, source = vector(x), vector(indices), vector(source)
    _, place = one_axis(target, dim, indices)
    return like(x, scattered(builder, target, indices.shape, place, source.load, "set"))


@lowers(aten.scatter.value)
def scatter_value(builder: Builder, x: Value, dim: int, indices: Value, value: Operand) -> Value:
    """`x` with a number written at indices along one dimension."""
    target, indices = vector(x), vector(indices)
    _, place = one_axis(target, dim, indices)
    source = reader(value, indices.shape)
    return like(x, scattered(builder, target, indices.shape, place, source, "set"))


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    builder: Builder,
    x: Value,
    source: Value,
    size: Any,
    stride: Any,
    storage_offset: Size | None = None,
) -> Value:
    """A copy of `x` with `source` written where those strides lead in eager's layout of `x`."""
    fact = builder.argument_fact(0)
    start: Size = 0 if storage_offset is None else storage_offset - fact.offset
    last = start + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    known = isinstance(start, int) and isinstance(last, int) and start >= 0
    length = storage_length(fact.shape, fact.stride)
    if not known or not isinstance(length, int) or last >= length:
        # The library's operator would look at the storage in which its operand happens to lie.
        raise UnsupportedOperationError("as_strided_scatter", "its window is not known to fit")
    target = builder.copy(x, fact.stride)
    if 0 not in size:
        builder.write_window(target, source, tuple(stride), start)
    return builder.stored(target)


@lowers(aten.scatter_add.default)
def scatter_add(builder: Builder, x: Value, dim: int, indices: Value, source: Value) -> Value:
    """`x` with elements of `source` added at indices along one dimension."""
    target, indices, source = vector(x), vector(indices), vector(source)
    _, place = one_axis(target, dim, indices)
    return like(x, scattered(builder, target, indices.shape, place, source.load, "add"))


def _slices(
    builder: Builder,
    x: Value,
    dim: int,
    indices: Value,
    source: Value,
    mode: StoreMode,
    factor: complex = 1,
) -> Value:
    """`x` with slices along one dimension written or added at a vector of indices, none negative."""
    whole, x = x, vector(x)
    indices, source = vector(indices), vector(source)
    if len(source.shape) != len(x.shape):
        raise UnsupportedOperationError("index_add", "of a source without dimensions")
    axis = dim % len(x.shape)
    _require_elements(x, (axis,))
    if not source.stored and source.operations > 8:
        builder.realize(source)
    check = BoundsCheck("IndexError", "index out of range in self")

    def place(recorder: Recorder, coordinates: Coordinates) -> Coordinates:
        chosen = recorder.to_dtype(indices.load(recorder, (coordinates[axis],)), torch.int64)
        where = recorder.indirect(chosen, x.shape[axis], wrap=False, check=check)
        return (*coordinates[:axis], where, *coordinates[axis + 1 :])

    def scaled(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        scalar = source.load(recorder, coordinates)
        if factor == 1:
            return scalar
        return recorder.op("mul", scalar, recorder.constant(factor, scalar.dtype))

    return like(whole, scattered(builder, x, source.shape, place, scaled, mode))


@lowers(aten.index_add.default)
def index_add(
    builder: Builder, x: Value, dim: int, indices: Value, source: Value, *, alpha: Operand = 1
) -> Value:
    """`x` with slices of `source` added at indices along one dimension."""
    if not isinstance(alpha, (int, float, complex)):
        raise UnsupportedOperationError("index_add", "with a factor that varies")
    return _slices(builder, x, dim, indices, source, "add", alpha)


@lowers(aten.index_copy.default)
def index_copy(builder: Builder, x: Value, dim: int, indices: Value, source: Value) -> Value:
    """`x` with slices of `source` written at indices along one dimension."""
    return _slices(builder, x, dim, indices, source, "set")
