"""Reductions, scans and column sums: in registers at once, or carried over the blocks of a loop.

Comes in: `reduce`, `scan` and `accumulate` of a body. Goes out: lines before, in and after the loop that walks a row.
Invariant: what lies outside of the ranges is neutral in every combination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inductor.codegen.triton.function import Accumulator
from inductor.codegen.triton.memory import MemoryAccess
from inductor.codegen.triton.operations import triton_type
from inductor.ir.index import product

if TYPE_CHECKING:
    from inductor.ir import Size
    from inductor.ir.operations import ReductionKind, ScanKind

__all__ = ["Reductions", "neutral_value"]

_COMBINE = {
    "sum": "combine_sum",
    "prod": "combine_prod",
    "max": "combine_max",
    "min": "combine_min",
    "any": "combine_or",
    "all": "combine_and",
    "logaddexp": "combine_logaddexp",
}


def neutral_value(kind: str, dtype: torch.dtype) -> str:
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


class Reductions(MemoryAccess):
    """Accumulators; see the module."""

    def reduce(self, kind: ReductionKind, values: tuple[str, ...], dtype: torch.dtype) -> str:
        """Note a reduction; its result has a name where its stage ends."""
        if self._position in self._online_totals:
            return ""  # known since the sweep of its maximum
        self._accumulators.append(Accumulator(self._position, kind, dtype, values))
        return ""

    def _beyond(self) -> str:
        """A place after all others."""
        return str(2**63 - 1 if self._kernel.decisions.wide_index else 2**31 - 1)

    def _prepared(self, accumulator: Accumulator) -> tuple[str, torch.dtype]:
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

    def _value_dtype(self, accumulator: Accumulator) -> torch.dtype:
        operand = self._operations[accumulator.position].operands[0]
        dtype = self._operations[operand].dtype
        return torch.int32 if dtype is torch.bool else dtype

    def _define(self, accumulator: Accumulator, text: str) -> None:
        name = f"v{accumulator.position}"
        self._emit(f"{name} = {text}")
        self._values[accumulator.position] = name

    # ---- a row that is in registers
    def _reduce_now(self, accumulator: Accumulator) -> None:
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
            self._emit(
                f"{held} = {self._masked(wide, neutral_value(kind, dtype), triton_type(dtype))}"
            )
            self._first_extreme(
                accumulator, held, self._masked("r", self._beyond(), self._index_type)
            )
            return
        held = self._name("a")
        self._emit(
            f"{held} = {self._masked(value, neutral_value(kind, dtype), triton_type(dtype))}"
        )
        self._define(accumulator, self._collapse(kind, held, accumulator.dtype))

    def _collapse(self, kind: str, held: str, dtype: torch.dtype) -> str:
        if kind == "sum":
            return f"tl.sum({held}, 1)[:, None].to({triton_type(dtype)})"
        text = f"tl.reduce({held}, 1, prelude.{_COMBINE[kind]})[:, None]"
        if dtype is torch.bool:
            return f"({text} != 0)"
        return f"{text}.to({triton_type(dtype)})"

    def _first_extreme(self, accumulator: Accumulator, held: str, places: str) -> None:
        best, place, index = self._name("a"), self._name("a"), self._name("a")
        self._emit(f"{index} = {places}")
        self._emit(
            f"{best}, {place} = tl.reduce(({held}, {index}), 1, prelude.combine_{accumulator.kind})"
        )
        self._define(accumulator, f"{place}[:, None].to(tl.int64)")

    def _two_pass(self, accumulator: Accumulator) -> None:
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

    def _merge_welford(self, accumulator: Accumulator, names: list[str]) -> None:
        """Combine what the lanes hold of their elements: the mean of all, then what the lanes' means add to it.

        Three sums: pairwise merging divides at each of its steps.
        """
        mean, square, count = names
        whole, middle, rest, squares = (self._name("w") for _ in range(4))
        if self._looped and self._even(accumulator):
            total, lanes = self._text(product(self._body.reduction_ranges)), self._blocks.inner
            self._emit(f"{whole} = tl.full([1, 1], {total}, {triton_type(accumulator.dtype)})")
            self._emit(f"{middle} = tl.sum({mean}, 1)[:, None] * {1 / lanes!r}")
        else:
            self._emit(f"{whole} = tl.sum({count}, 1)[:, None]")
            nonzero = f"tl.where({whole} == 0.0, 1.0, {whole})"
            self._emit(f"{middle} = tl.sum({mean} * {count}, 1)[:, None] / {nonzero}")
        self._emit(f"{rest} = {mean} - {middle}")
        self._emit(f"{squares} = tl.sum({square} + {rest} * {rest} * {count}, 1)[:, None]")
        self._values[accumulator.position] = f"{middle}|{squares}|{whole}"

    def part(self, value: str, number: int) -> str:
        """One of the results of a reduction."""
        return value.split("|")[number]

    # ---- a row that is walked in blocks
    def _step(self, accumulator: Accumulator) -> list[str]:
        """Inside the loop: combine this block; returns the lines that initialise the accumulators before it."""
        kind, shape = accumulator.kind, self._tile_shape()
        value, dtype = self._prepared(accumulator)
        name = f"held{accumulator.position}"
        typed = triton_type(dtype)
        if accumulator.position in self._online:
            return self._step_online(name, value, typed)
        if kind in ("welford", "welford_combine"):
            names = [f"{name}_{part}" for part in ("mean", "m2", "count")]
            self._step_welford(accumulator, names, typed)
            carried = names[:2] if self._counted(accumulator) else names
            return [f"{each} = tl.zeros({shape}, {typed})" for each in carried]
        neutral = neutral_value(kind, dtype)
        initial = [f"{name} = tl.full({shape}, {neutral}, {typed})"]
        if kind in ("argmax", "argmin"):
            wide = f"{value}.to({typed})"
            masked = self._masked(wide, neutral, typed)
            place = self._masked("r", self._beyond(), self._index_type)
            self._emit(
                f"{name}, {name}_at = prelude.combine_{kind}({name}, {name}_at, {masked}, {place})"
            )
            return [*initial, f"{name}_at = tl.full({shape}, {self._beyond()}, {self._index_type})"]
        masked = self._masked(value, neutral, typed)
        self._emit(f"{name} = prelude.{_COMBINE[kind]}({name}, {masked})")
        return initial

    def _step_welford(self, accumulator: Accumulator, names: list[str], typed: str) -> None:
        if accumulator.kind == "welford_combine":
            parts = ", ".join(self._masked(part, "0.0", typed) for part in accumulator.values)
            self._emit(f"{', '.join(names)} = prelude.combine_welford({', '.join(names)}, {parts})")
            return
        # All lanes have seen the same number of elements, so one division serves the whole block.
        mean, square, count = names
        value, width = self._spread(accumulator.values[0]), self._blocks.inner
        delta, moved, rest = self._name("w"), self._name("w"), self._name("w")
        self._emit(f"{delta} = {value} - {mean}")
        turn = "turn" if self._blocks.piece else f"r_start // {width}"
        self._emit(f"{moved} = {mean} + {delta} * (1.0 / tl.full([1, 1], {turn} + 1, {typed}))")
        self._emit(f"{rest} = {square} + {delta} * ({value} - {moved})")
        self._emit(f"{mean} = {self._masked(moved, mean, typed)}")
        self._emit(f"{square} = {self._masked(rest, square, typed)}")
        if not self._counted(accumulator):
            one = self._masked(f"tl.full([1, 1], 1.0, {typed})", "0.0", typed)
            self._emit(f"{count} += {one}")

    def _counted(self, accumulator: Accumulator) -> bool:
        """Whether it is known how many elements each lane of a loop sees, so that nothing carries that."""
        return (
            isinstance(product(self._body.reduction_ranges), int) and accumulator.kind == "welford"
        )

    def _even(self, accumulator: Accumulator) -> bool:
        """Whether all lanes of a loop see equally many elements."""
        count, piece = product(self._body.reduction_ranges), self._blocks.piece
        whole = isinstance(count, int) and count % self._blocks.inner == 0
        if piece:
            whole = piece == self._blocks.inner
        return whole and self._counted(accumulator)

    def _finish(self, accumulator: Accumulator) -> None:
        """After the loop: combine across the block."""
        kind, name = accumulator.kind, f"held{accumulator.position}"
        if accumulator.position in self._online:
            self._finish_online(accumulator, name)
            return
        if kind in ("welford", "welford_combine"):
            if self._counted(accumulator):
                count, lanes = product(self._body.reduction_ranges), self._blocks.inner
                assert isinstance(count, int)
                piece = self._blocks.piece
                turns, rest = (0, piece) if piece else (count // lanes, count % lanes)
                if piece == lanes:
                    turns, rest = count // lanes, 0
                share = f"tl.full([1, 1], {turns}, {triton_type(accumulator.dtype)})"
                if piece and rest:
                    share += f" + tl.where(r_base < {rest}, {count // piece}, 0)"
                elif rest:
                    share += f" + tl.where(r_base < {rest}, 1, 0)"
                self._emit(f"{name}_count = tl.broadcast_to({share}, {self._tile_shape()})")
            self._merge_welford(accumulator, [f"{name}_{part}" for part in ("mean", "m2", "count")])
        elif kind in ("argmax", "argmin"):
            self._first_extreme(accumulator, name, f"{name}_at")
        else:
            self._define(accumulator, self._collapse(kind, name, accumulator.dtype))

    def _step_online(self, name: str, value: str, typed: str) -> list[str]:
        """A maximum and the sum of exponentials below it; each lane takes its neighbours at once."""
        groups, size = self._blocks.inner // self._online_group, self._online_group
        held, top, base = self._name("a"), self._name("a"), self._name("a")
        masked = self._masked(value, 'float("-inf")', typed)
        self._emit(f"{held} = tl.reshape({masked}, [1, {groups}, {size}])")
        self._emit(
            f"{top} = prelude.combine_max({name}, tl.reduce({held}, 2, prelude.combine_max))"
        )
        self._emit(f'{base} = tl.where({top} == float("-inf"), 0.0, {top})')
        before = self._ops.exp(f"({name} - {base})", torch.float32)
        powers = self._ops.exp(f"({held} - {base}[:, :, None])", torch.float32)
        self._emit(f"{name}_sum = {name}_sum * {before} + tl.sum({powers}, 2)")
        self._emit(f"{name} = {top}")
        return [
            f'{name} = tl.full([1, {groups}], float("-inf"), {typed})',
            f"{name}_sum = tl.zeros([1, {groups}], {typed})",
        ]

    def _finish_online(self, accumulator: Accumulator, name: str) -> None:
        """Both, across the block; a row of minus infinity alone has no sum, as exp(-inf + inf) has no value."""
        self._define(accumulator, self._collapse("max", name, accumulator.dtype))
        largest = self._values[accumulator.position]
        base, total = self._name("a"), self._online[accumulator.position]
        nothing = f'{largest} == float("-inf")'
        self._emit(f"{base} = tl.where({nothing}, 0.0, {largest})")
        powers = self._ops.exp(f"({name} - {base})", torch.float32)
        summed = f"tl.sum({name}_sum * {powers}, 1)[:, None]"
        self._emit(f'v{total} = tl.where({nothing}, float("nan"), {summed})')
        self._values[total] = f"v{total}"

    def scan(self, value: str, kind: ScanKind, dtype: torch.dtype) -> str:
        """A running combination along the row."""
        typed = triton_type(dtype)
        held, result = self._name("s"), self._name("s")
        neutral = neutral_value(kind, dtype)
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
        """Add to the columns that this program carries over its rows."""
        column = next(c for c in self._columns if c.buffer == buffer and c.index == index)
        neutral = neutral_value(kind, dtype)
        spread = self._spread(f"{value}.to({triton_type(dtype)})")
        if self._outer_mask is not None:
            spread = f"tl.where({self._outer_mask}, {spread}, {neutral})"
        combine = f"prelude.{_COMBINE[kind]}"
        if self._blocks.adds_rows:
            spread = f"tl.reduce({spread}, 0, {combine})[None, :]"
        self._emit(f"{column.name} = {combine}({column.name}, {spread})")
        return ""

    def _finish_columns(self, count: Size) -> None:
        """Store this program's row of partial results; row `program` of a (programs, length) buffer."""
        for column in self._columns:
            pointer = self._parameters[column.buffer]
            place = f"{pointer} + program * {self._text(count)} + {self._text(column.index)}"
            row = column.name
            if not self._blocks.adds_rows:
                row = f"tl.reduce({row}, 0, prelude.{_COMBINE[column.kind]})[None, :]"
            mask = f", {self._inner_mask}" if self._inner_mask else ""
            self._emit(f"tl.store({place} + tl.zeros_like(r), {row}{mask})")
