"""Prints one scheduled kernel as a self-contained C++ function.

Comes in: an `inductor.ir.Kernel`, in which every decision is made. Goes out: `CppKernel`, text in terms of `prelude.h`
whose names are positions, so that equal computations have equal texts. The function takes the buffers' addresses, the
sizes, scalars and literals as 64-bit words, and a number of threads; it returns 0, or the number of the bounds check
that failed plus one. Invariant: the text depends on nothing but the kernel and the width of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inductor.codegen.cpp.entry import STRIP
from inductor.codegen.cpp.sweeps import SweepPrinter
from primtorch.symbolic import substitute

if TYPE_CHECKING:
    from inductor.ir import Kernel, Size
    from primtorch.symbolic import Symbol

__all__ = ["CppKernel", "kernel_source"]


@dataclass(frozen=True, slots=True)
class CppKernel:
    """A printed kernel.

    Fields:
        text: defines `KERNEL` and its helper `KERNEL_BODY`.
        literals: words that follow sizes and scalars in the call; kept out of the text so that kernels which differ
            only in, say, the offset of their random numbers are one kernel.
        checks: positions of the operations that can refuse their data (bounds, division by zero).
    """

    text: str
    literals: tuple[int, ...]
    checks: tuple[int, ...]


def kernel_source(kernel: Kernel, *, wide: bool = True) -> CppKernel:
    """The C++ text of `kernel`; `wide`: for a processor with vectors of 512 bits."""
    return _KernelPrinter(kernel, wide=wide).print()


class _KernelPrinter(SweepPrinter):
    """Adds pointwise bodies, in tiles or not, and the whole text."""

    def print(self) -> CppKernel:
        """The whole text."""
        body = self.kernel.body
        self.split_sweep = self.divides_sweep()
        self._prologue()
        head = (
            "static __attribute__((noinline)) int "
            "KERNEL_BODY(char *const *p, const i64 *s, i64 begin, i64 end, char *const *w) {\n"
        )
        if self.split_sweep:
            for symbol in self.outer:
                self.line(f"const i64 {self.names[symbol]} = 0;")
            return CppKernel(head + self.print_divided(), tuple(self.literals), ())
        if not body.reduction_ranges:
            self._pointwise()
        elif self.column:
            self._columns()
        else:
            self._rows()
        for local in self.kernel.locals:
            if self._on_heap(local.dtype, local.length):
                self.line(f"__builtin_free({self.locals[local.name]});")
        if self.streaming:
            self.line("ci_streamed();")
        self.line("return (int)bad;")
        inner = "\n".join(self.lines)
        text = f"{head}{inner}\n}}\n{self._entry()}"
        return CppKernel(text, tuple(self.literals), tuple(self.checks))

    def _pointwise(self) -> None:
        body = self.kernel.body
        positions = list(self.operations)
        count = len(body.ranges)
        if count == 0:
            for position in positions:
                self.emit(position)
            return
        last = self.outer[-1]
        own = self.split_last or self._lone_vector()
        with self._outer_loops(count - 1):
            if self.copied:
                self._turned_copy()
                return
            if self.turned:
                self._tiles()
                return
            start, stop = "0", self.index(body.ranges[-1])
            if own:
                start, stop = "begin", "end"
            self._last_loop(positions, last, start, stop, body.ranges[-1])

    def _last_loop(
        self, positions: list[int], last: Symbol, start: str, stop: str, extent: Size | None
    ) -> None:
        """The innermost loop of a pointwise body, with what it does not move before it."""
        before, within = self.split(positions, last)
        for position in before:
            self.emit(position)
        rest = self.strips(within, last, start, stop, extent)
        if rest is None:
            return
        places = self.kernel.decisions.places
        if places > 1 and rest == start == "begin":
            self._in_turn(within, last, places)
            return
        start = rest
        if self.kernel.decisions.vector is not None and self.may_vectorise(within, last):
            self.line("#pragma omp simd" + self._bad_clause(within))
        name = self.names[last]
        with self.block_of(f"for (i64 {name} = {start}; {name} < {stop}; {name}++)"):
            for position in within:
                self.emit(position)

    def _in_turn(self, positions: list[int], last: Symbol, places: int) -> None:
        """The thread's points in strips, one at each of several places in turn."""
        self.line(
            f"const i64 part = (end - begin + {places * STRIP - 1}) / {places * STRIP} * {STRIP};"
        )
        with self.block_of(f"for (i64 b = 0; b < part / {STRIP} * {places}; b++)"):
            self.line(f"const i64 at = begin + b % {places} * part + b / {places} * {STRIP};")
            self.line(f"const i64 most = ci_minimum<i64>(at + {STRIP}, end);")
            if self.may_vectorise(positions, last):
                self.line("#pragma omp simd" + self._bad_clause(positions))
            name = self.names[last]
            with self.block_of(f"for (i64 {name} = at; {name} < most; {name}++)"):
                for position in positions:
                    self.emit(position)

    def _turned_copy(self) -> None:
        """A share of a transposition's rows at once."""
        tile, body = self.kernel.decisions.tile, self.kernel.body
        assert tile is not None
        across, along = min(tile.dimensions), len(body.ranges) - 1
        a = self.names[self.outer[across]]
        extents = [self.index(extent) for extent in body.ranges]
        load, store = self.operations.values()
        assert load.buffer is not None
        assert store.buffer is not None
        assert load.index is not None
        assert store.index is not None
        itemsize = self.storage[load.buffer].itemsize
        step = substitute(store.index, {self.outer[across]: self.outer[across] + 1}) - store.index
        rows, columns = f"{a}n", extents[along]
        self.line(
            f"const i64 {a}s = {a}t * {self.tile_size}, "
            f"{rows} = ci_minimum<i64>({self.tile_size}, {extents[across]} - {a}s);"
        )
        self.names.update({self.outer[across]: f"{a}s", self.outer[along]: "0l"})
        self.index.forget()
        kind = f"u{itemsize * 8}"
        source = f"(const {kind} *)&{self._address(load.buffer, load.index)}"
        target = f"({kind} *)&{self._address(store.buffer, store.index)}"
        (stride,) = self.turned.values()
        found = (s.least for s in self.kernel.decisions.streamed if s.buffer == store.buffer)
        least = next(found, None)
        large = "false" if least is None else "true"
        if least:
            large = f"{' * '.join(extents)} * {itemsize} >= {least}l"
        self.line(
            f"ci_transpose<{kind}>({source}, {self.index(stride)}, {target}, {self.index(step)}, "
            f"{rows}, {columns}, {large});"
        )

    def _tiles(self) -> None:
        tile, body = self.kernel.decisions.tile, self.kernel.body
        assert tile is not None
        size = self.tile_size
        across, along = min(tile.dimensions), len(body.ranges) - 1
        a, b = self.names[self.outer[across]], self.names[self.outer[along]]
        extents = [self.index(extent) for extent in body.ranges]
        # Blocks of the last loop outside, of the other one inside: so the turned operand is read on, row by row.
        self.line(
            f"const i64 {b}s = {a}t * {size}, {b}n = ci_minimum<i64>({size}, {extents[along]} - {b}s);"
        )
        whole = isinstance(body.ranges[along], int) and body.ranges[along] % size == 0
        tiled = size if whole else None
        with self.block_of(f"for (i64 {a}s = 0; {a}s < {extents[across]}; {a}s += {size})"):
            self.line(f"const i64 {a}n = ci_minimum<i64>({size}, {extents[across]} - {a}s);")
            self.names.update({self.outer[across]: f"{a}s", self.outer[along]: f"{b}s"})
            self.index.forget()
            for position, stride in self.turned.items():
                operation = self.operations[position]
                assert operation.buffer is not None
                assert operation.index is not None
                storage = self.storage[operation.buffer]
                kind, memory = f"u{storage.itemsize * 8}", self._memory_type(storage)
                source = f"(const {kind} *)&{self._address(operation.buffer, operation.index)}"
                self.line(f"{memory} q{position}[{size * size}] __attribute__((aligned(64)));")
                self.line(
                    f"ci_turn<{kind}>({source}, {self.index(stride)}, ({kind} *)q{position}, {size}, {a}n, {b}n);"
                )
            self.names.update({self.outer[across]: a, self.outer[along]: b})
            self.index.forget()
            with self.block_of(f"for (i64 {a} = {a}s; {a} < {a}s + {a}n; {a}++)"):
                self._last_loop(
                    list(self.operations), self.outer[along], f"{b}s", f"{b}s + {b}n", tiled
                )
