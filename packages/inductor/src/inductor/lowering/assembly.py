"""Tensors put together: concatenation, padding, one tensor written into a window of another.

`cat` stores each piece straight into its slice, but for a few cheap ones on a GPU; these and the others are
computed by choosing, at each place, which tensor is read (only that one).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from inductor.errors import UnsupportedOperationError
from inductor.ir.nodes import View
from inductor.lowering.builder import layout_for
from inductor.lowering.pointwise import cost, reader
from inductor.lowering.registry import lowers
from inductor.lowering.views import from_front, slice_start
from primtorch.symbolic import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inductor.ir.operations import Constant, Size
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Coordinates, Value

aten = torch.ops.aten

MOST_CHOSEN = 4
"""Pieces, and loads of them, up to which a GPU chooses between them instead of storing each."""
CHEAPEST_CHOSEN = 16
"""Operations up to which all pieces may be computed where one is wanted."""


@lowers(aten.cat.default)
def cat(builder: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Tensors one after the other along a dimension."""
    fact = builder.fact
    rank = len(fact.shape)
    pieces = [x for x in tensors if not (len(x.shape) == 1 and x.shape[0] == 0 and rank != 1)]
    axis = dim % rank
    # Without any element, one store is left: some step has to make the buffer.
    pieces = [x for x in pieces if x.shape[axis] != 0] or pieces[:1]
    operations, loads = cost(pieces)
    few = len(pieces) <= MOST_CHOSEN and loads <= MOST_CHOSEN
    if builder.on_gpu(fact.device) and few and operations <= CHEAPEST_CHOSEN:
        return _chosen_piece(builder, pieces, axis)
    buffer = builder.buffer(
        fact.shape, layout_for(fact.shape, fact.stride), fact.dtype, fact.device
    )
    start: Size = 0
    for piece in pieces:
        offset = start * buffer.stride[axis]
        builder.store(piece, View(buffer.name, piece.shape, buffer.stride, offset, fact.dtype))
        start = start + piece.shape[axis]
    return builder.stored(buffer)


def _chosen_piece(builder: Builder, pieces: Sequence[Value], axis: int) -> Value:
    """A concatenation that is never written: each element asks which piece it is of."""
    fact = builder.fact
    ends: list[Size] = [0]
    for piece in pieces:
        ends.append(ends[-1] + piece.shape[axis])

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        def element(number: int) -> Scalar:
            moved = (*place[:axis], place[axis] - ends[number], *place[axis + 1 :])
            return recorder.to_dtype(pieces[number].load(recorder, moved), fact.dtype)

        found: Scalar | None = None
        for number in reversed(range(len(pieces))):
            low = ends[number] if number else None
            high = ends[number + 1] if number + 1 < len(pieces) else None
            mask = _inside(recorder, place, [(axis, low, high)])
            with recorder.masked(mask) if mask is not None else nullcontext():
                value = element(number)
            if found is not None and mask is not None:
                value = recorder.op("where", mask, value, found)
            found = value
        assert found is not None
        return found

    operations, loads = cost(pieces)
    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=operations + 3 * len(pieces),
        loads=loads,
        stride=fact.stride,
    )


def _inside(
    recorder: Recorder, place: Coordinates, limits: Sequence[tuple[int, Size | None, Size | None]]
) -> Scalar | None:
    """Whether `low <= coordinate < high` for each (axis, low, high); None if that is no question."""
    mask: Scalar | None = None
    for axis, low, high in limits:
        coordinate = recorder.index_expression(place[axis], torch.int64)
        for name, bound in (("ge", low), ("lt", high)):
            if bound is None:
                continue
            test = recorder.op(name, coordinate, recorder.index_expression(bound, torch.int64))
            mask = test if mask is None else recorder.op("logical_and", mask, test)
    return mask


def _chosen(
    recorder: Recorder,
    mask: Scalar | None,
    inner: Callable[[], Scalar],
    outer: Callable[[], Scalar],
    dtype: torch.dtype,
) -> Scalar:
    """`inner` where `mask`, read nowhere else; `outer` elsewhere."""
    if mask is None:
        return recorder.to_dtype(inner(), dtype)
    with recorder.masked(mask):
        first = recorder.to_dtype(inner(), dtype)
    return recorder.op("where", mask, first, recorder.to_dtype(outer(), dtype))


