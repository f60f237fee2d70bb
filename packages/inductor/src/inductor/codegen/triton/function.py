"""What every part of a Triton function's writer shares: its lines, its names, and the masks that are in force.

Comes in: a kernel and its `Blocks`. Goes out: the lowest layer of the writer; `memory`, `reductions`, `sweeps` and
`kernel` each add one. Invariant: a line is written where the depth says, and a name is given once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from inductor.analysis.affine import coefficient
from inductor.analysis.online import online_pairs
from inductor.codegen.triton.expressions import expression_text
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.operations import EFFECTS, HALF_DTYPES
from inductor.ir.recorder import constant_value
from primtorch.symbolic import Symbol, free_symbols, substitute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.codegen.triton.operations import TritonOps
    from inductor.ir import Kernel, Operation, Size
    from inductor.ir.operations import ReductionKind
    from inductor.schedule.blocks import Blocks

__all__ = ["Accumulator", "Column", "Function"]


@dataclass(slots=True)
class Accumulator:
    """A reduction of the stage being written: what stands before, in and after its loop."""

    position: int
    kind: ReductionKind
    dtype: torch.dtype
    values: tuple[str, ...]


@dataclass(slots=True)
class Column:
    """An `accumulate`: a row of partial results that one program carries over its outer points."""

    buffer: str
    index: Size
    kind: ReductionKind
    dtype: torch.dtype
    name: str


def _policies(kernel: Kernel, totals: frozenset[int]) -> dict[int, str]:
    """What the cache is told of loads that several walks of a row have in common, by position.

    A stage that yields but `totals`, known since an earlier walk, is none: its rows are computed where they are read.
    """
    outer, written = set(outer_symbols(kernel.body.ranges)), {a.buffer for a in kernel.arguments}
    walks: dict[tuple[str, Size], dict[int, int]] = {}
    waiting: list[tuple[int, Operation]] = []
    for number, stage in enumerate(kernel.body.stages):
        if stage.level != "inner":
            continue
        numbered = list(enumerate(stage.operations, stage.start))
        waiting += [(p, o) for p, o in numbered if o.name == "load" and not o.masked]
        reduced = {position for position, operation in numbered if operation.name == "reduce"}
        if reduced and reduced <= totals and not any(_leaves(o, written) for _, o in numbered):
            continue
        for position, load in waiting:
            assert load.buffer is not None
            assert load.index is not None
            if not outer.isdisjoint(free_symbols(load.index)):
                walks.setdefault((load.buffer, load.index), {})[position] = number
        waiting = []
    return {
        position: "evict_first" if number == max(places.values()) else "evict_last"
        for places in walks.values()
        if len(set(places.values())) > 1
        for position, number in places.items()
    }


def _by_position(value: Size, position: Symbol, parts: Sequence[tuple[Symbol, Size]]) -> Size:
    """An index whose loop variables only make up their linear position, over that: neighbours are seen as such."""
    if isinstance(value, int) or not any(symbol in free_symbols(value) for symbol, _ in parts):
        return value
    step = coefficient(value, parts[-1][0])
    if not isinstance(step, int) or step == 0:
        return value
    whole: Size = 0
    factor = step
    for symbol, extent in reversed(parts):
        if coefficient(value, symbol) != factor:
            return value
        whole = whole + symbol * factor
        assert isinstance(extent, int)
        factor *= extent
    rest = substitute(value, {symbol: 0 for symbol, _ in parts})
    return rest + position * step if rest + whole == value else value


def _leaves(operation: Operation, buffers: set[str]) -> bool:
    """Whether an operation writes one of these."""
    return operation.name in EFFECTS and operation.buffer in buffers


class Function:
    """A function that is being written."""

    _ops: TritonOps

    def __init__(self, kernel: Kernel, blocks: Blocks, left: frozenset[str] = frozenset()) -> None:
        """`left` are buffers that other programs of the same launch have written."""
        self._kernel = kernel
        self._left = left
        self._body = kernel.body
        self._blocks = blocks
        self._lines: list[str] = []
        self._depth = 1
        self._index_type = "tl.int64" if kernel.decisions.wide_index else "tl.int32"
        self._parameters = {a.buffer: f"p{k}" for k, a in enumerate(kernel.arguments)}
        self._arguments = {name: f"c{k}" for k, (name, _) in enumerate(kernel.scalars)}
        self._names: dict[Symbol, str] = {}
        self._positions: dict[Symbol, tuple[tuple[Symbol, Size], ...]] = {}
        for position, size in enumerate(kernel.sizes):
            assert isinstance(size, Symbol), "a kernel's size parameter is a symbol"
            self._names[size] = f"n{position}"
        self._outer = outer_symbols(kernel.body.ranges)
        self._inner = inner_symbols(kernel.body.reduction_ranges)
        self._sweeps = bool(kernel.body.reduction_ranges)
        self._looped = blocks.mode == "looped"
        self._outer_mask: str | None = None
        self._inner_mask: str | None = None
        self._level = "outer"
        self._values: dict[int, str] = {}
        self._memory: dict[tuple[str, Size], str] = {}
        self._stored: set[str] = set()
        self._local_origin: dict[str, tuple[int, Size]] = {}
        self._operations = {
            position: operation for position, operation, _ in kernel.body.operations()
        }
        self._inner_positions = {
            position
            for position, operation, stage in kernel.body.operations()
            if stage.level == "inner" and operation.name not in ("reduce", "part")
        }
        self._accumulators: list[Accumulator] = []
        self._columns: list[Column] = []
        self._indirect_symbols: set[Symbol] = set()
        self._carries: list[str] = []
        self._words: dict[int, str] = {}
        self._asked: set[int] = set()
        self._waiting: list[int] = []
        self._online: dict[int, int] = {}
        if self._looped and blocks.outer == 1:
            self._online = {pair.maximum: pair.total for pair in online_pairs(kernel.body)}
        self._online_totals = frozenset(self._online.values())
        self._policies = _policies(kernel, self._online_totals) if blocks.keeps else {}
        widest = max((dtype.itemsize for dtype in self._varying()), default=4)
        # what one thread loads at once
        self._online_group = max(min(16 // widest, blocks.inner), 1)
        self._position = 0
        self._checked = False
        self._fresh = 0

    @property
    def narrow(self) -> bool:
        """Whether all that varies within a row, or from point to point, is of half types.

        Its rounding hides what the card's own exponential loses.
        """
        floating = {dtype for dtype in self._varying() if dtype.is_floating_point}
        return bool(floating) and floating <= HALF_DTYPES

    def _varying(self) -> set[torch.dtype]:
        """Types of the buffers that are touched within a row, or at each point."""
        level = "inner" if self._sweeps else "outer"
        types = {argument.buffer: argument.dtype for argument in self._kernel.arguments}
        return {
            types[operation.buffer]
            for _, operation, stage in self._body.operations()
            if stage.level == level and operation.buffer in types
        }

    @property
    def row_constant(self) -> bool:
        """Whether the second operand of what is being written within a row is the same all along it."""
        operation = self._operations[self._position]
        return (
            self._sweeps
            and self._level == "inner"
            and operation.operands[1] not in self._inner_positions
        )

    def erf_plus_one(self) -> str | None:
        """Source of the sum being written, if it is one more than an error function that half types are made of."""
        operation = self._operations[self._position]
        operands = [self._operations[operand] for operand in operation.operands]
        names = {operand.name for operand in operands}
        if names != {"erf", "constant"} or operation.dtype is not torch.float32 or not self.narrow:
            return None
        erf, one = sorted(operands, key=lambda operand: operand.name, reverse=True)
        argument = self._values.get(erf.operands[0])
        if argument is None or constant_value(str(one.attribute)) != 1:
            return None
        return f"prelude.narrow_erf_plus_one({argument})"

    # ---- lines
    def _emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _name(self, prefix: str) -> str:
        self._fresh += 1
        return f"{prefix}{self._fresh}"

    def _text(self, value: Size) -> str:
        for place, parts in self._positions.items():
            value = _by_position(value, place, parts)
        return expression_text(value, self._names)

    def _decode(
        self,
        linear: str,
        symbols: Sequence[Symbol],
        extents: Sequence[Size],
        *,
        written: bool = True,
    ) -> None:
        """Name each loop variable as a part of a linear position (last varies fastest).

        Without `written` they are named and the position is known, but nothing says yet what they are.
        """
        parts = [(s, e) for s, e in zip(symbols, extents, strict=True) if e != 1]
        if len(parts) > 1 and all(isinstance(extent, int) for _, extent in parts):
            place = Symbol(f"{linear}_position")
            self._names[place] = linear
            self._positions[place] = tuple(parts)
        if not written:
            self._names.update((symbol, str(symbol)) for symbol in symbols)
            return
        rest = linear
        for position in range(len(symbols) - 1, -1, -1):
            name, extent = str(symbols[position]), extents[position]
            self._names[symbols[position]] = name
            if isinstance(extent, int) and extent == 1:
                self._emit(f"{name} = tl.zeros_like({linear})")
            elif position == 0:
                self._emit(f"{name} = {rest}")
            else:
                size = self._text(extent)
                self._emit(f"{name} = {rest} % {size}")
                following = f"{name}_rest"
                self._emit(f"{following} = {rest} // {size}")
                rest = following

    def _recompute(self, position: int) -> None:
        """Write an operation again whose value is gone; the layer that walks the stages can."""
        raise NotImplementedError

    def _loop(self, name: str, start: object, stop: str, step: int) -> None:
        """Begin a loop; the lines after it are deeper."""
        ahead = self._blocks.ahead
        if self._blocks.unrolled:
            self._emit(f"for {name} in tl.static_range({start}, {stop}, {step}):")
        elif ahead:
            self._emit(f"for {name} in tl.range({start}, {stop}, {step}, num_stages={ahead + 1}):")
        else:
            self._emit(f"for {name} in range({start}, {stop}, {step}):")
        self._depth += 1

    # ---- shapes
    def _tile_shape(self) -> str:
        return f"[{self._blocks.outer}, {self._blocks.inner}]"

    def _spread(self, value: str) -> str:
        return f"tl.broadcast_to({value}, {self._tile_shape()})"

    def _masked(self, value: str, neutral: str, dtype: str) -> str:
        spread = self._spread(value)
        if self._inner_mask is None:
            return spread
        return f"tl.where({self._inner_mask}, {spread}, {neutral}).to({dtype})"

    def _whole_tile(self) -> str:
        """The name of a zero of the full shape at this level."""
        return "zero_inner" if self._level == "inner" else "zero_outer"
