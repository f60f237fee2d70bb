"""Shapes and strides that many rules need: broadcasting, dimensions, TensorIterator's order.

Functions take `sizes` (who answers questions about sizes) first, raise what eager raises for bad
shapes, and work on `int | Expression`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.meta import Shape, TensorMeta
from primtorch.symbolic import (
    Expression,
    Sizes,
    channels_last_strides,
    contiguous_strides,
    is_channels_last_contiguous,
    is_channels_last_strides,
    is_contiguous,
    is_non_overlapping_and_dense,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def wrap_dimension(dimension: int, ndim: int) -> int:
    """A dimension counted from the front; a 0-d tensor counts as one-dimensional."""
    limit = max(ndim, 1)
    if not -limit <= dimension < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], "
            f"but got {dimension})"
        )
    return dimension % limit


def wrap_dimensions(dimensions: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions counted from the front; None or an empty list means all."""
    if dimensions is None or (isinstance(dimensions, (list, tuple)) and not dimensions):
        return tuple(range(ndim))
    if isinstance(dimensions, int):
        dimensions = [dimensions]
    wrapped = tuple(wrap_dimension(dimension, ndim) for dimension in dimensions)
    if len(set(wrapped)) != len(wrapped):
        raise RuntimeError(f"dim {wrapped[0]} appears multiple times in the list of dims")
    return wrapped


def broadcast(sizes: Sizes, *shapes: Shape) -> Shape:
    """The common shape of several shapes by broadcasting."""
    first = shapes[0]
    if all(shape == first for shape in shapes[1:]):
        return first
    result: list[int | Expression] = [1] * max(map(len, shapes))
    for shape in shapes:
        for index in range(-len(shape), 0):
            size, known = shape[index], result[index]
            if size is known or size in (known, 1):
                continue
            # Equal sizes are asked for before size 1, so that equal sizes of any number will do.
            if known != 1 and sizes.alike(size, known) and sizes.same(size, known):
                continue
            if known == 1 or sizes.is_one(known):
                result[index] = size
            elif not (sizes.is_one(size) or sizes.same(size, known)):
                raise RuntimeError(
                    f"The size of tensor a ({known}) must match the size of tensor b ({size}) at "
                    f"non-singleton dimension {len(result) + index}"
                )
    return tuple(result)


def broadcast_stride(meta: TensorMeta, shape: Shape) -> Shape:
    """The strides of `meta` seen with the broadcast shape: 0 where it is repeated."""
    missing = len(shape) - len(meta.shape)
    return (0,) * missing + tuple(
        0 if size == 1 and target != 1 else stride
        for size, stride, target in zip(meta.shape, meta.stride, shape[missing:], strict=True)
    )


def pointwise_strides(
    sizes: Sizes, shape: Shape, operands: Sequence[TensorMeta], *, with_number: bool = False
) -> Shape:
    """The strides that TensorIterator gives a new output of this shape.

    Args:
        sizes: answers questions about sizes.
        shape: the common shape of the operands.
        operands: the tensors that take part.
        with_number: whether a number does too. It is a tensor without dimensions to TensorIterator,
            so no layout is taken over as it is, which shows where a dimension has one place or none.
    """
    if not operands:
        return contiguous_strides(shape)
    if all(operand.shape == shape for operand in operands):
        fast = _common_layout(sizes, shape, operands)
        # Both ways agree where every dimension has two places or more, and only run time may tell.
        shows = with_number and any(isinstance(size, int) and size < 2 for size in shape)
        if fast is not None and not (shows and all(isinstance(size, int) for size in shape)):
            return fast
    strides = [broadcast_stride(operand, shape) for operand in operands]
    row_major = contiguous_strides(shape)
    # Where a dimension has no place, the sizes alone may ask for another order.
    if 0 not in shape and all(s == row_major or _all_zero(s) for s in strides):
        return row_major
    return _sorted_strides(sizes, shape, strides)


def _all_zero(stride: Shape) -> bool:
    return all(step == 0 for step in stride)


