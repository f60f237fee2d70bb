"""Matrix products of half types on a GPU whose sizes don't fill 16 bytes.

The library's fast kernels want rows of every operand and of the result to begin at multiples of 16 bytes, and the
number of columns to be such a multiple: a vocabulary of 30522 costs three times as much as one of 30528. The result
gets padded rows; the operand that holds the columns is copied into a padded buffer (a thousandth of the product's
work). What the padding computes is never read. A bias is then added by the kernel that reads the result, because the
library's product with a bias in its epilogue writes contiguous results only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.nodes import View
from inductor.lowering.builder import TensorFact
from inductor.lowering.pointwise import elementwise
from inductor.lowering.registry import VENDOR, lowers
from inductor.lowering.values import Value

if TYPE_CHECKING:
    from inductor.ir.operations import Size
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder

aten = torch.ops.aten
_REASON = VENDOR.pop(aten.addmm.default)
del VENDOR[aten.mm.default]


@lowers(aten.mm.default)
def mm(builder: Builder, left: Value, right: Value) -> Any:
    """`left @ right`."""
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    rows, columns = fact.shape
    wide = builder.padded(columns, fact.dtype, fact.device)
    first = builder.realize(left)
    tall = builder.padded(rows, fact.dtype, fact.device)
    if tall != rows and not _has_room(builder, first, (1, tall), tall):
        tall = rows  # no memory behind the last row that could be read
    if (tall, wide) == (rows, columns):
        return builder.call("vendor", aten.mm.default, (left, right), {}, _REASON)
    if tall != rows:
        first = replace(first, shape=(tall, first.shape[1]))
    second = builder.realize(right) if wide == columns else _with_columns(builder, right, wide)
    builder.fact = replace(fact, shape=(tall, wide), stride=(wide, 1))
    product = builder.call("vendor", aten.mm.default, (first, second), {}, _REASON)
    builder.fact = fact
    window = View(product.view.buffer, fact.shape, (wide, 1), 0, fact.dtype)
    return Value(fact.shape, fact.dtype, fact.device, window, stride=window.stride)


@lowers(aten.addmm.default)
def addmm(builder: Builder, bias: Value, left: Value, right: Value, **scales: Any) -> Any:
    """`beta * bias + alpha * left @ right`."""
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    plain = scales.get("beta", 1) == 1 and scales.get("alpha", 1) == 1
    columns = fact.shape[1]
    if not plain or builder.padded(columns, fact.dtype, fact.device) == columns:
        return builder.call("vendor", aten.addmm.default, (bias, left, right), scales, _REASON)
    product = mm(builder, left, right)
    return elementwise(builder, (product, bias), _add)


def _with_columns(builder: Builder, right: Value, wide: Size) -> View:
    """The right operand as a window with `wide` columns, what lies behind its own uninitialised."""
    depth, columns = right.shape
    known = right.view
    if known is not None and _has_room(builder, known, (wide, 1), wide):
        return replace(known, shape=(depth, wide))
    across = known is not None and known.stride[0] == 1
    shape, stride = ((wide, depth), (1, depth)) if across else ((depth, wide), (wide, 1))
    buffer = builder.buffer(shape, (shape[1], 1), right.dtype, right.device)
    builder.store(right, View(buffer.name, (depth, columns), stride, 0, right.dtype))
    return View(buffer.name, (depth, wide), stride, 0, right.dtype)


def _has_room(builder: Builder, view: View, stride: tuple[Size, ...], columns: Size) -> bool:
    """Whether the buffer behind a window was made with padded rows, of which the window shows a part."""
    buffer = builder.buffers[view.buffer]
    return view.stride == stride and view.offset == 0 and buffer.shape[-1] == columns


def _add(recorder: Recorder, product: Scalar, bias: Scalar) -> Scalar:
    return recorder.op("add", product, bias)
