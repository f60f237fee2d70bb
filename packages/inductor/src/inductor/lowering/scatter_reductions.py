"""`scatter_reduce`: products, means, largest and smallest at computed places.

In: what is reduced into, indices along one dimension, a source. Out: stores that combine with what is there. Without
`include_self` the places that are reached start from the reduction's neutral element, which is scattered first. On a
GPU the largest and smallest of floating-point numbers are found as integers of the same order, for which the card has
indivisible operations. Invariant: NaN wins, as in eager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inductor.errors import UnsupportedOperationError
from inductor.lowering.indexing import converted, like, one_axis, scattered, vector
from inductor.lowering.pointwise import cost
from inductor.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from inductor.ir.operations import StoreMode
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Coordinates, Value

    Source = Callable[[Recorder, Coordinates], Scalar]

aten = torch.ops.aten

_MODES: dict[str, StoreMode] = {
    "sum": "add",
    "mean": "add",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def _neutral(reduce: str, dtype: torch.dtype) -> float:
    match reduce:
        case "prod":
            return 1
        case "amax" | "amin" if dtype.is_floating_point:
            return float("-inf" if reduce == "amax" else "inf")
        case "amax" | "amin":
            limits = torch.iinfo(dtype)
            return limits.min if reduce == "amax" else limits.max
        case _:
            return 0


def _constant(value: float, dtype: torch.dtype) -> Source:
    return lambda recorder, _: recorder.constant(value, dtype)


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    builder: Builder,
    x: Value,
    dim: int,
    indices: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """`x` with elements of `source` reduced into it at indices along one dimension."""
    whole, x, indices, source = x, vector(x), vector(indices), vector(source)
    if x.dtype == torch.bool or reduce not in _MODES:
        raise UnsupportedOperationError("scatter_reduce", f"{reduce} of {x.dtype}")
    on_gpu, mode = builder.on_gpu(x.device), _MODES[reduce]
    if on_gpu and (mode == "mul" or x.dtype == torch.uint64):
        raise UnsupportedOperationError("scatter_reduce", f"{reduce} is not indivisible on a GPU")
    _, place = one_axis(x, dim, indices)
    for operand in (indices, source):
        if not operand.stored and operand.operations > 8:
            builder.realize(operand)
    start = x
    if not include_self:
        neutral = _constant(_neutral(reduce, x.dtype), x.dtype)
        start = scattered(builder, x, indices.shape, place, neutral, "set")
    if on_gpu and mode in {"max", "min"} and x.dtype.is_floating_point:
        result = _as_integers(builder, start, indices, place, source, mode)
    else:
        result = scattered(builder, start, indices.shape, place, source.load, mode)
    if reduce == "mean":
        count = _counts(builder, x, indices, place, include_self=include_self)
        result = _divided(builder, result, count)
    builder.realize(result)
    return like(whole, result)


def _counts(builder: Builder, x: Value, indices: Value, place: Any, *, include_self: bool) -> Value:
    """How many numbers each element is the sum of, in the dtype of the sum; half types count in float32."""
    half = x.dtype.is_floating_point and x.dtype.itemsize < 4
    dtype = torch.float32 if half else x.dtype
    start = builder.pointwise(
        _constant(int(include_self), dtype),
        shape=x.shape,
        dtype=dtype,
        device=x.device,
        operations=0,
        loads=0,
        stride=x.stride,
    )
    return scattered(builder, start, indices.shape, place, _constant(1, dtype), "add")


def _divided(builder: Builder, total: Value, count: Value) -> Value:
    """A mean of integers is rounded down; what nothing was added to is left alone."""
    dtype = total.dtype
    whole = not (dtype.is_floating_point or dtype.is_complex)

    def quotient(recorder: Recorder, place: Coordinates) -> Scalar:
        number = count.load(recorder, place)
        one = recorder.constant(1, number.dtype)
        none = recorder.op("eq", number, recorder.constant(0, number.dtype))
        number = recorder.op("where", none, one, number)
        ratio = recorder.op("floor_div" if whole else "div", total.load(recorder, place), number)
        return recorder.to_dtype(ratio, dtype)

    operations, loads = cost((total, count))
    return builder.pointwise(
        quotient,
        shape=total.shape,
        dtype=dtype,
        device=total.device,
        operations=operations + 3,
        loads=loads,
        stride=total.stride,
    )


def _as_integers(
    builder: Builder, x: Value, indices: Value, place: Any, source: Value, mode: StoreMode
) -> Value:
    """Largest or smallest of floating-point numbers by way of integers that are ordered as they are."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    integer = torch.int64 if wide is torch.float64 else torch.int32
    limits = torch.iinfo(integer)

    def turned(recorder: Recorder, bits: Scalar) -> Scalar:
        """Of negative numbers all bits but the sign are turned: the larger the magnitude, the smaller."""
        other = recorder.op("bitwise_xor", bits, recorder.constant(limits.max, integer))
        negative = recorder.op("lt", bits, recorder.constant(0, integer))
        return recorder.op("where", negative, other, bits)

    def key(recorder: Recorder, scalar: Scalar) -> Scalar:
        number = recorder.to_dtype(scalar, wide)
        last = recorder.constant(limits.max if mode == "max" else limits.min, integer)
        ordered = turned(recorder, recorder.bitcast(number, integer))
        return recorder.op("where", recorder.op("isnan", number), last, ordered)

    def number(recorder: Recorder, scalar: Scalar) -> Scalar:
        return recorder.to_dtype(recorder.bitcast(turned(recorder, scalar), wide), x.dtype)

    def keys(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        return key(recorder, source.load(recorder, coordinates))

    result = scattered(
        builder, converted(builder, x, key, integer), indices.shape, place, keys, mode
    )
    return converted(builder, result, number, x.dtype)
