"""Resizing of images with antialiasing: each dimension in turn, as a weighted sum over a window of positions.

When an image shrinks the filter is stretched by the scale, so that every input position takes part. The weights of a
window add up to one. Widths of windows depend on the sizes: symbolic sizes are declined, and so are 8-bit images, which
eager resizes in fixed point.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.padding import in_format_of, positions
from primtorch.decompositions.resampling import check_resized_sizes
from primtorch.promotion import cast, computation_dtype
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Filter = Callable[[Tensor], Tensor]

aten = torch.ops.aten


def _triangle(distance: Tensor) -> Tensor:
    """1 - |x| within 1."""
    return aten.clamp.default(aten.sub.Tensor(1.0, aten.abs.default(distance)), 0, None)


def _cubic(distance: Tensor) -> Tensor:
    """The cubic convolution filter with a = -0.5, within 2."""
    a = -0.5
    x = aten.abs.default(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    zero = aten.full.default([], 0, dtype=x.dtype, device=x.device)
    outer = aten.where.self(aten.lt.Scalar(x, 2), far, zero)
    return aten.where.self(aten.lt.Scalar(x, 1), near, outer)


def _scale(size: int, out_size: int, given: float | None, align_corners: bool) -> float:
    if align_corners:
        return (size - 1) / (out_size - 1) if out_size > 1 else 0.0
    return 1.0 / given if given is not None and given > 0 else size / out_size


def _windows(
    like: Tensor, size: int, out_size: int, scale: float, reach: float, shape: Filter
) -> list[tuple[Tensor, Tensor]]:
    """For each place in a window: the input position for each output position, and its weight."""
    dtype = torch.float64 if like.dtype is torch.float64 else torch.float32
    support = reach * scale if scale >= 1 else reach
    center = (cast(positions(like, 0, out_size), dtype) + 0.5) * scale
    first = aten.clamp.default(cast(center - support + 0.5, torch.int64), 0, None)
    end = aten.clamp.default(cast(center + support + 0.5, torch.int64), None, size)
    zero = aten.full.default([], 0, dtype=dtype, device=like.device)
    places, weights = [], []
    for step in range(math.ceil(support) * 2 + 1):
        place = first + step
        distance = cast(place, dtype) - center + 0.5
        if scale >= 1:
            distance = distance * (1.0 / scale)
        weights.append(aten.where.self(aten.lt.Tensor(place, end), shape(distance), zero))
        places.append(aten.clamp.default(place, 0, size - 1))
    total = weights[0]
    for weight in weights[1:]:
        total = total + weight
    one = aten.full.default([], 1, dtype=dtype, device=like.device)
    total = aten.where.self(aten.eq.Scalar(total, 0), one, total)
    return [(place, weight / total) for place, weight in zip(places, weights, strict=True)]


def _along(vector: Tensor, dim: int) -> Tensor:
    """A vector shaped so that it lies along the third or the last of four dimensions."""
    return aten.unsqueeze.default(vector, -1) if dim == 2 else vector


def _is_static(*sizes: Sequence[int]) -> bool:
    return all(isinstance(size, int) for group in sizes for size in group)


def _register(name: str, reach: float, shape: Filter) -> None:
    def resize(
        self: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        if self.dtype is torch.uint8 or not _is_static(self.shape, output_size):
            return NotImplemented
        check_resized_sizes(self, output_size, 2)
        if output_size[1] == 1 and output_size[0] != self.shape[2]:
            return NotImplemented  # eager's kernel reads other rows for a column than for an image
        out = cast(self, computation_dtype(self.dtype))
        for dim, given in ((3, scales_w), (2, scales_h)):
            size, out_size = self.shape[dim], output_size[dim - 2]
            if size == out_size and self.device.type == "cpu":
                continue  # whatever the scale, eager's kernel leaves the dimension out
            scale = _scale(size, out_size, given, align_corners)
            total: Tensor | None = None
            for place, weight in _windows(self, size, out_size, scale, reach, shape):
                part = aten.index_select.default(out, dim, place) * _along(weight, dim)
                total = part if total is None else total + part
            assert total is not None, "a window has a place"
            out = total
        out = aten.clone.default(self) if out is self else out
        return in_format_of(cast(out, self.dtype), self)

    def resize_backward(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        if not _is_static(input_size, output_size):
            return NotImplemented
        grad = cast(grad_output, computation_dtype(grad_output.dtype))
        for dim, given in ((2, scales_h), (3, scales_w)):
            size, out_size = input_size[dim], output_size[dim - 2]
            scale = _scale(size, out_size, given, align_corners)
            sizes = [*grad.shape[:dim], size, *grad.shape[dim + 1 :]]
            total = aten.full.default(sizes, 0, dtype=grad.dtype, device=grad.device)
            for place, weight in _windows(grad_output, size, out_size, scale, reach, shape):
                part = grad * _along(weight, dim)
                total = aten.index_put.default(total, [*[None] * dim, place], part, True)
            grad = total
        return in_format_of(cast(grad, grad_output.dtype), grad_output)

    for tail, function in (("", resize), ("_backward", resize_backward)):
        function.__name__ = function.__qualname__ = f"{name}{tail}"
        decomposes(f"aten.{name}{tail}.default")(function)


_register("_upsample_bilinear2d_aa", 1.0, _triangle)
_register("_upsample_bicubic2d_aa", 2.0, _cubic)
