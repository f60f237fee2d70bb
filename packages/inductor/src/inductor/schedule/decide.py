"""How a kernel's loops run: what is vectorised, tiled, divided among threads.

By the layout of the accesses: the variable in which most of them are contiguous is the vector loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.analysis import body_work, coefficient
from inductor.analysis.cost import buffer_bytes, smallest
from inductor.analysis.lists import listed
from inductor.ir.index import inner_symbols, outer_symbols, product, storage_length
from inductor.ir.kernel import Decisions, Tile, Vector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from inductor.ir.nodes import Buffer, LoopBody
    from inductor.ir.operations import Size
    from primtorch.symbolic import Symbol

COLUMN_BLOCK = 64
LISTED_BLOCK = 128
TILE = 64
TILED_BYTES = 64 * 1024
ENOUGH_CHUNKS = 64
SPLIT_LENGTH = 1 << 16
NARROW = (1 << 31) - (1 << 24)
"""Counts below this leave 32 bits room for the last program's places beyond the end, which are masked."""


def decide(body: LoopBody, buffers: Mapping[str, Buffer]) -> Decisions:
    """All decisions of one kernel."""
    outer, inner = outer_symbols(body.ranges), inner_symbols(body.reduction_ranges)
    touched = [buffers[name] for name in sorted(body.reads | body.writes) if name in buffers]
    tile: Tile | None = None
    vector: Vector | None = None
    if inner:
        vector = _reduction_vector(body, outer, inner)
    elif outer:
        vector = Vector("outer", len(outer) - 1)
        tile = _tile(body, outer, buffers)
    parallel = _parallel(body, vector)
    split = (
        bool(inner)
        and all(extent == 1 for extent in body.ranges)
        and smallest(product(body.reduction_ranges)) >= SPLIT_LENGTH
        and _single_reduction(body)
    )
    if split:
        parallel = 0
    return Decisions(
        parallel=parallel,
        vector=vector,
        tile=tile,
        reduction_split=split,
        work=body_work(body),
        bytes=sum(buffer_bytes(buffer) for buffer in touched),
        wide_index=_wide(body, touched),
    )


def _wide(body: LoopBody, touched: Sequence[Buffer]) -> bool:
    """Whether 32 bits may not hold a place in memory or the number of a point.

    Small operands don't make small loops: a table that is only summed up is never stored.
    """
    counts = [storage_length(buffer.shape, buffer.stride) for buffer in touched]
    counts += [product(body.ranges), product(body.reduction_ranges)]
    return any(not isinstance(count, int) or count >= NARROW for count in counts)


def _contiguous(body: LoopBody, symbol: Symbol) -> int:
    """How many accesses are contiguous in a variable, less those that jump.

    Where there are sweeps, only what they access counts: the rest happens once a row.
    """
    score = 0
    for stage in body.stages:
        if body.reduction_ranges and stage.level == "outer":
            continue
        for operation in stage.operations:
            if operation.buffer is None or operation.index is None:
                continue
            factor = coefficient(operation.index, symbol)
            if factor == 1:
                score += 2
            elif factor is None:
                score -= 2
            elif factor != 0:
                score -= 1
    return score


def _reduction_vector(body: LoopBody, outer: Sequence[Symbol], inner: Sequence[Symbol]) -> Vector:
    along = _contiguous(body, inner[-1])
    across = _contiguous(body, outer[-1]) if outer else -1
    scans = any(
        operation.name in ("scan", "accumulate")
        for stage in body.stages
        for operation in stage.operations
    )
    if listed(body) is not None:
        return Vector("outer", len(outer) - 1, _block(body.ranges[-1], LISTED_BLOCK))
    if across > along and across > 0 and not scans:
        return Vector("outer", len(outer) - 1, _block(body.ranges[-1]))
    return Vector("inner", len(inner) - 1)


def _block(columns: Size, most: int = COLUMN_BLOCK) -> int:
    """How many columns are reduced side by side: a divisor, so that accumulators can stay in registers."""
    if isinstance(columns, int):
        for block in range(most, 8, -8):
            if columns % block == 0:
                return block
    return most


def _tile(body: LoopBody, outer: Sequence[Symbol], buffers: Mapping[str, Buffer]) -> Tile | None:
    """Two loops in tiles where some large access is contiguous in another loop than the last."""
    if len(outer) < 2:
        return None
    for stage in body.stages:
        for operation in stage.operations:
            if operation.buffer is None or operation.index is None:
                continue
            last = coefficient(operation.index, outer[-1])
            if last is None or last in {0, 1}:
                continue
            for position, symbol in enumerate(outer[:-1]):
                large = buffer_bytes(buffers[operation.buffer]) >= TILED_BYTES
                if coefficient(operation.index, symbol) == 1 and large:
                    if smallest(body.ranges[position]) < TILE // 8:
                        continue
                    return Tile((position, len(outer) - 1), TILE)
    return None


def tiled(body: LoopBody, buffers: Mapping[str, Buffer]) -> Tile | None:
    """The tiles that a pointwise body wants, if any."""
    return None if body.reduction_ranges else _tile(body, outer_symbols(body.ranges), buffers)


def _parallel(body: LoopBody, vector: Vector | None) -> int:
    """As many leading loops as it takes to have enough chunks, the vector loop only if alone."""
    limit = len(body.ranges)
    if vector is not None and vector.level == "outer" and limit > 1:
        limit -= 1
    chunks: Size = 1
    for position in range(limit):
        chunks = chunks * body.ranges[position]
        if smallest(chunks) >= ENOUGH_CHUNKS:
            return position + 1
    if vector is not None and vector.level == "outer" and smallest(chunks) < 2 * 8:
        return len(body.ranges)
    return limit


def _single_reduction(body: LoopBody) -> bool:
    sweeps = [stage for stage in body.stages if stage.level == "inner"]
    return len(sweeps) == 1 and all(
        operation.name not in ("store", "accumulate", "scan") for operation in sweeps[0].operations
    )
