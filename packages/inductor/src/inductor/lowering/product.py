"""Matrix products: the library's, with operands and results as it is fast with them.

On a CPU large ones in single precision may go to another library (inductor.lowering.linear). On a GPU half types are
padded to 16 bytes: the library's fast kernels want rows of every operand and of the result to begin at such multiples,
and every dimension to be one (a vocabulary of 30522 costs three times as much as one of 30528). The result gets padded
rows; the operand that holds the columns is copied into a padded buffer (a thousandth of the product's work). What the
padding computes is never read; the dimension that is summed over is filled up with zeros. A bias is then added by the
kernel that reads the result, because the library's product with a bias in its epilogue writes contiguous results only.
A padded result that leaves the graph is made in parts of rows, each copied into the tensor that the caller gets; a
weight whose columns lie one after another is not copied for that. Each part is so small that it may be made in what
nothing has written yet of that tensor, and the last in rows of the left operand that nobody reads any more
(`schedule.inside`): the call then needs no memory beside its result. Few rows with an even number of columns are made
as they are: the library takes no longer for them than for the copies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.nodes import View
from inductor.lowering.builder import ROW_ALIGNMENT, TensorFact
from inductor.lowering.linear import linear, prefers_linear
from inductor.lowering.pointwise import elementwise
from inductor.lowering.registry import lowers
from inductor.lowering.values import Value
from inductor.lowering.vendor import PRODUCTS

if TYPE_CHECKING:
    from inductor.ir.operations import Size
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder

aten = torch.ops.aten
STRAIGHT_ROWS = 128
"""Rows with an even number of columns up to which padding takes longer than it saves, for a copy of the weight.

On an H200 a product with 768 x 30522 takes 35.6 us without padding for 128 rows, 57.7 with it and the copies; 116 and
111 for 512. With an odd number, 50257, 130 and 87 for 128.
"""
STRAIGHT_LEAVING = 512
"""The same where the result leaves the graph, which would be copied, too, and stand in memory twice, as the weight."""
STRAIGHT_TAIL = 160
"""Rows at the end of a result that leaves in parts which are made as they are."""
PART_ROWS = 128
"""Parts are multiples of this, as the tiles of a card's library are."""
LEAST_TAIL = 16
_ROW_STEP = 8
"""Of parts below `PART_ROWS`: the rows behind them begin at 16 bytes."""
_SLACK = 64
"""Elements that aligning a part inside the result may take."""
_FEW_ROWS_REASON = (
    "the library takes less time for few unaligned rows than for a copy of their weight"
)


@lowers(aten.mm.default)
def mm(builder: Builder, left: Value, right: Value) -> Any:
    """`left @ right`."""
    if prefers_linear(builder, left, right):
        made = linear(builder, left, right, None)
        if made is not None:
            return made
    return _product(builder, left, right, None)


def _product(builder: Builder, left: Value, right: Value, bias: Value | None) -> Any:
    """The product in padded memory where that is faster, then the bias."""
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    rows, columns = fact.shape
    depth = left.shape[1]
    wide = builder.padded(columns, fact.dtype, fact.device)
    deep = builder.padded(depth, fact.dtype, fact.device)
    first = builder.realize(left)
    tall = builder.padded(rows, fact.dtype, fact.device)
    if tall != rows and not _has_room(builder, first, (1, tall), tall):
        tall = rows  # no memory behind the last row that could be read
    if wide != columns and deep == depth and _goes_straight(builder, rows, right, wide):
        operator, added = (aten.mm.default, ()) if bias is None else (aten.addmm.default, (bias,))
        return builder.call(
            "vendor", operator, (*added, left, right), {}, _FEW_ROWS_REASON, aligned=False
        )
    if (tall, wide, deep) == (rows, columns, depth):
        return builder.call("vendor", aten.mm.default, (left, right), {}, PRODUCTS)
    if deep != depth:
        first = _deepened(builder, left, deep)
        tall = rows
    elif tall != rows:
        first = replace(first, shape=(tall, depth))
    second = builder.realize(right)
    if builder.leaves and wide != columns and isinstance(rows, int) and isinstance(columns, int):
        pieces = _pieces(second, deep, fact.dtype)
        if not pieces:
            pieces = [(_enlarged(builder, right, deep, wide), 0, columns)]
        return _in_parts(builder, replace(first, shape=(rows, deep)), pieces, bias, second)
    if (deep, wide) != (depth, columns):
        second = _enlarged(builder, right, deep, wide)
    product = _window_of_product(builder, first, second, fact)
    return product if bias is None else elementwise(builder, (product, bias), _add)


