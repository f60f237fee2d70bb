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
from inductor.ir.kernel import Kernel, Streamed
from inductor.ir.operations import Indirect, combines
from primtorch.symbolic import free_symbols, substitute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import LoopBody
    from inductor.ir.operations import Operation, Size
    from primtorch.symbolic import Symbol

__all__ = ["LARGE", "LARGE_AND_READ", "MOVED", "MOVED_BY_SEVERAL", "with_streams"]

LARGE = 4 << 20
LARGE_AND_READ = 16 << 20
"""Bytes from which on a result is written past the caches (measured on 1 MB of second cache for each core and 32 MB of
third, shared): four times the second cache where rows lie apart, each of which starts slowly when the caches first read
what is overwritten, and for a transposition; half of the third for one straight run that a later step reads."""
MOVED = 16 << 20
MOVED_BY_SEVERAL = 32 << 20
"""Bytes that a kernel moves from which on its straight runs that no later step reads go past the caches: half of the
third cache where one thread does all; all of it with several, which share the way to memory and not that to the caches.
"""
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
    streamed: dict[str, Streamed] = {}
    for store in stores:
        buffer = str(store.buffer)
        kept = {buffer, taken.get(buffer, buffer)} & body.reads or buffer in local
        if kept or combines(store) or len(store.operands) > 1:
            continue
        how = _streamed(store, kernel, later=buffer in read_later)
        if how is not None:
            streamed[buffer] = how
    if not streamed:
        return kernel
    decisions = replace(kernel.decisions, streamed=tuple(streamed.values()))
    return replace(kernel, decisions=decisions)


def _streamed(store: Operation, kernel: Kernel, *, later: bool) -> Streamed | None:
    """How a result goes past the caches; None if it does not."""
    body, buffer = kernel.body, str(store.buffer)
    copy = kernel.decisions.tile is not None and sum(1 for _ in body.operations()) == 2
    extents = _extents(body)
    assert store.index is not None
    last = next(reversed(extents), None)
    if last is None or substitute(store.index, {last: last + 1}) - store.index != 1:
        return None
    count, known = _elements(store, kernel, extents)
    if count is None:
        return None
    size = count * store.dtype.itemsize
    if copy or _broken(store, extents):
        if known:
            return Streamed(buffer) if size >= LARGE else None
        return Streamed(buffer, LARGE) if copy else None
    if not known:
        return None
    if later:
        return Streamed(buffer) if size >= LARGE_AND_READ else None
    moved = _moved(kernel, extents)
    if moved < MOVED:
        return None
    return Streamed(buffer, alone=moved < MOVED_BY_SEVERAL)


def _moved(kernel: Kernel, extents: dict[Symbol, Size]) -> int:
    """Bytes of memory that the kernel reads and writes, each element once; unknown sizes count as their least."""
    dtypes = {argument.buffer: argument.dtype for argument in kernel.arguments}
    found = dict.fromkeys(dtypes, 0)
    for _, operation, _ in kernel.body.operations():
        buffer = operation.buffer
        if operation.index is None or buffer is None or buffer not in dtypes:
            continue  # a private row is in the caches
        count, _ = _elements(operation, kernel, extents)
        found[buffer] = max(found[buffer], (count or 0) * dtypes[buffer].itemsize)
    return sum(found.values())


def _elements(
    access: Operation, kernel: Kernel, extents: dict[Symbol, Size]
) -> tuple[int | None, bool]:
    """How many elements an access comes to, at least, and whether that is known; None where data say which."""
    indirect = (operation.attribute for _, operation, _ in kernel.body.operations())
    placed = {found.symbol for found in indirect if isinstance(found, Indirect)}
    assert access.index is not None
    count, known = 1, True
    for symbol in free_symbols(access.index):
        if symbol in placed:
            return None, False
        extent = extents.get(symbol, 1)  # a size's symbol: some extent has it too
        known = known and isinstance(extent, int)
        count *= smallest(extent)
    return count, known


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
