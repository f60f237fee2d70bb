"""Convolutions: the library's, in the layout that its fast kernels take (inductor.lowering.layouts)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.analysis.cost import smallest
from inductor.ir.index import contiguous_stride, product
from inductor.lowering.builder import TensorFact
from inductor.lowering.layouts import channels_last, in_layout, wants_channels_last
from inductor.lowering.pointwise import elementwise
from inductor.lowering.registry import LOWERINGS, VENDOR, lowers

if TYPE_CHECKING:
    from inductor.ir.operations import Size
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Value

aten = torch.ops.aten
_REASON = VENDOR.pop(aten.convolution.default)
del VENDOR[aten.convolution_backward.default]


def _laid_out(builder: Builder, *images: Value) -> tuple[Value, ...]:
    """The images channels last; the filters, which come last, only for a GPU: the CPU's library turns them itself.

    Where it would turn more than the images are, at every call, these are row-major there, and so is the result.
    """
    *data, weight = images
    if _turns_much(builder, *images):
        return (*(in_layout(builder, i, contiguous_stride(i.shape)) for i in data), weight)
    turned = [in_layout(builder, image, channels_last(image.shape)) for image in data]
    if builder.on_gpu(weight.device):
        weight = in_layout(builder, weight, channels_last(weight.shape))
    return (*turned, weight)


def _turns_much(builder: Builder, *images: Value) -> bool:
    """Whether the filters, which the CPU's library keeps row-major, are more than the images before them."""
    *data, weight = images
    if builder.on_gpu(weight.device) or all(extent == 1 for extent in weight.shape[2:]):
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
    if wants_channels_last(builder, fact):
        turned = not _turns_much(builder, x, weight)
        x, weight = _laid_out(builder, x, weight)
        if turned:
            fact = builder.fact = replace(fact, stride=channels_last(fact.shape))
    inside = None if builder.on_gpu(fact.device) else bias
    result = builder.call(
        "vendor", aten.convolution.default, (x, weight, inside, *rest), {}, _REASON
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
    """Gradients of the image, the weight and the bias, the last a sum of our own on a GPU."""
    grad_fact = builder.argument_fact(0)
    facts = list(builder.fact)
    *settings, mask = rest
    on_gpu = builder.on_gpu(grad_fact.device)
    if wants_channels_last(builder, grad_fact):
        turned = not _turns_much(builder, grad, x, weight)
        grad, x, weight = _laid_out(builder, grad, x, weight)
        for number in range(2):
            fact = facts[number]
            if isinstance(fact, TensorFact) and turned:
                facts[number] = replace(fact, stride=channels_last(fact.shape))
    bias_grad = None
    if on_gpu and mask[2] and isinstance(facts[2], TensorFact):
        builder.fact = facts[2]
        axes = [axis for axis in range(len(grad_fact.shape)) if axis != 1]
        bias_grad = LOWERINGS[aten.sum.dim_IntList](builder, grad, axes)
        mask, facts[2] = [mask[0], mask[1], False], None
    builder.fact = tuple(facts)
    made = builder.call(
        "vendor", aten.convolution_backward.default, (grad, x, weight, *settings, mask), {}, _REASON
    )
    return made if bias_grad is None else (*made[:2], bias_grad)
