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
from inductor.codegen.triton.function import Column
from inductor.codegen.triton.naming import function_name
from inductor.codegen.triton.operations import SIGNATURE_TYPES, TritonOps, triton_type
from inductor.codegen.triton.reductions import neutral_value
from inductor.codegen.triton.sweeps import Sweeps
from inductor.errors import UnsupportedOperationError
from inductor.ir.index import product
from inductor.schedule.blocks import ending_outer
from primtorch.symbolic import Symbol

if TYPE_CHECKING:
    from inductor.ir import Ending, Kernel, Size
    from inductor.ir.operations import ReductionKind
    from inductor.schedule.blocks import Blocks

__all__ = ["TritonSource", "write_kernel"]

_HEADER = """import triton
import triton.language as tl
from inductor.codegen.triton import prelude


"""


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


class _Writer(Sweeps):
    """Writes one function; implements `Tile` for the operations."""

    def __init__(self, kernel: Kernel, blocks: Blocks, left: frozenset[str] = frozenset()) -> None:
        super().__init__(kernel, blocks, left)
        self._ops = TritonOps(self)

    def write(self) -> TritonSource:
        blocks, kernel = self._blocks, self._kernel
        signature = self._signature()
        count = self._write_body()
        function = self._write_ending(kernel.ending, count) if kernel.ending is not None else ""
        parameters = ", ".join(name for name, _ in signature)
        lines = "\n".join(self._lines)
        name = function_name(blocks.mode, self._operations.values(), function + lines)
        text = f"{_HEADER}{function}@triton.jit\ndef {name}({parameters}):\n{lines}\n\n\nkernel = {name}\n"
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

    def _write_body(self) -> Size:
        """All lines of the function but those of an ending; returns the number of programs."""
        blocks, kernel = self._blocks, self._kernel
        column_ops = [o for o in self._operations.values() if o.name == "accumulate"]
        if column_ops and self._looped:
            raise KeyError("a row that does not fit a program's registers can't accumulate columns")
        self._columns = [
            Column(
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
            return self._write_rows()
        if kernel.decisions.tile is not None and blocks.columns > 1:
            return self._write_tiled(kernel.decisions.tile.dimensions)
        return self._write_points()

    # ---- what the last program goes on with
    def _write_ending(self, ending: Ending, count: Size) -> str:
        """Lines that call the ending where a program is the last of its group; returns the ending's function."""
        assert isinstance(count, int), "the number of programs that are counted is known"
        follow = ending.kernel
        row = product(follow.body.reduction_ranges)
        assert isinstance(row, int)
        held = self._blocks.ending
        blocks = replace(
            self._blocks,
            mode="persistent" if row <= held else "looped",
            outer=ending_outer(self._kernel, self._blocks),
            inner=held,
            programs=0,
            ahead=0,
            keeps=False,
            ending=0,
        )
        left = self._body.writes & follow.body.reads
        writer = _Ending(follow, blocks, left)
        text = writer.function()
        self._checked |= writer._checked
        passed = [self._parameters[argument.buffer] for argument in follow.arguments]
        passed += [self._names[size] for size in follow.sizes if isinstance(size, Symbol)]
        passed += [self._arguments[name] for name, _ in follow.scalars]
        group = f"program % {ending.groups}" if ending.groups > 1 else "program * 0"
        counter = f"{self._parameters[ending.counters]} + group"
        self._emit(f"group = {group}")
        # what all threads of this program have written is written before it counts
        self._emit("tl.debug_barrier()")
        self._emit(f'before = tl.atomic_add({counter}, 1, sem="acq_rel")')
        self._emit(f"if before == {count // ending.groups - 1}:")
        self._emit(f"    ending({', '.join([*passed, 'group'])})")
        self._emit(f"    tl.store({counter}, 0)")
        return text

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

    # ---- the walks: points, two dimensions in tiles, rows
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
            neutral = neutral_value(column.kind, column.dtype)
            rows = 1 if self._blocks.adds_rows else block
            shape = f"[{rows}, {width}]"
            self._emit(f"{column.name} = tl.full({shape}, {neutral}, {triton_type(column.dtype)})")
        self._emit_program()
        grid: Size
        if self._columns:
            grid = self._blocks.programs
            step = grid * block
            self._loop("x_start", 0, self._text(total), step)
            self._emit(f"x = x_start + program * {block} + tl.arange(0, {block})[:, None]")
        else:
            grid, step = _ceil_div(total, block), block
            self._emit(f"x = program * {block} + tl.arange(0, {block})[:, None]")
        if not (isinstance(total, int) and total % step == 0):
            self._emit(f"x_mask = x < {self._text(total)}")
            self._outer_mask = "x_mask"
        self._decode("x", self._outer, self._body.ranges)
        self._ask_early(self._body.stages)
        for stage in self._body.stages:
            if stage.level == "inner" and self._looped:
                self._sweep(stage, count, width)
            else:
                self._straight((stage,))
        if self._columns:
            self._depth -= 1
            self._finish_columns(count)
        return grid

    def _emit_program(self) -> None:
        """Which of the programs this is."""
        self._emit(f"program = tl.program_id(0).to({self._index_type})")


class _Ending(_Writer):
    """Writes what the last program of a kernel goes on with, a function that is told which tile is its."""

    def function(self) -> str:
        """Its source."""
        parameters = [name for name, _ in self._signature()]
        self._write_body()
        lines = "\n".join(self._lines)
        return f"@triton.jit\ndef ending({', '.join([*parameters, 'program'])}):\n{lines}\n\n\n"

    def _emit_program(self) -> None:
        """The caller knows it."""


def _ceil_div(value: Size, block: int) -> Size:
    return (value + (block - 1)) // block
