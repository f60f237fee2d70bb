"""Maxima of windows on a GPU: the loop body reads each window, so that what comes before and after joins it.

The place of the maximum is a value of its own: where nobody asks for it, nothing computes it. The gradient is gathered,
each element asking the windows that it lies in whether it was their largest: nothing is added by atomics. On a CPU,
and for windows of more than `LARGEST_WINDOW` elements, both are the library's.
"""

from __future__ import annotations

from itertools import product as every
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.operations import value_dtype
from inductor.lowering.builder import FREE_OPERATIONS, TensorFact
from inductor.lowering.pointwise import cost
from inductor.lowering.pooling import LARGEST_WINDOW, spread_over, window_mask
from inductor.lowering.registry import lowers
from inductor.lowering.vendor import POOLING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inductor.ir.operations import Size
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Coordinates, Value

aten = torch.ops.aten


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(
    builder: Builder,
    x: Value,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil_mode: bool = False,
) -> Any:
    """The largest element of each window of the last two dimensions, and where it lies in its plane.

    A NaN is larger than all, the last one largest; of equals the first counts.
    """
    window = spread_over(kernel_size, 2)
    step = spread_over(stride, 2) if stride else window
    pad, spread = spread_over(padding, 2), spread_over(dilation, 2)
    sizes = tuple(size for size in x.shape[-2:] if isinstance(size, int))
    values, places = builder.fact
    assert isinstance(values, TensorFact)
    assert isinstance(places, TensorFact)
    small = window[0] * window[1] <= LARGEST_WINDOW and len(sizes) == 2
    if not builder.on_gpu(x.device) or not small or not x.dtype.is_floating_point:
        args = (x, kernel_size, stride, padding, dilation, ceil_mode)
        return builder.call("vendor", aten.max_pool2d_with_indices.default, args, {}, POOLING)
    if not x.stored and x.operations > FREE_OPERATIONS:
        builder.realize(x)
    wide = value_dtype(x.dtype)

    def elements(
        recorder: Recorder, place: Coordinates
    ) -> Iterator[tuple[Scalar, Size, Scalar | None]]:
        """Of each element of a window: its value, its place in the plane, whether it is inside."""
        starts = [spot * s - p for spot, s, p in zip(place[-2:], step, pad, strict=True)]
        for offsets in every(*(range(extent) for extent in window)):
            at = tuple(
                start + offset * d for start, offset, d in zip(starts, offsets, spread, strict=True)
            )
            inside = window_mask(recorder, at, sizes)
            if inside is None:
                element = x.load(recorder, (*place[:-2], *at))
            else:
                with recorder.masked(inside):
                    element = x.load(recorder, (*place[:-2], *at))
            yield recorder.to_dtype(element, wide), at[0] * sizes[1] + at[1], inside

    def largest(recorder: Recorder, place: Coordinates) -> Scalar:
        best: Scalar = recorder.constant(float("-inf"), wide)
        for element, _, inside in elements(recorder, place):
            candidate = element
            if inside is not None:
                lowest = recorder.constant(float("-inf"), wide)
                candidate = recorder.op("where", inside, element, lowest)
            best = recorder.op("maximum", best, candidate)
        return recorder.to_dtype(best, values.dtype)

    def place_of_largest(recorder: Recorder, place: Coordinates) -> Scalar:
        best: Scalar = recorder.constant(float("-inf"), wide)
        seen = list(elements(recorder, place))
        positions = [recorder.index_expression(spot, torch.int64) for _, spot, _ in seen]
        where = positions[-1]
        for (_, _, inside), spot in zip(reversed(seen), reversed(positions), strict=True):
            where = spot if inside is None else recorder.op("where", inside, spot, where)
        for (element, _, inside), spot in zip(seen, positions, strict=True):
            better = recorder.op(
                "logical_or", recorder.op("gt", element, best), recorder.op("isnan", element)
            )
            if inside is not None:
                better = recorder.op("logical_and", inside, better)
            best = recorder.op("where", better, element, best)
            where = recorder.op("where", better, spot, where)
        return recorder.to_dtype(where, places.dtype)

    _, loads = cost((x,))
    total = window[0] * window[1]

    def result(
        function: Callable[[Recorder, Coordinates], Scalar], fact: TensorFact, weight: int
    ) -> Value:
        return builder.pointwise(
            function,
            shape=fact.shape,
            dtype=fact.dtype,
            device=fact.device,
            operations=weight * total,
            loads=total * loads,
            stride=fact.stride,
        )

    return result(largest, values, 2), result(place_of_largest, places, 5)


_BACKWARD = aten.max_pool2d_with_indices_backward.default


@lowers(_BACKWARD)
def max_pool_backward(
    builder: Builder,
    grad: Value,
    x: Value,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Value,
) -> Any:
    """The sum of the gradients of those windows whose largest element this one is."""
    window = spread_over(kernel_size, 2)
    step = spread_over(stride, 2) if stride else window
    pad = spread_over(padding, 2)
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    windows = tuple(size for size in grad.shape[-2:] if isinstance(size, int))
    columns = x.shape[-1]
    reach = tuple(-(-extent // s) for extent, s in zip(window, step, strict=True))
    simple = (
        len(windows) == 2
        and isinstance(columns, int)
        and all(extent == 1 for extent in dilation)
        and reach[0] * reach[1] <= LARGEST_WINDOW
        and grad.dtype.is_floating_point
    )
    if not simple or not builder.on_gpu(grad.device):
        args = (grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices)
        return builder.call("vendor", _BACKWARD, args, {}, POOLING)
    for operand in (grad, indices):
        if not operand.stored and (operand is indices or operand.operations > FREE_OPERATIONS):
            builder.realize(operand)
    wide = value_dtype(grad.dtype)

    def gathered(recorder: Recorder, place: Coordinates) -> Scalar:
        here = recorder.index_expression(place[-2] * columns + place[-1], torch.int64)
        nothing = recorder.constant(0.0, wide)
        result: Scalar | None = None
        last = [(spot + p) // s for spot, p, s in zip(place[-2:], pad, step, strict=True)]
        for back in every(*(range(count) for count in reach)):
            at = tuple(spot - offset for spot, offset in zip(last, back, strict=True))
            inside = window_mask(recorder, at, windows)
            spot = (*place[:-2], *at)
            if inside is None:
                element, largest = grad.load(recorder, spot), indices.load(recorder, spot)
            else:
                with recorder.masked(inside):
                    element, largest = grad.load(recorder, spot), indices.load(recorder, spot)
            chosen = recorder.op("eq", largest, here)
            if inside is not None:
                chosen = recorder.op("logical_and", inside, chosen)
            part = recorder.op("where", chosen, recorder.to_dtype(element, wide), nothing)
            result = part if result is None else recorder.op("add", result, part)
        assert result is not None
        return recorder.to_dtype(result, fact.dtype)

    _, loads = cost((grad, indices))
    total = reach[0] * reach[1]
    return builder.pointwise(
        gathered,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=4 * total,
        loads=total * loads,
        stride=fact.stride,
    )
