"""Resizing of images and sampling at given points, as gathers with weights.

Output positions are mapped to input positions in float32 (float64 for float64 operands), as
eager's kernels reckon them. The backward sums the weighted gradient into the places that were
read. 8-bit images, which eager resizes in fixed point, are declined. A scale that the caller gives need not be the
quotient of the sizes; some of the CPU's kernels then look at the sizes first, and so do we.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.padding import (
    in_format_of,
    is_channels_last,
    outer_indices,
    positions,
)
from primtorch.promotion import cast, computation_dtype
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    # For each dimension, several positions to read, each with its weight (None for one).
    Taps = Sequence[Sequence[tuple[Tensor, Tensor | None]]]

aten = torch.ops.aten

_CUBIC = -0.75


def _coordinates(like: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return cast(positions(like, 0, count), dtype)


def _stretched(place: Tensor, size: int, out_size: int, scale: float | None) -> Tensor:
    """`place` times size / out_size, or by the given scale; symbolic sizes are used one by one."""
    if scale is not None and scale > 0:
        return place * (1.0 / scale)
    if isinstance(size, int) and isinstance(out_size, int):
        return place * (size / out_size)
    return place * size / out_size


def _nearest_taps(
    like: Tensor, size: int, out_size: int, scale: float | None, *, exact: bool, by_size: bool
) -> list[tuple[Tensor, Tensor | None]]:
    """The one input position of each output position."""
    if scale is not None and by_size and size == out_size:
        return [(positions(like, 0, out_size), None)]
    if scale is not None and by_size and out_size == 2 * size:
        return [(aten.bitwise_right_shift.Tensor_Scalar(positions(like, 0, out_size), 1), None)]
    place = _coordinates(like, out_size, torch.float32)
    if exact:
        place = place + 0.5
    index = cast(aten.floor.default(_stretched(place, size, out_size, scale)), torch.int64)
    return [(aten.clamp.default(index, None, size - 1), None)]


def _source(
    like: Tensor, size: int, out_size: int, scale: float | None, *, align_corners: bool
) -> Tensor:
    """Where each output position lies in the input, as a real number."""
    dtype = torch.float64 if like.dtype is torch.float64 else torch.float32
    place = _coordinates(like, out_size, dtype)
    if align_corners:
        return _stretched(place, size - 1, out_size - 1, None) if out_size > 1 else place * 0.0
    return _stretched(place + 0.5, size, out_size, scale) - 0.5


def _linear_taps(
    like: Tensor, size: int, out_size: int, scale: float | None, *, align_corners: bool
) -> list[tuple[Tensor, Tensor | None]]:
    """The two neighbours of each output position and their weights."""
    if scale is not None and like.device.type == "cpu" and size == out_size:
        return [(positions(like, 0, out_size), None)]
    source = _source(like, size, out_size, scale, align_corners=align_corners)
    if not align_corners:
        source = aten.clamp.default(source, 0, None)
    low = aten.clamp.default(cast(source, torch.int64), None, size - 1)
    high = aten.clamp.default(low + 1, None, size - 1)
    weight = aten.clamp.default(source - cast(low, source.dtype), 0, 1)
    return [(low, aten.sub.Tensor(1.0, weight)), (high, weight)]


def _cubic_taps(
    like: Tensor, size: int, out_size: int, scale: float | None, *, align_corners: bool
) -> list[tuple[Tensor, Tensor | None]]:
    """The four neighbours of each output position and their weights."""
    source = _source(like, size, out_size, scale, align_corners=align_corners)
    floor = aten.floor.default(source)
    base = cast(floor, torch.int64)
    return [
        (aten.clamp.default(base + step, 0, size - 1), weight)
        for step, weight in zip((-1, 0, 1, 2), cubic_weights(source - floor), strict=True)
    ]


def cubic_weights(fraction: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The weights of the four neighbours of a point `fraction` beyond the second."""

    def near(x: Tensor) -> Tensor:
        return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC

    rest = aten.sub.Tensor(1.0, fraction)
    return far(fraction + 1), near(fraction), near(rest), far(rest + 1)


def _combinations(taps: Taps) -> Iterator[tuple[list[Tensor], Tensor | None]]:
    """Every choice of one position for each dimension, with the product of their weights."""
    count = len(taps)
    for chosen in itertools.product(*taps):
        weight: Tensor | None = None
        for axis, (_, factor) in enumerate(chosen):
            if factor is None:
                continue
            for _ in range(count - 1 - axis):
                factor = aten.unsqueeze.default(factor, -1)  # noqa: PLW2901  widened in place
            weight = factor if weight is None else weight * factor
        yield [index for index, _ in chosen], weight


def _resized(self: Tensor, taps: Taps) -> Tensor:
    """The weighted sum of what the taps read, in the operand's dtype."""
    total: Tensor | None = None
    computation = computation_dtype(self.dtype)
    for indices, weight in _combinations(taps):
        read = aten.index.Tensor(self, outer_indices(indices, self.dim()))
        if weight is not None:
            read = cast(read, computation) * weight
        total = read if total is None else total + read
    assert total is not None, "there is at least one tap for each dimension"
    return in_format_of(cast(total, self.dtype), self)