@lowers(aten.constant_pad_nd.default)
def pad(builder: Builder, x: Value, padding: Sequence[Size], value: Constant | Value = 0) -> Value:
    """A number around (or a part of) the last dimensions."""
    fact = builder.fact
    outside = reader(value, fact.shape)
    rank = len(x.shape)
    before: dict[int, Size] = {}
    limits: list[tuple[int, Size | None, Size | None]] = []
    for pair in range(len(padding) // 2):
        axis = rank - 1 - pair
        left, right = padding[2 * pair], padding[2 * pair + 1]
        before[axis] = left
        low = left if not isinstance(left, int) or left > 0 else None
        high = left + x.shape[axis] if not isinstance(right, int) or right > 0 else None
        if low is not None or high is not None:
            limits.append((axis, low, high))

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        moved = tuple(coordinate - before.get(axis, 0) for axis, coordinate in enumerate(place))
        return _chosen(
            recorder,
            _inside(recorder, place, limits),
            lambda: x.load(recorder, moved),
            lambda: outside(recorder, place),
            fact.dtype,
        )

    operations, loads = cost((x,))
    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=operations + 2 * len(limits),
        loads=loads,
        stride=fact.stride,
    )


def _may_repeat(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Whether places of a result may lie on top of each other; of symbolic sizes, unless proved not to."""
    if 0 in shape:
        return False
    pairs = [(step, size) for step, size in zip(stride, shape, strict=True) if size != 1]
    taken: Size = 1
    while pairs:
        apart = [pair for pair in pairs if pair[0] == taken]
        if not apart and all(isinstance(step, int) for step, _ in pairs):
            apart = sorted(pairs, key=lambda pair: int(pair[0]))  # type: ignore[arg-type]
        if not apart or not _at_least(apart[0][0], taken):
            return True
        step, size = apart[0]
        pairs.remove(apart[0])
        taken = step * size
    return False


def _at_least(step: Size, taken: Size) -> bool:
    low = bounds(step - taken)[0]
    return low is not None and low >= 0


def _written(
    builder: Builder,
    x: Value,
    source: Value,
    limits: Callable[[Recorder, Coordinates], Scalar | None],
    moved: Callable[[Coordinates], Coordinates],
) -> Value:
    """`source` in a window of `x`."""
    fact = builder.fact
    if _may_repeat(fact.shape, fact.stride):
        # What is written last remains: the window, whose places other places of `x` share.
        raise UnsupportedOperationError("scatter of a slice", "its result overlaps itself")

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        return _chosen(
            recorder,
            limits(recorder, place),
            lambda: source.load(recorder, moved(place)),
            lambda: x.load(recorder, place),
            fact.dtype,
        )

    operations, loads = cost((x, source))
    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=operations + 3,
        loads=loads,
        stride=fact.stride,
    )


@lowers(aten.slice_scatter.default)
def slice_scatter(
    builder: Builder,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Value:
    """`source` written into a slice."""
    axis = dim % len(x.shape)
    count = source.shape[axis]
    begin = slice_start(start, end, step, x.shape[axis], count)
    stop = begin + (count - 1) * step + 1
    whole = stop == x.shape[axis]

    def limits(recorder: Recorder, place: Coordinates) -> Scalar | None:
        bounds = [(axis, None if begin == 0 else begin, None if whole else stop)]
        mask = _inside(recorder, place, bounds)
        if step == 1:
            return mask
        rest = recorder.index_expression((place[axis] - begin) % step, torch.int64)
        hit = recorder.op("eq", rest, recorder.constant(0, torch.int64))
        return hit if mask is None else recorder.op("logical_and", mask, hit)

    def moved(place: Coordinates) -> Coordinates:
        return (*place[:axis], (place[axis] - begin) // step, *place[axis + 1 :])

    return _written(builder, x, source, limits, moved)


@lowers(aten.select_scatter.default)
def select_scatter(builder: Builder, x: Value, source: Value, dim: int, index: Size) -> Value:
    """`source` written at one place of a dimension."""
    axis = dim % len(x.shape)
    at = from_front(index, x.shape[axis])

    def limits(recorder: Recorder, place: Coordinates) -> Scalar | None:
        coordinate = recorder.index_expression(place[axis], torch.int64)
        return recorder.op("eq", coordinate, recorder.index_expression(at, torch.int64))

    return _written(builder, x, source, limits, lambda place: (*place[:axis], *place[axis + 1 :]))


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    builder: Builder, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """`source` written on a diagonal."""
    rank = len(x.shape)
    first, second = dim1 % rank, dim2 % rank
    rest = [axis for axis in range(rank) if axis not in (first, second)]

    def limits(recorder: Recorder, place: Coordinates) -> Scalar | None:
        row = recorder.index_expression(place[first] + offset, torch.int64)
        return recorder.op("eq", row, recorder.index_expression(place[second], torch.int64))

    def moved(place: Coordinates) -> Coordinates:
        along = place[first] if offset >= 0 else place[second]
        return (*(place[axis] for axis in rest), along)

    return _written(builder, x, source, limits, moved)
