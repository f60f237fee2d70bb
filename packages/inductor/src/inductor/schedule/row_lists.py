"""Rows scattered into zeros and added up are summed where they arrive.

In: a graph of loops. Out: the same graph where `zeros, then rows added at computed places` is, on a processor, one
reduction `sum over all rows of (its place == this row ? it : 0)`, which the code generator walks by lists of rows. No
zeros are written, nothing is read again to be added to, the sum is in registers, and what follows (the narrowing to
half precision, an optimizer) can be fused. The gradient of an embedding is such a sum. Invariant: terms are added in
the same order as before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from inductor.analysis.lists import listed
from inductor.ir.index import outer_symbols
from inductor.ir.nodes import LoopNode
from inductor.ir.operations import EFFECTS, Indirect
from inductor.ir.recorder import Recorder
from inductor.schedule.scatter_sums import is_zeros
from inductor.schedule.simplify import simplify_loops

if TYPE_CHECKING:
    from inductor.ir.nodes import Graph, LoopBody
    from inductor.ir.operations import Operation, Size
    from inductor.ir.recorder import Scalar
    from primtorch.symbolic import Symbol

__all__ = ["sum_scattered_rows"]

_SHARE = 4
_SHORTEST_ROW = 64


def sum_scattered_rows(graph: Graph) -> Graph:
    """The graph with such pairs of nodes as one reduction each."""
    nodes = list(graph.nodes)
    for node in graph.nodes:
        if not isinstance(node, LoopNode) or node.kind != "scatter" or node.device.type != "cpu":
            continue
        found = _as_sum(simplify_loops(node.body))
        if found is None:
            continue
        buffer, body = found
        writers = [other for other in nodes if buffer in other.writes]
        shape = graph.buffers[buffer].shape
        length: Size = 1
        for extent in shape:
            length = length * extent
        if len(writers) != 2 or writers[1] is not node or not is_zeros(writers[0]):
            continue
        rows, columns = body.ranges
        if length != rows * columns:
            continue
        nodes[nodes.index(node)] = replace(node, kind="reduction", body=body)
        nodes.remove(writers[0])
    return replace(graph, nodes=tuple(nodes))


def _as_sum(body: LoopBody) -> tuple[str, LoopBody] | None:
    """The buffer of rows that `body` adds to, and the body that sums each of them, if it is worth it."""
    if len(body.ranges) != 2 or body.reduction_ranges or len(body.stages) != 1:
        return None
    count, columns = body.ranges
    *work, store = body.stages[0].operations
    places = [operation for operation in work if isinstance(operation.attribute, Indirect)]
    if store.name != "store" or store.attribute != "add" or store.masked or len(places) != 1:
        return None
    if any(operation.name in EFFECTS for operation in work) or store.dtype is not torch.float32:
        return None
    place = places[0].attribute
    assert isinstance(place, Indirect)
    rows, (_, along) = place.size, outer_symbols(body.ranges)
    sizes = (count, columns, rows)
    if not all(isinstance(size, int) for size in sizes) or store.index is None:
        return None
    if store.index != along + columns * place.symbol:
        return None
    if count * _SHARE < rows or columns < _SHORTEST_ROW:  # type: ignore[operator]
        return None
    summed = _summed(body, work, store, place, rows)
    return None if listed(summed) is None else (str(store.buffer), summed)


def _summed(
    body: LoopBody, work: list[Operation], store: Operation, place: Indirect, rows: Size
) -> LoopBody:
    count, columns = body.ranges
    recorder = Recorder((rows, columns), (count,))
    term, along = outer_symbols(body.ranges)
    row, column = recorder.outer
    recorder.stage("inner")
    mapping: dict[Symbol, Size] = {term: recorder.inner[0], along: column}
    values: dict[int, Scalar] = {}
    symbols: dict[Symbol, Size] = {}
    recorder.replay(list(enumerate(work)), mapping, values, symbols)
    here = recorder.op(
        "eq",
        recorder.index_expression(symbols[place.symbol], torch.int64),
        recorder.index_expression(row, torch.int64),
    )
    value = values[store.operands[0]]
    chosen = recorder.op("where", here, value, recorder.constant(0.0, value.dtype))
    total = recorder.reduce("sum", chosen, dtype=value.dtype)
    recorder.stage("outer")
    recorder.store(str(store.buffer), row * columns + column, total, store.dtype)
    return recorder.finish()
