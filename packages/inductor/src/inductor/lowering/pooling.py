"""Average pooling: windows that are summed in the loop body.

Windows of up to `LARGEST_WINDOW` elements are unrolled into loads; larger ones are the library's. The gradient, on a
GPU, is gathered: each element takes its share from the few windows that it lies in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as every
from typing import TYPE_CHECKING, Any

import torch

from inductor.errors import UnsupportedOperationError
from inductor.ir.operations import Size, value_dtype
from inductor.lowering.builder import FREE_OPERATIONS
from inductor.lowering.pointwise import cost
from inductor.lowering.registry import lowers
from inductor.lowering.vendor import POOLING

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


@dataclass(frozen=True, slots=True)
class _Divisor:
    """What the sum of a window is divided by."""

    window: tuple[int, ...]
    pad: tuple[int, ...]
    inputs: tuple[int, ...]
    include_pad: bool
    override: int | None

    def by(self, recorder: Recorder, starts: Sequence[Size], wide: torch.dtype) -> Scalar:
        """The divisor of the window that starts there."""
        if self.override is not None:
            return recorder.constant(self.override, wide)
        count: Scalar | None = None
        for start, extent, size, p in zip(starts, self.window, self.inputs, self.pad, strict=True):
            low = recorder.index_expression(start, torch.int64)
            end = recorder.op("add", low, recorder.constant(extent, torch.int64))
            limit = size + p if self.include_pad else size
            high = recorder.op("minimum", end, recorder.constant(limit, torch.int64))
            if not self.include_pad:
                low = recorder.op("maximum", low, recorder.constant(0, torch.int64))
            length = recorder.op("sub", high, low)
            count = length if count is None else recorder.op("mul", count, length)
        assert count is not None
        return recorder.to_dtype(count, wide)


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
    divided = _Divisor(window, pad, inputs, count_include_pad, divisor_override)

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        outer, spots = place[:-rank], place[-rank:]
        starts = [spot * s - p for spot, s, p in zip(spots, step, pad, strict=True)]
        result: Scalar | None = None
        for offsets in every(*(range(extent) for extent in window)):
            at = tuple(start + offset for start, offset in zip(starts, offsets, strict=True))
            element = _inside_load(recorder, x, (*outer, *at), at, inputs, wide)
            result = element if result is None else recorder.op("add", result, element)
        assert result is not None
        count = divided.by(recorder, starts, wide)
        return recorder.to_dtype(recorder.op("div", result, count), fact.dtype)

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


_BACKWARD = aten.avg_pool2d_backward.default


@lowers(_BACKWARD)
def average_pool_backward(
    builder: Builder,
    grad: Value,
    x: Value,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """The sum of the shares that the windows around an element give it."""
    window = spread_over(kernel_size, 2)
    step = spread_over(stride, 2) if stride else window
    pad = spread_over(padding, 2)
    fact = builder.fact
    sizes = [size for size in (*grad.shape[-2:], *x.shape[-2:]) if isinstance(size, int)]
    reach = tuple(-(-extent // s) for extent, s in zip(window, step, strict=True))
    few = len(sizes) == 4 and reach[0] * reach[1] <= LARGEST_WINDOW
    if not builder.on_gpu(grad.device) or not few or not grad.dtype.is_floating_point:
        args = (
            grad,
            x,
            kernel_size,
            stride,
            padding,
            ceil_mode,
            count_include_pad,
            divisor_override,
        )
        return builder.call("vendor", _BACKWARD, args, {}, POOLING)
    if not grad.stored and grad.operations > FREE_OPERATIONS:
        builder.realize(grad)
    wide = value_dtype(grad.dtype)
    divided = _Divisor(window, pad, tuple(sizes[2:]), count_include_pad, divisor_override)

    def gathered(recorder: Recorder, place: Coordinates) -> Scalar:
        result: Scalar | None = None
        nothing = recorder.constant(0.0, wide)
        last = [(spot + p) // s for spot, p, s in zip(place[-2:], pad, step, strict=True)]
        for back in every(*(range(count) for count in reach)):
            at = tuple(spot - offset for spot, offset in zip(last, back, strict=True))
            starts = [spot * s - p for spot, s, p in zip(at, step, pad, strict=True)]
            inside = window_mask(recorder, at, sizes[:2])
            for spot, start, extent in zip(place[-2:], starts, window, strict=True):
                _, high = _range(spot - start)
                if high is None or high >= extent:  # the window may end before this element
                    offset = recorder.index_expression(spot - start, torch.int64)
                    reached = recorder.op("lt", offset, recorder.constant(extent, torch.int64))
                    inside = (
                        reached if inside is None else recorder.op("logical_and", inside, reached)
                    )
            if inside is None:
                element = grad.load(recorder, (*place[:-2], *at))
            else:
                with recorder.masked(inside):
                    element = grad.load(recorder, (*place[:-2], *at))
            count = divided.by(recorder, starts, wide)
            share = recorder.op("div", recorder.to_dtype(element, wide), count)
            if inside is not None:
                share = recorder.op("where", inside, share, nothing)
            result = share if result is None else recorder.op("add", result, share)
        assert result is not None
        return recorder.to_dtype(result, fact.dtype)

    _, loads = cost((grad,))
    total = reach[0] * reach[1]
    return builder.pointwise(
        gathered,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=5 * total,
        loads=total * loads,
        stride=fact.stride,
    )
