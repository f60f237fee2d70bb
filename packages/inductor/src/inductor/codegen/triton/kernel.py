"""One `Kernel` as the source of one Triton function.

Comes in: a kernel of the schedule and its `Blocks` (tile sizes). Goes out: `TritonSource`: text, parameter types, grid.
The text is canonical: parameters are named by position (`p0` pointers, `n0` sizes, `c0` scalars), so equal kernels of
different graphs have equal text. Shapes inside the function: a value of a pointwise kernel is `[OUTER]` (`[OUTER,
COLUMN]` when two dimensions are tiled); in a kernel with sweeps outer values are `[OUTER, 1]` and inner values
`[OUTER, INNER]`, or 1 where they do not vary. Invariant: whatever lies outside the ranges is masked on every access and
neutral in every combination.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch

from inductor.codegen.triton.expressions import expression_text
from inductor.codegen.triton.naming import function_name
from inductor.codegen.triton.operations import SIGNATURE_TYPES, TritonOps, triton_type
from inductor.errors import UnsupportedOperationError
from inductor.ir import apply_operation
from inductor.ir.index import inner_symbols, outer_symbols, product
from inductor.ir.operations import HALF_DTYPES
from primtorch.symbolic import Symbol, free_symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir import Indirect, Kernel, Operation, Size, Stage
    from inductor.ir.operations import ReductionKind, ScanKind, StoreMode
    from inductor.schedule.blocks import Blocks

__all__ = ["TritonSource", "write_kernel"]

_HEADER = """import triton
import triton.language as tl
from inductor.codegen.triton import prelude