def _goes_straight(builder: Builder, rows: Size, right: Value, wide: Size) -> bool:
    """Whether the weight would be copied into padded memory, for which there are too few rows."""
    columns = right.shape[1]
    if not isinstance(rows, int) or not isinstance(columns, int) or columns % 2:
        return False
    if right.view is None or _has_room(builder, right.view, (wide, 1), wide):
        return False
    return rows <= (STRAIGHT_LEAVING if builder.leaves else STRAIGHT_ROWS)


def _pieces(second: View, deep: Size, dtype: torch.dtype) -> list[tuple[View, int, Size]]:
    """A weight's columns without a copy: all that fill 16 bytes together, then the last, with some again.

    Each piece is the window that is multiplied with, where in it the columns begin, and how many there are. None where
    the columns don't lie one after another, each aligned.
    """
    depth, columns = second.shape
    unit = ROW_ALIGNMENT // dtype.itemsize
    if depth != deep or second.stride[0] != 1 or not isinstance(columns, int):
        return []
    step, offset = second.stride[1], second.offset
    if not isinstance(step, int) or not isinstance(offset, int) or step % unit or offset % unit:
        return []
    rest = columns % unit
    whole = replace(second, shape=(depth, columns - rest))
    last = replace(second, shape=(depth, unit), offset=offset + (columns - unit) * step)
    return [(whole, 0, columns - rest), (last, unit - rest, rest)]


def _window_of_product(
    builder: Builder, first: View, second: View, fact: TensorFact, begin: int = 0
) -> Value:
    """The part that `fact` describes of a product whose operands were enlarged, from a column on."""
    wide = second.shape[1]
    builder.fact = replace(fact, shape=(first.shape[0], wide), stride=(wide, 1))
    product = builder.call("vendor", aten.mm.default, (first, second), {}, PRODUCTS)
    builder.fact = fact
    window = View(product.view.buffer, fact.shape, (wide, 1), begin, fact.dtype)
    return Value(fact.shape, fact.dtype, fact.device, window, stride=window.stride)


