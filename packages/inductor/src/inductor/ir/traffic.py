"""How much memory a kernel moves: elements of a buffer that it touches, each counted once.

In: a body and one of its buffers. Out: a number of elements, at most the buffer's own. A row of a table found by an
index counts once for each time it is looked up; what two accesses share is counted for both, up to the whole buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.ir.index import inner_symbols, outer_symbols, product
from primtorch.symbolic import free_symbols

if TYPE_CHECKING:
    from inductor.ir.nodes import Buffer, LoopBody, Stage
    from inductor.ir.operations import Size

__all__ = ["touched_elements"]


def touched_elements(body: LoopBody, buffer: Buffer) -> Size:
    """Elements of `buffer` that the body reads or writes; all of it where sizes are symbolic."""
    whole = product(buffer.shape)
    if not isinstance(whole, int):
        return whole
    counts: dict[Size, int] = {}
    for _, operation, stage in body.operations():
        if operation.buffer != buffer.name or operation.index is None:
            continue
        count = _points(body, stage, operation.index)
        if count is None:
            return whole
        counts[operation.index] = max(count, counts.get(operation.index, 0))
    return min(whole, sum(counts.values()))


def _points(body: LoopBody, stage: Stage, index: Size) -> int | None:
    """Different values that an index takes, if no two points of its own loops share one; None if sizes vary."""
    extents = dict(zip(outer_symbols(body.ranges), body.ranges, strict=True))
    if stage.level == "inner":
        inner = inner_symbols(body.reduction_ranges)
        extents |= dict(zip(inner, body.reduction_ranges, strict=True))
    used = free_symbols(index)
    if not used <= extents.keys():
        used = frozenset(extents)  # an indirect index, which may change at each point
    points = product(extents[symbol] for symbol in used)
    return points if isinstance(points, int) else None