@triton.jit
"""

_COMBINE = {
    "sum": "combine_sum",
    "prod": "combine_prod",
    "max": "combine_max",
    "min": "combine_min",
    "any": "combine_or",
    "all": "combine_and",
    "logaddexp": "combine_logaddexp",
}


@dataclass(frozen=True, slots=True)
class TritonSource:
    """What is compiled and how it is launched.

    Fields:
        text: Python source of a module whose `kernel` is the Triton kernel; its own name tells in a
            profile what it computes.
        signature: parameter name -> Triton type (`*fp32`, `i32`), pointers first, in call order.
        pointers: how many leading parameters are pointers.
        grid: number of programs, an expression over the kernel's sizes.
        grid_text: the same as Python source over `n0`, `n1`, ...
        warps: warps of a program.
        stages: software pipeline depth of the looped loads.
        bounds_checked: the kernel asserts on the device that indices are in range.
    """

    text: str
    signature: tuple[tuple[str, str], ...]
    pointers: int
    grid: Size
    grid_text: str
    warps: int
    stages: int
    bounds_checked: bool


def write_kernel(kernel: Kernel, blocks: Blocks) -> TritonSource:
    """The Triton function of `kernel`.

    Raises:
        UnsupportedOperationError: Triton can't express it (complex numbers, a type it lacks); run it otherwise.
    """
    try:
        return _Writer(kernel, blocks).write()
    except KeyError as error:
        raise UnsupportedOperationError(kernel.name, str(error)) from error


def _neutral(kind: str, dtype: torch.dtype) -> str:
    """Source of the value that changes nothing in a combination."""
    match kind:
        case "sum" | "any":
            return "0"
        case "prod" | "all":
            return "1"
        case "max" | "argmax":
            return _lowest(dtype)
        case "min" | "argmin":
            return _highest(dtype)
        case "logaddexp":
            return 'float("-inf")'
        case _:
            raise KeyError(f"a combination without a neutral value: {kind}")


def _lowest(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return 'float("-inf")'
    return "0" if dtype is torch.bool else str(torch.iinfo(dtype).min)


def _highest(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return 'float("inf")'
    return "1" if dtype is torch.bool else str(torch.iinfo(dtype).max)


@dataclass(slots=True)
class _Accumulator:
    """A reduction of the stage being written: what stands before, in and after its loop."""

    position: int
    kind: ReductionKind
    dtype: torch.dtype
    values: tuple[str, ...]


@dataclass(slots=True)
class _Column:
    """An `accumulate`: a row of partial results that one program carries over its outer points."""

    buffer: str
    index: Size
    kind: ReductionKind
    dtype: torch.dtype
    name: str


class _Writer:
    """Writes one function; implements `Tile` for the operations."""

    def __init__(self, kernel: Kernel, blocks: Blocks) -> None:
        self._kernel = kernel
        self._body = kernel.body
        self._blocks = blocks
        self._ops = TritonOps(self)
        self._lines: list[str] = []
        self._depth = 1
        self._index_type = "tl.int64" if kernel.decisions.wide_index else "tl.int32"
        self._parameters = {a.buffer: f"p{k}" for k, a in enumerate(kernel.arguments)}
        self._arguments = {name: f"c{k}" for k, (name, _) in enumerate(kernel.scalars)}
        self._names: dict[Symbol, str] = {}
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
        self._accumulators: list[_Accumulator] = []
        self._columns: list[_Column] = []
        self._indirect_symbols: set[Symbol] = set()
        self._carries: list[str] = []
        self._position = 0
        self._checked = False
        self._fresh = 0

    @property
    def narrow(self) -> bool:
        """Whether all that varies within a row, or from point to point, is of half types.

        Its rounding hides what the card's own exponential loses.
        """
        level = "inner" if self._sweeps else "outer"
        types = {argument.buffer: argument.dtype for argument in self._kernel.arguments}
        touched = {
            types[operation.buffer]
            for _, operation, stage in self._body.operations()
            if stage.level == level and operation.buffer in types
        }
        floating = {dtype for dtype in touched if dtype.is_floating_point}
        return bool(floating) and floating <= HALF_DTYPES

    # ---- lines
    def _emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _name(self, prefix: str) -> str:
        self._fresh += 1
        return f"{prefix}{self._fresh}"

    def _text(self, value: Size) -> str:
        return expression_text(value, self._names)

    # ---- the function
    def write(self) -> TritonSource:
        blocks, kernel = self._blocks, self._kernel
        column_ops = [o for o in self._operations.values() if o.name == "accumulate"]
        if column_ops and self._looped:
            raise KeyError("a row that does not fit a program's registers can't accumulate columns")
        signature = self._signature()
        self._columns = [
            _Column(
                str(operation.buffer),
                operation.index if operation.index is not None else 0,
                cast("ReductionKind", operation.attribute),
                operation.dtype,
                f"column{number}",
            )
            for number, operation in enumerate(column_ops)
        ]
        self._write_zeros()
        if self._sweeps:
            count = self._write_rows()
        elif kernel.decisions.tile is not None and blocks.columns > 1:
            count = self._write_tiled(kernel.decisions.tile.dimensions)
        else:
            count = self._write_points()
        parameters = ", ".join(name for name, _ in signature)
        lines = "\n".join(self._lines)
        name = function_name(blocks.mode, self._operations.values(), lines)
        text = f"{_HEADER}def {name}({parameters}):\n{lines}\n\n\nkernel = {name}\n"
        names = {symbol: name for symbol, name in self._names.items() if name.startswith("n")}
        return TritonSource(
            text=text,
            signature=signature,
            pointers=len(kernel.arguments),
            grid=count,
            grid_text=expression_text(count, names, host=True),
            warps=blocks.warps,
            stages=blocks.stages,
            bounds_checked=self._checked,
        )

    def _signature(self) -> tuple[tuple[str, str], ...]:
        kernel = self._kernel
        size_type = "i64" if kernel.decisions.wide_index else "i32"
        scalar = {torch.float64: "fp64", torch.int64: "i64", torch.bool: "i32"}
        return (
            *(
                (self._parameters[a.buffer], "*" + SIGNATURE_TYPES[a.dtype])
                for a in kernel.arguments
            ),
            *((f"n{k}", size_type) for k in range(len(kernel.sizes))),
            *((self._arguments[name], scalar.get(dtype, "fp64")) for name, dtype in kernel.scalars),
        )

    def _decode(self, linear: str, symbols: Sequence[Symbol], extents: Sequence[Size]) -> None:
        """Name each loop variable as a part of a linear position (last varies fastest)."""
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

    def _write_points(self) -> Size:
        block, total = self._blocks.outer, product(self._body.ranges)
        self._emit(f"x = tl.program_id(0).to({self._index_type}) * {block} + tl.arange(0, {block})")
        if not (isinstance(total, int) and total % block == 0):
            self._emit(f"x_mask = x < {self._text(total)}")
            self._outer_mask = "x_mask"
        self._decode("x", self._outer, self._body.ranges)
        self._straight(self._body.stages)
        return _ceil_div(total, block)

    def _write_tiled(self, dimensions: tuple[int, int]) -> Size:
        """Two dimensions in tiles: the second lies along the columns, all others along the rows."""
        ranges = self._body.ranges
        row, column = dimensions
        others = [d for d in range(len(ranges)) if d not in dimensions]
        order = [*others, row]
        rows = product(ranges[d] for d in order)
        across = _ceil_div(ranges[column], self._blocks.columns)
        self._emit(f"program = tl.program_id(0).to({self._index_type})")
        self._emit(f"across = {self._text(across)}")
        self._emit(
            f"y = (program // across) * {self._blocks.outer} + tl.arange(0, {self._blocks.outer})[:, None]"
        )
        self._emit(
            f"x = (program % across) * {self._blocks.columns} + tl.arange(0, {self._blocks.columns})[None, :]"
        )
        self._emit(f"x_mask = (y < {self._text(rows)}) & (x < {self._text(ranges[column])})")
        self._outer_mask = "x_mask"
        self._decode("y", [self._outer[d] for d in order], [ranges[d] for d in order])
        self._names[self._outer[column]] = "x"
        self._straight(self._body.stages)
        return _ceil_div(rows, self._blocks.outer) * across

    def _write_rows(self) -> Size:
        """Outer points along axis 0, reduction points along axis 1."""
        block, total = self._blocks.outer, product(self._body.ranges)
        width, count = self._blocks.inner, product(self._body.reduction_ranges)
        self._emit(f"r_base = tl.arange(0, {width})[None, :]")
        if self._kernel.decisions.wide_index:
            self._emit("r_base = r_base.to(tl.int64)")
        if not self._looped:
            self._emit("r = r_base")
            self._open_inner(count, width)
        for column in self._columns:
            neutral = _neutral(column.kind, column.dtype)
            shape = f"[{block}, {width}]"
            self._emit(f"{column.name} = tl.full({shape}, {neutral}, {triton_type(column.dtype)})")
        self._emit(f"program = tl.program_id(0).to({self._index_type})")
        grid: Size
        if self._columns:
            grid = self._blocks.programs
            step = grid * block
            self._emit(f"for x_start in range(0, {self._text(total)}, {step}):")
            self._depth += 1
            self._emit(f"x = x_start + program * {block} + tl.arange(0, {block})[:, None]")
        else:
            grid, step = _ceil_div(total, block), block
            self._emit(f"x = program * {block} + tl.arange(0, {block})[:, None]")
        if not (isinstance(total, int) and total % step == 0):
            self._emit(f"x_mask = x < {self._text(total)}")
            self._outer_mask = "x_mask"
        self._decode("x", self._outer, self._body.ranges)
        for stage in self._body.stages:
            if stage.level == "inner" and self._looped:
                self._sweep(stage, count, width)
            else:
                self._straight((stage,))
        if self._columns:
            self._depth -= 1
            self._finish_columns(count)
        return grid

    def _open_inner(self, count: Size, width: int) -> None:
        """Mask and reduction variables for the current value of `r`."""
        self._inner_mask = None
        if not (isinstance(count, int) and count % width == 0):
            self._emit(f"r_mask = r < {self._text(count)}")
            self._inner_mask = "r_mask"
        self._decode("r", self._inner, self._body.reduction_ranges)

    # ---- stages
    def _straight(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            self._level = stage.level
            self._accumulators = []
            for offset, operation in enumerate(stage.operations):
                self._operation(stage.start + offset, operation)
            for accumulator in self._accumulators:
                self._reduce_now(accumulator)

    def _sweep(self, stage: Stage, count: Size, width: int) -> None:
        """An inner stage as a loop over blocks of the reduction range."""
        read = {o.buffer for o in stage.operations if o.name == "load"}
        if read & self._stored:
            self._emit("tl.debug_barrier()")
        self._level = "inner"
        opening, initial = len(self._lines), []
        for start, stop, bound in _pieces(count, width):
            self._emit(f"for r_start in range({start}, {self._text(stop)}, {width}):")
            self._depth += 1
            self._emit("r = r_start + r_base")
            initial = self._block(stage, bound, width)
            self._depth -= 1
        indent = "    " * self._depth
        self._lines[opening:opening] = [indent + line for line in initial]
        for accumulator in self._accumulators:
            self._finish(accumulator)
        self._forget()

    def _block(self, stage: Stage, bound: Size, width: int) -> list[str]:
        """One block of a sweep; returns the lines that initialise what it carries on."""
        self._forget()
        self._memory, self._accumulators, self._carries = {}, [], []
        self._open_inner(bound, width)
        for offset, operation in enumerate(stage.operations):
            self._operation(stage.start + offset, operation)
        initial = [*self._carries]
        for accumulator in self._accumulators:
            initial += self._step(accumulator)
        return initial

    def _forget(self) -> None:
        """Values of a block are gone with it."""
        for position in [p for p in self._values if p in self._inner_positions]:
            del self._values[position]

    def _operation(self, position: int, operation: Operation) -> None:
        self._position = position
        for operand in operation.operands:
            if operand not in self._values:
                self._recompute(operand)
        self._position = position
        operation = self._renamed(operation)
        text = apply_operation(self._ops, operation, self._values)
        if operation.name in ("store", "accumulate") or operation.name == "reduce":
            return
        if operation.name == "indirect":
            self._values[position] = text
            return
        if text.isidentifier():
            self._values[position] = text
            return
        name = (
            f"v{position}"
            if f"v{position}" not in self._values.values()
            else self._name(f"v{position}_")
        )
        self._emit(f"{name} = {text}")
        self._values[position] = name

    def _renamed(self, operation: Operation) -> Operation:
        if operation.name != "argument":
            return operation
        return replace(operation, attribute=self._arguments[str(operation.attribute)])

    def _recompute(self, position: int) -> None:
        """Write an operation of an earlier sweep again: a looped kernel keeps no rows."""
        operation = self._operations[position]
        if operation.name == "scan":
            raise KeyError(
                "a scan's value is needed in a later sweep of a row too long for registers"
            )
        self._operation(position, operation)

    # ---- reductions
    def reduce(self, kind: ReductionKind, values: tuple[str, ...], dtype: torch.dtype) -> str:
        self._accumulators.append(_Accumulator(self._position, kind, dtype, values))
        return ""

    def _tile_shape(self) -> str:
        return f"[{self._blocks.outer}, {self._blocks.inner}]"

    def _spread(self, value: str) -> str:
        return f"tl.broadcast_to({value}, {self._tile_shape()})"

    def _masked(self, value: str, neutral: str, dtype: str) -> str:
        spread = self._spread(value)
        if self._inner_mask is None:
            return spread
        return f"tl.where({self._inner_mask}, {spread}, {neutral}).to({dtype})"

    def _linear(self) -> str:
        return f"tl.broadcast_to(r, {self._tile_shape()})"

    def _prepared(self, accumulator: _Accumulator) -> tuple[str, torch.dtype]:
        """The value to combine, and the dtype it is combined in."""
        value, dtype = accumulator.values[0], accumulator.dtype
        match accumulator.kind:
            case "any" | "all":
                return f"({value} != 0).to(tl.int32)", torch.int32
            case "argmax" | "argmin":
                return value, self._value_dtype(accumulator)
            case "sum" | "prod" | "max" | "min":
                if dtype is torch.bool:
                    return f"{value}.to(tl.int32)", torch.int32
                return f"{value}.to({triton_type(dtype)})", dtype
            case "welford" | "welford_combine":
                return value, dtype

    def _value_dtype(self, accumulator: _Accumulator) -> torch.dtype:
        operand = self._operations[accumulator.position].operands[0]
        dtype = self._operations[operand].dtype
        return torch.int32 if dtype is torch.bool else dtype

    def _define(self, accumulator: _Accumulator, text: str) -> None:
        name = f"v{accumulator.position}"
        self._emit(f"{name} = {text}")
        self._values[accumulator.position] = name

    def _reduce_now(self, accumulator: _Accumulator) -> None:
        """The whole row is in registers."""
        kind = accumulator.kind
        value, dtype = self._prepared(accumulator)
        if kind == "welford":
            self._two_pass(accumulator)
            return
        if kind == "welford_combine":
            names = [self._name("w") for _ in range(3)]
            for name, part in zip(names, accumulator.values, strict=True):
                self._emit(f"{name} = {self._masked(part, '0.0', triton_type(accumulator.dtype))}")
            self._merge_welford(accumulator, names)
            return
        if kind in ("argmax", "argmin"):
            held = self._name("a")
            wide = f"{value}.to({triton_type(dtype)})"
            self._emit(f"{held} = {self._masked(wide, _neutral(kind, dtype), triton_type(dtype))}")
            self._first_extreme(
                accumulator, held, self._masked("r", "2147483647", self._index_type)
            )
            return
        held = self._name("a")
        self._emit(f"{held} = {self._masked(value, _neutral(kind, dtype), triton_type(dtype))}")
        self._define(accumulator, self._collapse(kind, held, accumulator.dtype))

    def _collapse(self, kind: str, held: str, dtype: torch.dtype) -> str:
        if kind == "sum":
            return f"tl.sum({held}, 1)[:, None].to({triton_type(dtype)})"
        text = f"tl.reduce({held}, 1, prelude.{_COMBINE[kind]})[:, None]"
        if dtype is torch.bool:
            return f"({text} != 0)"
        return f"{text}.to({triton_type(dtype)})"

    def _first_extreme(self, accumulator: _Accumulator, held: str, places: str) -> None:
        best, place, index = self._name("a"), self._name("a"), self._name("a")
        self._emit(f"{index} = {places}")
        self._emit(
            f"{best}, {place} = tl.reduce(({held}, {index}), 1, prelude.combine_{accumulator.kind})"
        )
        self._define(accumulator, f"{place}[:, None].to(tl.int64)")

    def _two_pass(self, accumulator: _Accumulator) -> None:
        dtype = triton_type(accumulator.dtype)
        count = self._text(product(self._body.reduction_ranges))
        held, mean, rest = self._name("w"), self._name("w"), self._name("w")
        total = self._name("w")
        self._emit(f"{held} = {self._masked(accumulator.values[0], '0.0', dtype)}")
        self._emit(f"{total} = tl.full([1, 1], {count}, {dtype})")
        self._emit(f"{mean} = prelude.divide(tl.sum({held}, 1)[:, None], {total})")
        self._emit(f"{rest} = {self._masked(f'({held} - {mean})', '0.0', dtype)}")
        square = self._name("w")
        self._emit(f"{square} = tl.sum({rest} * {rest}, 1)[:, None]")
        self._values[accumulator.position] = f"{mean}|{square}|{total}"

    def _merge_welford(self, accumulator: _Accumulator, names: list[str]) -> None:
        merged = [self._name("w") for _ in range(3)]
        self._emit(
            f"{', '.join(merged)} = tl.reduce(({', '.join(names)}), 1, prelude.combine_welford)"
        )
        self._values[accumulator.position] = "|".join(f"{name}[:, None]" for name in merged)

    def part(self, value: str, number: int) -> str:
        return value.split("|")[number]

    def _step(self, accumulator: _Accumulator) -> list[str]:
        """Inside the loop: combine this block; returns the lines that initialise the accumulators before it."""
        kind, shape = accumulator.kind, self._tile_shape()
        value, dtype = self._prepared(accumulator)
        name = f"held{accumulator.position}"
        typed = triton_type(dtype)
        if kind in ("welford", "welford_combine"):
            names = [f"{name}_{part}" for part in ("mean", "m2", "count")]
            self._step_welford(accumulator, names, typed)
            return [f"{each} = tl.zeros({shape}, {typed})" for each in names]
        neutral = _neutral(kind, dtype)
        initial = [f"{name} = tl.full({shape}, {neutral}, {typed})"]
        if kind in ("argmax", "argmin"):
            wide = f"{value}.to({typed})"
            masked = self._masked(wide, neutral, typed)
            place = self._masked("r", "2147483647", self._index_type)
            self._emit(
                f"{name}, {name}_at = prelude.combine_{kind}({name}, {name}_at, {masked}, {place})"
            )
            return [*initial, f"{name}_at = tl.full({shape}, 2147483647, {self._index_type})"]
        masked = self._masked(value, neutral, typed)
        self._emit(f"{name} = prelude.{_COMBINE[kind]}({name}, {masked})")
        return initial

    def _step_welford(self, accumulator: _Accumulator, names: list[str], typed: str) -> None:
        if accumulator.kind == "welford_combine":
            parts = ", ".join(self._masked(part, "0.0", typed) for part in accumulator.values)
            self._emit(f"{', '.join(names)} = prelude.combine_welford({', '.join(names)}, {parts})")
            return
        # All lanes have seen the same number of elements, so one division serves the whole block.
        mean, square, count = names
        value, width = self._spread(accumulator.values[0]), self._blocks.inner
        delta, moved, rest = self._name("w"), self._name("w"), self._name("w")
        self._emit(f"{delta} = {value} - {mean}")
        self._emit(
            f"{moved} = {mean} + {delta} * (1.0 / tl.full([1, 1], r_start // {width} + 1, {typed}))"
        )
        self._emit(f"{rest} = {square} + {delta} * ({value} - {moved})")
        self._emit(f"{mean} = {self._masked(moved, mean, typed)}")
        self._emit(f"{square} = {self._masked(rest, square, typed)}")
        self._emit(f"{count} += {self._masked(f'tl.full([1, 1], 1.0, {typed})', '0.0', typed)}")

    def _finish(self, accumulator: _Accumulator) -> None:
        """After the loop: combine across the block."""
        kind, name = accumulator.kind, f"held{accumulator.position}"
        if kind in ("welford", "welford_combine"):
            self._merge_welford(accumulator, [f"{name}_{part}" for part in ("mean", "m2", "count")])
        elif kind in ("argmax", "argmin"):
            self._first_extreme(accumulator, name, f"{name}_at")
        else:
            self._define(accumulator, self._collapse(kind, name, accumulator.dtype))

    def scan(self, value: str, kind: ScanKind, dtype: torch.dtype) -> str:
        typed = triton_type(dtype)
        held, result = self._name("s"), self._name("s")
        neutral = _neutral(kind, dtype)
        self._emit(f"{held} = {self._masked(f'{value}.to({typed})', neutral, typed)}")
        combine = f"prelude.{_COMBINE[kind]}"
        self._emit(f"{result} = tl.associative_scan({held}, 1, {combine})")
        if self._looped:
            carry = f"carry{self._position}"
            self._carries.append(
                f"{carry} = tl.full([{self._blocks.outer}, 1], {neutral}, {typed})"
            )
            total = self._name("s")
            self._emit(f"{result} = {combine}({carry}, {result})")
            self._emit(f"{total} = tl.reduce({held}, 1, {combine})[:, None]")
            self._emit(f"{carry} = {combine}({carry}, {total})")
        return result

    # ---- columns
    def accumulate(
        self, buffer: str, index: Size, value: str, kind: ReductionKind, dtype: torch.dtype
    ) -> str:
        column = next(c for c in self._columns if c.buffer == buffer and c.index == index)
        neutral = _neutral(kind, dtype)
        spread = self._spread(f"{value}.to({triton_type(dtype)})")
        if self._outer_mask is not None:
            spread = f"tl.where({self._outer_mask}, {spread}, {neutral})"
        self._emit(f"{column.name} = prelude.{_COMBINE[kind]}({column.name}, {spread})")
        return ""

    def _finish_columns(self, count: Size) -> None:
        """Store this program's row of partial results; row `program` of a (programs, length) buffer."""
        for column in self._columns:
            pointer = self._parameters[column.buffer]
            place = f"{pointer} + program * {self._text(count)} + {self._text(column.index)}"
            row = f"tl.reduce({column.name}, 0, prelude.{_COMBINE[column.kind]})[None, :]"
            mask = f", {self._inner_mask}" if self._inner_mask else ""
            self._emit(f"tl.store({place} + tl.zeros_like(r), {row}{mask})")

    # ---- memory
    def _access_mask(self, symbols: frozenset[Symbol], extra: str | None) -> str | None:
        """What must hold for an access whose index varies with `symbols`."""
        hidden = bool(symbols & self._indirect_symbols) or extra is not None
        masks = []
        if self._outer_mask and (hidden or symbols & set(self._outer)):
            masks.append(self._outer_mask)
        if self._level == "inner" and self._inner_mask and (hidden or symbols & set(self._inner)):
            masks.append(self._inner_mask)
        if extra is not None:
            masks.append(f"({extra} != 0)")
        return " & ".join(masks) if masks else None

    def constant(self, text: str, dtype: torch.dtype) -> str:
        two = self._sweeps or (self._kernel.decisions.tile is not None and self._blocks.columns > 1)
        return f"tl.full({'[1, 1]' if two else '[1]'}, {text}, {triton_type(dtype)})"

    def index_expression(self, index: Size, dtype: torch.dtype) -> str:
        if isinstance(index, int):
            return self.constant(str(index), dtype)
        text = self._text(index)
        if free_symbols(index) <= set(self._kernel.sizes):
            return f"({self.constant('0', dtype)} + {text}).to({triton_type(dtype)})"
        return f"{text}.to({triton_type(dtype)})"

    def load(self, buffer: str, index: Size, dtype: torch.dtype, mask: str | None) -> str:
        if buffer not in self._parameters:
            return self._local(buffer, index)
        known = self._memory.get((buffer, index)) if mask is None else None
        if known is not None:
            return known
        place = f"{self._parameters[buffer]} + {self._text(index)}"
        masked = self._access_mask(free_symbols(index), mask)
        text = f"tl.load({place}, {masked}, other=0)" if masked else f"tl.load({place})"
        if dtype is torch.bool:
            text += ".to(tl.int1)"
        elif dtype.itemsize < 4 and dtype.is_floating_point:
            text += ".to(tl.float32)"
        if mask is None:
            name = f"v{self._position}"
            if name in self._values.values():
                name = self._name("m")
            self._emit(f"{name} = {text}")
            if buffer not in self._stored:
                self._memory[buffer, index] = name
            return name
        return text

    def _local(self, buffer: str, index: Size) -> str:
        """A row element that an earlier sweep stored: still in registers, or computed again."""
        position, stored_index = self._local_origin[buffer]
        if stored_index != index:
            raise KeyError(f"row {buffer} is read at another place than it was written")
        if position not in self._values:
            saved = self._position
            self._recompute(position)
            self._position = saved
        return self._values[position]

    def store(
        self,
        buffer: str,
        index: Size,
        value: str,
        mode: StoreMode,
        dtype: torch.dtype,
        mask: str | None,
    ) -> str:
        if buffer not in self._parameters:
            self._local_origin[buffer] = (self._operations[self._position].operands[0], index)
            return ""
        # A value that varies less than the tile is written by all; the address decides the shape.
        symbols = frozenset((*self._outer, *(self._inner if self._level == "inner" else ())))
        masked = self._access_mask(symbols, mask)
        spread = self._whole_tile()
        place = f"{self._parameters[buffer]} + ({self._text(index)} + {spread})"
        narrowed = f"({value}).to({triton_type(dtype)})"
        if dtype is torch.bool:
            arguments = f"{place}, tl.where({spread} == 0, {narrowed}, False)"
        else:
            arguments = f"{place}, tl.where({spread} == 0, {narrowed}, 0).to({triton_type(dtype)})"
        tail = f", {masked}" if masked else ""
        if mode != "set":
            self._emit(f'tl.atomic_{mode}({arguments}{tail}, sem="relaxed")')
        else:
            self._emit(f"tl.store({arguments}{tail})")
        self._stored.add(buffer)
        self._memory = {key: name for key, name in self._memory.items() if key[0] != buffer}
        if mode == "set" and mask is None and not self._looped and dtype.itemsize >= 4:
            self._memory[buffer, index] = value
        return ""

    def _whole_tile(self) -> str:
        """The name of a zero of the full shape at this level."""
        return "zero_inner" if self._level == "inner" else "zero_outer"

    def _write_zeros(self) -> None:
        outer, tiled = self._blocks.outer, self._kernel.decisions.tile is not None
        if self._sweeps:
            self._emit(f"zero_inner = tl.zeros({self._tile_shape()}, {self._index_type})")
            self._emit(f"zero_outer = tl.zeros([{outer}, 1], {self._index_type})")
        elif tiled and self._blocks.columns > 1:
            shape = f"[{outer}, {self._blocks.columns}]"
            self._emit(f"zero_outer = tl.zeros({shape}, {self._index_type})")
        else:
            self._emit(f"zero_outer = tl.zeros([{outer}], {self._index_type})")

    def indirect(self, value: str, indirect: Indirect, mask: str | None) -> str:
        name = f"at{self._position}"
        size = self._text(indirect.size)
        self._emit(f"{name} = {value}.to(tl.int64)")
        if indirect.wrap:
            self._emit(f"{name} = tl.where({name} < 0, {name} + {size}, {name})")
        if indirect.check is not None:
            conditions = [
                m for m in (self._access_mask(frozenset((*self._outer, *self._inner)), mask),) if m
            ]
            inside = f"(({name} >= 0) & ({name} < {size}))"
            test = f"{inside} | (({conditions[0]}) == 0)" if conditions else inside
            self._emit(f'tl.device_assert({test}, "{indirect.check.error}: index out of range")')
            # Nothing outside is touched even where assertions are compiled away.
            self._emit(f"{name} = tl.where({inside}, {name}, 0)")
            self._checked = True
        elif mask is not None:
            self._emit(f"{name} = tl.where({mask} != 0, {name}, 0)")
        self._names[indirect.symbol] = name
        self._indirect_symbols.add(indirect.symbol)
        return name


def _ceil_div(value: Size, block: int) -> Size:
    return (value + (block - 1)) // block


def _pieces(count: Size, width: int) -> list[tuple[int, Size, Size]]:
    """(from, to, bound) of the loops that walk `count` elements: whole blocks need no mask, the last does."""
    if not isinstance(count, int) or count <= width or count % width == 0:
        return [(0, count, count)]
    whole = count - count % width
    return [(0, whole, whole), (whole, count, count)]
