"""The function around a kernel's loops: parameters, private memory, threads, and what threads accumulated.

Comes in: a `StatementPrinter` that has printed its body. Goes out: the head of the body and the text of the exported
function. Invariant: private rows are combined in thread order, so equal runs give equal bits.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from inductor.codegen.cpp.reductions import Accumulator, accumulator_for
from inductor.codegen.cpp.statements import StatementPrinter
from inductor.codegen.cpp.types import C_TYPES, storage_type
from inductor.ir.operations import HALF_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from inductor.ir import Size

__all__ = ["STRIP", "EntryPrinter"]

STRIP = 64
"""Neighbours that loops in strips compute together at most: a vector of bytes on the widest machine."""
_STACK_BYTES = 1 << 17
_CHUNK_POINTS = 64


class EntryPrinter(StatementPrinter):
    """Adds the head of the body and the exported function."""

    def _prologue(self) -> None:
        for k, argument in enumerate(self.kernel.arguments):
            kind = self._memory_type(argument.dtype)
            const = "const " if argument.access == "read" else ""
            self.line(f"{const}{kind} *const p{k} = ({const}{kind} *)p[{k}];")
        for text in self.parameters:
            self.line(text)
        for k, position in enumerate(self.accumulates):
            kind = C_TYPES[self._accumulator(position).dtype]
            ahead = " + row_length" if self._summed(position) else ""
            if ahead and "const i64 row_length" not in "".join(self.lines):
                self.line(f"const i64 row_length = {self._row_length()};")
            self.line(f"{kind} *const w{position} = ({kind} *)w[{k}]{ahead};")
        self.line("u32 bad = 0;")
        if self.wide and any(streamed.alone for streamed in self.kernel.decisions.streamed):
            self.line(f"const bool alone = end - begin == {self._total()};")
        width = self.block if self.column else 1
        for local in self.kernel.locals:
            kind, name = self._memory_type(local.dtype), self.locals[local.name]
            if self._on_heap(local.dtype, local.length):
                length = f"{self.index(local.length)} * {width}"
                self.line(
                    f"{kind} *const {name} = ({kind} *)__builtin_malloc(sizeof({kind}) * ({length}) + 64);"
                )
            else:
                self.line(
                    f"{kind} {name}[{cast('int', local.length) * width}] __attribute__((aligned(64)));"
                )

    def _memory_type(self, dtype: torch.dtype) -> str:
        if dtype in HALF_DTYPES:
            return "u16" if dtype.itemsize == 2 else "u8"
        return storage_type(dtype)

    def _on_heap(self, dtype: torch.dtype, length: Size) -> bool:
        width = self.block if self.column else 1
        share = _STACK_BYTES // max(1, len(self.kernel.locals))
        return not isinstance(length, int) or length * width * dtype.itemsize > share

    def _entry(self) -> str:
        """The exported function: shares the collapsed loops, combines what threads accumulated."""
        lines = ['extern "C" int KERNEL(char *const *p, const i64 *s, i64 threads) {']
        lines.extend(f"  {text}" for text in self.parameters)
        lines.append(f"  const i64 total = {self._total()};")
        shared = self.parallel or self.split_last
        # rows of sums are needed even where there is nothing to add
        least = "(total < 1 ? 1 : total)" if self.accumulates else "total"
        bound = f"threads < total ? threads : {least}" if shared else "1"
        lines.append(f"  threads = {bound};")
        rows = "0"
        if self.accumulates:
            rows = "rows"
            lines.extend(self._rows_allocation())
        align = STRIP if self.split_last or self._lone_vector() else 1
        share = f"total, threads, {rows}, {len(self.accumulates)}, {align}"
        lines.append(f"  const int bad = ci_run(KERNEL_BODY, p, s, {share});")
        if self.accumulates:
            lines.extend(self._rows_combination())
        lines.append("  return bad;\n}")
        return "\n".join(lines)

    def _total(self) -> str:
        """How many shares the threads divide."""
        extents = self._loop_extents()[: self.parallel]
        if self.split_last:
            body = self.kernel.body
            extents = [self.index((body.reduction_ranges or body.ranges)[-1])]
        return " * ".join(extents) if extents else "1l"

    def _lone_vector(self) -> bool:
        """Whether the vector loop itself is divided among threads."""
        body = self.kernel.body
        return self.parallel == 1 and len(body.ranges) == 1 and not body.reduction_ranges

    def _accumulator(self, position: int) -> Accumulator:
        operation = self.operations[position]
        value = self.operations[operation.operands[0]].dtype
        return accumulator_for(str(operation.attribute), f"w{position}", value)

    def _summed(self, position: int) -> bool:
        """Whether so many rows are added that one chain of additions would lose digits.

        Such a row has a second one behind it, which takes the sums of a few rows and is emptied into the first.
        """
        accumulator = self._accumulator(position)
        if accumulator.kind != "sum" or not accumulator.dtype.is_floating_point:
            return False
        points = 1
        for extent in self.kernel.body.ranges:
            if not isinstance(extent, int):
                return True
            points *= extent
        return points > 2 * _CHUNK_POINTS

    def _empty_rows(self, positions: list[int]) -> None:
        """Adds the second rows to the first ones."""
        for position in positions:
            row, identity = f"w{position}", self._accumulator(position).identity
            step = f"{row}[k - row_length] += {row}[k]; {row}[k] = {identity};"
            self.line("#pragma omp simd")
            self.line(f"for (i64 k = 0; k < row_length; k++) {{ {step} }}")

    @contextmanager
    def _outer_loops(self, stop: int) -> Iterator[None]:
        """The loops over outer points; sums of columns are put by every few of them."""
        summed = [position for position in self.accumulates if self._summed(position)]
        if not summed:
            with super()._outer_loops(stop):
                yield
            return
        self.line("i64 added = 0;")
        with super()._outer_loops(stop):
            yield
            with self.block_of(f"if (++added == {_CHUNK_POINTS})"):
                self.line("added = 0;")
                self._empty_rows(summed)
        self._empty_rows(summed)

    def _row_length(self) -> str:
        return " * ".join(self.index(extent) for extent in self.kernel.body.reduction_ranges)

    def _rows_allocation(self) -> list[str]:
        count = len(self.accumulates)
        lines = [
            f"  const i64 length = {self._row_length()};",
            f"  char *rows[threads * {count} + 1];",
        ]
        lines.append("  for (i64 t = 0; t < threads; t++) {")
        for k, position in enumerate(self.accumulates):
            accumulator = self._accumulator(position)
            kind = C_TYPES[accumulator.dtype]
            cells = "2 * length" if self._summed(position) else "length"
            lines.append(
                f"    {kind} *const w{k} = ({kind} *)__builtin_malloc({cells} * sizeof({kind}) + 64);"
            )
            lines.append(f"    for (i64 k = 0; k < {cells}; k++) w{k}[k] = {accumulator.identity};")
            lines.append(f"    rows[t * {count} + {k}] = (char *)w{k};")
        lines.append("  }")
        return lines

    def _rows_combination(self) -> list[str]:
        count = len(self.accumulates)
        lines = ["  {"]
        for k, position in enumerate(self.accumulates):
            operation = self.operations[position]
            assert operation.buffer is not None
            assert operation.index is not None
            accumulator = self._accumulator(position)
            kind = C_TYPES[accumulator.dtype]
            storage = self._memory_type(self.storage[operation.buffer])
            pointer = f"(({storage} *)p[{self.pointers[operation.buffer][1:]}])"
            for depth, extent in enumerate(self.kernel.body.reduction_ranges):
                lines.append(
                    f"  for (i64 r{depth} = 0; r{depth} < {self.index(extent)}; r{depth}++)"
                )
            lines.append("  {")
            linear = self._linear_inner()
            lines.append(f"    {kind} total = (({kind} *)rows[{k}])[{linear}];")
            step = accumulator.combine("total", f"(({kind} *)rows[t * {count} + {k}])[{linear}]")
            lines.append(f"    for (i64 t = 1; t < threads; t++) total = {step};")
            value = "total"
            if self.storage[operation.buffer] in HALF_DTYPES:
                value = f"ci_to_{storage_type(self.storage[operation.buffer])}(total)"
            lines.append(f"    {pointer}[{self.index(operation.index)}] = {value};")
            lines.append("  }")
        lines.append(f"  for (i64 k = 0; k < threads * {count}; k++) __builtin_free(rows[k]);")
        lines.append("  }")
        return lines

    def _linear_inner(self) -> str:
        text = "0l"
        for depth, extent in enumerate(self.kernel.body.reduction_ranges):
            text = f"r{depth}" if depth == 0 else f"({text} * {self.index(extent)} + r{depth})"
        return text
