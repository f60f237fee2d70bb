"""Prints one scheduled kernel as a self-contained C++ function.

Comes in: an `inductor.ir.Kernel`, in which every decision is made. Goes out: `CppKernel`, text in terms of `prelude.h`
whose names are positions, so that equal computations have equal texts. The function takes the buffers' addresses, the
sizes, scalars and literals as 64-bit words, and a number of threads; it returns 0, or the number of the bounds check
that failed plus one. Invariant: the text depends on nothing but the kernel.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from inductor.codegen.cpp.index import IndexPrinter
from inductor.codegen.cpp.reductions import Accumulator, accumulator_for
from inductor.codegen.cpp.scalar import SCALAR_EXPRESSIONS, ArithmeticOps
from inductor.codegen.cpp.types import C_TYPES, Value, storage_type
from inductor.ir import constant_value
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.operations import HALF_DTYPES, Indirect
from primtorch.symbolic import Symbol, free_symbols, substitute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inductor.ir import Kernel, Operation, Size, Stage

__all__ = ["CppKernel", "kernel_source"]

_PINNED = frozenset({"store", "accumulate", "reduce", "part", "scan", "indirect"})
_RANDOM = frozenset({"philox_uniform", "philox_normal", "philox_bits"})
_SEQUENTIAL = frozenset({"argmax", "argmin", "welford_combine"})
_STACK_BYTES = 1 << 17
_CHUNK = 1024
_LANES = 64
_FLUSH = 1 << 14


@dataclass(frozen=True, slots=True)
class CppKernel:
    """A printed kernel.

    Fields:
        text: defines `KERNEL` and its helper `KERNEL_BODY`.
        literals: words that follow sizes and scalars in the call; kept out of the text so that kernels which differ
            only in, say, the offset of their random numbers are one kernel.
        checks: positions of the `indirect` operations behind the non-zero results, in order.
    """

    text: str
    literals: tuple[int, ...]
    checks: tuple[int, ...]


def kernel_source(kernel: Kernel) -> CppKernel:
    """The C++ text of `kernel`."""
    return _KernelPrinter(kernel).print()


class _KernelPrinter:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        body = kernel.body
        self.ops = ArithmeticOps()
        self.lines: list[str] = []
        self.depth = 1
        self.outer = outer_symbols(body.ranges)
        self.inner = inner_symbols(body.reduction_ranges)
        self.names: dict[Symbol, str] = {}
        for position, symbol in enumerate(self.outer):
            self.names[symbol] = f"i{position}"
        for position, symbol in enumerate(self.inner):
            self.names[symbol] = f"r{position}"
        sizes = [size for size in kernel.sizes if isinstance(size, Symbol)]
        self.parameters = [
            f"const i64 n{position} = s[{position}];" for position in range(len(sizes))
        ]
        for position, symbol in enumerate(sizes):
            self.names[symbol] = f"n{position}"
        self.index = IndexPrinter(self.names)
        self.pointers = {argument.buffer: f"p{k}" for k, argument in enumerate(kernel.arguments)}
        self.storage = {argument.buffer: argument.dtype for argument in kernel.arguments}
        self.locals = {local.name: f"l{k}" for k, local in enumerate(kernel.locals)}
        self.storage.update({local.name: local.dtype for local in kernel.locals})
        self.operations: dict[int, Operation] = {}
        self.level: dict[int, str] = {}
        for position, operation, stage in body.operations():
            self.operations[position] = operation
            self.level[position] = stage.level
        self.written = body.writes
        self.depends = self._dependencies()
        self.values: dict[int, Value] = {}
        self.checks: list[int] = []
        self.literals: list[int] = []
        self._literal_positions = self._lift_literals(len(sizes))
        self.accumulates = [p for p, op in self.operations.items() if op.name == "accumulate"]
        vector = kernel.decisions.vector
        self.column = vector is not None and vector.level == "outer" and bool(body.reduction_ranges)
        self.block = max(vector.block, 16) if vector is not None and self.column else 1
        self.parallel = self._collapsed()
        self.split_last = False
        adds = [
            op for op in self.operations.values() if op.name == "store" and op.attribute == "add"
        ]
        if adds:
            # Rows may meet in one element. Neighbours along the last loop never do where it moves
            # the index itself: then threads share that loop, else one thread does all. Either way
            # the order of additions is fixed.
            self.split_last = (
                self.parallel > 0 and not body.reduction_ranges and self._divisible(adds)
            )
            self.parallel = 0
        self.turned = self._turned_loads()
        tile = kernel.decisions.tile
        self.tile_size = max(8, min(64, tile.size // 8 * 8)) if tile is not None else 0

    # ---- what is known before printing
    def _dependencies(self) -> dict[int, frozenset[Symbol]]:
        """The loop variables on which each value depends."""
        loops = frozenset(self.outer) | frozenset(self.inner)
        outer = frozenset(self.outer)
        result: dict[int, frozenset[Symbol]] = {}
        for position, operation in self.operations.items():
            found: frozenset[Symbol] = frozenset()
            for operand in operation.operands:
                found |= result[operand]
            if operation.index is not None:
                found |= free_symbols(operation.index) & loops
            if operation.name == "reduce":
                found = outer
            result[position] = found
        return result

    def _lift_literals(self, sizes: int) -> dict[int, str]:
        """Constants that only say where in a random stream a kernel stands become parameters."""
        readers: dict[int, list[tuple[int, int]]] = {}
        for position, operation in self.operations.items():
            for place, operand in enumerate(operation.operands):
                readers.setdefault(operand, []).append((position, place))
        lifted: dict[int, str] = {}
        base = sizes + len(self.kernel.scalars)
        for position, operation in self.operations.items():
            if (
                operation.name == "constant"
                and position in readers
                and all(
                    self.operations[reader].name in _RANDOM and place == 1
                    for reader, place in readers[position]
                )
            ):
                name = f"k{len(self.literals)}"
                self.parameters.append(f"const i64 {name} = s[{base + len(self.literals)}];")
                self.literals.append(int(constant_value(str(operation.attribute)).real))
                lifted[position] = name
        for k, (name, dtype) in enumerate(self.kernel.scalars):
            del name
            word = f"s[{sizes + k}]"
            text = (
                f"__builtin_bit_cast(f64, {word})"
                if dtype.is_floating_point
                else f"({C_TYPES[dtype]}){word}"
            )
            self.parameters.append(f"const {C_TYPES[dtype]} a{k} = ({C_TYPES[dtype]}){text};")
        return lifted

    def _collapsed(self) -> int:
        """Leading outer loops divided among threads; the vector loop is among them only when it stands alone."""
        ranges, decisions = self.kernel.body.ranges, self.kernel.decisions
        if not ranges or not decisions.parallel:
            return 0
        if self.column:
            return min(decisions.parallel, len(ranges))
        vector = decisions.vector
        if vector is not None and vector.level == "outer":
            return max(1, min(decisions.parallel, len(ranges) - 1)) if len(ranges) > 1 else 1
        return min(decisions.parallel, len(ranges))

    def _divisible(self, adds: list[Operation]) -> bool:
        last = self.outer[-1]
        return all(
            operation.index is not None
            and last in free_symbols(operation.index)
            and not any(last in self.depends[operand] for operand in operation.operands[1:])
            for operation in adds
        )

    # ---- lines
    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block_of(self, head: str) -> Iterator[None]:
        self.line(head + " {")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    # ---- operations
    def emit(self, position: int) -> None:
        """Print one operation here; its value becomes visible under its position."""
        operation = self.operations[position]
        name, dtype = operation.name, operation.dtype
        values = [self.values[operand] for operand in operation.operands]
        if name == "constant":
            lifted = self._literal_positions.get(position)
            if lifted is not None:
                self.values[position] = Value(lifted, dtype)
            else:
                self.values[position] = self.ops.constant(
                    constant_value(str(operation.attribute)), dtype
                )
            return
        if name in SCALAR_EXPRESSIONS:
            self._scalar(position, operation, values)
            return
        match name:
            case "index_expression":
                assert operation.index is not None
                self._define(position, f"({C_TYPES[dtype]}){self.index(operation.index)}", dtype)
            case "argument":
                names = [scalar for scalar, _ in self.kernel.scalars]
                self.values[position] = Value(f"a{names.index(str(operation.attribute))}", dtype)
            case "load":
                self._load(position, operation, values)
            case "store":
                self._store(operation, values)
            case "indirect":
                self._indirect(position, operation, values)
            case "part":
                source = operation.operands[0]
                lane = "[j]" if self.column else ""
                part = int(cast("int", operation.attribute))
                shared = self.column and self.operations[source].attribute == "welford"
                text = f"g{source}_{part}{'' if part == 2 and shared else lane}"
                self._define(position, f"({C_TYPES[dtype]}){text}", dtype)
            case _:
                raise AssertionError(f"{name} stands outside of a sweep")

    def _define(self, position: int, text: str, dtype: torch.dtype) -> None:
        self.line(f"const {C_TYPES[dtype]} v{position} = {text};")
        self.values[position] = Value(f"v{position}", dtype)

    def _scalar(self, position: int, operation: Operation, values: list[Value]) -> None:
        method = getattr(self.ops, operation.name)
        if operation.name == "round_to":
            value = method(values[0], str(operation.attribute), operation.dtype)
        else:
            value = method(*values, operation.dtype)
        self._define(position, value.text, operation.dtype)

    def _address(self, buffer: str, index: Size) -> str:
        if buffer in self.locals:
            text = self.index(index)
            return f"{self.locals[buffer]}[{f'{text} * {self.block} + j' if self.column else text}]"
        return f"{self.pointers[buffer]}[{self.index(index)}]"

    def _load(self, position: int, operation: Operation, values: list[Value]) -> None:
        assert operation.buffer is not None
        assert operation.index is not None
        text = self._address(operation.buffer, operation.index)
        if position in self.turned:
            assert self.kernel.decisions.tile is not None
            a = self.names[self.outer[min(self.kernel.decisions.tile.dimensions)]]
            b = self.names[self.outer[-1]]
            text = f"q{position}[({a} - {a}s) * {self.tile_size} + ({b} - {b}s)]"
        storage = self.storage[operation.buffer]
        if storage in HALF_DTYPES:
            text = f"ci_from_{storage_type(storage)}({text})"
        if operation.masked:
            zero = self.ops.constant(0, operation.dtype).text
            text = f"{values[-1].text} ? {text} : {zero}"
        self._define(position, text, operation.dtype)

    def _store(self, operation: Operation, values: list[Value]) -> None:
        assert operation.buffer is not None
        assert operation.index is not None
        address = self._address(operation.buffer, operation.index)
        storage = operation.dtype
        value = values[0].text
        half = storage in HALF_DTYPES
        if operation.attribute == "add":
            if half:
                kind = storage_type(storage)
                statement = f"{address} = ci_to_{kind}(ci_from_{kind}({address}) + {value});"
            elif storage is torch.bool:
                statement = f"{address} = {address} || {value};"
            else:
                sign = (
                    f"{address} = {address} + {value};"
                    if storage.is_complex
                    else f"{address} += {value};"
                )
                statement = sign
        elif half:
            statement = f"{address} = ci_to_{storage_type(storage)}({value});"
        else:
            statement = f"{address} = {value};"
        self.line(f"if ({values[-1].text}) {{ {statement} }}" if operation.masked else statement)

    def _indirect(self, position: int, operation: Operation, values: list[Value]) -> None:
        indirect = operation.attribute
        assert isinstance(indirect, Indirect)
        name, size = f"x{position}", self.index(indirect.size)
        value = f"(i64){values[0].text}"
        if indirect.wrap:
            self.line(f"const i64 {name}w = {value} + ({value} < 0 ? {size} : 0l);")
            value = f"{name}w"
        if indirect.check is not None:
            outside = f"(u64){value} >= (u64){size}"
            if operation.masked:
                outside = f"{values[-1].text} && {outside}"
            if position not in self.checks:
                self.checks.append(position)
            self.line(f"const bool {name}o = {outside};")
            self.line(f"bad |= {name}o;")
            self.line(f"const i64 {name} = {name}o ? 0l : {value};")
        else:
            self.line(f"const i64 {name} = {value};")
        self.names[indirect.symbol] = name
        self.index.forget()
        self.values[position] = Value(name, torch.int64)

    def hoistable(self, position: int) -> bool:
        """Whether the operation may be printed before a loop it does not depend on."""
        operation = self.operations[position]
        if operation.name in _PINNED:
            return False
        return not (
            operation.name == "load" and operation.buffer in self.written | self.locals.keys()
        )

    def split(self, positions: list[int], variable: Symbol) -> tuple[list[int], list[int]]:
        """Operations that can stand before the loop over `variable`, and those that must stand in it."""
        before: list[int] = []
        within: list[int] = []
        pinned: set[int] = set()
        for position in positions:
            operation = self.operations[position]
            if (
                variable in self.depends[position]
                or not self.hoistable(position)
                or not pinned.isdisjoint(operation.operands)
            ):
                within.append(position)
                pinned.add(position)
            else:
                before.append(position)
        return before, within

    def may_vectorise(self, positions: list[int], variable: Symbol, *, lanes: bool = False) -> bool:
        """Whether neighbours along `variable` may be computed together.

        `lanes`: each has accumulators of its own.
        """
        for position in positions:
            operation = self.operations[position]
            if operation.name == "store":
                assert operation.index is not None
                indirect = any(
                    variable in self.depends[operand] for operand in operation.operands[1:]
                )
                moves = variable in free_symbols(operation.index)
                if operation.attribute == "add" and (indirect or not moves):
                    return False
                if (
                    not moves
                    and not indirect
                    and not operation.masked
                    and operation.buffer not in self.locals
                ):
                    return False
            if operation.name == "scan" and not self.column:
                return False
            sequential = operation.attribute in _SEQUENTIAL
            if operation.name == "reduce" and sequential and not (self.column or lanes):
                return False
            if operation.dtype.is_complex and operation.name == "reduce":
                return False
        return True

    # ---- the function
    def print(self) -> CppKernel:
        """The whole text."""
        body = self.kernel.body
        self._prologue()
        if not body.reduction_ranges:
            self._pointwise()
        elif self.column:
            self._columns()
        else:
            self._rows()
        for local in self.kernel.locals:
            if self._on_heap(local.dtype, local.length):
                self.line(f"__builtin_free({self.locals[local.name]});")
        self.line("return (int)bad;")
        inner = "\n".join(self.lines)
        text = (
            "static __attribute__((noinline)) int "
            "KERNEL_BODY(char *const *p, const i64 *s, i64 begin, i64 end, char *const *w) {\n"
            f"{inner}\n}}\n{self._entry()}"
        )
        return CppKernel(text, tuple(self.literals), tuple(self.checks))

    def _prologue(self) -> None:
        for k, argument in enumerate(self.kernel.arguments):
            kind = self._memory_type(argument.dtype)
            const = "const " if argument.access == "read" else ""
            self.line(f"{const}{kind} *const p{k} = ({const}{kind} *)p[{k}];")
        for text in self.parameters:
            self.line(text)
        for k, position in enumerate(self.accumulates):
            kind = C_TYPES[self._accumulator(position).dtype]
            self.line(f"{kind} *const w{position} = ({kind} *)w[{k}];")
        self.line("u32 bad = 0;")
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

    def _blocks(self) -> str:
        return f"(({self.index(self.kernel.body.ranges[-1])} + {self.block - 1}) / {self.block})"

    def _loop_extents(self) -> list[str]:
        """Trip counts of the outer loops; in column mode the last counts blocks."""
        extents = [self.index(extent) for extent in self.kernel.body.ranges]
        if self.column:
            extents[-1] = self._blocks()
        tile = self.kernel.decisions.tile
        if self.turned and tile is not None:
            across, size = min(tile.dimensions), self.tile_size
            extents[across] = f"(({extents[across]} + {size - 1}) / {size})"
        return extents

    def _entry(self) -> str:
        """The exported function: shares the collapsed loops, combines what threads accumulated."""
        lines = ['extern "C" int KERNEL(char *const *p, const i64 *s, i64 threads) {']
        lines.extend(f"  {text}" for text in self.parameters)
        extents = self._loop_extents()
        extents = extents[-1:] if self.split_last else extents[: self.parallel]
        lines.append(f"  const i64 total = {' * '.join(extents) if extents else '1l'};")
        shared = self.parallel or self.split_last
        bound = "threads < total ? threads : total" if shared else "1"
        lines.append(f"  threads = {bound};")
        rows = "0"
        if self.accumulates:
            rows = "rows"
            lines.extend(self._rows_allocation())
        align = 16 if self.split_last or self._lone_vector() else 1
        share = f"total, threads, {rows}, {len(self.accumulates)}, {align}"
        lines.append(f"  const int bad = ci_run(KERNEL_BODY, p, s, {share});")
        if self.accumulates:
            lines.extend(self._rows_combination())
        lines.append("  return bad;\n}")
        return "\n".join(lines)

    def _lone_vector(self) -> bool:
        """Whether the vector loop itself is divided among threads."""
        body = self.kernel.body
        return self.parallel == 1 and len(body.ranges) == 1 and not body.reduction_ranges

    # ---- accumulate: a private row for each thread
    def _accumulator(self, position: int) -> Accumulator:
        operation = self.operations[position]
        value = self.operations[operation.operands[0]].dtype
        return accumulator_for(str(operation.attribute), f"w{position}", value)

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
            lines.append(
                f"    {kind} *const w{k} = ({kind} *)__builtin_malloc(length * sizeof({kind}) + 64);"
            )
            lines.append(f"    for (i64 k = 0; k < length; k++) w{k}[k] = {accumulator.identity};")
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

    # ---- loops
    @contextmanager
    def _outer_loops(self, stop: int) -> Iterator[None]:
        """The loops over outer variables `[0, stop)`, collapsed ones from the thread's share."""
        extents = self._loop_extents()
        collapsed = min(self.parallel, stop)
        names = [f"i{k}" for k in range(len(extents))]
        if self.column and extents:
            names[-1] = "ib"
        if self.turned and self.kernel.decisions.tile is not None:
            across = min(self.kernel.decisions.tile.dimensions)
            names[across] = f"i{across}t"
        opened = 0
        if collapsed == 1:
            self.line(f"for (i64 {names[0]} = begin; {names[0]} < end; {names[0]}++) {{")
            self.depth += 1
            opened += 1
        elif collapsed > 1:
            self.line("for (i64 t = begin; t < end; t++) {")
            self.depth += 1
            opened += 1
            rest = "t"
            for k in range(collapsed - 1, 0, -1):
                self.line(
                    f"const i64 {names[k]} = {rest} % {extents[k]}, t{k} = {rest} / {extents[k]};"
                )
                rest = f"t{k}"
            self.line(f"const i64 {names[0]} = {rest};")
        for k in range(collapsed, stop):
            self.line(f"for (i64 {names[k]} = 0; {names[k]} < {extents[k]}; {names[k]}++) {{")
            self.depth += 1
            opened += 1
        yield
        for _ in range(opened):
            self.depth -= 1
            self.line("}")

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
            if self.turned:
                self._tiles()
                return
            start, stop = "0", self.index(body.ranges[-1])
            if own:
                start, stop = "begin", "end"
            self._last_loop(positions, last, start, stop)

    def _last_loop(self, positions: list[int], last: Symbol, start: str, stop: str) -> None:
        """The innermost loop of a pointwise body, with what it does not move before it."""
        before, within = self.split(positions, last)
        for position in before:
            self.emit(position)
        if self.kernel.decisions.vector is not None and self.may_vectorise(within, last):
            self.line("#pragma omp simd" + self._bad_clause(within))
        name = self.names[last]
        with self.block_of(f"for (i64 {name} = {start}; {name} < {stop}; {name}++)"):
            for position in within:
                self.emit(position)

    # ---- tiles: what is contiguous across the vector loop is turned in registers first
    def _turned_loads(self) -> dict[int, Size]:
        """Loads that run along the tile's other dimension, each with its stride along the last."""
        tile, body = self.kernel.decisions.tile, self.kernel.body
        if tile is None or body.reduction_ranges or len(body.ranges) < 2 or self.split_last:
            return {}
        last = len(body.ranges) - 1
        if last not in tile.dimensions or tile.dimensions[0] == tile.dimensions[1]:
            return {}
        across, along = self.outer[min(tile.dimensions)], self.outer[last]
        found: dict[int, Size] = {}
        for position, operation in self.operations.items():
            index = operation.index
            if operation.name != "load" or operation.operands or isinstance(index, int | None):
                continue
            if operation.buffer in self.written or self.storage[operation.buffer or ""].is_complex:
                continue
            step = substitute(index, {across: across + 1}) - index
            stride = substitute(index, {along: along + 1}) - index
            if step == 1 and not free_symbols(stride) & {across, along} and stride not in {0, 1}:
                found[position] = stride
        return found

    def _tiles(self) -> None:
        tile, body = self.kernel.decisions.tile, self.kernel.body
        assert tile is not None
        size = self.tile_size
        across, along = min(tile.dimensions), len(body.ranges) - 1
        a, b = self.names[self.outer[across]], self.names[self.outer[along]]
        extents = [self.index(extent) for extent in body.ranges]
        self.line(
            f"const i64 {a}s = {a}t * {size}, {a}n = ci_minimum<i64>({size}, {extents[across]} - {a}s);"
        )
        with self.block_of(f"for (i64 {b}s = 0; {b}s < {extents[along]}; {b}s += {size})"):
            self.line(f"const i64 {b}n = ci_minimum<i64>({size}, {extents[along]} - {b}s);")
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
                self._last_loop(list(self.operations), self.outer[along], f"{b}s", f"{b}s + {b}n")

    def _checked(self, positions: list[int]) -> bool:
        return any(
            isinstance(self.operations[p].attribute, Indirect)
            and cast("Indirect", self.operations[p].attribute).check is not None
            for p in positions
        )

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
            self.line(f"for (i64 r{k} = 0; r{k} < {self.index(ranges[k])}; r{k}++) {{")
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
        text, name = self.index(extent), self.names[self.inner[-1]]
        first, limit = "0", text
        if flushed:
            self.line(f"for (i64 f = 0; f < {text}; f += {_FLUSH}l) {{")
            self.depth += 1
            self.line(f"const i64 fe = ci_minimum<i64>(f + {_FLUSH}l, {text});")
            first, limit = "f", "fe"
        with self.block_of(f"for (i64 c = {first}; c < {limit}; c += {lanes}l)"):
            whole = isinstance(extent, int) and extent % lanes == 0
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

    def _bad_clause(self, positions: list[int]) -> str:
        return " reduction(|:bad)" if self._checked(positions) else ""

    def split_many(
        self, positions: list[int], variables: tuple[Symbol, ...]
    ) -> tuple[list[int], list[int]]:
        """As `split`, for several loops at once."""
        before: list[int] = []
        within: list[int] = []
        pinned: set[int] = set()
        chosen = frozenset(variables)
        for position in positions:
            if (
                not chosen.isdisjoint(self.depends[position])
                or not self.hoistable(position)
                or not pinned.isdisjoint(self.operations[position].operands)
            ):
                within.append(position)
                pinned.add(position)
            else:
                before.append(position)
        return before, within

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
        name = self.names[variable]
        simd = self.kernel.decisions.vector is not None and self.may_vectorise(positions, variable)
        clauses: list[str] = []
        if self._checked(positions):
            clauses.append("reduction(|:bad)")
        welford = [p for p, a in reductions.items() if a.kind == "welford"]
        chunked = bool(welford) or (
            any(a.kind == "sum" and a.dtype.is_floating_point for a in reductions.values())
            and not (isinstance(extent, int) and extent <= 4 * _CHUNK)
        )
        text = self.index(extent)
        partial: dict[int, Accumulator] = {}
        if chunked:
            size = extent if isinstance(extent, int) and extent <= 4 * _CHUNK else _CHUNK
            self.line(f"for (i64 c = 0; c < {text}; c += {size}l) {{")
            self.depth += 1
            whole = isinstance(extent, int) and extent % size == 0
            self.line(
                f"const i64 m = {f'{size}l' if whole else f'ci_minimum<i64>({size}l, {text} - c)'};"
            )
            for position, accumulator in reductions.items():
                partial[position] = accumulator.partial()
                for declaration in partial[position].declare_chunk(size):
                    self.line(declaration)
        active = {p: partial.get(p, a) for p, a in reductions.items()}
        for accumulator in active.values():
            clauses.extend(accumulator.clauses())
        if simd:
            self.line(" ".join(["#pragma omp simd", *clauses]))
        head = (
            "for (i64 j = 0; j < m; j++)"
            if chunked
            else f"for (i64 {name} = 0; {name} < {text}; {name}++)"
        )
        with self.block_of(head):
            if chunked:
                self.line(f"const i64 {name} = c + j;")
            for position in positions:
                self._inner_operation(position, active, lane="")
        if chunked:
            for position, accumulator in reductions.items():
                for statement in accumulator.merge(partial[position]):
                    self.line(statement)
            self.depth -= 1
            self.line("}")

    def _inner_operation(
        self, position: int, reductions: dict[int, Accumulator], lane: str
    ) -> None:
        """One operation of a sweep, at a reduction point."""
        operation = self.operations[position]
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

    # ---- columns: a block of neighbouring outer points is carried through the stages together
    def _columns(self) -> None:
        body = self.kernel.body
        count = len(body.ranges)
        extent = body.ranges[-1]
        crossing = self._crossing()
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
                self.values[position] = Value(f"y{position}[j]", self.operations[position].dtype)

    def _column_sweep(self, positions: list[int], crossing: list[int]) -> None:
        ranges = self.kernel.body.reduction_ranges
        reductions = {
            p: self._reduction(p)
            for p in positions
            if self.operations[p].name in {"reduce", "scan"}
        }
        for accumulator in reductions.values():
            for text in accumulator.declare_lanes(self.block):
                self.line(text)
        for k, extent in enumerate(ranges):
            self.line(f"for (i64 r{k} = 0; r{k} < {self.index(extent)}; r{k}++) {{")
            self.depth += 1
        before, within = self.split(positions, self.outer[-1])
        for position in before:
            self.emit(position)
        for accumulator in reductions.values():
            for text in accumulator.step():
                self.line(text)
        self._lanes(within, reductions, crossing)
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
