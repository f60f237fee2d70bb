"""Which layout a result is stored in, where the graph's caller can't see it: channels last for convolutions.

The tensor cores want the channels of an image side by side. A convolution of half types on a GPU therefore takes and
gives channels-last images whatever eager would. On a CPU a depthwise convolution is several times faster that way and
other float32 ones are about as fast, but for the copies of large filters: there a graph with depthwise convolutions is
laid out so. What is computed from such an image, element by element or window
by window, is stored likewise (`carried`), so that a network changes layout once, where it begins. Results that the
caller sees keep eager's strides; saved tensors are nobody's but the backward graph's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.index import contiguous_stride
from inductor.ir.nodes import View
from inductor.lowering.builder import IMAGE_RANKS, TensorFact, layout_for
from inductor.lowering.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inductor.ir.operations import Size
    from inductor.lowering.builder import Builder


def channels_last(shape: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a dense image whose channels lie side by side: (batch, channels, *space)."""
    strides: list[Size] = [0] * len(shape)
    step: Size = 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def same_layout(shape: Sequence[Size], left: Sequence[Size], right: Sequence[Size]) -> bool:
    """Whether strides differ at most where an extent is 1."""
    return all(
        mine == other or extent == 1 for extent, mine, other in zip(shape, left, right, strict=True)
    )


def layout_of(value: Value) -> tuple[Size, ...] | None:
    """Strides that a value has, or would have if it were stored now; None where none can say it."""
    if value.view is not None:
        return value.view.stride
    if value.base is not None and value.window is not None:
        base = layout_of(value.base)
        if base is None:
            return None
        window = value.window(View("", value.base.shape, base, 0, value.dtype))
        return None if window is None else window.stride
    return layout_for(value.shape, value.stride)


def is_channels_last(value: Value) -> bool:
    """Whether an image's channels lie side by side, and its pixels don't."""
    shape = value.shape
    if len(shape) not in IMAGE_RANKS or shape[1] == 1 or all(extent == 1 for extent in shape[2:]):
        return False
    stride = layout_of(value)
    return stride is not None and stride[1] == 1 and stride[-1] != 1


def carried(builder: Builder, fact: Any, operands: Any) -> Any:
    """The facts of a result, channels last where an operand is and eager's result is row-major."""
    if isinstance(fact, tuple):
        return tuple(carried(builder, item, operands) for item in fact)
    if not isinstance(fact, TensorFact) or len(fact.shape) not in IMAGE_RANKS:
        return fact
    if not (builder.on_gpu(fact.device) or builder.depthwise) or fact.stride != contiguous_stride(
        fact.shape
    ):
        return fact
    if any(len(x.shape) == len(fact.shape) and is_channels_last(x) for x in _values(operands)):
        return replace(fact, stride=channels_last(fact.shape))
    return fact


def _values(operands: Any) -> Iterator[Value]:
    for operand in operands:
        if isinstance(operand, Value):
            yield operand
        elif isinstance(operand, tuple):
            yield from _values(operand)


def in_layout(builder: Builder, value: Value, stride: Sequence[Size]) -> Value:
    """`value` stored with these strides: stored so at once if it isn't yet, else a copy."""
    now = layout_of(value)
    if now is not None and same_layout(value.shape, now, stride):
        return value
    if not value.stored and not value.is_view:
        value.stride = tuple(stride)
        builder.realize(value, leaves=True)
        return value
    if value not in builder.copies:
        builder.copies[value] = builder.stored(builder.copy(value, stride))
    return builder.copies[value]


def wants_channels_last(builder: Builder, fact: TensorFact) -> bool:
    """Whether convolutions of such images run faster that way."""
    if not builder.on_gpu(fact.device):
        return builder.depthwise and fact.dtype == torch.float32 and len(fact.shape) == 4
    return len(fact.shape) in IMAGE_RANKS and fact.dtype in (torch.float16, torch.bfloat16)
