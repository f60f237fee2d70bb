"""Counting elements by value: histograms over even or given bins, in terms of searchsorted and index_put.

An element lies in a bin if it is not below its left edge and below its right one; the last bin holds its right edge
too. Elements outside all bins, and NaN, count nowhere. Where the range is the data's own, it is read (eager refuses
one that isn't finite); without data such a call is declined.
"""

from __future__ import annotations

import math
from builtins import range as builtin_range  # some operators have an argument of that name
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.creation import linspace
from primtorch.decompositions.reading import number
from primtorch.decompositions.views import reshaped, wrapped
from primtorch.promotion import cast
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

_BINNED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _refuse_dtype(name: str, self: Tensor, weight: Tensor | None = None) -> None:
    if self.dtype not in _BINNED:
        raise NotImplementedError(f'"{name}" not implemented for {str(self.dtype)!r}')
    if weight is not None and weight.dtype is not self.dtype:
        raise TypeError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same "
            f"dtype, but got input {self.dtype}, and weight {weight.dtype}"
        )


def _checked(low: float, high: float, name: str) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"{name}: dimension 0's range [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError(
            f"{name}: min should not exceed max, but got min {low} max {high} for dimension 0"
        )
    return low, high


def _of_data(values: Tensor) -> tuple[float, float] | None:
    """The least and the greatest element of a vector; 0 and 1 if it has none; None if there is no data."""
    if values.numel() == 0:
        return 0.0, 1.0
    low, high = number(aten.amin.default(values, [])), number(aten.amax.default(values, []))
    return None if low is None or high is None else (float(low), float(high))


def _put(positions: Tensor, weights: Tensor, count: int) -> Tensor:
    """The weights summed by position, one of `count`."""
    zeros = aten.full.default([count], 0, dtype=weights.dtype, device=weights.device)
    return aten.index_put.default(zeros, [positions], weights, True)


def _inside(values: Tensor, edges: Tensor) -> Tensor:
    low = aten.select.int(edges, 0, 0)
    high = aten.select.int(edges, 0, edges.shape[0] - 1)
    return aten.logical_and.default(aten.ge.Tensor(values, low), aten.le.Tensor(values, high))


def _searched(values: Tensor, edges: Tensor) -> Tensor:
    """The bin of each value between the first and the last edge; any bin for the others."""
    found = aten.searchsorted.Tensor(edges, values, right=True) - 1
    return aten.clamp.default(found, 0, edges.shape[0] - 2)


