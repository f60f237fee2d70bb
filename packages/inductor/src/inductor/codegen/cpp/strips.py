"""Vector loops in strips: neighbouring points together, and what the vectoriser can't write done for all at once.

Comes in: an `EntryPrinter`. Goes out: loops of a constant number of steps, between them calls of `strips.h`'s functions
over as many values: the narrowing of results to half precision, exponentials, error and circular functions. The
compiler unrolls such loops and keeps the strip's arrays in registers. Invariant: a strip reads and writes only points
of its loop, and does no point twice unless that changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from inductor.codegen.cpp.entry import STRIP, EntryPrinter
from inductor.codegen.cpp.types import C_TYPES, Value, storage_type
from inductor.ir.operations import combines
from primtorch.symbolic import substitute

if TYPE_CHECKING:
    from inductor.codegen.cpp.reductions import Accumulator
    from inductor.ir import Operation, Size
    from inductor.ir.kernel import Streamed
    from primtorch.symbolic import Symbol

__all__ = ["StripPrinter"]

_WHOLE = {"erf": False, "exp": True, "sin": False, "cos": False, "tan": False}
"""Operations that `strips.h` has for a strip of floats; True: better than one by one only on vectors of 512 bits."""

_NARROWED = frozenset({torch.bfloat16, torch.float16})


class StripPrinter(EntryPrinter):
    """Adds loops in strips."""

    def strips(
        self,
        positions: list[int],
        variable: Symbol,
        start: str,
        stop: str,
        extent: Size | None,
        reductions: dict[int, Accumulator] | None = None,
    ) -> str | None:
        """Prints the points from `start` to `stop` in strips; gives where the rest begins, None if there is none.

        `extent`: how many points all threads together have; None where that isn't known.
        """
        reductions = reductions or {}
        narrow = self._strip_stores(positions, variable)
        count = self._strip_length(positions)
        if not self._pays(positions, variable, narrow, reductions):
            return start
        whole = isinstance(extent, int) and extent % count == 0
        again = isinstance(extent, int) and extent >= count and self._repeatable(positions)
        end, base = stop, "b"
        if not whole and (reductions or not again):
            end = f"e{positions[0]}"
            self.line(f"const i64 {end} = {start} + ({stop} - {start}) / {count} * {count};")
        elif not whole:  # the last strip does points of the one before again
            base = f"ci_minimum<i64>(b, {stop} - {count})"
        wide = {
            p: replace(a, name=f"{a.name}l") for p, a in reductions.items() if not self._is_scan(p)
        }
        for accumulator in wide.values():
            for text in accumulator.declare_lanes(count):
                self.line(text)
        with self.block_of(f"for (i64 b = {start}; b < {end}; b += {count})"):
            self.line(f"const i64 at = {base};")
            self._strip(positions, variable, narrow, {**reductions, **wide}, count)
        for position, accumulator in wide.items():
            for text in accumulator.gather_lanes(count, "0", flushed=False):
                self.line(text)
            for text in reductions[position].absorb(accumulator.lane_result):
                self.line(text)
        return end if end != stop else None

    def _pays(
        self,
        positions: list[int],
        variable: Symbol,
        narrow: dict[int, int],
        reductions: dict[int, Accumulator],
    ) -> bool:
        """Whether something in the loop is better done for a strip, and nothing in it is against strips."""
        apart = [position for position in positions if not self._is_scan(position)]
        if self.kernel.decisions.vector is None or not self.may_vectorise(apart, variable):
            return False
        names = {self.operations[position].name for position in positions}
        if self._checked(positions) or "indirect" in names:
            return False
        if not all(a.independent or self._is_scan(p) for p, a in reductions.items()):
            return False
        return bool(narrow) or any(self._is_whole(position) for position in positions)

    def _strip_length(self, positions: list[int]) -> int:
        """Two vectors of floats; with bytes a whole vector of those, or all vectors would be shorter."""
        for position in positions:
            operation = self.operations[position]
            memory = operation.buffer is not None and self.storage[operation.buffer].itemsize == 1
            if memory or operation.dtype in {torch.int8, torch.uint8}:
                return STRIP
        return STRIP // 2

    def _is_scan(self, position: int) -> bool:
        return self.operations[position].name == "scan"

    def _stands_alone(self, position: int) -> bool:
        """Whether the strip is done with everything before when this begins."""
        return self._is_whole(position) or self._is_scan(position)

    def _is_whole(self, position: int) -> bool:
        operation = self.operations[position]
        if operation.dtype is not torch.float32 or operation.name not in _WHOLE:
            return False
        return self.wide or not _WHOLE[operation.name]

    def _strip_stores(self, positions: list[int], variable: Symbol) -> dict[int, int]:
        """Stores of neighbours that are done for a strip at once, each with its value.

        That is half-precision numbers that have to be rounded, and floats that are written past the caches.
        """
        found: dict[int, int] = {}
        for position in positions:
            operation = self.operations[position]
            if operation.name != "store" or operation.masked or combines(operation):
                continue
            if len(operation.operands) > 1 or self._step(operation, variable) != 1:
                continue
            verb, source = "to", operation.operands[0]
            if operation.dtype in _NARROWED:
                verb, source = self._narrowing(source, position, operation.dtype)
            elif operation.dtype is not torch.float32 or self._streamed(operation) is None:
                continue
            if verb == "to" and self.operations[source].dtype is torch.float32:
                found[position] = source
        return found

    @staticmethod
    def _step(operation: Operation, variable: Symbol) -> Size:
        """How far an access moves with a loop."""
        assert operation.index is not None
        return substitute(operation.index, {variable: variable + 1}) - operation.index

    def _streamed(self, operation: Operation) -> Streamed | None:
        """How a result is written past the caches, if it is; the instructions are those of 512-bit vectors."""
        streamed = self.kernel.decisions.streamed if self.wide else ()
        return next((s for s in streamed if s.buffer == operation.buffer and not s.least), None)

    def _repeatable(self, positions: list[int]) -> bool:
        """Whether doing a point twice gives the same: nothing that is read is written."""
        operations = [self.operations[position] for position in positions]
        read = {operation.buffer for operation in operations if operation.name == "load"}
        written = {operation.buffer for operation in operations if operation.name == "store"}
        written |= {old for new, old in self.kernel.reuses if new in written}
        adds = any(op.name == "accumulate" or combines(op) for op in operations)
        return not adds and not read & written

    def _strip(
        self,
        positions: list[int],
        variable: Symbol,
        narrow: dict[int, int],
        reductions: dict[int, Accumulator],
        count: int,
    ) -> None:
        """The `count` points from `at` on."""
        segments = self._segments(positions)
        home = {p: k for k, segment in enumerate(segments) for p in segment}
        kept = set(narrow)
        for position in positions:
            for operand in self._inputs(position, narrow):
                crosses = home.get(operand, home[position]) != home[position]
                if crosses and self.operations[operand].name not in {"constant", "argument"}:
                    kept.add(operand)
        for position in sorted(kept):
            kind = C_TYPES[self.operations[narrow.get(position, position)].dtype]
            self.line(f"{kind} y{position}[{count}] __attribute__((aligned(64)));")
        name = self.names[variable]
        for segment in segments:
            if self._is_whole(segment[0]):
                (position,) = segment
                operation = self.operations[position]
                operand = operation.operands[0]
                self.line(f"ci_{operation.name}_strip<{count}>(y{position}, y{operand});")
                self.values[position] = Value(f"y{position}[k]", operation.dtype)
                continue
            scans = self._is_scan(segment[0])  # each value waits for the one before
            if not scans:
                self.line("#pragma omp simd")
            with self.block_of(f"for (i64 k = 0; k < {count}; k++)"):
                self.line(f"const i64 {name} = at + k;")
                for position in segment:
                    if position in narrow:
                        self.line(f"y{position}[k] = {self.values[narrow[position]].text};")
                        continue
                    self._inner_operation(position, reductions, lane="" if scans else "[k]")
                    if position in kept:
                        self.line(f"y{position}[k] = {self.values[position].text};")
            for position in segment:
                if position in kept and position not in narrow:
                    self.values[position] = Value(
                        f"y{position}[k]", self.operations[position].dtype
                    )
        self._at_strip(variable, "at")
        for position in narrow:
            operation = self.operations[position]
            assert operation.buffer is not None
            assert operation.index is not None
            address = self._address(operation.buffer, operation.index)
            streamed = self._streamed(operation)
            verb, where = "narrow", ""
            if streamed is not None:
                verb, where = "stream", ", alone" if streamed.alone else ""
                self.streaming = True
            kind = storage_type(operation.dtype)
            self.line(f"ci_{verb}_{kind}<{count}>(&{address}, y{position}{where});")
        self._at_strip(variable, name)

    def _at_strip(self, variable: Symbol, name: str) -> None:
        self.names[variable] = name
        self.index.forget()

    def _inputs(self, position: int, narrow: dict[int, int]) -> tuple[int, ...]:
        if position in narrow:
            return (narrow[position],)
        return self.operations[position].operands

    def _segments(self, positions: list[int]) -> list[list[int]]:
        """Runs of operations that one loop does; operations over whole strips stand alone."""
        segments: list[list[int]] = []
        for position in positions:
            if self._stands_alone(position):
                segments.append([position])
            elif segments and not self._stands_alone(segments[-1][0]):
                segments[-1].append(position)
            else:
                segments.append([position])
        return segments

    def _inner_operation(
        self, position: int, reductions: dict[int, Accumulator], lane: str
    ) -> None:
        """One operation of a sweep, at a reduction point."""
        operation: Operation = self.operations[position]
        if position in reductions:
            accumulator = reductions[position]
            operands = [self.values[operand].text for operand in operation.operands]
            for text in accumulator.update(operands, self._linear_inner(), lane):
                self.line(text)
            if operation.name == "scan":
                self._define(position, f"{accumulator.name}{lane}", operation.dtype)
            return
        if operation.name == "accumulate":
            row = f"w{position}[{self._linear_inner()}]"
            combined = self._accumulator(position).combine(
                row, self.values[operation.operands[0]].text
            )
            self.line(f"{row} = {combined};")
            return
        self.emit(position)
