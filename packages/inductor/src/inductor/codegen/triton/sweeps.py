"""Stages: operations in order, once, or in a loop over the blocks of a row too long for registers.

Comes in: the stages of a body. Goes out: their lines. Invariant: a value of a block is not used after it; what a later
sweep needs of it is written again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inductor.codegen.triton.reductions import Reductions
from inductor.ir import apply_operation
from inductor.ir.operations import EFFECTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir import Operation, Size, Stage

__all__ = ["Sweeps"]


class Sweeps(Reductions):
    """Straight stages and loops; see the module."""

    def _ask_early(self, stages: Sequence[Stage]) -> None:
        """Loads behind a sweep that don't wait for it, such as that of a row's target: one way to memory for both.

        Those that wait for nothing come before the sweep, the others where its own loads have begun.
        """
        early = _early(stages)
        loads = [p for p in sorted(early) if self._operations[p].name == "load"]
        waiting: set[int] = set()
        for position in sorted(early):
            operation = self._operations[position]
            if operation.name == "indirect" or not waiting.isdisjoint(operation.operands):
                waiting.add(position)
            elif position in loads:
                waiting.add(position)
                if not operation.operands:
                    self._level = "outer"
                    self._operation(position, operation)
                    early.discard(position)
                    self._asked.add(position)
        self._waiting = sorted(early)

    def _ask_waiting(self) -> None:
        """The rest of what is asked for early."""
        level, self._level = self._level, "outer"
        for position in self._waiting:
            self._operation(position, self._operations[position])
            self._asked.add(position)
        self._level, self._waiting = level, []

    def _straight(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            self._level = stage.level
            self._accumulators = []
            for offset, operation in enumerate(stage.operations):
                if stage.start + offset not in self._asked:
                    self._operation(stage.start + offset, operation)
            if stage.level == "inner":
                self._ask_waiting()
            for accumulator in self._accumulators:
                self._reduce_now(accumulator)

    def _sweep(self, stage: Stage, count: Size, width: int) -> None:
        """An inner stage as a loop over blocks of the reduction range; none if all it yields is known."""
        if self._known(stage):
            return
        read = {o.buffer for o in stage.operations if o.name == "load"}
        if read & self._stored:
            self._emit("tl.debug_barrier()")
        self._level = "inner"
        opening, initial = len(self._lines), []
        piece = self._blocks.piece
        if piece:
            assert isinstance(count, int)
            self._loop("turn", 0, str(count // piece), 1)
            self._emit(f"r = turn * {piece} + r_base")
            initial = self._block(stage, count, width)
            self._depth -= 1
        for start, stop, bound in [] if piece else _pieces(count, width):
            self._loop("r_start", start, self._text(stop), width)
            self._emit("r = r_start + r_base")
            initial = self._block(stage, bound, width)
            self._depth -= 1
        indent = "    " * self._depth
        self._lines[opening:opening] = [indent + line for line in initial]
        self._ask_waiting()
        for accumulator in self._accumulators:
            self._finish(accumulator)
        self._forget()

    def _known(self, stage: Stage) -> bool:
        """Whether an earlier sweep has yielded all that a sweep is for; its rows are computed where they are read."""
        rows: dict[str, tuple[int, Size]] = {}
        for position, operation in enumerate(stage.operations, stage.start):
            if operation.name == "store" and operation.buffer not in self._parameters:
                assert operation.index is not None
                rows[str(operation.buffer)] = (operation.operands[0], operation.index)
            elif operation.name in EFFECTS or (
                operation.name == "reduce" and position not in self._online_totals
            ):
                return False
        self._local_origin.update(rows)
        return bool(self._online_totals)

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

    def _open_inner(self, count: Size, width: int) -> None:
        """Mask and reduction variables for the current value of `r`."""
        self._inner_mask = None
        if self._looped and self._blocks.piece:
            self._open_piece(self._blocks.piece, width)
            return
        if not (isinstance(count, int) and count % width == 0):
            self._emit(f"r_mask = r < {self._text(count)}")
            self._inner_mask = "r_mask"
        self._decode("r", self._inner, self._body.reduction_ranges)

    def _open_piece(self, piece: int, width: int) -> None:
        """The same where a turn takes a piece of one channel: all variables but the last are the turn's."""
        if piece != width:
            self._emit(f"r_mask = r_base < {piece}")
            self._inner_mask = "r_mask"
        channel = self._body.reduction_ranges[-1]
        assert isinstance(channel, int)
        self._decode("r", self._inner, self._body.reduction_ranges, written=False)
        shares, last = channel // piece, str(self._inner[-1])
        self._emit(
            f"{last} = turn % {shares} * {piece} + r_base" if shares > 1 else f"{last} = r_base"
        )
        self._decode(f"(turn // {shares})", self._inner[:-1], self._body.reduction_ranges[:-1])

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


def _early(stages: Sequence[Stage]) -> set[int]:
    """Positions of loads of outer stages that follow a sweep, and of what they need, if that is nothing of a sweep."""
    written = {
        operation.buffer
        for stage in stages
        for operation in stage.operations
        if operation.name in EFFECTS
    }
    first = next((number for number, stage in enumerate(stages) if stage.level == "inner"), None)
    if first is None:
        return set()
    free = {
        stage.start + offset for stage in stages[:first] for offset in range(len(stage.operations))
    }
    before = set(free)
    needs: dict[int, set[int]] = {}
    early: set[int] = set()
    for stage in stages[first:]:
        for position, operation in enumerate(stage.operations, stage.start):
            if stage.level != "outer" or operation.name in (*EFFECTS, "reduce", "part", "scan"):
                continue
            if operation.buffer in written or not free.issuperset(operation.operands):
                continue
            free.add(position)
            needs[position] = {position}.union(
                *(needs[operand] for operand in operation.operands if operand not in before)
            )
            if operation.name == "load":
                early |= needs[position]
    return early


def _pieces(count: Size, width: int) -> list[tuple[int, Size, Size]]:
    """(from, to, bound) of the loops that walk `count` elements: whole blocks need no mask, the last does."""
    if not isinstance(count, int) or count <= width or count % width == 0:
        return [(0, count, count)]
    whole = count - count % width
    return [(0, whole, whole), (whole, count, count)]
