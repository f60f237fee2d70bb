"""Convolutions: the library's, in the layout that its fast kernels take (inductor.lowering.layouts).

What is a product of few pixels goes there (inductor.lowering.few_pixels).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.analysis.cost import smallest
from inductor.ir.index import contiguous_stride, product
from inductor.lowering.builder import TensorFact
from inductor.lowering.depthwise import sums_itself, weight_gradient
from inductor.lowering.few_pixels import gradients, over_few_pixels, product_of_pixels
from inductor.lowering.layouts import channels_last, in_layout, wants_channels_last
from inductor.lowering.pointwise import elementwise
from inductor.lowering.registry import LOWERINGS, lowers
from inductor.lowering.vendor import CONVOLUTIONS

if TYPE_CHECKING:
    from inductor.ir.operations import Size
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Value

aten = torch.ops.aten


def _laid_out(builder: Builder, *images: Value, turned: bool) -> tuple[Value, ...]:
    """The images channels last; the filters, which come last, only for a GPU: the CPU's library turns them itself.

    Not `turned`: the images are row-major, and so is the result.
    """
    *data, weight = images
    if not turned:
        return (*(in_layout(builder, i, contiguous_stride(i.shape)) for i in data), weight)
    lasts = [in_layout(builder, image, channels_last(image.shape)) for image in data]
    if builder.on_gpu(weight.device):
        weight = in_layout(builder, weight, channels_last(weight.shape))
    return (*lasts, weight)


def _turns_much(builder: Builder, *images: Value) -> bool:
    """Whether the filters, which the CPU's library keeps row-major, are more than the images before them.

    Depthwise filters never are: row-major the library takes up to 20 times as long (wide windows, small images).
    """
    *data, weight = images
    if builder.on_gpu(weight.device) or all(extent == 1 for extent in weight.shape[2:]):
        return False
    if weight.shape[1] == 1 and all(image.shape[1] == weight.shape[0] for image in data):
        return False
    read = sum(smallest(product(image.shape)) for image in data)
    return smallest(product(weight.shape)) > read


@lowers(aten.convolution.default)
def convolution(builder: Builder, x: Value, weight: Value, bias: Value | None, *rest: Any) -> Any:
    """(batch, channels, *space) by (out, channels / groups, *window).

    On a GPU the library would add the bias in a kernel of its own, after rounding; the kernel that
    reads the result does the same on the way.
    """
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    if over_few_pixels(builder, x, weight, rest):
        if wants_channels_last(builder, fact):
            builder.fact = replace(fact, stride=channels_last(fact.shape))
        return product_of_pixels(builder, x, weight, bias)
    if wants_channels_last(builder, fact):
        turned = not _turns_much(builder, x, weight)
        x, weight = _laid_out(builder, x, weight, turned=turned)
        if turned:
            fact = builder.fact = replace(fact, stride=channels_last(fact.shape))
    inside = None if builder.on_gpu(fact.device) else bias
    result = builder.call(
        "vendor", aten.convolution.default, (x, weight, inside, *rest), {}, CONVOLUTIONS
    )
    if bias is None or inside is not None:
        return result
    space = len(fact.shape) - 2
    added = _beside(builder, bias, fact.shape[1], space)
    builder.fact = fact
    return elementwise(builder, (result, added), lambda recorder, s, t: recorder.op("add", s, t))


def _beside(builder: Builder, bias: Value, channels: Size, space: int) -> Value:
    """A vector over the channels as an image of one pixel."""
    shape = (1, channels, *(1,) * space)
    builder.fact = TensorFact(shape, contiguous_stride(shape), bias.dtype, bias.device)
    return LOWERINGS[aten.view.default](builder, bias, shape)


@lowers(aten.convolution_backward.default)
def convolution_backward(builder: Builder, grad: Value, x: Value, weight: Value, *rest: Any) -> Any:
    """Gradients of the image, the weight and the bias: the library's, but for what is a sum of our own.

    That is the bias on a GPU, and the filters of some depthwise convolutions on a CPU, the bias with them.
    """
    grad_fact = builder.argument_fact(0)
    facts = list(builder.fact)
    *settings, mask = rest
    if over_few_pixels(builder, x, weight, settings[1:]):
        if wants_channels_last(builder, grad_fact) and isinstance(facts[0], TensorFact):
            facts[0] = replace(facts[0], stride=channels_last(facts[0].shape))
        return gradients(builder, grad, x, weight, facts)
    own: list[Value | None] = [None, None, None]
    summed = builder.on_gpu(grad_fact.device)
    if wants_channels_last(builder, grad_fact):
        sums = not summed and mask[1] and sums_itself(grad, x, weight, settings[1:])
        turned = sums or not _turns_much(builder, grad, x, weight)
        grad, x, weight = _laid_out(builder, grad, x, weight, turned=turned)
        for number in range(2):
            fact = facts[number]
            if isinstance(fact, TensorFact) and turned:
                facts[number] = replace(fact, stride=channels_last(fact.shape))
        if sums and isinstance(facts[1], TensorFact):
            _, step, pad, dilation, *_ = settings
            own[1] = weight_gradient(builder, grad, x, facts[1], step, pad, dilation)
            summed = True
    if summed and mask[2] and isinstance(facts[2], TensorFact):
        builder.fact = facts[2]
        axes = [axis for axis in range(len(grad_fact.shape)) if axis != 1]
        own[2] = LOWERINGS[aten.sum.dim_IntList](builder, grad, axes)
    left = [wanted and mine is None for wanted, mine in zip(mask, own, strict=True)]
    facts = [fact if mine is None else None for fact, mine in zip(facts, own, strict=True)]
    if not any(left):
        return tuple(own)
    builder.fact = tuple(facts)
    made = builder.call(
        "vendor",
        aten.convolution_backward.default,
        (grad, x, weight, *settings, left),
        {},
        CONVOLUTIONS,
    )
    return tuple(theirs if mine is None else mine for theirs, mine in zip(made, own, strict=True))