@decomposes(aten.histc.default)
def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` even parts of [min, max], in the operand's dtype."""
    if bins <= 0:
        raise RuntimeError(f"torch.histc: bins must be > 0, but got {bins} for dimension 0")
    _refuse_dtype("histogram_cpu", self)
    values = reshaped(self, [-1])
    low, high = float(min), float(max)
    if low == high and values.numel():
        found = _of_data(values)
        if found is None:
            return NotImplemented
        low, high = found
    if low == high:
        low, high = low - 1, high + 1
    low, high = _checked(low, high, "torch.histc")
    edges = linspace(low, high, bins + 1, dtype=self.dtype, device=self.device)
    inside = _inside(values, edges)
    left = aten.select.int(edges, 0, 0)
    right = aten.select.int(edges, 0, bins)
    share = (values - left) * bins / (right - left)
    share = aten.where.self(
        inside, share, aten.full.default([], 0, dtype=self.dtype, device=self.device)
    )
    positions = aten.clamp.default(cast(share, torch.int64), 0, bins - 1)
    return _put(positions, cast(inside, self.dtype), bins)


def _edges_of(
    columns: Sequence[Tensor],
    bins: Sequence[int],
    span: Sequence[float] | None,
    name: str,
) -> list[Tensor] | None:
    """Even edges for each column, over `span` or the column's own range; None without data."""
    if len(bins) != len(columns):
        raise RuntimeError(
            f"{name}: The size of bins must be equal to the innermost dimension of the input."
        )
    if any(count <= 0 for count in bins):
        raise RuntimeError(f"{name}: bins must be > 0, but got {list(bins)}")
    if span is not None and len(span) != 2 * len(bins):
        raise RuntimeError(
            f"{name}: for a {len(bins)}-dimensional histogram range should have {2 * len(bins)} elements, but got "
            f"{len(span)}"
        )
    edges = []
    for axis, (column, count) in enumerate(zip(columns, bins, strict=True)):
        found = _of_data(column) if span is None else (span[2 * axis], span[2 * axis + 1])
        if found is None:
            return None
        low, high = _checked(*found, name)
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges.append(linspace(low, high, count + 1, dtype=column.dtype, device=column.device))
    return edges


def _histogram(
    columns: Sequence[Tensor], edges: Sequence[Tensor], weight: Tensor | None, density: bool
) -> Tensor:
    """The weights of the points whose coordinates are `columns`, summed by cell."""
    first = columns[0]
    counts = [edge.shape[0] - 1 for edge in edges]
    if weight is None:
        weights = aten.full.default([first.shape[0]], 1, dtype=first.dtype, device=first.device)
    else:
        weights = reshaped(weight, [-1])
    position = aten.full.default([first.shape[0]], 0, dtype=torch.int64, device=first.device)
    zero = aten.full.default([], 0, dtype=first.dtype, device=first.device)
    for column, edge, count in zip(columns, edges, counts, strict=True):
        position = position * count + _searched(column, edge)
        weights = aten.where.self(_inside(column, edge), weights, zero)
    hist = aten.view.default(_put(position, weights, math.prod(counts)), counts)
    if density:
        hist = hist / aten.sum.dim_IntList(hist, list(range(hist.dim())))
        for axis, edge in enumerate(edges):
            width = aten.slice.Tensor(edge, 0, 1) - aten.slice.Tensor(edge, 0, 0, -1)
            hist = hist / aten.view.default(width, [-1] + [1] * (hist.dim() - 1 - axis))
    return hist


def _columns(self: Tensor) -> list[Tensor]:
    """The coordinates of points whose last dimension they are."""
    if self.dim() < 2:
        raise RuntimeError(
            f"torch.histogramdd: input tensor should have at least 2 dimensions, but got {self.dim()}"
        )
    flat = reshaped(self, [-1, self.shape[-1]]) if self.numel() else self
    return [aten.clone.default(aten.select.int(flat, -1, n)) for n in range(self.shape[-1])]


def _copied(edges: Sequence[Tensor]) -> list[Tensor]:
    for edge in edges:
        if edge.dim() != 1 or edge.numel() == 0:
            raise RuntimeError(
                "torch.histogramdd: bins tensor should have one dimension and one element or more"
            )
    return [aten.clone.default(edge, memory_format=torch.contiguous_format) for edge in edges]


@decomposes(aten.histogram.bin_ct)
def histogram(
    self: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """Weights summed over even bins, and the bins' edges."""
    _refuse_dtype("histogram_cpu", self, weight)
    values = reshaped(self, [-1])
    edges = _edges_of([values], [bins], range, "torch.histogram")
    if edges is None:
        return NotImplemented
    return _histogram([values], edges, weight, density), edges[0]


@decomposes(aten.histogram.bins_tensor)
def histogram_of_edges(
    self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """Weights summed over the bins between the given edges, and a copy of these."""
    _refuse_dtype("histogram_cpu", self, weight)
    edges = _copied([bins])
    return _histogram([reshaped(self, [-1])], edges, weight, density), edges[0]


@decomposes("aten._histogramdd_bin_edges.default")
def _histogramdd_bin_edges(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,  # noqa: ARG001  concerns the counts
) -> list[Tensor]:
    """Even edges for each coordinate of the points."""
    _refuse_dtype("histogram_cpu", self, weight)
    edges = _edges_of(_columns(self), bins, range, "torch.histogramdd")
    return NotImplemented if edges is None else edges


@decomposes("aten._histogramdd_from_bin_cts.default")
def _histogramdd_from_bin_cts(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """Weights of points summed over a grid of even cells."""
    _refuse_dtype("histogram_cpu", self, weight)
    columns = _columns(self)
    edges = _edges_of(columns, bins, range, "torch.histogramdd")
    return NotImplemented if edges is None else _histogram(columns, edges, weight, density)


@decomposes("aten._histogramdd_from_bin_tensors.default")
def _histogramdd_from_bin_tensors(
    self: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    """Weights of points summed over a grid of cells between the given edges."""
    _refuse_dtype("histogram_cpu", self, weight)
    columns = _columns(self)
    if len(bins) != len(columns):
        raise RuntimeError(
            "torch.histogramdd: The size of bins must be equal to the innermost dimension of the input."
        )
    return _histogram(columns, _copied(bins), weight, density)


@decomposes("aten._unique.default")
def _unique(
    self: Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[Tensor, Tensor]:
    """Distinct elements, and the place of each element among them."""
    distinct, inverse, _ = aten._unique2.default(self, sorted, return_inverse, False)
    return distinct, inverse


@decomposes(aten.nonzero_static.default)
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The positions of the first `size` nonzero elements, rows of `fill_value` where there are fewer."""
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    rank = self.dim()
    flat = reshaped(aten.ne.Scalar(self, 0), [-1])
    count = self.numel()
    places = aten.cumsum.default(cast(flat, torch.int64), 0)
    kept = aten.logical_and.default(flat, aten.le.Scalar(places, size))
    target = aten.where.self(
        kept, places - 1, aten.full.default([], size, dtype=torch.int64, device=self.device)
    )
    index = aten.arange.start_step(0, count, 1, dtype=torch.int64, device=self.device)
    empty = aten.full.default([size + 1], -1, dtype=torch.int64, device=self.device)
    found = aten.slice.Tensor(aten.scatter.src(empty, 0, target, index), 0, 0, size)
    missing = aten.lt.Scalar(_total(flat, size), 1)
    fill = aten.full.default([], fill_value, dtype=torch.int64, device=self.device)
    columns = []
    step = count
    for axis in builtin_range(rank):
        length = self.shape[axis]
        step = step // length if count else 1
        coordinate = aten.div.Tensor_mode(found, step, rounding_mode="floor")
        coordinate = aten.remainder.Scalar(coordinate, length) if count else coordinate
        columns.append(aten.where.self(missing, fill, coordinate))
    if not columns:
        return aten.full.default([size, 0], 0, dtype=torch.int64, device=self.device)
    return aten.stack.default(columns, 1)


def _total(flags: Tensor, size: int) -> Tensor:
    """For each of `size` places, a positive number if so many flags are set."""
    place = aten.arange.start_step(0, size, 1, dtype=torch.int64, device=flags.device)
    return aten.sum.dim_IntList(cast(flags, torch.int64), [0]) - place


@decomposes("aten.hash_tensor.default")
def hash_tensor(
    self: Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0
) -> Tensor:
    """The exclusive or of the elements' 64 bits (floats as float64), over all or the given dimensions."""
    if mode != 0 or self.dtype.is_complex:
        return NotImplemented
    if self.dtype.is_floating_point:
        bits = aten.view.dtype(cast(self, torch.float64), torch.int64)
    else:
        bits = cast(self, torch.int64)
    rank = self.dim()
    axes = sorted({wrapped(d, rank) for d in dim} or set(builtin_range(rank)))
    kept = [d for d in builtin_range(rank) if d not in axes]
    length = math.prod(self.shape[d] for d in axes) if rank else 1
    if rank:
        bits = reshaped(
            aten.permute.default(bits, [*kept, *axes]), [*(self.shape[d] for d in kept), length]
        )
    else:
        bits = aten.view.default(bits, [1])
    bits = _folded(bits, length)
    shape = [1 if d in axes else self.shape[d] for d in builtin_range(rank)] if keepdim else None
    bits = bits if shape is None else aten.view.default(bits, shape)
    return aten.view.dtype(bits, torch.uint64)


def _folded(bits: Tensor, length: int) -> Tensor:
    """The last dimension combined by exclusive or, halving it again and again."""
    last = bits.dim() - 1
    if length == 0:
        return aten.full.default(list(bits.shape[:-1]), 0, dtype=bits.dtype, device=bits.device)
    while length > 1:
        half = length // 2
        left = aten.slice.Tensor(bits, last, 0, half)
        right = aten.slice.Tensor(bits, last, half, 2 * half)
        folded = aten.bitwise_xor.Tensor(left, right)
        if length % 2:
            rest = aten.slice.Tensor(bits, last, 2 * half, length)
            folded = aten.cat.default([folded, rest], last)
        bits, length = folded, half + length % 2
    return aten.squeeze.dims(bits, [last])
