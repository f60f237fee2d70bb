"""The scalar operations of a kernel as statements, and what may stand outside of which loop.

Comes in: a `Kernel`. Goes out: `StatementPrinter`, which knows each value's text, the loops it depends on and
how the outer loops are walked; the printers of sweeps, tiles and the exported function build on it. Invariant:
a statement is printed where all its operands are visible, and before a loop only when the loop can't change it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch

from inductor.codegen.cpp.index import IndexPrinter
from inductor.codegen.cpp.scalar import SCALAR_EXPRESSIONS, ArithmeticOps
from inductor.codegen.cpp.types import C_TYPES, Value, storage_type
from inductor.ir import constant_value
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.operations import DIVISIONS, HALF_DTYPES, Indirect, combines, value_dtype
from primtorch.symbolic import Symbol, bounds, free_symbols, substitute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from inductor.ir import Kernel, Operation, Size

__all__ = ["StatementPrinter"]

_PINNED = frozenset({"store", "accumulate", "reduce", "part", "scan", "indirect"})
_RANDOM = frozenset({"philox_uniform", "philox_normal", "philox_bits"})
_SEQUENTIAL = frozenset({"argmax", "argmin", "welford_combine"})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class StatementPrinter:
    """State and vocabulary of one kernel's text."""

    def __init__(self, kernel: Kernel, *, wide: bool) -> None:
        self.kernel = kernel
        self.wide = wide
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
        self._extents = dict(zip(self.outer, body.ranges, strict=True))
        self._extents.update(zip(self.inner, body.reduction_ranges, strict=True))
        self.pointers = {argument.buffer: f"p{k}" for k, argument in enumerate(kernel.arguments)}
        self.storage = {argument.buffer: argument.dtype for argument in kernel.arguments}
        self.locals = {local.name: f"l{k}" for k, local in enumerate(kernel.locals)}
        self.storage.update({local.name: local.dtype for local in kernel.locals})
        self.operations: dict[int, Operation] = {}
        self.level: dict[int, str] = {}
        self._stage: dict[int, int] = {}
        self._reads: dict[int, int] = {}
        for position, operation, stage in body.operations():
            self.operations[position] = operation
            self.level[position] = stage.level
            self._stage[position] = stage.start
            for operand in operation.operands:
                self._reads[operand] = self._reads.get(operand, 0) + 1
        self.written = body.writes
        self.depends = self._dependencies()
        self._places = self._made_into_places()
        self.values: dict[int, Value] = {}
        self.checks: list[int] = []
        self.literals: list[int] = []
        self.streaming = False
        self._literal_positions = self._lift_literals(len(sizes))
        self.accumulates = [p for p, op in self.operations.items() if op.name == "accumulate"]
        vector = kernel.decisions.vector
        self.column = vector is not None and vector.level == "outer" and bool(body.reduction_ranges)
        self.block = max(vector.block, 16) if vector is not None and self.column else 1
        self.parallel = self._collapsed()
        self.split_last = self.split_sweep = False
        adds = [op for op in self.operations.values() if combines(op)]
        if adds:
            # Rows may meet in one element. Neighbours along the last loop never do where it moves
            # the index itself: then threads share that loop, else one thread does all. Either way
            # the order of additions is fixed.
            self.split_last = self.parallel > 0 and self._divisible(adds)
            self.parallel = 0
        self.turned = self._turned_loads()
        self.copied = self._is_turned_copy()
        self.tile_size = self._tile_size()

    def _is_turned_copy(self) -> bool:
        """Whether the kernel is a transposition and nothing else: it goes from memory to memory without a tile."""
        operations = list(self.operations.values())
        if not self.turned or [operation.name for operation in operations] != ["load", "store"]:
            return False
        load, store = operations
        assert store.index is not None
        along = self.outer[-1]
        step = substitute(store.index, {along: along + 1}) - store.index
        storage = self.storage[str(load.buffer)]
        return step == 1 and store.attribute == "set" and len(store.operands) == 1 and (
            store.dtype is storage is self.storage[str(store.buffer)] and not store.masked
        )  # fmt: skip

    def _tile_size(self) -> int:
        """The edge of a tile: as decided, less where the tiles of several loads would not fit the first cache."""
        tile = self.kernel.decisions.tile
        if tile is None or self.copied:
            return 0 if tile is None else tile.size
        width = sum(self.storage[str(self.operations[p].buffer)].itemsize for p in self.turned)
        edge = tile.size if width <= 4 else tile.size // 2
        return max(8, min(64, edge // 8 * 8))

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
        if self.inner and not self._sweeps_only_store():
            return False
        last = (self.inner or self.outer)[-1]
        return all(
            operation.index is not None
            and last in free_symbols(operation.index)
            and not any(last in self.depends[operand] for operand in operation.operands[1:])
            for operation in adds
        )

    def _sweeps_only_store(self) -> bool:
        """Whether a part of a row can be swept without the rest of it: nothing is added up along it or kept."""
        if self.column or len(self.inner) != 1 or self.kernel.locals:
            return False
        return not any(
            operation.name in {"reduce", "scan", "accumulate"}
            or (operation.name == "store" and self.level[position] == "outer")
            for position, operation in self.operations.items()
        )

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

    def line(self, text: str) -> None:
        """Print one line at the current depth."""
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block_of(self, head: str) -> Iterator[None]:
        """Print what is printed within it as the block of `head`."""
        self.line(head + " {")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

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
                self._store(position, operation, values)
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
        if self.may_trap(position):
            # Eager raises; the value here is 0 and the whole call is handed to torch's operators.
            self.line(f"bad |= (u32)({values[1].text} == 0);")
            if position not in self.checks:
                self.checks.append(position)
        narrow = self._position_test(operation, values)
        if narrow is not None:
            self._define(position, narrow, operation.dtype)
            return
        method = getattr(self.ops, operation.name)
        if operation.name == "round_to":
            value = method(values[0], str(operation.attribute), operation.dtype)
        else:
            value = method(*values, operation.dtype)
        self._define(position, value.text, operation.dtype)

    def _position_test(self, operation: Operation, values: list[Value]) -> str | None:
        """`loop variable == value` of 64 bits, the value fixed in the loop, by 32-bit lanes.

        That is how one-hot masks look (the gradient of a loss); 64-bit lanes would halve the loop.
        """
        if operation.name not in {"eq", "ne"} or len(operation.operands) != 2:
            return None
        for one, other in ((0, 1), (1, 0)):
            source, fixed = (self.operations[operation.operands[k]] for k in (one, other))
            symbol = source.index
            if source.name != "index_expression" or not isinstance(symbol, Symbol):
                continue
            extent = self._extents.get(symbol)
            if not isinstance(extent, int) or extent >= 1 << 31 or fixed.dtype != torch.int64:
                continue
            if source.dtype != torch.int64 or symbol in self.depends[operation.operands[other]]:
                continue
            wide, sign = values[other].text, "==" if operation.name == "eq" else "!="
            # -1 is no position
            return f"((i32){self.index(symbol)} {sign} ({wide} == (i32){wide} ? (i32){wide} : -1))"
        return None

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

    def _store(self, position: int, operation: Operation, values: list[Value]) -> None:
        assert operation.buffer is not None
        assert operation.index is not None
        address = self._address(operation.buffer, operation.index)
        storage = operation.dtype
        value = values[0].text
        half = storage in HALF_DTYPES
        if combines(operation):
            combined = self._combined(str(operation.attribute), address, values[0], storage)
            statement = f"{address} = {combined};"
        elif half:
            statement = f"{address} = {self._narrowed(operation.operands[0], position, storage)};"
        else:
            statement = f"{address} = {value};"
        self.line(f"if ({values[-1].text}) {{ {statement} }}" if operation.masked else statement)

    def _combined(self, mode: str, address: str, value: Value, storage: torch.dtype) -> str:
        """An element with a value added, multiplied in, or the larger or smaller of the two; NaN wins."""
        half = storage in HALF_DTYPES
        kind, dtype = storage_type(storage), value_dtype(storage)
        old = Value(f"ci_from_{kind}({address})" if half else address, dtype)
        combine = {
            "add": self.ops.add, "mul": self.ops.mul, "max": self.ops.maximum, "min": self.ops.minimum,
        }[mode]  # fmt: skip
        text = combine(old, value, dtype).text
        return f"ci_to_{kind}({text})" if half else text

    def _narrowed(self, position: int, reader: int, storage: torch.dtype) -> str:
        """A value as the bits of a half type, for the store at `reader`."""
        verb, source = self._narrowing(position, reader, storage)
        return f"ci_{verb}_{storage_type(storage)}({self.values[source].text})"

    def _narrowing(self, position: int, reader: int, storage: torch.dtype) -> tuple[str, int]:
        """How a value becomes the bits of a half type at `reader`, and which value: "to" rounds, "cut" doesn't.

        One that was loaded as such is only cut. One that was rounded to it before is rounded from the unrounded value:
        where nobody else reads the rounded one, the compiler drops it, and rounding straight to 16 bits is shorter.
        """
        operation = self.operations[position]
        if storage in {torch.bfloat16, torch.float16} and not operation.masked:
            if operation.name == "load" and self.storage[operation.buffer or ""] is storage:
                return "cut", position
            if operation.name == "round_to" and str(operation.attribute) == _name(storage):
                alone = self._reads[position] == 1 and self._stage[position] == self._stage[reader]
                return ("to", operation.operands[0]) if alone else ("cut", position)
        return "to", position

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

    def may_trap(self, position: int) -> bool:
        """Whether the operation is an integer division whose divisor may be zero."""
        operation = self.operations[position]
        dtype = operation.dtype
        if operation.name not in DIVISIONS or dtype.is_floating_point or dtype.is_complex:
            return False
        divisor = self.operations[operation.operands[1]]
        return divisor.name != "constant" or constant_value(str(divisor.attribute)) == 0

    def hoistable(self, position: int, over: Iterable[Symbol]) -> bool:
        """Whether the operation may be printed before the loops `over`, which it does not depend on."""
        operation = self.operations[position]
        if operation.name in _PINNED:
            return False
        if operation.name != "load":
            return True
        if operation.buffer in self.written | self.locals.keys():
            return False
        if position in self._places:
            return True  # a place is looked at even where nothing is read there
        # What a loop without turns reads need not exist.
        return all((bounds(self._extents[variable])[0] or 0) > 0 for variable in over)

    def _made_into_places(self) -> set[int]:
        """The operations whose values come to be indices."""
        found: set[int] = set()
        for position in sorted(self.operations, reverse=True):
            operation = self.operations[position]
            if operation.name == "indirect" or position in found:
                found.update(operation.operands)
        return found

    def split(self, positions: list[int], variable: Symbol) -> tuple[list[int], list[int]]:
        """Operations that can stand before the loop over `variable`, and those that must stand in it."""
        before: list[int] = []
        within: list[int] = []
        pinned: set[int] = set()
        for position in positions:
            operation = self.operations[position]
            if (
                variable in self.depends[position]
                or not self.hoistable(position, (variable,))
                or not pinned.isdisjoint(operation.operands)
            ):
                within.append(position)
                pinned.add(position)
            else:
                before.append(position)
        return before, within

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
                or not self.hoistable(position, variables)
                or not pinned.isdisjoint(self.operations[position].operands)
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
                if combines(operation) and (indirect or not moves):
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

    def _checked(self, positions: list[int]) -> bool:
        return any(self.may_trap(p) or self._bounded(self.operations[p]) for p in positions)

    @staticmethod
    def _bounded(operation: Operation) -> bool:
        indirect = operation.attribute
        return isinstance(indirect, Indirect) and indirect.check is not None

    def _bad_clause(self, positions: list[int]) -> str:
        return " reduction(|:bad)" if self._checked(positions) else ""

    def _loop_extents(self) -> list[str]:
        """Trip counts of the outer loops; in column mode the last counts blocks."""
        extents = [self.index(extent) for extent in self.kernel.body.ranges]
        if self.column:
            extents[-1] = self._blocks()
        tile = self.kernel.decisions.tile
        if self.turned and tile is not None:
            across, size = min(tile.dimensions), self.tile_size
            divided = across if self.copied else -1
            extents[across] = f"(({extents[divided]} + {size - 1}) / {size})"
        return extents

    def _blocks(self) -> str:
        return f"(({self.index(self.kernel.body.ranges[-1])} + {self.block - 1}) / {self.block})"

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
