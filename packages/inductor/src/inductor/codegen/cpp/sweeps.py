"""Bodies with reductions: one outer point at a time, or a block of neighbouring points together.

Comes in: a `StripPrinter`. Goes out: the loops of a kernel that has reduction ranges. One outer point: the
sweep is the vector loop, its accumulators are the compiler's own vector reductions, or rows of lanes where
those don't vectorise. A block of points: the sweep runs outside, its accumulators are rows with one entry for
each point. Invariant: a float sum never becomes one long chain of additions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from inductor.analysis.cost import operation_weight
from inductor.analysis.lists import Listed, listed
from inductor.codegen.cpp.entry import STRIP
from inductor.codegen.cpp.reductions import Accumulator, accumulator_for
from inductor.codegen.cpp.strips import StripPrinter
from inductor.codegen.cpp.types import C_TYPES, Value
from inductor.ir.operations import EFFECTS, HALF_DTYPES, Indirect
from primtorch.symbolic import free_symbols

if TYPE_CHECKING:
    from inductor.ir import Size, Stage
    from primtorch.symbolic import Symbol

__all__ = ["SweepPrinter"]

_CHUNK = 1024
_LANES = 64
_FLUSH = 1 << 14
_WIDE = 64
_CHUNK_ROWS = 64
_AHEAD = 384
"""Bytes: a processor's own fetching stops at the end of a page; further than 512 is slower than not at all."""
_LIGHT = 6
"""Work at a point below which a sweep waits for its additions, not for its arithmetic."""
_DIVISIBLE = frozenset({"sum", "prod", "max", "min", "any", "all"})


