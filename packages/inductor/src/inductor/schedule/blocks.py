"""Tile sizes of GPU kernels: one analytic configuration for each kernel, no tuning.

Comes in: a kernel and the properties of a card. Goes out: `Blocks`. The rules aim at four programs for each
multiprocessor, 16 bytes a thread, and rows that are read once: a row of up to `LONGEST_ROW` elements stays in registers
("persistent"), a longer one is walked in blocks ("looped"). They count threads as they were measured, in warps of 32;
at the end these become the card's own warps. Invariant: no program asks for more threads than the card gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from inductor.analysis.affine import coefficient
from inductor.analysis.online import online_pairs
from inductor.ir.index import inner_symbols, outer_symbols, product
from primtorch.symbolic import bounds, free_symbols

if TYPE_CHECKING:
    from inductor.ir import Kernel, Size
    from inductor.ir.machine import DeviceProperties

__all__ = ["LONGEST_ROW", "Blocks", "choose_blocks", "ending_outer", "largest"]

LONGEST_ROW = 16384
"""Elements of a row that one program holds in registers (16 warps, 32 values a thread)."""

FULL_ROW = 7 * LONGEST_ROW // 4
"""Shorter rows leave more than an eighth of a doubled program idle: those that carry much are walked in blocks."""

SHORTEST_SIDE = 16
"""Of a transposition that is walked in square tiles."""

FEWEST_ACCESSES = 4
"""Loads and stores at each point up to which a thread takes sixteen: their arithmetic overlaps, registers are left."""

MOST_ACCESSES = 6
"""The same with those of what many points share, a channel's statistics, a bias: with eight 124 registers are taken."""

MANY_POINTS = 4_000_000
"""From here on threads take more points, because there are programs enough."""

WIDE_TILE = (128, 32)
"""Of large transpositions: 256 bytes of a half type in one direction, 64 in the other."""

LIGHT_ROW = 6
"""Bytes of an element's own operands up to which a warp holds 32 elements and a sum of columns: more spilled."""

TALL_TURNS = 64
"""Rows that each program of a sum over columns takes, from which on there are twice as many programs."""

TRANSPOSED_ROWS = 16
"""Rows that a program takes at once where an operand lies across them: 32 bytes of a half type."""

ENDING_HOLDS = 256
"""Bytes of its operands that a thread of an ending holds: all are on their way at once."""

LEAST_SHARE = 0.7
"""Of a tile that a piece of a channel fills, at the least."""

MOST_WRITTEN = 16
"""Turns of a loop that are written out, of rows with little of their own: with more it takes a program's registers."""

_MEASURED_LANES = 32
"""Threads of a warp on the cards that the rules count in."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """What one program computes.

    Fields:
        mode: "points" (no sweep), "persistent" (whole rows in registers), "looped" (rows in
            blocks).
        outer: outer points in a program's tile (rows of the tile when two dimensions are tiled).
        inner: reduction points held at once; 1 for "points".
        columns: second dimension of a two-dimensional tile; 1 otherwise.
        warps: warps in a program, a power of two.
        stages: software pipeline depth of loops.
        programs: size of the grid of a kernel that accumulates columns; 0 otherwise.
        ahead: loads of a loop begin so many turns early, through shared memory; 0: when they are needed.
        keeps: what a later walk of a row reads again is to stay in the cache, what none does is to leave it first.
        piece: elements of a row that a turn of its loop takes, of one channel each; 0: `inner`, whatever they are of.
        unrolled: the turns of a loop are written out, so that the loads of several are on their way at once.
        ending: reduction points that a kernel's ending holds at once; 0 without one.
    """

    mode: Literal["points", "persistent", "looped"]
    outer: int
    inner: int
    columns: int
    warps: int
    stages: int
    programs: int
    ahead: int = 0
    keeps: bool = False
    piece: int = 0
    unrolled: bool = False
    ending: int = 0

    @property
    def adds_rows(self) -> bool:
        """Whether column sums are carried as one row, because as many rows as the tile has fill the registers."""
        return self.outer > 1 and self.outer * self.inner > LONGEST_ROW // 2


def _power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def largest(value: Size) -> int | None:
    """The value, or the most that it can be."""
    return value if isinstance(value, int) else bounds(value)[1]


def choose_blocks(kernel: Kernel, card: DeviceProperties) -> Blocks:
    """The configuration of a kernel on a card."""
    blocks = _measured(kernel, card)
    threads = blocks.warps * _MEASURED_LANES
    if blocks.mode == "looped" and blocks.outer == 1:
        blocks = replace(blocks, keeps=_rows_fit_cache(kernel, card))
    if kernel.ending is not None:
        row = product(kernel.ending.kernel.body.reduction_ranges)
        assert isinstance(row, int)
        held = ENDING_HOLDS // max(_row_bytes(kernel.ending.kernel, alone=True), 1)
        held = _power_of_two(held + 1) // 2 * threads // ending_outer(kernel, blocks)
        blocks = replace(blocks, ending=max(min(_power_of_two(row), held), 1))
    if card.threads:
        threads = min(threads, card.threads)
    return replace(blocks, warps=max(threads // max(card.lanes, 1), 1))


def ending_outer(kernel: Kernel, blocks: Blocks) -> int:
    """Outer points in the tile of a kernel's ending."""
    assert kernel.ending is not None
    points = product(kernel.ending.kernel.body.ranges)
    assert isinstance(points, int)
    return blocks.outer if kernel.ending.groups > 1 else _power_of_two(points)


