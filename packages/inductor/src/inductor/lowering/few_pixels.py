"""Convolutions with a window of one pixel over small images of a CPU: one product for all images.

A library takes such a convolution image by image, as a product with as many columns as the image has pixels, and is
slow with few: two images of 2 x 2 with 384 channels by 1,536 filters take 1.34 ms in `aten.convolution` on one thread,
as one product of all pixels' rows 0.16; the gradients 1.8 and 0.3; past 16 pixels they are equal (docs/performance.md).
On more threads the library that eager asks turns the filters at every call.

In: images and filters of a convolution. Out: the result in the layout that the graph expects. Invariant: asked first,
`over_few_pixels` says of the same image and filters the same forwards and backwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.index import contiguous_stride, product
from inductor.lowering.builder import TensorFact
from inductor.lowering.layouts import channels_last, in_layout, same_layout
from inductor.lowering.pointwise import elementwise
from inductor.lowering.registry import LOWERINGS
from inductor.lowering.values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.nodes import View
    from inductor.ir.operations import Size
    from inductor.lowering.builder import Builder

__all__ = ["gradients", "over_few_pixels", "product_of_pixels"]

aten = torch.ops.aten
MOST_PIXELS = 16
"""Pixels of an image, and so columns of its product, up to which one product for all images is the faster."""


def over_few_pixels(builder: Builder, x: Value, weight: Value, settings: Sequence[Any]) -> bool:
    """Whether a convolution is such a product; `settings` from the stride on to the groups."""
    step, pad, _, transposed, _, groups = settings
    if builder.on_gpu(x.device) or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    if (
        len(x.shape) != 4
        or transposed
        or groups != 1
        or any(n != 1 for n in (*weight.shape[2:], *step))
    ):
        return False
    *channels, height, width = *weight.shape[:2], *x.shape[2:]
    if any(pad) or not all(isinstance(n, int) and n > 0 for n in (*channels, height, width)):
        return False
    return height * width <= MOST_PIXELS  # type: ignore[operator]  # numbers, as the line before asked


def product_of_pixels(builder: Builder, x: Value, weight: Value, bias: Value | None) -> Value:
    """The convolution: every pixel's channels by the filters."""
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    filters, channels = weight.shape[:2]
    turned = _matrix(builder, weight, (channels, filters), (1, 0))
    rows = _rows(builder, x)
    builder.fact = _flat(fact, rows.shape[0], filters)
    if bias is None:
        made = LOWERINGS[aten.mm.default](builder, rows, turned)
    else:
        made = LOWERINGS[aten.addmm.default](builder, bias, rows, turned)
    return _as_image(builder, made, fact)


def gradients(
    builder: Builder, grad: Value, x: Value, weight: Value, facts: Sequence[TensorFact | None]
) -> tuple[Value | None, ...]:
    """Of the image, the filters and the bias, where there is a fact of it."""
    of_image, of_filters, of_bias = facts
    filters, channels = weight.shape[:2]
    found: list[Value | None] = [None, None, None]
    rows = _rows(builder, grad)
    if of_bias is not None:
        builder.fact = of_bias
        found[2] = LOWERINGS[aten.sum.dim_IntList](builder, rows, [0])
    if of_image is not None:
        builder.fact = _flat(of_image, rows.shape[0], channels)
        flat = _matrix(builder, weight, (filters, channels), (0, 1))
        found[0] = _as_image(builder, LOWERINGS[aten.mm.default](builder, rows, flat), of_image)
    if of_filters is not None:
        builder.fact = _flat(of_filters, filters, channels)
        assert rows.view is not None
        shape, stride = rows.shape[::-1], rows.view.stride[::-1]
        turned = _window(rows, replace(rows.view, shape=shape, stride=stride))
        made = LOWERINGS[aten.mm.default](builder, turned, _rows(builder, x))
        found[1] = _as_image(builder, made, of_filters)
    return tuple(found)


def _flat(fact: TensorFact, rows: Size, columns: Size) -> TensorFact:
    shape = (rows, columns)
    return replace(fact, shape=shape, stride=contiguous_stride(shape))


def _window(value: Value, view: View) -> Value:
    return Value(view.shape, value.dtype, value.device, view, stride=view.stride)


def _rows(builder: Builder, image: Value) -> Value:
    """(batch x pixels, channels) of an image that is stored channels last."""
    batch, channels, *space = image.shape
    stored = builder.realize(in_layout(builder, image, channels_last(image.shape)))
    shape = (batch * product(space), channels)
    return _window(image, replace(stored, shape=shape, stride=contiguous_stride(shape)))


def _matrix(
    builder: Builder, weight: Value, shape: tuple[Size, Size], axes: tuple[int, int]
) -> Value:
    """The filters as they lie: (filters, channels), or turned."""
    stored = builder.realize(weight)
    stride = tuple(stored.stride[axis] for axis in axes)
    return _window(weight, replace(stored, shape=shape, stride=stride))


def _as_image(builder: Builder, made: Value, fact: TensorFact) -> Value:
    """The rows of a product as an image; stored as the graph expects by whoever reads it."""
    last = channels_last(fact.shape)
    stored = builder.realize(made)
    builder.fact = fact
    if same_layout(fact.shape, last, fact.stride):
        return _window(made, replace(stored, shape=fact.shape, stride=fact.stride))
    image = _window(made, replace(stored, shape=fact.shape, stride=last))
    return elementwise(builder, (image,), lambda _, scalar: scalar)