class SweepPrinter(StripPrinter):
    """Adds the loops of reductions and scans."""

    def _rows(self) -> None:
        """A body with reductions, one outer point at a time."""
        with self._outer_loops(len(self.kernel.body.ranges)):
            for stage in self.kernel.body.stages:
                positions = list(range(stage.start, stage.start + len(stage.operations)))
                if stage.level == "outer":
                    for position in positions:
                        self.emit(position)
                else:
                    self._sweep(stage, positions)

    def _sweep(self, stage: Stage, positions: list[int]) -> None:
        del stage
        ranges = self.kernel.body.reduction_ranges
        last = self.inner[-1]
        hoisted = positions
        plan: list[list[int]] = []
        for variable in self.inner:
            # operations that depend on none of the loops from here inward
            before, hoisted = self.split_many(hoisted, self.inner[self.inner.index(variable) :])
            plan.append(before)
        reductions = {
            p: self._reduction(p)
            for p in positions
            if self.operations[p].name in {"reduce", "scan"}
        }
        lanes = self._lane_count(hoisted, reductions)
        flushed = [p for p, a in reductions.items() if lanes and self._must_flush(a)]
        for position, accumulator in reductions.items():
            for text in (
                accumulator.declare_lanes(lanes, spread=True) if lanes else accumulator.declare()
            ):
                self.line(text)
            for text in accumulator.declare_flush(lanes) if position in flushed else ():
                self.line(text)
        depth = len(ranges)
        for k in range(depth - 1):
            for position in plan[k]:
                self.emit(position)
            start, stop = self._bounds(k)
            self.line(f"for (i64 r{k} = {start}; r{k} < {stop}; r{k}++) {{")
            self.depth += 1
        for position in plan[depth - 1]:
            self.emit(position)
        if lanes:
            self._lane_loop(hoisted, reductions, lanes, flushed)
        else:
            self._innermost(hoisted, reductions, last, ranges[-1])
        for _ in range(depth - 1):
            self.depth -= 1
            self.line("}")
        for position, accumulator in reductions.items():
            if accumulator.operation != "reduce":
                continue
            finish = accumulator.finish()
            if lanes:
                used = f"ci_minimum<i64>({lanes}l, {self.index(ranges[-1])})"
                finish = accumulator.gather_lanes(lanes, used, flushed=position in flushed)
            for text in finish:
                self.line(text)
            result = accumulator.lane_result if lanes else accumulator.result
            self.values[position] = Value(result, self.operations[position].dtype)

    def _bounds(self, depth: int) -> tuple[str, str]:
        """Where reduction loop `depth` starts and stops."""
        if (self.split_sweep or self.split_last) and depth == 0:
            return "begin", "end"
        return "0", self.index(self.kernel.body.reduction_ranges[depth])

    # ---- one sweep divided among threads
    def divides_sweep(self) -> bool:
        """Whether the leading reduction loop can be shared: one sweep of plain reductions."""
        kernel = self.kernel
        stages = kernel.body.stages
        if not kernel.decisions.reduction_split or self.column or kernel.locals:
            return False
        if any(extent != 1 for extent in kernel.body.ranges):
            return False
        sweeps = [stage for stage in stages if stage.level == "inner"]
        if len(sweeps) != 1 or any(
            op.name == "indirect" or self.may_trap(p) for p, op in self.operations.items()
        ):
            return False
        for stage in stages[: stages.index(sweeps[0]) + 1]:
            for operation in stage.operations:
                if operation.name in {"store", "accumulate", "scan"}:
                    return False
                if operation.name == "reduce" and (
                    operation.attribute not in _DIVISIBLE or operation.dtype.is_complex
                ):
                    return False
        return True

    def print_divided(self) -> str:
        """The text of a kernel whose sweep is divided: shares, then what follows the sweep."""
        body = self.kernel.body
        sweep = next(stage for stage in body.stages if stage.level == "inner")
        before = [position for position in self.operations if position < sweep.start]
        positions = list(range(sweep.start, sweep.start + len(sweep.operations)))
        reduced = [p for p in positions if self.operations[p].name == "reduce"]
        for position in before:
            self.emit(position)
        self._sweep(sweep, positions)
        for k, position in enumerate(reduced):
            kind = C_TYPES[self.operations[position].dtype]
            self.line(f"*({kind} *)w[{k}] = {self.values[position].text};")
        self.line("return (int)bad;")
        share = "\n".join(self.lines)
        self.lines = []
        count, total = len(reduced), self.index(body.reduction_ranges[0])
        for text in self.parameters:
            self.line(text)
        self.line(f"const i64 total = {total};")
        self.line("threads = threads < total ? threads : (total < 1 ? 1 : total);")
        self.line(f"u64 cells[threads * {count}]; char *rows[threads * {count}];")
        with self.block_of("for (i64 t = 0; t < threads; t++)"):
            for k, position in enumerate(reduced):
                accumulator = self._reduction(position)
                kind = C_TYPES[self.operations[position].dtype]
                self.line(f"rows[t * {count} + {k}] = (char *)&cells[t * {count} + {k}];")
                self.line(f"*({kind} *)rows[t * {count} + {k}] = {accumulator.identity};")
        self.line(
            f"const int failed = ci_run(KERNEL_BODY, p, s, total, threads, rows, {count}, {STRIP});"
        )
        with self.block_of(""):
            self._prologue()
            for symbol in self.outer:
                self.line(f"const i64 {self.names[symbol]} = 0;")
            for position in before:
                self.emit(position)
            for k, position in enumerate(reduced):
                accumulator = self._reduction(position)
                kind = C_TYPES[self.operations[position].dtype]
                self.line(f"{kind} z{position} = *({kind} *)rows[{k}];")
                other = f"*({kind} *)rows[t * {count} + {k}]"
                step = accumulator.combine(f"z{position}", other)
                self.line(f"for (i64 t = 1; t < threads; t++) z{position} = {step};")
                self.values[position] = Value(f"z{position}", self.operations[position].dtype)
            for position in self.operations:
                if position > positions[-1]:
                    self.emit(position)
        self.line("return failed;")
        entry = "\n".join(self.lines)
        return (
            f"{share}\n}}\n"
            f'extern "C" int KERNEL(char *const *p, const i64 *s, i64 threads) {{\n{entry}\n}}'
        )

    def _lane_count(self, positions: list[int], reductions: dict[int, Accumulator]) -> int:
        """Over how many lanes a sweep's reductions are spread; 0: a scalar accumulator serves."""
        ranges = self.kernel.body.reduction_ranges
        plain = all(
            a.operation == "reduce" and not a.kind.startswith("welford")
            for a in reductions.values()
        )
        if not reductions or not plain or self.kernel.decisions.vector is None:
            return 0
        if not self.may_vectorise(positions, self.inner[-1], lanes=True):
            return 0
        extent = ranges[-1]
        short = len(ranges) > 1 and isinstance(extent, int) and 8 <= extent < 512
        if not short and not any(a.kind in {"argmax", "argmin"} for a in reductions.values()):
            return 0  # the compiler's own vector reduction, in registers, is faster
        if not isinstance(extent, int):
            return _LANES
        if extent < 8:
            return 0
        for lanes in (64, 32, 16, 8):
            if extent % lanes == 0:
                return lanes
        return 64 if extent >= 256 else 16

    def _must_flush(self, accumulator: Accumulator) -> bool:
        extent = self.kernel.body.reduction_ranges[-1]
        long = not isinstance(extent, int) or extent > _FLUSH
        return long and accumulator.kind == "sum" and accumulator.dtype.is_floating_point

    def _lane_loop(
        self,
        positions: list[int],
        reductions: dict[int, Accumulator],
        lanes: int,
        flushed: list[int],
    ) -> None:
        """The last reduction loop in steps of `lanes`, each lane with accumulators of its own."""
        extent = self.kernel.body.reduction_ranges[-1]
        name = self.names[self.inner[-1]]
        start, text = self._bounds(len(self.inner) - 1)
        first, limit = start, text
        if flushed:
            self.line(f"for (i64 f = {start}; f < {text}; f += {_FLUSH}l) {{")
            self.depth += 1
            self.line(f"const i64 fe = ci_minimum<i64>(f + {_FLUSH}l, {text});")
            first, limit = "f", "fe"
        with self.block_of(f"for (i64 c = {first}; c < {limit}; c += {lanes}l)"):
            divided = self.split_sweep and len(self.inner) == 1
            whole = isinstance(extent, int) and extent % lanes == 0 and not divided
            width = f"{lanes}l" if whole else f"ci_minimum<i64>({lanes}l, {text} - c)"
            self.line(f"const i64 m = {width};")
            self.line("#pragma omp simd" + self._bad_clause(positions))
            with self.block_of("for (i64 j = 0; j < m; j++)"):
                self.line(f"const i64 {name} = c + j;")
                for position in positions:
                    self._inner_operation(position, reductions, lane="[j]")
        for position in flushed:
            for statement in reductions[position].flush(lanes):
                self.line(statement)
        if flushed:
            self.depth -= 1
            self.line("}")

    def _reduction(self, position: int) -> Accumulator:
        operation = self.operations[position]
        dtype = self.operations[operation.operands[0]].dtype
        kind = str(operation.attribute)
        dtype = operation.dtype if kind in {"sum", "prod", "any", "all"} else dtype
        slim = all(isinstance(extent, int) for extent in self.kernel.body.reduction_ranges)
        slim = (
            slim and math.prod(cast("tuple[int, ...]", self.kernel.body.reduction_ranges)) < 1 << 31
        )
        scan = operation.name == "scan"
        return accumulator_for(kind, f"g{position}", dtype, scan=scan, slim=slim)

    def _innermost(
        self,
        positions: list[int],
        reductions: dict[int, Accumulator],
        variable: Symbol,
        extent: Size,
    ) -> None:
        simd = self.kernel.decisions.vector is not None and self.may_vectorise(positions, variable)
        clauses: list[str] = []
        if self._checked(positions):
            clauses.append("reduction(|:bad)")
        welford = [p for p, a in reductions.items() if a.kind == "welford"]
        if welford and simd:
            alone = len(welford) == len(reductions)
            walked = positions if alone else self._behind(welford, positions)
            row = isinstance(extent, int) and extent <= 4 * _CHUNK  # is in the first cache
            if (alone or row) and self._repeats(walked):
                self._two_walks(walked, {p: reductions[p] for p in welford}, extent)
                if not alone:
                    others = {p: a for p, a in reductions.items() if p not in welford}
                    ends = [p for p in positions if p in others or self._acts(p)]
                    self._innermost(self._behind(ends, positions), others, variable, extent)
                return
        reduced = {p: a for p, a in reductions.items() if a.operation == "reduce"}  # a scan goes on
        chunked = bool(welford) or (
            any(a.kind == "sum" and a.dtype.is_floating_point for a in reduced.values())
            and not (isinstance(extent, int) and extent <= 4 * _CHUNK)
        )
        start, text = self._bounds(len(self.inner) - 1)
        divided = self.split_sweep and len(self.inner) == 1
        partial: dict[int, Accumulator] = {}
        if chunked:
            # Of a chunk of sums nothing is kept: long ones have fewer ends, and chains stay short.
            usual = _CHUNK if welford else 4 * _CHUNK
            size = extent if isinstance(extent, int) and 0 < extent <= 4 * _CHUNK else usual
            self.line(f"for (i64 c = {start}; c < {text}; c += {size}l) {{")
            self.depth += 1
            whole = isinstance(extent, int) and extent % size == 0 and not divided
            self.line(
                f"const i64 m = {f'{size}l' if whole else f'ci_minimum<i64>({size}l, {text} - c)'};"
            )
            for position, accumulator in reduced.items():
                partial[position] = accumulator.partial()
                for declaration in partial[position].declare_chunk(size, wide=self._of_batches):
                    self.line(declaration)
        active = {p: partial.get(p, a) for p, a in reductions.items()}
        points: Size | None = extent
        if chunked:
            start, text, points = "c", "c + m", size if whole else None
        self._sweep_points(positions, active, start, text, clauses if simd else None, points)
        if chunked:
            for position, accumulator in reduced.items():
                for statement in accumulator.merge(partial[position]):
                    self.line(statement)
            self.depth -= 1
            self.line("}")

    def _sweep_points(
        self,
        positions: list[int],
        active: dict[int, Accumulator],
        base: str,
        stop: str,
        clauses: list[str] | None,
        points: Size | None = None,
        *,
        ahead: bool = True,
    ) -> None:
        """The points from `base` to `stop` of a sweep; without `clauses` one after the other.

        `points`: how many they are, of all threads together, where that is known.
        `ahead`: what is read next is fetched meanwhile, if it isn't read again: a second walk hides the wait better.
        """
        length = "m" if base == "c" else f"({stop} - {base})"
        extent = self.kernel.body.reduction_ranges[-1]
        if clauses is not None and self._waits(positions, active, extent):
            whole = isinstance(points, int) and points % _WIDE == 0
            self._wide_loop(positions, active, base, length, ahead=ahead)
            if whole:
                return
            base, length = f"{base} + q", f"{length} - q"
        else:
            rest = self.strips(positions, self.inner[-1], base, stop, points, active)
            if rest is None:
                return
            if rest != base:
                base, length = rest, f"({stop} - {rest})"
        if clauses is not None:
            told = [clause for a in active.values() for clause in a.clauses()]
            self.line(" ".join(["#pragma omp simd", *clauses, *told]))
        with self.block_of(f"for (i64 j = 0; j < {length}; j++)"):
            self.line(f"const i64 {self.names[self.inner[-1]]} = {base} + j;")
            for position in positions:
                self._inner_operation(position, active, lane="")

    def _acts(self, position: int) -> bool:
        """Whether the operation does something, or what it gives is read after the sweep."""
        operation = self.operations[position]
        return operation.name in EFFECTS or self._reads.get(position, 0) == 0

    def _behind(self, ends: list[int], positions: list[int]) -> list[int]:
        """Those of a sweep's operations that these ends need, and the ends."""
        needed: set[int] = set()
        for position in reversed(positions):
            if position in needed or position in ends:
                needed.update((position, *self.operations[position].operands))
        return [position for position in positions if position in needed]

    def _repeats(self, positions: list[int]) -> bool:
        """Whether walking a row twice costs less than keeping its values beside it."""
        operations = [self.operations[position] for position in positions]
        if any(op.name in {"store", "accumulate", "indirect", "scan"} for op in operations):
            return False
        return not self._checked(positions) and self._work(positions) <= _LIGHT

    def _work(self, positions: list[int]) -> int:
        return sum(operation_weight(self.operations[position].name) for position in positions)

    @property
    def _of_batches(self) -> bool:
        """Whether the moments are a batch's, not a row's: eager sums those in double, and deep networks show it."""
        return len(self.inner) > 1

    def _is_full(self, position: int) -> bool:
        """Whether what is reduced has all digits; a chunk of half-precision numbers may be summed in float."""
        source = self.operations[self.operations[position].operands[0]]
        return source.name != "load" or self.storage[str(source.buffer)] not in HALF_DTYPES

    def _two_walks(
        self, positions: list[int], reductions: dict[int, Accumulator], extent: Size
    ) -> None:
        """Mean and squared deviations of a row: a chunk's mean first, then its deviations from that, merged."""
        start, text = self._bounds(len(self.inner) - 1)
        whole = isinstance(extent, int) and extent <= 4 * _CHUNK and not self.split_sweep
        size = f"{extent}l" if whole else f"{_CHUNK}l"
        points = extent if whole else None
        with self.block_of(f"for (i64 c = {start}; c < {text}; c += {size})"):
            self.line(f"const i64 m = {size if whole else f'ci_minimum<i64>({size}, {text} - c)'};")
            sums, spreads = {}, {}
            for position, a in reductions.items():
                total = torch.float64 if self._of_batches and self._is_full(position) else a.dtype
                sums[position] = replace(a, kind="sum", name=f"{a.name}c_s", dtype=total)
                spreads[position] = replace(a, kind="sum", name=f"{a.name}c_q", mean=f"{a.name}c_m")
                self.line(f"{C_TYPES[total]} {a.name}c_s = 0; {a.c_type} {a.name}c_q = 0;")
            with self.block_of(""):
                self._sweep_points(positions, sums, "c", "c + m", [], points, ahead=False)
            for position, a in reductions.items():
                kind = C_TYPES[sums[position].dtype]
                self.line(f"const {a.c_type} {a.name}c_m = ({a.c_type})({a.name}c_s / ({kind})m);")
            with self.block_of(""):
                self._sweep_points(positions, spreads, "c", "c + m", [], points, ahead=False)
            for a in reductions.values():
                self.line(a.merge_chunk())

    def _waits(
        self, positions: list[int], reductions: dict[int, Accumulator], extent: Size
    ) -> bool:
        """Whether each addition of a plain loop would wait for the one before."""
        if not reductions or not all(a.independent for a in reductions.values()):
            return False
        if isinstance(extent, int) and extent < 4 * _WIDE:
            return False
        return self._repeats(positions)

    def _wide_loop(
        self,
        positions: list[int],
        active: dict[int, Accumulator],
        base: str,
        length: str,
        *,
        ahead: bool,
    ) -> None:
        """The first `q` points of a sweep, `_WIDE` at a time, each with accumulators of its own in registers.

        `ahead`: what comes next is fetched meanwhile.
        """
        wide = {p: replace(a, name=f"{a.name}l") for p, a in active.items()}
        places = self.kernel.decisions.places
        if places > 1 and base == "c":
            self.line(f"const i64 part = (end - begin) / {4 * _CHUNK} * {4 * _CHUNK // places};")
        self.line(f"const i64 q = {length} / {_WIDE} * {_WIDE};")
        for accumulator in wide.values():
            for text in accumulator.declare_lanes(_WIDE):
                self.line(text)
        variable = self.inner[-1]
        name = self.names[variable]
        with self.block_of(f"for (i64 b = 0; b < q; b += {_WIDE})"):
            if places > 1 and base == "c":  # whole chunks take their points from all places
                run = f"begin + b / {_WIDE} % {places} * part + (c - begin) / {places}"
                turn = f"{run} + b / {_WIDE * places} * {_WIDE}"
                self.line(f"const i64 at = m == {4 * _CHUNK}l ? {turn} : c + b;")
            else:
                self.line(f"const i64 at = {base} + b;")
            self._at_strip(variable, "at")
            if ahead:
                self._fetch(positions)
            widened = self._widened(positions)
            for position in widened:
                address = self._element(position)
                self.line(f"f32 y{position}[{_WIDE}] __attribute__((aligned(64)));")
                self.line(f"ci_widen_bf16<{_WIDE}>(y{position}, &{address});")
            self._at_strip(variable, name)
            self.line("#pragma omp simd")
            with self.block_of(f"for (i64 k = 0; k < {_WIDE}; k++)"):
                self.line(f"const i64 {name} = at + k;")
                for position in positions:
                    if position in widened:
                        self._define(position, f"y{position}[k]", torch.float32)
                    else:
                        self._inner_operation(position, wide, lane="[k]")
        for position, accumulator in wide.items():
            for text in accumulator.gather_lanes(_WIDE, "0", flushed=False):
                self.line(text)
            for text in active[position].absorb(accumulator.lane_result):
                self.line(text)

    def _element(self, position: int) -> str:
        operation = self.operations[position]
        assert operation.buffer is not None
        assert operation.index is not None
        return self._address(operation.buffer, operation.index)

    def _fetch(self, positions: list[int]) -> None:
        """Asks for what the sweep reads in a moment, a line at a time."""
        for position in positions:
            operation = self.operations[position]
            if operation.name == "load" and self._step(operation, self.inner[-1]) == 1:
                size = self.storage[str(operation.buffer)].itemsize
                lines = f"for (i64 k = 0; k < {_WIDE * size}; k += 64)"
                text = f"(const char *)&{self._element(position)} + k + {_AHEAD}"
                self.line(f"{lines} __builtin_prefetch({text});")

    def _widened(self, positions: list[int]) -> list[int]:
        """Loads of bfloat16 that are widened for all lanes at once, which are then in another order.

        None if anything but these loads tells the lanes apart.
        """
        variable = self.inner[-1]
        found: list[int] = []
        for position in positions:
            operation = self.operations[position]
            if operation.index is None or variable not in free_symbols(operation.index):
                continue
            storage = self.storage.get(operation.buffer or "")
            if operation.name != "load" or operation.masked or storage is not torch.bfloat16:
                return []
            if self._step(operation, variable) != 1:
                return []
            found.append(position)
        return found

    def _columns(self) -> None:
        body = self.kernel.body
        count = len(body.ranges)
        extent = body.ranges[-1]
        crossing = self._crossing()
        terms = listed(body)
        if terms is not None:
            self._lists(terms)
        with self._outer_loops(count):
            whole = isinstance(extent, int) and extent % self.block == 0
            width = (
                f"{self.block}l"
                if whole
                else f"ci_minimum<i64>({self.block}l, {self.index(extent)} - ib * {self.block}l)"
            )
            self.line(f"const i64 m = {width};")
            for position in crossing:
                dtype = self.operations[position].dtype
                self.line(
                    f"{C_TYPES[dtype]} y{position}[{self.block}] __attribute__((aligned(64)));"
                )
            for stage in body.stages:
                positions = list(range(stage.start, stage.start + len(stage.operations)))
                if stage.level == "outer":
                    self._lanes(positions, {}, crossing)
                else:
                    self._column_sweep(positions, crossing)
        if terms is not None:
            self.line("__builtin_free(heads);")

    def _crossing(self) -> list[int]:
        """Values of outer stages that a later stage reads: kept as one array entry for each lane."""
        found: set[int] = set()
        for stage in self.kernel.body.stages:
            for operation in stage.operations:
                for operand in operation.operands:
                    source = self.operations[operand]
                    outside = operand < stage.start
                    if outside and source.name not in {"constant", "argument", "reduce"}:
                        found.add(operand)
        return sorted(found)

    def _lanes(
        self, positions: list[int], reductions: dict[int, Accumulator], crossing: list[int]
    ) -> None:
        """The loop over the lanes of a block."""
        variable = self.outer[-1]
        simd = self.may_vectorise(positions, variable) and not any(
            self.operations[p].name == "accumulate" for p in positions
        )
        if simd:
            self.line(
                "#pragma omp simd" + (" reduction(|:bad)" if self._checked(positions) else "")
            )
        first = positions[0] if positions else 0
        kept = set(crossing)
        with self.block_of("for (i64 j = 0; j < m; j++)"):
            self.line(f"const i64 {self.names[variable]} = ib * {self.block}l + j;")
            for position in positions:
                for operand in self.operations[position].operands:
                    if (
                        operand in kept
                        and operand < first
                        and self.values[operand].text != f"y{operand}[j]"
                    ):
                        self.values[operand] = Value(
                            f"y{operand}[j]", self.operations[operand].dtype
                        )
                self._inner_operation(position, reductions, lane="[j]")
                if position in kept:
                    self.line(f"y{position}[j] = {self.values[position].text};")
        for position in positions:
            if position in kept:
                # what is the same in all lanes may be read before a loop over them
                lane = "j" if variable in self.depends[position] else "0"
                entry = f"y{position}[{lane}]"
                self.values[position] = Value(entry, self.operations[position].dtype)
                indirect = self.operations[position].attribute
                if isinstance(
                    indirect, Indirect
                ):  # its symbol stands in the indices of later loads
                    self.names[indirect.symbol] = entry
                    self.index.forget()

    def _column_sweep(self, positions: list[int], crossing: list[int]) -> None:
        ranges = self.kernel.body.reduction_ranges
        reductions = {
            p: self._reduction(p)
            for p in positions
            if self.operations[p].name in {"reduce", "scan"}
        }
        terms = listed(self.kernel.body)
        if terms is not None:
            positions = self._terms(positions, terms)
        deep = terms is None and self._deep(positions, reductions)
        for accumulator in reductions.values():
            for text in accumulator.declare_lanes(self.block, wide=deep):
                self.line(text)
        if deep:
            self._column_chunks(positions, reductions, crossing)
        else:
            for k, extent in enumerate(ranges):
                steps = f"r{k} = 0; r{k} < {self.index(extent)}; r{k}++"
                if terms is not None:
                    steps = "r0 = heads[i0]; r0 >= 0; r0 = nexts[r0]"
                self.line(f"for (i64 {steps}) {{")
                self.depth += 1
            self._column_points(positions, reductions, crossing)
            for _ in ranges:
                self.depth -= 1
                self.line("}")
        for position, accumulator in reductions.items():
            if accumulator.operation == "reduce":
                for text in accumulator.finish_lanes(self.block):
                    self.line(text)
                self.values[position] = Value(
                    f"{accumulator.result}[j]", self.operations[position].dtype
                )

    def _terms(self, positions: list[int], terms: Listed) -> list[int]:
        """What a term that is in a row's list needs; that it is in it needs no test."""
        self.values[terms.mask] = Value("true", torch.bool)
        needed = {terms.choice}
        for position in reversed(positions):
            operation = self.operations[position]
            if position in needed or operation.name == "reduce":
                needed |= {position, *operation.operands} - {terms.mask}
        return [position for position in positions if position in needed]

    def _lists(self, terms: Listed) -> None:
        """For each row the numbers of its terms, rising: the first, and after each the next."""
        rows, (count,) = self.kernel.body.ranges[0], self.kernel.body.reduction_ranges
        self.line(
            f"i32 *const heads = (i32 *)__builtin_malloc(({self.index(rows)} + {self.index(count)}) * sizeof(i32));"
        )
        self.line(f"i32 *const nexts = heads + {self.index(rows)};")
        self.line(f"for (i64 i = 0; i < {self.index(rows)}; i++) heads[i] = -1;")
        needed = {terms.place}
        for position in range(terms.place, -1, -1):
            if position in needed:
                needed.update(self.operations[position].operands)
        with self.block_of(f"for (i64 r0 = {self.index(count)} - 1; r0 >= 0; r0--)"):
            for position in sorted(needed):
                self.emit(position)
            place = self.values[terms.place].text
            self.line(f"nexts[r0] = heads[{place}];")
            self.line(f"heads[{place}] = (i32)r0;")

    def _column_points(
        self, positions: list[int], reductions: dict[int, Accumulator], crossing: list[int]
    ) -> None:
        """What happens at one reduction point for the points of a block."""
        before, within = self.split(positions, self.outer[-1])
        for position in before:
            self.emit(position)
        for accumulator in reductions.values():
            for text in accumulator.step():
                self.line(text)
        self._lanes(within, reductions, crossing)

    def _deep(self, positions: list[int], reductions: dict[int, Accumulator]) -> bool:
        """Whether chains of additions are long enough to be cut into chunks."""
        if not any(accumulator.chunked for accumulator in reductions.values()):
            return False
        cut, _, inside = self._chunk_loop()
        extent = self.kernel.body.reduction_ranges[cut]
        if isinstance(extent, int) and extent * inside <= _CHUNK_ROWS // 2:
            return False
        repeated = {self.operations[position].name for position in positions}
        if any(accumulator.kind == "welford" for accumulator in reductions.values()):
            return not {"store", "accumulate", "scan", "indirect"} & repeated
        return not {"scan", "indirect"} & repeated

    def _chunk_loop(self) -> tuple[int, int, int]:
        """The reduction loop that is cut, its steps in a chunk, and the points of the loops inside each step.

        Small images of a large batch have many short rows: a chunk is several of them, not a part of one.
        """
        ranges = self.kernel.body.reduction_ranges
        cut, inside = len(ranges) - 1, 1
        while cut:
            extent = ranges[cut]
            if not isinstance(extent, int) or not 0 < extent * inside <= _CHUNK_ROWS // 2:
                break
            inside *= extent
            cut -= 1
        return cut, max(1, _CHUNK_ROWS // inside), inside

    def _column_chunks(
        self, positions: list[int], reductions: dict[int, Accumulator], crossing: list[int]
    ) -> None:
        """The sweep in chunks of rows that fit the first cache.

        A chunk's sums are added up by themselves; its squared deviations are taken from its own mean, in a second
        walk over the chunk, and merged with those of the chunks before.
        """
        ranges = self.kernel.body.reduction_ranges
        cut, steps, inside = self._chunk_loop()
        extent = self.index(ranges[cut])
        for k in range(cut):
            self.line(f"for (i64 r{k} = 0; r{k} < {self.index(ranges[k])}; r{k}++) {{")
            self.depth += 1
        within = (
            f" for (i64 r{k} = 0; r{k} < {self.index(ranges[k])}; r{k}++)"
            for k in range(cut + 1, len(ranges))
        )
        loop = f"for (i64 r{cut} = c; r{cut} < e; r{cut}++)" + "".join(within)
        count = f"(e - c) * {inside}l" if inside > 1 else "e - c"
        with self.block_of(f"for (i64 c = 0; c < {extent}; c += {steps}l)"):
            self.line(f"const i64 e = ci_minimum<i64>(c + {steps}l, {extent});")
            chunked = {p: a for p, a in reductions.items() if a.chunked}
            sums = {p: a.column_sum() for p, a in chunked.items()}
            for accumulator in sums.values():
                for text in accumulator.declare_lanes(self.block):
                    self.line(text)
            with self.block_of(loop):
                self._column_points(positions, {**reductions, **sums}, crossing)
            spread = {p: a for p, a in chunked.items() if a.kind == "welford"}
            for accumulator in spread.values():
                for text in accumulator.column_mean(self.block, count):
                    self.line(text)
            if spread:
                kept = [p for p in positions if p in spread or p not in reductions]
                with self.block_of(loop):
                    around = {p: a.column_deviation() for p, a in spread.items()}
                    self._column_points(kept, around, crossing)
            for accumulator in chunked.values():
                for text in accumulator.column_merge(self.block, count):
                    self.line(text)
        for _ in range(cut):
            self.depth -= 1
            self.line("}")