def _part_rows(rows: int, columns: int, wide: int, depth: int) -> tuple[list[int], int]:
    """How many rows each part takes, as many as fit into the rows behind them, and how many are left for the last.

    With an even number of columns that one is made without padding, else in memory of the rows before it.
    """
    left, found = rows, list[int]()
    while True:
        most = STRAIGHT_TAIL
        if columns % 2:
            most = max(((rows - left) * depth - _SLACK) // wide, LEAST_TAIL)
        count = (left * columns - _SLACK) // (wide + columns)
        count -= count % (PART_ROWS if count >= PART_ROWS else _ROW_STEP)
        if left <= most or count <= 0:
            return found, left
        found.append(count)
        left -= count


def _in_parts(
    builder: Builder,
    first: View,
    pieces: list[tuple[View, int, Size]],
    bias: Value | None,
    second: View,
) -> Value:
    """The product of some rows at a time, each copied into the result before the next is made.

    `pieces` are the padded windows of the weight, `second` the weight as it is.
    """
    fact = builder.fact
    rows, columns = fact.shape
    result = builder.buffer(fact.shape, fact.stride, fact.dtype, fact.device)
    added = None if bias is None else builder.realize(bias)

    def put(value: Value, row: int, column: Size) -> None:
        """Store rows of some columns, the bias added."""
        if added is not None:
            width = value.shape[1]
            window = replace(added, shape=(width,), offset=added.offset + column * added.stride[0])
            own = Value(window.shape, added.dtype, fact.device, window, stride=window.stride)
            value = elementwise(builder, (value, own), _add)
        place = row * result.stride[0] + column * result.stride[1]
        builder.store(value, View(result.name, value.shape, result.stride, place, fact.dtype))

    def operand(row: int, count: int, depth: Size) -> View:
        return replace(first, shape=(count, depth), offset=first.offset + row * first.stride[0])

    def make(piece: tuple[View, int, Size], row: int, count: int, column: Size) -> None:
        window, begin, width = piece
        part = replace(fact, shape=(count, width), stride=(width, 1))
        source = operand(row, count, first.shape[1])
        put(_window_of_product(builder, source, window, part, begin), row, column)

    main, *few = pieces
    wide, depth = main[0].shape[1], first.shape[1]
    assert isinstance(wide, int)
    counts, left = _part_rows(rows, columns, wide, depth if isinstance(depth, int) else 0)
    row = 0
    for count in counts:
        make(main, row, count, 0)
        row += count
    padded = row if columns % 2 == 0 else rows
    for piece in few:
        make(piece, 0, padded, main[2])
    if padded == rows:
        make(main, row, left, 0)
    else:
        builder.fact = replace(fact, shape=(left, columns), stride=(columns, 1))
        operands = operand(row, left, second.shape[0]), second
        put(builder.call("vendor", aten.mm.default, operands, {}, PRODUCTS, aligned=False), row, 0)
    builder.fact = fact
    return builder.stored(result)


@lowers(aten.addmm.default)
def addmm(builder: Builder, bias: Value, left: Value, right: Value, **scales: Any) -> Any:
    """`beta * bias + alpha * left @ right`."""
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    plain = scales.get("beta", 1) == 1 and scales.get("alpha", 1) == 1
    if (
        plain
        and len(bias.shape) == 1
        and bias.shape == fact.shape[1:]
        and prefers_linear(builder, left, right)
    ):
        made = linear(builder, left, right, bias)
        if made is not None:
            return made
    fits = all(
        builder.padded(extent, fact.dtype, fact.device) == extent
        for extent in (fact.shape[1], left.shape[1])
    )
    if not plain or fits:
        return builder.call("vendor", aten.addmm.default, (bias, left, right), scales, PRODUCTS)
    return _product(builder, left, right, bias)


def _deepened(builder: Builder, left: Value, deep: Size) -> View:
    """The left operand as a window with `deep` columns, zeros behind its own."""
    rows, depth = left.shape
    known = builder.realize(left)
    if not _has_room(builder, known, (deep, 1), deep):
        buffer = builder.buffer((rows, deep), (deep, 1), left.dtype, left.device)
        known = View(buffer.name, (rows, depth), (deep, 1), 0, left.dtype)
        builder.store(left, known)
    if known.buffer not in builder.cleared:
        builder.cleared.add(known.buffer)
        _clear(builder, replace(known, shape=(rows, deep - depth), offset=depth), left)
    return replace(known, shape=(rows, deep))


def _enlarged(builder: Builder, right: Value, deep: Size, wide: Size) -> View:
    """The right operand as a window of (deep, wide): zeros below its own rows, anything beside them."""
    depth, columns = right.shape
    known = right.view
    if known is not None and deep == depth and _has_room(builder, known, (wide, 1), wide):
        return replace(known, shape=(depth, wide))
    across = known is not None and known.stride[0] == 1
    shape, stride = ((wide, deep), (1, deep)) if across else ((deep, wide), (wide, 1))
    buffer = builder.buffer(shape, (shape[1], 1), right.dtype, right.device)
    inside = View(buffer.name, (depth, columns), stride, 0, right.dtype)
    builder.store(right, inside)
    if deep != depth:
        below = replace(inside, shape=(deep - depth, columns), offset=depth * stride[0])
        _clear(builder, below, right)
    return View(buffer.name, (deep, wide), stride, 0, right.dtype)


def _clear(builder: Builder, window: View, like: Value) -> None:
    """Zeros, so that what is multiplied with them adds nothing."""
    zeros = builder.pointwise(
        lambda recorder, _: recorder.constant(0.0, like.dtype),
        shape=window.shape,
        dtype=like.dtype,
        device=like.device,
        operations=0,
        loads=0,
    )
    builder.store(zeros, window)


def _has_room(builder: Builder, view: View, stride: tuple[Size, ...], columns: Size) -> bool:
    """Whether the buffer behind a window was made with padded rows, of which the window shows a part."""
    buffer = builder.buffers[view.buffer]
    return view.stride == stride and view.offset == 0 and buffer.shape[-1] == columns


def _add(recorder: Recorder, product: Scalar, bias: Scalar) -> Scalar:
    return recorder.op("add", product, bias)
