"""Convolutions: the library's, in the layout that its fast kernels take (inductor.lowering.layouts)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.lowering.builder import TensorFact
from inductor.lowering.layouts import channels_last, in_layout, wants_channels_last
from inductor.lowering.registry import VENDOR, lowers

if TYPE_CHECKING:
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Value

aten = torch.ops.aten
_REASON = VENDOR.pop(aten.convolution.default)
del VENDOR[aten.convolution_backward.default]


def _laid_out(builder: Builder, *images: Value) -> tuple[Value, ...]:
    """The images channels last; the filters, which come last, only for a GPU: the CPU's library turns them itself."""
    *data, weight = images
    turned = [in_layout(builder, image, channels_last(image.shape)) for image in data]
    if builder.on_gpu(weight.device):
        weight = in_layout(builder, weight, channels_last(weight.shape))
    return (*turned, weight)


@lowers(aten.convolution.default)
def convolution(builder: Builder, x: Value, weight: Value, *rest: Any) -> Any:
    """(batch, channels, *space) by (out, channels / groups, *window)."""
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    if wants_channels_last(builder, fact):
        x, weight = _laid_out(builder, x, weight)
        builder.fact = replace(fact, stride=channels_last(fact.shape))
    return builder.call("vendor", aten.convolution.default, (x, weight, *rest), {}, _REASON)


@lowers(aten.convolution_backward.default)
def convolution_backward(builder: Builder, grad: Value, x: Value, weight: Value, *rest: Any) -> Any:
    """Gradients of the image, the weight and the bias."""
    grad_fact = builder.argument_fact(0)
    if wants_channels_last(builder, grad_fact):
        grad, x, weight = _laid_out(builder, grad, x, weight)
        builder.fact = tuple(
            replace(fact, stride=channels_last(fact.shape))
            if isinstance(fact, TensorFact) and len(fact.shape) == len(grad_fact.shape)
            else fact
            for fact in builder.fact
        )
    return builder.call(
        "vendor", aten.convolution_backward.default, (grad, x, weight, *rest), {}, _REASON
    )