def _measured(kernel: Kernel, card: DeviceProperties) -> Blocks:
    """The configuration, with warps of 32."""
    points = largest(product(kernel.body.ranges))
    if not kernel.body.reduction_ranges:
        return _points(kernel, points)
    row = largest(product(kernel.body.reduction_ranges))
    accumulates = sum(
        operation.name == "accumulate" for _, operation, _ in kernel.body.operations()
    )
    vector = kernel.decisions.vector
    if vector is not None and vector.level == "outer" and not accumulates:
        return _columns(kernel, points, row, card)
    if (
        row is not None
        and LONGEST_ROW < row <= 2 * LONGEST_ROW
        and _only_reduces_one_row(kernel)
        and not (_carries_much(kernel) and row < FULL_ROW)
    ):
        return Blocks("persistent", 1, 2 * LONGEST_ROW, 1, 16, 1, 0)
    if row is None or row > LONGEST_ROW:
        # few rows in flight, so that what a later sweep reads again is still in the cache
        if row is not None and row <= 2 * LONGEST_ROW and _walks_cut_rows_again(kernel):
            return _pieces(kernel)
        if row is not None and row <= 2 * LONGEST_ROW and _carries_much(kernel):
            return Blocks("looped", 1, LONGEST_ROW // 4, 1, 8, 1, 0)
        return Blocks("looped", 1, 8192, 1, 32, 1, 0)
    if _reads_across_rows(kernel) and _power_of_two(row) * TRANSPOSED_ROWS <= LONGEST_ROW:
        programs = min(4 * card.units, -(-(points or 1 << 20) // TRANSPOSED_ROWS))
        inner = _power_of_two(row)
        return Blocks("persistent", TRANSPOSED_ROWS, inner, 1, 8, 1, programs if accumulates else 0)
    return _rows(kernel, points, row, accumulates, card)


def _walks_cut_rows_again(kernel: Kernel) -> bool:
    """Whether a later walk stores along rows that have something for each of their pieces: the channels of a group."""
    body = kernel.body
    known = all(isinstance(extent, int) for extent in body.reduction_ranges)
    return (
        len(body.reduction_ranges) > 1
        and known
        and any(
            operation.name == "store" and stage.level == "inner"
            for _, operation, stage in body.operations()
        )
    )


def _pieces(kernel: Kernel) -> Blocks:
    """Rows of which each turn takes a piece of one channel, or is written out where channels have no such pieces.

    What a channel has for itself is one number of the turn then. Loaded for each element it takes another layout of the
    tile, to which all else is brought through shared memory: on an H200 a group norm of 64 x 256 x 56 x 56 took 123.7
    us in blocks of 8192 by 32 warps, 73.5 in blocks of 4096 by 16, written out; 86.7 in two kernels. Written out, two
    rows a multiprocessor have all their loads on their way; more rows leave the cache before their second walk.
    """
    channel = kernel.body.reduction_ranges[-1]
    assert isinstance(channel, int)
    found: list[tuple[float, int, int]] = []
    for width in (4096, 2048, 1024):
        fitting = [size for size in range(8, width + 1, 8) if channel % size == 0]
        if fitting:
            found.append((fitting[-1] / width, width, fitting[-1]))
    share, width, piece = max(found, default=(0.0, 0, 0))
    light = _row_bytes(kernel, within=True) <= LIGHT_ROW
    if share < LEAST_SHARE:
        return Blocks("looped", 1, LONGEST_ROW // 4, 1, 16, 1, 0, unrolled=light)
    turns = product(kernel.body.reduction_ranges) // piece
    short = light and isinstance(turns, int) and turns <= MOST_WRITTEN
    return Blocks("looped", 1, width, 1, width // 256, 1, 0, piece=piece, unrolled=short)


def _reads_across_rows(kernel: Kernel) -> bool:
    """Whether some large operand lies the other way round: neighbours in memory are of different rows."""
    outer, inner = outer_symbols(kernel.body.ranges), inner_symbols(kernel.body.reduction_ranges)
    if not outer:
        return False
    return any(
        coefficient(operation.index, outer[-1]) == 1
        and coefficient(operation.index, inner[-1]) not in (0, 1)
        for _, operation, stage in kernel.body.operations()
        if stage.level == "inner" and operation.buffer is not None and operation.index is not None
    )


def _only_reduces_one_row(kernel: Kernel) -> bool:
    """Whether a program's registers can hold all that its sweeps load, and nothing is written meanwhile.

    One program fills a multiprocessor then: while it stores, nobody loads. A scan has to carry its sums from block to
    block, which takes longer still; a softmax's sums come with its maxima in one walk.
    """
    outer = set(outer_symbols(kernel.body.ranges))
    within = {
        operation.name for _, operation, stage in kernel.body.operations() if stage.level == "inner"
    }
    if ("store" in within and "scan" not in within) or online_pairs(kernel.body):
        return False
    loads = {
        (operation.buffer, operation.index)
        for _, operation, stage in kernel.body.operations()
        if stage.level == "inner" and operation.name == "load" and operation.index is not None
        if not outer.isdisjoint(free_symbols(operation.index))
    }
    return len(loads) <= 1


def _carries_much(kernel: Kernel) -> bool:
    """Whether a lane of the only walk carries several numbers: half the threads, so that more programs are resident.

    Where a second walk stores what it reads again, more resident rows leave the cache before it comes: a layer norm
    and a softmax of 32768 columns lost a tenth by it.
    """
    operations = [(operation, stage) for _, operation, stage in kernel.body.operations()]
    if any(operation.name == "store" and stage.level == "inner" for operation, stage in operations):
        return False
    return bool(online_pairs(kernel.body)) or any(
        operation.attribute == "welford"
        for operation, _ in operations
        if operation.name == "reduce"
    )


def _rows_fit_cache(kernel: Kernel, card: DeviceProperties) -> bool:
    """Whether two rows for each multiprocessor stay in the cache between two walks; 4 bytes an element."""
    row = largest(product(kernel.body.reduction_ranges))
    return row is not None and 8 * row * card.units <= card.cache_bytes


def _points(kernel: Kernel, points: int | None) -> Blocks:
    if _fills_tiles(kernel, SHORTEST_SIDE, SHORTEST_SIDE):
        outer, columns = WIDE_TILE
        if points is not None and points > MANY_POINTS and _fills_tiles(kernel, outer, columns):
            return Blocks("points", outer, 1, columns, 8, 1, 0)
        return Blocks("points", 32, 1, 32, 4, 1, 0)
    size = 1024
    if points is not None:
        few = _takes_few(kernel)
        size = (2048 if few else 1024) if points > MANY_POINTS else 512 if points > 500_000 else 256
        size = min(size, max(_power_of_two(points), 32))
    return Blocks("points", size, 1, 1, 4 if size >= 256 else max(size // 64, 1), 1, 0)


def _takes_few(kernel: Kernel) -> bool:
    """Whether there are registers for sixteen points: few accesses of what each point has for itself."""
    body = kernel.body
    every = {
        symbol
        for symbol, extent in zip(outer_symbols(body.ranges), body.ranges, strict=True)
        if extent != 1
    }
    indices = [
        operation.index for _, operation, _ in body.operations() if operation.buffer is not None
    ]
    own = sum(index is not None and every <= free_symbols(index) for index in indices)
    return own <= FEWEST_ACCESSES and len(indices) <= MOST_ACCESSES


def _fills_tiles(kernel: Kernel, rows: int, columns: int) -> bool:
    """Whether a transposition has both sides long enough: three colours would leave most of a tile idle."""
    tile = kernel.decisions.tile
    if tile is None:
        return False
    extents = (kernel.body.ranges[dimension] for dimension in tile.dimensions)
    return all(
        not isinstance(extent, int) or extent >= shortest
        for extent, shortest in zip(extents, (rows, columns), strict=True)
    )


def _rows(
    kernel: Kernel, points: int | None, row: int, accumulates: int, card: DeviceProperties
) -> Blocks:
    """Rows contiguous in memory, one to four in a program; so many column sums are carried along them."""
    inner = max(_power_of_two(row), 1)
    outer = 1
    while (
        inner * outer < 1024
        and outer < 32
        and (points is None or points >= 4 * card.units * outer * 2)
    ):
        outer *= 2
    light = accumulates == 1 and _row_bytes(kernel) <= LIGHT_ROW
    warps = _warps_of_rows(kernel, inner * outer, light=light)
    if not accumulates:
        return Blocks("persistent", outer, inner, 1, warps, 1, 0)
    # Each program leaves a row of partial results, and as many fit a multiprocessor as its registers hold sums. There
    # are twice as many of one warp where each has rows enough that its sums are little beside them.
    tall = light and outer == 1 and (points or 0) >= TALL_TURNS * 16 * card.units
    resident = max(1, min(16 if tall else 8, LONGEST_ROW // (inner * accumulates)))
    rows = 4 * card.units if points is None else -(-points // outer)
    programs = max(min(resident * card.units, rows), 1)
    ahead = 1 if light and outer > 1 and inner <= 256 else 0
    return Blocks("persistent", outer, inner, 1, warps, 1, programs, ahead)


def _row_bytes(kernel: Kernel, *, alone: bool = False, within: bool = False) -> int:
    """Bytes of what each element of a row has for itself, read and written.

    `alone`: also of a single row; `within`: without what neighbours of a channel share.
    """
    outer = set(outer_symbols(kernel.body.ranges))
    last = inner_symbols(kernel.body.reduction_ranges)[-1]
    sizes = {argument.buffer: argument.dtype.itemsize for argument in kernel.arguments}
    touched = {
        (operation.buffer, operation.index)
        for _, operation, stage in kernel.body.operations()
        if stage.level == "inner" and operation.buffer in sizes and operation.index is not None
        if alone or not outer.isdisjoint(free_symbols(operation.index))
        if not within or last in free_symbols(operation.index)
    }
    return sum(sizes[buffer] for buffer, _ in touched if buffer is not None)


def _warps_of_rows(kernel: Kernel, elements: int, *, light: bool) -> int:
    """Of a program that holds so many elements of rows; light ones are held by a single warp with a sum of columns."""
    if elements <= 256 or (light and elements <= 1024):
        return 1
    if elements <= 1024:
        return 2
    # a maximum and a sum after it wait for each other: fewer warps wait less
    alone = 2048 < elements <= LONGEST_ROW // 4 and _carries_much(kernel)
    if elements <= 2048 or (alone and online_pairs(kernel.body)):
        return 4
    return 8 if elements <= 8192 else 16


def _columns(kernel: Kernel, points: int | None, row: int | None, card: DeviceProperties) -> Blocks:
    """Neighbouring outer points contiguous in memory: wide tiles, short blocks of the reduction.

    Where these are too few programs for the card, narrow tiles and long blocks.
    """
    few = points is not None and points < 2 * card.units * 64
    if few and row is not None and 64 < row <= 8 * card.units:
        return Blocks("looped", 16, 256 if row > 2 * card.units else 128, 1, 8, 2, 0)
    outer = 64 if points is None or points >= 64 else max(_power_of_two(points), 1)
    longest = 64 if row is None else _power_of_two(row)
    inner = max(min(longest, 4096 // outer, 64), 1)
    mode: Literal["persistent", "looped"] = (
        "persistent" if row is not None and row <= inner else "looped"
    )
    if mode == "looped" and outer == inner == 64 and _carries_much(kernel):
        return Blocks(mode, outer, 32, 1, 4, 2, 0, ahead=2)
    return Blocks(mode, outer, inner, 1, 8 if outer * inner >= 2048 else 4, 2, 0)
