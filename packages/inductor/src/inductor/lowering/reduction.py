"""Sums, extremes, positions, variances, running combinations.

Half types accumulate in float32 and are rounded once; integer sums are int64, as in eager.
"""

# ruff: noqa: ARG001  # a lowering has its operator's signature

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from inductor.errors import UnsupportedOperationError
from inductor.ir.index import contiguous_stride, linear_index, product
from inductor.ir.operations import HALF_DTYPES, Size, value_dtype
from inductor.ir.recorder import Recorder
from inductor.lowering.builder import TensorFact, layout_for, loop_order
from inductor.lowering.pointwise import reader
from inductor.lowering.registry import lowers
from inductor.lowering.values import Value
from inductor.lowering.views import reshape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inductor.ir.nodes import Buffer
    from inductor.ir.operations import ReductionKind, ScanKind
    from inductor.ir.recorder import Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Coordinates

aten = torch.ops.aten


def reduced_axes(x: Value, dims: Any) -> tuple[int, ...]:
    """Axes to reduce over; None and () mean all."""
    rank = len(x.shape)
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted({axis % rank for axis in dims})) if rank else ()


def _kept_shape(x: Value, axes: Sequence[int]) -> tuple[Size, ...]:
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))


def _kept_stride(fact: TensorFact, axes: Sequence[int], rank: int) -> tuple[Size, ...] | None:
    """The result's strides with the reduced dimensions put back."""
    if len(fact.shape) == rank:
        return fact.stride
    strides = iter(fact.stride)
    return tuple(1 if axis in axes else next(strides) for axis in range(rank))


def simple(
    builder: Builder,
    x: Value,
    axes: tuple[int, ...],
    kind: ReductionKind,
    accumulate: torch.dtype,
    *,
    in_order: bool = False,
) -> Value:
    """A reduction with one result in the dtype and shape that the current fact promises."""
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    rank = len(x.shape)
    kept = _kept_shape(x, axes)
    if all(x.shape[axis] == 1 for axis in axes):
        return _nothing_to_reduce(builder, x, kind, accumulate)
    buffer = builder.buffer(
        kept, layout_for(kept, _kept_stride(fact, axes, rank)), fact.dtype, fact.device
    )
    result_dtype = _result_dtype(kind, value_dtype(accumulate))

    def finish(_: Recorder, reduce: Callable[..., Scalar]) -> Sequence[Scalar]:
        return (reduce(kind, result_dtype, value_dtype(accumulate)),)

    builder.reduction(x, axes, finish, (buffer,), in_order=in_order)
    return reshape(builder, builder.stored(buffer), fact.shape)


def _result_dtype(kind: ReductionKind, accumulate: torch.dtype) -> torch.dtype:
    match kind:
        case "argmax" | "argmin":
            return torch.int64
        case "any" | "all":
            return torch.bool
        case _:
            return accumulate


def _nothing_to_reduce(
    builder: Builder, x: Value, kind: ReductionKind, accumulate: torch.dtype
) -> Value:
    fact = builder.fact
    flat = reshape(builder, x, fact.shape)
    position = kind in ("argmax", "argmin")

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        if position:
            return recorder.constant(0, torch.int64)
        scalar = recorder.to_dtype(flat.load(recorder, place), accumulate)
        return recorder.to_dtype(scalar, fact.dtype)

    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=flat.operations + 1,
        loads=flat.loads,
        stride=fact.stride,
    )


def _refuse_rounding(builder: Builder, x: Value) -> None:
    """Eager rounds each element to a half type that is asked for, where a loop would round their sum alone."""
    dtype = builder.fact.dtype
    if dtype in HALF_DTYPES and x.dtype not in (dtype, torch.bool):
        raise UnsupportedOperationError("a reduction", f"of {x.dtype} elements rounded to {dtype}")


