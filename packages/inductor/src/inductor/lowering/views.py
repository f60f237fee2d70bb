"""Views: windows onto memory where strides can say it, other coordinates where they can't.

A view never copies. On a stored value whose strides express it, it is a `View`; otherwise, and on
computed values, it is a function that maps coordinates of the result to coordinates of the base.
"""

# ruff: noqa: ARG001  # a lowering has its operator's signature

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.index import delinearize, product
from inductor.ir.nodes import View
from inductor.lowering.layouts import same_layout
from inductor.lowering.registry import lowers
from inductor.lowering.values import Coordinates, Value
from primtorch.symbolic import bounds, maximum, minimum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inductor.ir.operations import Size
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import ViewFunction

aten = torch.ops.aten
_INFINITE = 2**63 - 1  # a slice's end that isn't given


def window_on(
    builder: Builder,
    base: Value,
    shape: Sequence[Size],
    coordinates: Callable[[Coordinates], Coordinates],
    window: ViewFunction,
    *,
    whole: bool = True,
) -> Value:
    """A view of `base`: `coordinates` maps result to base, `window` maps strides."""
    result = Value(
        tuple(shape),
        base.dtype,
        base.device,
        stride=_stride_hint(builder, shape),
        base=base,
        window=window,
        whole=whole,
    )
    if base.view is not None:
        result.view = window(base.view)
    if result.view is None:
        result.operations = 0 if base.stored else base.operations
        result.loads = 1 if base.stored else base.loads
        result.traffic = _traffic(base, shape)

        def load(recorder: Recorder, place: Coordinates) -> Scalar:
            return base.load(recorder, coordinates(place))

        result.function = load
    return result


def _traffic(base: Value, shape: Sequence[Size]) -> int | None:
    """Bytes read for one element of a view; next to none where it repeats its base's."""
    if base.is_view or product(tuple(shape)) == product(base.shape):
        return base.traffic_within(base.shape)
    return 0 if 1 in base.shape and len(shape) >= len(base.shape) else None


def _stride_hint(builder: Builder, shape: Sequence[Size]) -> tuple[Size, ...] | None:
    fact = builder.fact
    if getattr(fact, "shape", None) == tuple(shape):
        return tuple(fact.stride)
    return None


