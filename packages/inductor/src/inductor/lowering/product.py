"""Matrix products: the library's, with operands and results as it is fast with them.

On a CPU large ones in single precision may go to another library (inductor.lowering.linear). On a GPU half types are
padded to 16 bytes: the library's fast kernels want rows of every operand and of the result to begin at such multiples,
and every dimension to be one (a vocabulary of 30522 costs three times as much as one of 30528). The result gets padded
rows; the operand that holds the columns is copied into a padded buffer (a thousandth of the product's work). What the
padding computes is never read; the dimension that is summed over is filled up with zeros. A bias is then added by the
kernel that reads the result, because the library's product with a bias in its epilogue writes contiguous results only.
A large padded result that leaves the graph is made in parts of rows, each copied into the tensor that the caller gets,
so that the two never stand in memory together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.nodes import View
from inductor.lowering.builder import TensorFact
from inductor.lowering.linear import linear, prefers_linear
from inductor.lowering.pointwise import elementwise
from inductor.lowering.registry import VENDOR, lowers
from inductor.lowering.values import Value

if TYPE_CHECKING:
    from inductor.ir.operations import Size
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder

aten = torch.ops.aten
PART_BYTES = 1 << 26
"""Bytes of a part of a padded result that leaves the graph: large enough to keep a card's library at its speed."""
MOST_PARTS = 16
"""Each part's copy is a kernel of its own."""
_REASON = VENDOR.pop(aten.addmm.default)
del VENDOR[aten.mm.default]


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
    if (tall, wide, deep) == (rows, columns, depth):
        return builder.call("vendor", aten.mm.default, (left, right), {}, _REASON)
    if deep != depth:
        first = _deepened(builder, left, deep)
        tall = rows
    elif tall != rows:
        first = replace(first, shape=(tall, depth))
    second = builder.realize(right)
    if (deep, wide) != (depth, columns):
        second = _enlarged(builder, right, deep, wide)
    if builder.leaves and wide != columns:
        length = _part_length(rows, wide, fact.dtype)
        if length is not None:
            return _in_parts(builder, replace(first, shape=(rows, deep)), second, bias, length)
    product = _window_of_product(builder, first, second, fact)
    return product if bias is None else elementwise(builder, (product, bias), _add)


def _window_of_product(builder: Builder, first: View, second: View, fact: TensorFact) -> Value:
    """The part that `fact` describes of a product whose operands were enlarged."""
    wide = second.shape[1]
    builder.fact = replace(fact, shape=(first.shape[0], wide), stride=(wide, 1))
    product = builder.call("vendor", aten.mm.default, (first, second), {}, _REASON)
    builder.fact = fact
    window = View(product.view.buffer, fact.shape, (wide, 1), 0, fact.dtype)
    return Value(fact.shape, fact.dtype, fact.device, window, stride=window.stride)


def _part_length(rows: Size, wide: Size, dtype: torch.dtype) -> int | None:
    """Rows of a part, a power of two; None for a result that is not worth parting."""
    if not isinstance(rows, int) or not isinstance(wide, int):
        return None
    length = 1 << max(PART_BYTES // (wide * dtype.itemsize), 1).bit_length() - 1
    while length * MOST_PARTS < rows:
        length *= 2
    return length if 2 * length <= rows else None


def _in_parts(
    builder: Builder, first: View, second: View, bias: Value | None, length: int
) -> Value:
    """The product of `length` rows at a time, each copied into the result before the next is made."""
    fact = builder.fact
    rows, columns = fact.shape
    result = builder.buffer(fact.shape, fact.stride, fact.dtype, fact.device)
    for start in range(0, rows, length):
        count = min(length, rows - start)
        part = replace(fact, shape=(count, columns), stride=(columns, 1))
        offset = first.offset + start * first.stride[0]
        operand = replace(first, shape=(count, first.shape[1]), offset=offset)
        value = _window_of_product(builder, operand, second, part)
        if bias is not None:
            value = elementwise(builder, (value, bias), _add)
        place = start * result.stride[0]
        builder.store(value, View(result.name, part.shape, result.stride, place, fact.dtype))
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
        return builder.call("vendor", aten.addmm.default, (bias, left, right), scales, _REASON)
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
