"""The gradient of depthwise filters on a CPU: sums of our own where the library's way is wasteful.

In: the gradient of the result and the image, both channels last. Out: loops that add up, for each place of the window
and each channel, the products of the two images shifted against each other. The library has such a kernel for windows
of up to three columns over images that aren't tiny; for others it multiplies matrices of 16 x 16 channels of which it
keeps the diagonal, so its scratch memory is 256 times the filters. Invariant: whoever asks `sums_itself` first gives
both images channels last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.analysis.cost import smallest
from inductor.ir.index import contiguous_stride, product
from inductor.lowering.pooling import spread_over, window_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder, TensorFact
    from inductor.lowering.values import Coordinates, Value

__all__ = ["sums_itself", "weight_gradient"]

WIDEST = 3
"""Columns of a window up to which the library has a kernel of its own."""
FEW_PIXELS = 1 << 9
"""Pixels of all images up to which ours is faster than that one, which doesn't take the smallest images at all."""
MOST_PIXELS = 1 << 13
"""Pixels of all images up to which those of a block of channels stay in the second cache from place to place."""


def sums_itself(grad: Value, x: Value, weight: Value, settings: Sequence[Any]) -> bool:
    """Whether the filters' gradient is better summed here; `settings` from the stride on to the groups."""
    _, pad, dilation, transposed, _, groups = settings
    channels, per_group, *window = weight.shape
    if x.dtype != torch.float32 or len(window) != 2 or per_group != 1 or channels != groups:
        return False
    if transposed or channels == 1:
        return False
    numbers = (*window, *x.shape[2:], *grad.shape[2:])
    if not all(isinstance(number, int) for number in numbers):
        return False
    pixels = smallest(product((grad.shape[0], *grad.shape[2:])))
    within = all(
        2 * p <= smallest(extent) for p, extent in zip(spread_over(pad, 2), window, strict=True)
    )
    has_kernel = within and smallest(window[1]) <= WIDEST and all(d == 1 for d in dilation)
    return pixels <= (FEW_PIXELS if has_kernel else MOST_PIXELS)


def weight_gradient(
    builder: Builder,
    grad: Value,
    x: Value,
    fact: TensorFact,
    step: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> Value:
    """(channels, 1, *window): sums over images and pixels of `grad` times `x` shifted to the place in the window."""
    channels, _, *window = fact.shape
    batch, _, *space = grad.shape
    shape = (*window, batch, *space, channels)
    steps, pads, spreads = (spread_over(numbers, 2) for numbers in (step, pad, dilation))
    for stored in (grad, x):
        builder.realize(stored)  # each element is read at every place of the window
    inputs = [extent for extent in x.shape[2:] if isinstance(extent, int)]

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        taps, image, pixel, channel = place[:2], place[2], place[3:5], place[5]
        at = tuple(
            spot * s - p + tap * d
            for spot, s, p, tap, d in zip(pixel, steps, pads, taps, spreads, strict=True)
        )
        mine = grad.load(recorder, (image, channel, *pixel))
        inside = window_mask(recorder, at, inputs)
        if inside is None:
            other = x.load(recorder, (image, channel, *at))
        else:
            with recorder.masked(inside):
                other = x.load(recorder, (image, channel, *at))
        return recorder.op("mul", mine, other)

    def finish(_: Recorder, reduce: Callable[..., Scalar]) -> Sequence[Scalar]:
        return (reduce("sum", torch.float32, torch.float32),)

    products = builder.pointwise(
        load,
        shape=shape,
        dtype=torch.float32,
        device=grad.device,
        operations=2,
        loads=2,
        stride=contiguous_stride(shape),
    )
    buffer = builder.buffer(fact.shape, fact.stride, fact.dtype, fact.device)
    across, _, *along = fact.stride
    kept, places = (*window, 1, 1, 1, channels), (*along, 1, 1, 1, across)
    if (batch, *space) == (1, 1, 1):  # one product, nothing to add up
        builder.store(products, replace(buffer.view, shape=kept, stride=places))
        return builder.stored(buffer)
    sums = replace(buffer, shape=kept, stride=places)
    builder.reduction(products, (2, 3, 4), finish, (sums,))
    return builder.stored(buffer)