# ---- reshaping
def _blocks(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Pairs of runs of axes with equal products, less those of extent 1; None if they differ."""
    old_axes = [axis for axis, extent in enumerate(old) if extent != 1]
    new_axes = [axis for axis, extent in enumerate(new) if extent != 1]
    blocks: list[tuple[list[int], list[int]]] = []
    left = right = 0
    while left < len(old_axes) or right < len(new_axes):
        if left >= len(old_axes) or right >= len(new_axes):
            return None
        ours, theirs = [old_axes[left]], [new_axes[right]]
        mine, other = old[ours[0]], new[theirs[0]]
        left, right = left + 1, right + 1
        while mine != other:
            if _smaller(mine, other):
                if left >= len(old_axes):
                    return None
                ours.append(old_axes[left])
                mine = mine * old[old_axes[left]]
                left += 1
            else:
                if right >= len(new_axes):
                    return None
                theirs.append(new_axes[right])
                other = other * new[new_axes[right]]
                right += 1
        blocks.append((ours, theirs))
    return blocks


def _smaller(mine: Size, other: Size) -> bool:
    """Which side must take another axis: the one that divides the other, or has the smaller bound."""
    if isinstance(mine, int) and isinstance(other, int):
        return mine < other
    if other % mine == 0:
        return True
    if mine % other == 0:
        return False
    low = bounds(other - mine)[0]
    return low is not None and low >= 0


def reshape_coordinates(
    old: tuple[Size, ...], new: tuple[Size, ...]
) -> Callable[[Coordinates], Coordinates]:
    """Coordinates in a tensor of shape `old` of the element at coordinates of its reshape to `new`."""
    if 0 in old or 0 in new:  # there is no element
        return lambda _: (0,) * len(old)
    blocks = _blocks(old, new)
    if blocks is None:

        def flat(place: Coordinates) -> Coordinates:
            index: Size = 0
            for extent, coordinate in zip(new, place, strict=True):
                index = index * extent + coordinate
            return delinearize(index, old)

        return flat
    rank = len(old)
    plan = [
        (ours, [old[axis] for axis in ours], theirs, [new[axis] for axis in theirs])
        for ours, theirs in blocks
    ]

    def by_block(place: Coordinates) -> Coordinates:
        result: list[Size] = [0] * rank
        for ours, old_extents, theirs, new_extents in plan:
            if len(ours) == 1 and len(theirs) == 1:
                result[ours[0]] = place[theirs[0]]
                continue
            index: Size = 0
            for extent, axis in zip(new_extents, theirs, strict=True):
                index = index * extent + place[axis]
            if len(ours) == 1:
                result[ours[0]] = index
            else:
                for axis, coordinate in zip(ours, delinearize(index, old_extents), strict=True):
                    result[axis] = coordinate
        return tuple(result)

    return by_block


def reshape_stride(
    shape: Sequence[Size], stride: Sequence[Size], new: Sequence[Size]
) -> tuple[Size, ...] | None:
    """Strides of the reshape, or None where only a copy has it."""
    if any(extent == 0 for extent in shape):
        result: list[Size] = []
        running: Size = 1
        for extent in reversed(new):
            result.append(running)
            running = running * extent if extent != 0 else running
        return tuple(reversed(result))
    blocks = _blocks(shape, new)
    if blocks is None:
        return None
    strides: list[Size | None] = [None] * len(new)
    for ours, theirs in blocks:
        for first, second in itertools.pairwise(ours):
            if stride[first] != stride[second] * shape[second]:
                return None
        running = stride[ours[-1]]
        for axis in reversed(theirs):
            strides[axis] = running
            running = running * new[axis]
    following: Size = 1
    for axis in range(len(new) - 1, -1, -1):
        step = strides[axis]
        if step is None:
            strides[axis] = following
        else:
            following = step * new[axis]
    return tuple(step for step in strides if step is not None)


def reshape(builder: Builder, x: Value, new: Sequence[Size]) -> Value:
    """`x` in another shape with as many elements."""
    shape = tuple(new)
    if shape == x.shape:
        return x
    old = x.shape

    def window(view: View) -> View | None:
        stride = reshape_stride(view.shape, view.stride, shape)
        if stride is None:
            return None
        return View(view.buffer, shape, stride, view.offset, view.dtype)

    return window_on(builder, x, shape, reshape_coordinates(old, shape), window)


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default, view=True)
def view(builder: Builder, x: Value, size: Any) -> Value:
    """Another shape; -1 stands for what is left."""
    return reshape(builder, x, builder.fact.shape)


@lowers(aten.flatten.using_ints, aten.unflatten.int, view=True)
def flatten(builder: Builder, x: Value, *_: Any) -> Value:
    """Several dimensions as one, or one as several."""
    return reshape(builder, x, builder.fact.shape)


@lowers(
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    view=True,
)
def squeeze(builder: Builder, x: Value, *_: Any) -> Value:
    """Dimensions of extent 1 added or removed."""
    return reshape(builder, x, builder.fact.shape)


@lowers(aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, view=True)
def alias(builder: Builder, x: Value) -> Value:
    """The same tensor."""
    return x


@lowers(aten.permute.default, view=True)
def permute(builder: Builder, x: Value, dims: Any) -> Value:
    """Dimensions in another order."""
    rank = len(x.shape)
    order = tuple(axis % rank for axis in dims) if rank else ()
    if order == tuple(range(rank)):
        return x
    shape = tuple(x.shape[axis] for axis in order)
    places = [order.index(axis) for axis in range(rank)]

    def window(view: View) -> View:
        stride = tuple(view.stride[axis] for axis in order)
        return View(view.buffer, shape, stride, view.offset, view.dtype)

    return window_on(builder, x, shape, lambda place: tuple(place[axis] for axis in places), window)


@lowers(aten.t.default, view=True)
def transpose_matrix(builder: Builder, x: Value) -> Value:
    """A matrix transposed."""
    return permute(builder, x, tuple(reversed(range(len(x.shape)))))


@lowers(aten.transpose.int, view=True)
def transpose(builder: Builder, x: Value, first: int, second: int) -> Value:
    """Two dimensions exchanged; of a tensor without dimensions, nothing."""
    if not x.shape:
        return permute(builder, x, ())
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return permute(builder, x, order)


@lowers(aten.expand.default, view=True)
def expand(builder: Builder, x: Value, size: Any, *, implicit: bool = False) -> Value:
    """Extents of 1 repeated without copying."""
    shape = builder.fact.shape
    if shape == x.shape:
        return x
    skip = len(shape) - len(x.shape)
    keep = tuple(
        None if extent == 1 and shape[skip + axis] != 1 else skip + axis
        for axis, extent in enumerate(x.shape)
    )

    def window(view: View) -> View:
        stride: list[Size] = [0] * skip
        stride += [
            0 if place is None else step for place, step in zip(keep, view.stride, strict=True)
        ]
        return View(view.buffer, shape, tuple(stride), view.offset, view.dtype)

    return window_on(
        builder,
        x,
        shape,
        lambda place: tuple(0 if axis is None else place[axis] for axis in keep),
        window,
    )


# ---- parts
def clamp_start(start: Size, extent: Size) -> Size:
    """A slice's start as Python has it."""
    if isinstance(start, int) and isinstance(extent, int):
        return min(max(start + extent if start < 0 else start, 0), extent)
    return maximum(from_front(start, extent), 0)  # past the end there are no elements


def from_front(index: Size, extent: Size) -> Size:
    """An index, counted from the end where it is negative, as one from the front.

    Capture knows the sign of a symbol by a guard that isn't told here.
    """
    lower, upper = bounds(index)
    if lower is not None and lower >= 0:
        return index
    if upper is not None and upper < 0:
        return index + extent
    return index + extent * minimum(maximum(-index, 0), 1)


def slice_start(
    start: Size | None, end: Size | None, step: Size, extent: Size, count: Size
) -> Size:
    """Where the `count` elements of a slice begin."""
    if step == 1 and (end is None or (isinstance(end, int) and end >= _INFINITE)):
        return extent - count  # what capture decided of the start is in the length
    return clamp_start(0 if start is None else start, extent)


def narrow(builder: Builder, x: Value, axis: int, start: Size, step: Size, extent: Size) -> Value:
    """`extent` elements of one dimension from `start` in steps of `step`."""
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    if shape == x.shape and start == 0 and step == 1:
        return x

    def window(view: View) -> View:
        stride = (*view.stride[:axis], view.stride[axis] * step, *view.stride[axis + 1 :])
        offset = view.offset + start * view.stride[axis]
        return View(view.buffer, shape, stride, offset, view.dtype)

    def coordinates(place: Coordinates) -> Coordinates:
        return (*place[:axis], place[axis] * step + start, *place[axis + 1 :])

    return window_on(builder, x, shape, coordinates, window, whole=False)


@lowers(aten.slice.Tensor, view=True)
def slice_(
    builder: Builder,
    x: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Value:
    """Part of one dimension."""
    axis = dim % len(x.shape)
    count = builder.fact.shape[axis]
    begin = slice_start(start, end, step, x.shape[axis], count)
    return narrow(builder, x, axis, begin, step, count)


@lowers(aten.narrow.default, view=True)
def narrow_(builder: Builder, x: Value, dim: int, start: Size, length: Size) -> Value:
    """Part of one dimension."""
    axis = dim % len(x.shape)
    return narrow(builder, x, axis, clamp_start(start, x.shape[axis]), 1, length)


def select_at(builder: Builder, x: Value, axis: int, index: Size) -> Value:
    """One element of a dimension, which disappears."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])

    def window(view: View) -> View:
        stride = (*view.stride[:axis], *view.stride[axis + 1 :])
        return View(view.buffer, shape, stride, view.offset + index * view.stride[axis], view.dtype)

    return window_on(
        builder,
        x,
        shape,
        lambda place: (*place[:axis], index, *place[axis:]),
        window,
        whole=False,
    )


@lowers(aten.select.int, view=True)
def select(builder: Builder, x: Value, dim: int, index: Size) -> Value:
    """One element of a dimension."""
    axis = dim % len(x.shape)
    return select_at(builder, x, axis, from_front(index, x.shape[axis]))


@lowers(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, view=True)
def split(builder: Builder, x: Value, sizes: Any, dim: int = 0) -> tuple[Value, ...]:
    """Pieces of one dimension."""
    axis = dim % len(x.shape)
    whole = builder.fact
    pieces: list[Value] = []
    start: Size = 0
    for fact in whole:
        builder.fact = fact
        pieces.append(narrow(builder, x, axis, start, 1, fact.shape[axis]))
        start = start + fact.shape[axis]
    builder.fact = whole
    return tuple(pieces)


@lowers(aten.unbind.int, view=True)
def unbind(builder: Builder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    """Each element of one dimension."""
    axis = dim % len(x.shape)
    whole = builder.fact
    pieces: list[Value] = []
    for position, fact in enumerate(whole):
        builder.fact = fact
        pieces.append(select_at(builder, x, axis, position))
    builder.fact = whole
    return tuple(pieces)


@lowers(aten.diagonal.default, view=True)
def diagonal(builder: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of two dimensions as the last dimension."""
    rank = len(x.shape)
    first, second = dim1 % rank, dim2 % rank
    shape = builder.fact.shape
    rest = [axis for axis in range(rank) if axis not in (first, second)]
    down, right = max(-offset, 0), max(offset, 0)

    def window(view: View) -> View:
        start = view.offset + down * view.stride[first] + right * view.stride[second]
        stride = (*(view.stride[axis] for axis in rest), view.stride[first] + view.stride[second])
        return View(view.buffer, shape, stride, start, view.dtype)

    def coordinates(place: Coordinates) -> Coordinates:
        result: list[Size] = [0] * rank
        for axis, coordinate in zip(rest, place, strict=False):
            result[axis] = coordinate
        result[first] = place[-1] + down
        result[second] = place[-1] + right
        return tuple(result)

    return window_on(builder, x, shape, coordinates, window, whole=False)


@lowers(aten.unfold.default, view=True)
def unfold(builder: Builder, x: Value, dim: int, size: Size, step: Size) -> Value:
    """Windows of `size` along one dimension, `step` apart, as a new last dimension."""
    shape = builder.fact.shape
    if not x.shape:
        return reshape(builder, x, shape)
    axis = dim % len(x.shape)

    def window(view: View) -> View:
        stride = list(view.stride)
        stride[axis] = view.stride[axis] * step
        return View(view.buffer, shape, (*stride, view.stride[axis]), view.offset, view.dtype)

    def coordinates(place: Coordinates) -> Coordinates:
        inner = list(place[:-1])
        inner[axis] = inner[axis] * step + place[-1]
        return tuple(inner)

    return window_on(builder, x, shape, coordinates, window, whole=False)


@lowers(aten.as_strided.default, view=True)
def as_strided(
    builder: Builder, x: Value, size: Any, stride: Any, storage_offset: Size | None = None
) -> Value:
    """Any strides over the storage."""
    fact = builder.fact
    base_fact = builder.argument_fact(0)
    stored = builder.realize(x)
    if not same_layout(stored.shape, stored.stride, base_fact.stride):
        # the strides are meant for eager's layout
        stored = builder.copy(x, base_fact.stride).view
    start = base_fact.offset if storage_offset is None else storage_offset
    offset = stored.offset + start - base_fact.offset
    window = View(stored.buffer, fact.shape, tuple(stride), offset, x.dtype)
    return Value(fact.shape, x.dtype, x.device, window, stride=tuple(stride))


# ---- reinterpretation
@lowers(aten.view.dtype, view=True)
def view_dtype(builder: Builder, x: Value, dtype: torch.dtype) -> Value:
    """The same bits as another dtype of the same width, computed: a buffer is read as one type alone."""
    if dtype == x.dtype:
        return x
    wide = dtype.itemsize >= 4
    real = not (dtype.is_floating_point or x.dtype.is_floating_point)
    if (
        dtype.itemsize != x.dtype.itemsize
        or dtype.is_complex
        or x.dtype.is_complex
        or not (wide or real)  # half types are float32 in a kernel
    ):
        reason = "bits of another width, or of half types"
        result: Value = builder.call("fallback", aten.view_copy.dtype, (x, dtype), {}, reason)
        return result

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        scalar = x.load(recorder, place)
        return recorder.bitcast(scalar, dtype) if wide else recorder.to_dtype(scalar, dtype)

    return builder.pointwise(
        load,
        shape=x.shape,
        dtype=dtype,
        device=x.device,
        operations=0 if x.stored else x.operations,
        loads=1 if x.stored else x.loads,
        stride=builder.fact.stride,
    )


@lowers(aten.flip.default)
def flip(builder: Builder, x: Value, dims: Any) -> Value:
    """Dimensions reversed (a copy in eager, other coordinates here)."""
    reversed_axes = {axis % len(x.shape) for axis in dims} if x.shape else set()

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        inner = tuple(
            x.shape[axis] - 1 - coordinate if axis in reversed_axes else coordinate
            for axis, coordinate in enumerate(place)
        )
        return x.load(recorder, inner)

    return _moved(builder, x, load)


@lowers(aten.roll.default)
def roll(builder: Builder, x: Value, shifts: Any, dims: Any = ()) -> Value:
    """Dimensions rotated."""
    if any(isinstance(size, int) and size == 0 for size in x.shape):
        return _moved(builder, x, x.load)
    if not dims:
        flat = (product(x.shape),)
        base = reshape_coordinates(x.shape, flat)
        to_flat = reshape_coordinates(flat, x.shape)

        def rotate(recorder: Recorder, place: Coordinates) -> Scalar:
            (index,) = to_flat(place)
            return x.load(recorder, base(((index - shifts[0]) % flat[0],)))

        return _moved(builder, x, rotate)
    moves = {axis % len(x.shape): shift for axis, shift in zip(dims, shifts, strict=True)}

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        inner = tuple(
            (coordinate - moves[axis]) % x.shape[axis] if axis in moves else coordinate
            for axis, coordinate in enumerate(place)
        )
        return x.load(recorder, inner)

    return _moved(builder, x, load)


@lowers(aten.repeat.default)
def repeat(builder: Builder, x: Value, repeats: Any) -> Value:
    """Copies side by side."""
    skip = len(repeats) - len(x.shape)

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        inner = tuple(
            coordinate
            if repeats[skip + axis] == 1 or x.shape[axis] == 0
            else coordinate % x.shape[axis]
            for axis, coordinate in enumerate(place[skip:])
        )
        return x.load(recorder, inner)

    return _moved(builder, x, load)


def _moved(builder: Builder, x: Value, load: Callable[[Recorder, Coordinates], Scalar]) -> Value:
    fact = builder.fact
    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=x.dtype,
        device=x.device,
        operations=0 if x.stored else x.operations,
        loads=1 if x.stored else x.loads,
        stride=fact.stride,
    )
