"""Reading an image at given points (grid sampling), forward and backward.

A point in [-1, 1] is mapped to a position, brought inside as the padding mode says, and read with
the weights of its neighbours. `_Tap` carries each neighbour's weight and the weight's slope, so
that one description serves the value, the gradient of the image and the gradient of the grid.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.padding import in_format_of, positions
from primtorch.decompositions.resampling import cubic_weights
from primtorch.promotion import cast, computation_dtype
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2
_CUBIC = -0.75


@dataclass(frozen=True, slots=True)
class _Tap:
    """One neighbour along one dimension: its position, its weight, the weight's slope (None: 1 and 0)."""

    place: Tensor
    weight: Tensor | None
    slope: Tensor | None


def _constant(like: Tensor, value: float) -> Tensor:
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


def _unnormalized(coordinate: Tensor, size: int, *, align_corners: bool) -> Tensor:
    """A coordinate in [-1, 1] as a position in a dimension of `size`."""
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _reflect(place: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """A position mirrored at `low` / 2 and `high` / 2 until it lies between them, and the slope."""
    if low == high:
        return place * 0, place * 0
    start, span = low / 2, (high - low) / 2
    offset = place - start
    distance = aten.abs.default(offset)
    sign = aten.where.self(aten.lt.Scalar(offset, 0), _constant(place, -1), _constant(place, 1))
    extra = aten.fmod.Scalar(distance, span)
    flips = aten.floor.default(distance / span)
    even = aten.eq.Scalar(aten.fmod.Scalar(flips, 2), 0)
    mirrored = aten.where.self(even, extra + start, aten.sub.Tensor(span, extra) + start)
    return mirrored, aten.where.self(even, sign, -sign)


def _padded(
    place: Tensor, size: int, padding_mode: int, *, align_corners: bool
) -> tuple[Tensor, Tensor | None]:
    """A position brought inside as the padding mode says, and the slope of doing so (None for 1)."""
    if padding_mode == _ZEROS:
        return place, None
    slope: Tensor | None = None
    if padding_mode == _REFLECTION:
        low, high = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
        place, slope = _reflect(place, low, high)
    inside = aten.logical_and.default(aten.gt.Scalar(place, 0), aten.lt.Scalar(place, size - 1))
    clipped = aten.where.self(
        inside, _constant(place, 1) if slope is None else slope, _constant(place, 0)
    )
    # NaN goes to the first position, as the comparisons of eager's kernels have it.
    known = aten.where.self(aten.isnan.default(place), _constant(place, 0), place)
    return aten.clamp.default(known, 0, size - 1), clipped


def _places(input: Tensor, grid: Tensor, *, align_corners: bool) -> list[Tensor]:
    """Positions along each dimension of the image; the grid lists x before y before z."""
    rank = input.dim() - 2
    return [
        _unnormalized(
            aten.select.int(grid, -1, rank - 1 - axis),
            input.shape[2 + axis],
            align_corners=align_corners,
        )
        for axis in range(rank)
    ]


def _cubic_slopes(fraction: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The derivatives of `cubic_weights`."""

    def near(x: Tensor) -> Tensor:
        return (3 * (_CUBIC + 2) * x - 2 * (_CUBIC + 3)) * x

    def far(x: Tensor) -> Tensor:
        return (3 * _CUBIC * x - 10 * _CUBIC) * x + 8 * _CUBIC

    rest = aten.sub.Tensor(1.0, fraction)
    return far(fraction + 1), near(fraction), -near(rest), -far(rest + 1)


def _taps(
    input: Tensor, places: Sequence[Tensor], mode: int, padding_mode: int, *, align_corners: bool
) -> tuple[list[list[_Tap]], list[Tensor | None]]:
    """The neighbours along each dimension, and the slope that padding gives each position."""
    taps: list[list[_Tap]] = []
    slopes: list[Tensor | None] = []
    for axis, place in enumerate(places):
        size = input.shape[2 + axis]
        if mode == _BICUBIC:
            floor = aten.floor.default(place)
            fraction = place - floor
            weighted = zip(cubic_weights(fraction), _cubic_slopes(fraction), strict=True)
            taps.append(
                [
                    _Tap(
                        _padded(floor + (s - 1), size, padding_mode, align_corners=align_corners)[
                            0
                        ],
                        weight,
                        slope,
                    )
                    for s, (weight, slope) in enumerate(weighted)
                ]
            )
            slopes.append(None)
            continue
        inner, padding_slope = _padded(place, size, padding_mode, align_corners=align_corners)
        slopes.append(padding_slope)
        if mode == _NEAREST:
            taps.append([_Tap(aten.round.default(inner), None, None)])
            continue
        low = aten.floor.default(inner)
        weight = inner - low
        one = _constant(weight, 1)
        taps.append([_Tap(low, aten.sub.Tensor(1.0, weight), -one), _Tap(low + 1, weight, one)])
    return taps, slopes


def _indices(input: Tensor, chosen: Sequence[_Tap]) -> tuple[list[Tensor], Tensor]:
    """Indices that select (N, C, ..) at the chosen positions, and whether each lies inside (N, 1, ..)."""
    inside: Tensor | None = None
    for axis, tap in enumerate(chosen):
        size = input.shape[2 + axis]
        within = aten.logical_and.default(
            aten.ge.Scalar(tap.place, 0), aten.lt.Scalar(tap.place, size)
        )
        inside = within if inside is None else aten.logical_and.default(inside, within)
    assert inside is not None, "an image has at least one dimension"
    zero = _constant(chosen[0].place, 0)
    safe = [
        aten.unsqueeze.default(cast(aten.where.self(inside, t.place, zero), torch.int64), 1)
        for t in chosen
    ]
    batch = positions(input, 0, input.shape[0])
    channel = positions(input, 0, input.shape[1])
    for _ in range(len(chosen) + 1):
        batch = aten.unsqueeze.default(batch, -1)
    for _ in range(len(chosen)):
        channel = aten.unsqueeze.default(channel, -1)
    return [batch, channel, *safe], aten.unsqueeze.default(inside, 1)


def _product(factors: Sequence[Tensor | None]) -> Tensor | None:
    """The product of what is there, with a dimension for the channels, or None."""
    product: Tensor | None = None
    for factor in factors:
        if factor is not None:
            product = factor if product is None else product * factor
    return None if product is None else aten.unsqueeze.default(product, 1)


def _sampled(
    input: Tensor, grid: Tensor, mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    computation = computation_dtype(input.dtype)
    wide, points = cast(input, computation), cast(grid, computation)
    places = _places(input, points, align_corners=align_corners)
    taps, _ = _taps(input, places, mode, padding_mode, align_corners=align_corners)
    total: Tensor | None = None
    for chosen in itertools.product(*taps):
        indices, inside = _indices(input, chosen)
        value = aten.where.self(inside, aten.index.Tensor(wide, indices), _constant(wide, 0))
        weight = _product([tap.weight for tap in chosen])
        value = value if weight is None else value * weight
        total = value if total is None else total + value
    assert total is not None, "an image has at least one dimension"
    return cast(total, input.dtype)


def _sampled_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """Gradients of the image (if asked for) and of the grid."""
    computation = computation_dtype(input.dtype)
    wide, points, grad = (cast(t, computation) for t in (input, grid, grad_output))
    rank = input.dim() - 2
    places = _places(input, points, align_corners=align_corners)
    taps, padding_slopes = _taps(input, places, mode, padding_mode, align_corners=align_corners)
    grad_input = aten.full.default(list(input.shape), 0, dtype=computation, device=input.device)
    grad_places: list[Tensor | None] = [None] * rank
    nothing = _constant(wide, 0)
    for chosen in itertools.product(*taps):
        indices, inside = _indices(input, chosen)
        masked = aten.where.self(inside, grad, nothing)
        weight = _product([tap.weight for tap in chosen])
        if output_mask[0]:
            part = masked if weight is None else masked * weight
            grad_input = aten.index_put.default(grad_input, indices, part, True)
        if mode == _NEAREST:
            continue
        product = masked * aten.index.Tensor(wide, indices)
        for axis in range(rank):
            slope = _product([t.slope if a == axis else t.weight for a, t in enumerate(chosen)])
            part = aten.sum.dim_IntList(product * slope, [1])
            known = grad_places[axis]
            grad_places[axis] = part if known is None else known + part
    columns = []
    for axis in reversed(range(rank)):
        size = input.shape[2 + axis]
        column = grad_places[axis]
        if column is None:
            columns.append(places[axis] * 0)
            continue
        column = column * ((size - 1) / 2 if align_corners else size / 2)
        slope = padding_slopes[axis]
        columns.append(column if slope is None else column * slope)
    grad_grid = cast(aten.stack.default(columns, -1), grid.dtype)
    return (cast(grad_input, input.dtype) if output_mask[0] else None), grad_grid


@decomposes(aten.grid_sampler_2d.default)
def grid_sampler_2d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """An image (N, C, H, W) read at the points of `grid` (N, H', W', 2), each in [-1, 1]."""
    return in_format_of(
        _sampled(input, grid, interpolation_mode, padding_mode, align_corners), input
    )


@decomposes(aten.grid_sampler_3d.default)
def grid_sampler_3d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """A volume (N, C, D, H, W) read at the points of `grid` (N, D', H', W', 3)."""
    if interpolation_mode == _BICUBIC:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    return _sampled(input, grid, interpolation_mode, padding_mode, align_corners)


@decomposes(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """Gradients of `grid_sampler_2d` and `grid_sampler_3d` for the image and the grid."""
    return _sampled_backward(
        grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask
    )