def _resized_backward(grad_output: Tensor, input_size: Sequence[int], taps: Taps) -> Tensor:
    """The weighted gradient summed into what the taps read."""
    computation = computation_dtype(grad_output.dtype)
    grad = cast(grad_output, computation)
    total = aten.full.default(list(input_size), 0, dtype=computation, device=grad.device)
    for indices, weight in _combinations(taps):
        part = grad if weight is None else grad * weight
        total = aten.index_put.default(total, outer_indices(indices, grad.dim()), part, True)
    return in_format_of(cast(total, grad_output.dtype), grad_output)


def check_resized_sizes(self: Tensor, output_size: Sequence[int], rank: int) -> None:
    """Refuse what eager refuses: another rank, or an empty image."""
    if len(output_size) != rank:
        raise RuntimeError(
            f"It is expected output_size equals to {rank}, but got size {len(output_size)}"
        )
    if self.dim() != rank + 2:
        raise RuntimeError(
            f"It is expected input_size equals to {rank + 2}, but got size {self.dim()}"
        )
    if any(size <= 0 for size in (*self.shape[2:], *output_size)):
        raise RuntimeError(
            "Input and output sizes should be greater than 0, but got input "
            f"{list(self.shape[2:])} and output {list(output_size)}"
        )


def _register_nearest(name: str, rank: int, *, exact: bool) -> None:
    def all_taps(
        like: Tensor,
        sizes: Sequence[int],
        output_size: Sequence[int],
        scales: Sequence[float | None],
        by_size: bool,
    ) -> Taps:
        given = [*scales, *[None] * rank]
        by_size = by_size and not exact and like.device.type == "cpu"
        return [
            _nearest_taps(
                like, sizes[axis], output_size[axis], given[axis], exact=exact, by_size=by_size
            )
            for axis in range(rank)
        ]

    def resize(self: Tensor, output_size: Sequence[int], *scales: float | None) -> Tensor:
        check_resized_sizes(self, output_size, rank)
        by_size = rank == 2 or (rank == 3 and _has_channels_last_kernel(self))
        return _resized(self, all_taps(self, self.shape[2:], output_size, scales, by_size))

    def resize_backward(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        *scales: float | None,
    ) -> Tensor:
        taps = all_taps(grad_output, input_size[2:], output_size, scales, True)
        return _resized_backward(grad_output, input_size, taps)

    for tail, function in (("", resize), ("_backward", resize_backward)):
        function.__name__ = function.__qualname__ = f"{name}{tail}"
        decomposes(f"aten.{name}{tail}.default")(function)


def _has_channels_last_kernel(self: Tensor) -> bool:
    """Whether eager resizes a volume by the kernel for channels last."""
    return self.shape[1] > 3 and is_channels_last(self)


def _register_smooth(name: str, rank: int, taps_of: object) -> None:
    def all_taps(
        like: Tensor,
        sizes: Sequence[int],
        output_size: Sequence[int],
        align_corners: bool,
        scales: Sequence[float | None],
    ) -> Taps:
        given = [*scales, *[None] * rank]
        return [
            taps_of(  # type: ignore[operator]
                like, sizes[axis], output_size[axis], given[axis], align_corners=align_corners
            )
            for axis in range(rank)
        ]

    def resize(
        self: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None
    ) -> Tensor:
        if self.dtype is torch.uint8:
            return NotImplemented
        check_resized_sizes(self, output_size, rank)
        taps = all_taps(self, self.shape[2:], output_size, align_corners, scales)
        return _resized(self, taps)

    def resize_backward(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> Tensor:
        if taps_of is _cubic_taps and _keeps_all_sizes(grad_output, input_size[2:], scales):
            return in_format_of(aten.clone.default(grad_output), grad_output)
        taps = all_taps(grad_output, input_size[2:], output_size, align_corners, scales)
        return _resized_backward(grad_output, input_size, taps)

    for tail, function in (("", resize), ("_backward", resize_backward)):
        function.__name__ = function.__qualname__ = f"{name}{tail}"
        decomposes(f"aten.{name}{tail}.default")(function)


def _keeps_all_sizes(
    grad_output: Tensor, sizes: Sequence[int], scales: Sequence[float | None]
) -> bool:
    """Whether eager's cubic kernel hands the gradient on as it is, whatever the scales."""
    given = grad_output.device.type == "cpu" and any(scale is not None for scale in scales)
    return given and all(a == b for a, b in zip(grad_output.shape[2:], sizes, strict=True))


for _rank in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_rank}d", _rank, exact=False)
    _register_nearest(f"_upsample_nearest_exact{_rank}d", _rank, exact=True)
_register_smooth("upsample_linear1d", 1, _linear_taps)
_register_smooth("upsample_bilinear2d", 2, _linear_taps)
_register_smooth("upsample_trilinear3d", 3, _linear_taps)
_register_smooth("upsample_bicubic2d", 2, _cubic_taps)
