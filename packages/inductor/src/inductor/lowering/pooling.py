"""Average pooling: windows that are summed in the loop body.

Windows of up to `LARGEST_WINDOW` elements are unrolled into loads; larger ones are the library's.
"""

from __future__ import annotations

from itertools import product as every
from typing import TYPE_CHECKING, Any

import torch

from inductor.errors import UnsupportedOperationError
from inductor.ir.operations import Size, value_dtype
from inductor.lowering.pointwise import cost
from inductor.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Coordinates, Value

aten = torch.ops.aten
LARGEST_WINDOW = 25


def spread_over(values: Any, rank: int) -> tuple[int, ...]:
    """One number for each dimension; a single one stands for all."""
    numbers = tuple(values)
    return numbers * rank if len(numbers) == 1 else numbers


def _ints(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(value, int) for value in values):
        raise UnsupportedOperationError("pooling", "symbolic sizes")
    return tuple(values)


@lowers(aten.avg_pool2d.default, aten.avg_pool3d.default)
def average_pool(
    builder: Builder,
    x: Value,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """The mean of each window, by the count of elements that eager divides by."""
    del ceil_mode  # the promised shape has it
    rank = 3 if builder.operator is aten.avg_pool3d.default else 2
    window = spread_over(kernel_size, rank)
    step = spread_over(stride, rank) if stride else window
    pad = spread_over(padding, rank)
    if not x.dtype.is_floating_point:
        raise UnsupportedOperationError("avg_pool", "of integers")
    total = 1
    for extent in window:
        total *= extent
    if total > LARGEST_WINDOW:
        raise UnsupportedOperationError("avg_pool", "windows this large are the library's")
    inputs = _ints(x.shape[-rank:])
    if not x.stored and x.operations > 2:
        builder.realize(x)
    fact = builder.fact
    wide = value_dtype(fact.dtype)

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        outer, spots = place[:-rank], place[-rank:]
        starts = [spot * s - p for spot, s, p in zip(spots, step, pad, strict=True)]
        result: Scalar | None = None
        for offsets in every(*(range(extent) for extent in window)):
            at = tuple(start + offset for start, offset in zip(starts, offsets, strict=True))
            element = _inside_load(recorder, x, (*outer, *at), at, inputs, wide)
            result = element if result is None else recorder.op("add", result, element)
        assert result is not None
        count = _divisor(recorder, starts, wide)
        return recorder.to_dtype(recorder.op("div", result, count), fact.dtype)

    def _divisor(recorder: Recorder, starts: list[Size], wide: torch.dtype) -> Scalar:
        if divisor_override is not None:
            return recorder.constant(divisor_override, wide)
        count: Scalar | None = None
        for start, extent, size, p in zip(starts, window, inputs, pad, strict=True):
            low = recorder.index_expression(start, torch.int64)
            end = recorder.op("add", low, recorder.constant(extent, torch.int64))
            limit = size + p if count_include_pad else size
            high = recorder.op("minimum", end, recorder.constant(limit, torch.int64))
            if not count_include_pad:
                low = recorder.op("maximum", low, recorder.constant(0, torch.int64))
            length = recorder.op("sub", high, low)
            count = length if count is None else recorder.op("mul", count, length)
        assert count is not None
        return recorder.to_dtype(count, wide)

    _, loads = cost((x,))
    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=3 * total,
        loads=total * loads,
        stride=fact.stride,
    )


def _inside_load(
    recorder: Recorder,
    x: Value,
    place: Coordinates,
    at: Sequence[Size],
    sizes: Sequence[int],
    wide: torch.dtype,
) -> Scalar:
    """An element, 0 outside of the tensor."""
    mask = window_mask(recorder, at, sizes)
    if mask is None:
        return recorder.to_dtype(x.load(recorder, place), wide)
    with recorder.masked(mask):
        return recorder.to_dtype(x.load(recorder, place), wide)


def window_mask(recorder: Recorder, at: Sequence[Size], sizes: Sequence[int]) -> Scalar | None:
    """Whether coordinates lie within the tensor; None where they always do."""
    mask: Scalar | None = None
    for coordinate, size in zip(at, sizes, strict=True):
        low, high = _range(coordinate)
        index = recorder.index_expression(coordinate, torch.int64)
        tests: list[Scalar] = []
        if low is None or low < 0:
            tests.append(recorder.op("ge", index, recorder.constant(0, torch.int64)))
        if high is None or high >= size:
            tests.append(recorder.op("lt", index, recorder.constant(size, torch.int64)))
        for test in tests:
            mask = test if mask is None else recorder.op("logical_and", mask, test)
    return mask


def _range(value: Size) -> tuple[int | None, int | None]:
    return (value, value) if isinstance(value, int) else value.bounds()