@lowers(aten.sum.dim_IntList, aten.sum.default)
def sum_(
    builder: Builder,
    x: Value,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """Sum; integers and bool in int64."""
    _refuse_rounding(builder, x)
    return simple(builder, x, reduced_axes(x, dim), "sum", builder.fact.dtype)


@lowers(aten.prod.dim_int, aten.prod.default)
def prod(
    builder: Builder,
    x: Value,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """Product; integers and bool in int64."""
    _refuse_rounding(builder, x)
    return simple(builder, x, reduced_axes(x, dim), "prod", builder.fact.dtype)


@lowers(aten.mean.dim, aten.mean.default)
def mean(
    builder: Builder,
    x: Value,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """Sum divided by the count."""
    fact = builder.fact
    axes = reduced_axes(x, dim)
    wide = value_dtype(fact.dtype)
    count = product(x.shape[axis] for axis in axes)
    kept = _kept_shape(x, axes)
    if all(x.shape[axis] == 1 for axis in axes):
        return _nothing_to_reduce(builder, x, "sum", fact.dtype)
    buffer = builder.buffer(
        kept, layout_for(kept, _kept_stride(fact, axes, len(x.shape))), fact.dtype, fact.device
    )

    def finish(recorder: Recorder, reduce: Callable[..., Scalar]) -> Sequence[Scalar]:
        total = reduce("sum", wide, wide)
        recorder.stage("outer")
        divisor = recorder.to_dtype(recorder.index_expression(count, torch.int64), wide)
        return (recorder.op("div", total, divisor),)

    builder.reduction(x, axes, finish, (buffer,))
    return reshape(builder, builder.stored(buffer), fact.shape)


def _extreme(name: str, kind: ReductionKind) -> None:
    @lowers(getattr(aten, name).default)
    def lower(builder: Builder, x: Value, dim: Any = (), keepdim: bool = False) -> Value:
        return simple(builder, x, reduced_axes(x, dim), kind, x.dtype)


_extreme("amax", "max")
_extreme("amin", "min")


@lowers(aten.max.default, aten.min.default)
def extreme_of_all(builder: Builder, x: Value) -> Value:
    """The largest or smallest of all elements."""
    kind: ReductionKind = "max" if builder.operator is aten.max.default else "min"
    return simple(builder, x, reduced_axes(x, None), kind, x.dtype)


def _position(name: str, kind: ReductionKind) -> None:
    @lowers(getattr(aten, name).default)
    def lower(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        return simple(builder, x, reduced_axes(x, dim), kind, x.dtype, in_order=True)


_position("argmax", "argmax")
_position("argmin", "argmin")


def _truth(name: str, kind: ReductionKind) -> None:
    packet = getattr(aten, name)

    @lowers(packet.default, packet.dim, packet.dims)
    def lower(builder: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if isinstance(dim, list | tuple) and not dim:
            dim = None
        return simple(builder, x, reduced_axes(x, dim), kind, torch.bool)


_truth("any", "any")
_truth("all", "all")


@lowers(aten.var_mean.correction)
def var_mean(
    builder: Builder,
    x: Value,
    dim: Any = None,
    *,
    correction: float | Value | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    """Variance and mean in one pass over stable running moments.

    A correction that is a float comes of a normalisation, which accumulates in the operand's dtype.
    """
    if x.dtype.is_complex:
        raise UnsupportedOperationError("var_mean", "of complex numbers")
    first, second = builder.fact
    axes = reduced_axes(x, dim)
    kept = _kept_shape(x, axes)
    wide = value_dtype(x.dtype)
    alone = first.device.type == "cpu" and not isinstance(correction, float)
    if alone and x.dtype in (torch.float32, torch.bfloat16):
        wide = torch.float64  # as eager, so that squares don't overflow
    count = product(x.shape[axis] for axis in axes)
    if isinstance(count, int) and count == 0:
        raise UnsupportedOperationError("var_mean", "of nothing: both are NaN")
    buffers: list[Buffer] = []
    for fact in (first, second):
        stride = layout_for(kept, _kept_stride(fact, axes, len(x.shape)))
        buffers.append(builder.buffer(kept, stride, fact.dtype, fact.device))
    less = 1 if correction is None else correction
    subtracted = reader(less, ())
    if all(x.shape[axis] == 1 for axis in axes):
        raise UnsupportedOperationError("var_mean", "over single elements")

    def finish(recorder: Recorder, reduce: Callable[..., Scalar]) -> Sequence[Scalar]:
        moments = reduce("welford", wide, wide)
        recorder.stage("outer")
        center = recorder.part(moments, 0, wide)
        squares = recorder.part(moments, 1, wide)
        if isinstance(count, int) and not isinstance(less, Value):
            divisor = recorder.constant(max(count - less, 0.0), wide)
        else:
            exact = torch.float64 if isinstance(less, Value) else wide
            total = recorder.to_dtype(recorder.index_expression(count, torch.int64), exact)
            rest = recorder.op("sub", total, recorder.to_dtype(subtracted(recorder, ()), exact))
            rest = recorder.op("maximum", rest, recorder.constant(0.0, exact))
            divisor = recorder.to_dtype(rest, wide)
        variance = recorder.op("div", squares, divisor)
        if alone:  # eager's running mean is NaN after an infinity
            center = recorder.op("where", recorder.op("isnan", squares), squares, center)
        return recorder.to_dtype(variance, first.dtype), recorder.to_dtype(center, second.dtype)

    builder.reduction(x, axes, finish, buffers)
    facts = builder.fact
    results: list[Value] = []
    for fact, buffer in zip(facts, buffers, strict=True):
        builder.fact = fact
        results.append(reshape(builder, builder.stored(buffer), fact.shape))
    builder.fact = facts
    return results[0], results[1]


# ---- running combinations
def _running(name: str, kind: ScanKind) -> None:
    @lowers(getattr(aten, name).default)
    def lower(builder: Builder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
        return scan(builder, x, dim, kind)


def scan(builder: Builder, x: Value, dim: int, kind: ScanKind) -> Value:
    """A running combination along one dimension, in the dtype the current fact promises."""
    fact = builder.fact
    _refuse_rounding(builder, x)
    if fact.dtype.is_complex and kind != "sum":
        raise UnsupportedOperationError(kind, "of complex numbers")
    if not x.shape:
        return _nothing_to_reduce(builder, x, "sum", fact.dtype)
    axis = dim % len(x.shape)
    if x.shape[axis] == 1:
        return _nothing_to_reduce(builder, x, "sum", fact.dtype)
    stride = contiguous_stride(x.shape)
    buffer = builder.buffer(x.shape, layout_for(x.shape, fact.stride), fact.dtype, fact.device)
    outer = [other for other in loop_order(x.shape, stride) if other != axis]
    recorder = Recorder([x.shape[other] for other in outer], [x.shape[axis]])
    coordinates: list[Size] = [0] * len(x.shape)
    for other, symbol in zip(outer, recorder.outer, strict=True):
        coordinates[other] = symbol
    coordinates[axis] = recorder.inner[0]
    place = tuple(coordinates)
    recorder.stage("inner")
    wide = value_dtype(fact.dtype)
    if (
        wide is fact.dtype is torch.float32
        and fact.device.type == "cpu"
        and kind in ("sum", "prod")
    ):
        wide = torch.float64  # as eager's running value
    scalar = recorder.to_dtype(x.load(recorder, place), wide)
    running = recorder.to_dtype(recorder.scan(scalar, kind), fact.dtype)
    recorder.store(buffer.name, linear_index(place, buffer.stride), running, fact.dtype)
    builder.loop("scan", recorder, fact.device)
    return builder.stored(buffer)


_running("cumsum", "sum")
_running("cumprod", "prod")
_running("logcumsumexp", "logaddexp")