def _common_layout(sizes: Sizes, shape: Shape, operands: Sequence[TensorMeta]) -> Shape | None:
    """The layout that all operands of one shape share, if TensorIterator takes it over as it is."""
    row_major = contiguous_strides(shape)
    strides = [operand.stride for operand in operands]
    if all(s == row_major or is_contiguous(sizes, shape, s) for s in strides):
        return row_major
    if len(shape) == 4 and all(is_channels_last_contiguous(sizes, shape, s) for s in strides):
        return channels_last_strides(shape)
    if all(s == strides[0] for s in strides) and is_non_overlapping_and_dense(
        sizes, shape, strides[0]
    ):
        return strides[0]
    return None


def _sorted_strides(sizes: Sizes, shape: Shape, strides: Sequence[Shape]) -> Shape:
    """Dense strides in the order of the operands' strides, the first operand deciding first."""
    order = list(range(len(shape) - 1, -1, -1))
    for index in range(1, len(order)):
        position = index
        for before in range(index - 1, -1, -1):
            comparison = _compare(sizes, shape, strides, order[before], order[position])
            if comparison > 0:
                order[before], order[position] = order[position], order[before]
                position = before
            elif comparison < 0:
                break
    if order == list(range(len(shape) - 1, -1, -1)):
        return contiguous_strides(shape)
    result: list[int | Expression] = [0] * len(shape)
    step: int | Expression = 1
    for dimension in order:
        result[dimension] = step
        step = step * shape[dimension]
    return tuple(result)


def _compare(sizes: Sizes, shape: Shape, strides: Sequence[Shape], first: int, second: int) -> int:
    """Positive if dimension `first` must come after `second` (it has the larger strides)."""
    for stride in strides:
        one, two = stride[first], stride[second]
        if one == 0 or two == 0:
            continue
        if one != two:
            return -1 if sizes.less(one, two) else 1
        if sizes.less(shape[second], shape[first]):
            return 1
    return 0


def suggested_format(sizes: Sizes, meta: TensorMeta) -> torch.memory_format:
    """The memory format that an operator takes over from its input."""
    if len(meta.shape) in (4, 5) and meta.stride != contiguous_strides(meta.shape):
        if is_contiguous(sizes, meta.shape, meta.stride) and meta.shape[1] != 1:
            # Ambiguous strides (sizes of one) count as channels-last only if ordered so.
            pass
        if is_channels_last_strides(sizes, meta.shape, meta.stride):
            return torch.channels_last if len(meta.shape) == 4 else torch.channels_last_3d
    return torch.contiguous_format


def format_strides(
    sizes: Sizes, meta: TensorMeta, shape: Shape, memory_format: torch.memory_format | None
) -> Shape:
    """The strides of a new tensor of this shape that is like `meta` in the given format.

    `preserve_format` (also for None) keeps the strides of a dense tensor, and otherwise their
    order.
    """
    if memory_format is torch.contiguous_format:
        return contiguous_strides(shape)
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        needed = 4 if memory_format is torch.channels_last else 5
        if len(shape) != needed:
            raise RuntimeError(
                f"required rank {needed} tensor to use {str(memory_format)[6:]} format"
            )
        return channels_last_strides(shape)
    if meta.stride == contiguous_strides(shape):
        return meta.stride
    if is_non_overlapping_and_dense(sizes, meta.shape, meta.stride):
        return meta.stride
    return pointwise_strides(
        sizes, shape, [TensorMeta(shape, meta.stride, meta.dtype, meta.device)]
    )


def common_device(operands: Sequence[TensorMeta]) -> torch.device:
    """The device of the result: that of the first operand with dimensions, else a non-CPU one.

    Raises RuntimeError when operands on different devices can't be mixed.
    """
    device = operands[0].device
    if all(operand.device == device for operand in operands):
        return device
    for operand in operands:
        if operand.device.type != "cpu":
            device = operand.device
            break
    for operand in operands:
        if operand.device != device and (operand.device.type != "cpu" or operand.shape):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {operand.device}!"
            )
    return device
