"""Which results of a processor's kernels are written past its caches.

Comes in: all steps in order, with their memory. Goes out: the same steps; kernels know which of their results to write
so. Invariant: a result that a kernel reads, or writes over what it read, is in the caches already and stays there.

A store into the caches first reads what is overwritten, so a result larger than they are moves twice its bytes. One
that fits is spared both if somebody reads it soon: only a later step of the same graph can be that somebody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inductor.analysis.cost import smallest
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.kernel import Kernel
from inductor.ir.operations import Indirect, combines
from primtorch.symbolic import free_symbols, substitute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import LoopBody
    from inductor.ir.operations import Operation, Size
    from primtorch.symbolic import Symbol

__all__ = ["LARGE", "LARGE_AND_READ", "with_streams"]

LARGE = 4 << 20
LARGE_AND_READ = 16 << 20
"""Bytes from which on a result is written past the caches (measured on 1 MB of second cache for each core and 32 MB of
third, shared): four times the second cache, and half of the third for one straight run of memory that a later step
reads. Rows that lie apart each start slowly when the caches first read what is overwritten, whoever reads them."""
_MOST = 4
"""Stores of a kernel: a processor collects few lines at a time before it writes them."""


def with_streams(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps; each kernel of the processor says which results go past its caches."""
    found: list[Step] = []
    read_later: set[str] = set()
    for step in reversed(steps):
        if isinstance(step, Kernel):
            on_processor = step.device.type == "cpu"
            found.append(_with_streams(step, read_later) if on_processor else step)
            read_later |= step.body.reads
        else:
            found.append(step)
            read_later |= step.reads
    return tuple(reversed(found))


def _with_streams(kernel: Kernel, read_later: set[str]) -> Kernel:
    body = kernel.body
    operations = [operation for _, operation, _ in body.operations()]
    stores = [operation for operation in operations if operation.name == "store"]
    moved = kernel.decisions.vector
    if moved is None or len(stores) > _MOST or any(op.name == "accumulate" for op in operations):
        return kernel
    if moved.level == "outer" and body.reduction_ranges:
        return kernel  # blocks of columns
    taken = dict(kernel.reuses)
    local = {row.name for row in kernel.locals}
    streamed: dict[str, int] = {}
    for store in stores:
        buffer = str(store.buffer)
        kept = {buffer, taken.get(buffer, buffer)} & body.reads or buffer in local
        if kept or combines(store) or len(store.operands) > 1:
            continue
        least = _least(store, kernel, later=buffer in read_later)
        if least is not None:
            streamed[buffer] = least
    if not streamed:
        return kernel
    decisions = replace(kernel.decisions, streamed=tuple(streamed.items()))
    return replace(kernel, decisions=decisions)


def _least(store: Operation, kernel: Kernel, *, later: bool) -> int | None:
    """From how many bytes on a result goes past the caches: 0 if it is known to do so, None if not to."""
    body = kernel.body
    copy = kernel.decisions.tile is not None and sum(1 for _ in body.operations()) == 2
    extents = _extents(body)
    indirect = (operation.attribute for _, operation, _ in body.operations())
    placed = {found.symbol for found in indirect if isinstance(found, Indirect)}
    assert store.index is not None
    last = next(reversed(extents), None)
    if last is None or substitute(store.index, {last: last + 1}) - store.index != 1:
        return None
    size: int = store.dtype.itemsize
    known = True
    for symbol in free_symbols(store.index):
        if symbol in placed:
            return None
        extent = extents.get(symbol, 1)  # a size's symbol: some extent has it too
        known = known and isinstance(extent, int)
        size *= smallest(extent)
    limit = LARGE if copy or not later or _broken(store, extents) else LARGE_AND_READ
    if known:
        return 0 if size >= limit else None
    return limit if copy else None


def _extents(body: LoopBody) -> dict[Symbol, Size]:
    """The loops from the outermost to the innermost."""
    found = dict(zip(outer_symbols(body.ranges), body.ranges, strict=True))
    inner = inner_symbols(body.reduction_ranges)
    return found | dict(zip(inner, body.reduction_ranges, strict=True))


def _broken(store: Operation, extents: dict[Symbol, Size]) -> bool:
    """Whether rows along the innermost loop lie apart."""
    loops = list(extents)
    if len(loops) < 2 or store.index is None:
        return False
    around, last = loops[-2:]
    step = substitute(store.index, {around: around + 1}) - store.index
    return step != extents[last]
