"""Maxima and sums of exponentials that one sweep yields together.

Comes in: a body. Goes out: the pairs (largest x, sum of exp(x - largest)) whose sums stand in a later sweep only
because they need the maximum. Whoever walks a row in blocks may carry both at once, the sum scaled again whenever the
maximum grows: the row is read once less. Invariant: x is the same value in both sweeps, and nothing that it is made of
is written in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inductor.ir import LoopBody, Operation
    from inductor.ir.operations import Size

__all__ = ["OnlinePair", "online_pairs"]


@dataclass(frozen=True, slots=True)
class OnlinePair:
    """Positions of a maximum and of the sum that hangs on it."""

    maximum: int
    total: int


def online_pairs(body: LoopBody) -> tuple[OnlinePair, ...]:
    """All pairs; a maximum is in one pair at most."""
    operations = {position: operation for position, operation, _ in body.operations()}
    sweeps = [stage for stage in body.stages if stage.level == "inner"]
    numbers = {
        stage.start + offset: number
        for number, stage in enumerate(sweeps)
        for offset in range(len(stage.operations))
    }
    stored = {
        (str(operation.buffer), operation.index): operation.operands[0]
        for operation in operations.values()
        if operation.name == "store"
        and operation.attribute == "set"
        and operation.index is not None
    }
    same = _Same(operations, stored, body.writes)
    found: dict[int, OnlinePair] = {}
    for total, operation in operations.items():
        if operation.name != "reduce" or operation.attribute != "sum":
            continue
        power = operations[operation.operands[0]]
        if power.name != "exp" or power.dtype != operation.dtype:
            continue
        shifted = operations[power.operands[0]]
        if shifted.name != "sub":
            continue
        value, maximum = shifted.operands
        reduced = operations[maximum]
        if reduced.name != "reduce" or reduced.attribute != "max" or maximum in found:
            continue
        if reduced.dtype != operation.dtype or numbers[maximum] >= numbers[total]:
            continue
        if same(reduced.operands[0], value):
            found[maximum] = OnlinePair(maximum, total)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class _Same:
    """Whether two positions hold the same value."""

    operations: Mapping[int, Operation]
    stored: Mapping[tuple[str, Size], int]
    written: frozenset[str]

    def __call__(self, first: int, second: int) -> bool:
        if first == second:
            return True
        mine, other = self.operations[first], self.operations[second]
        if other.name == "load" and other.index is not None and other.buffer in self.written:
            kept = self.stored.get((other.buffer, other.index))
            return kept is not None and not other.masked and self(first, kept)
        if mine.name in ("reduce", "part", "scan", "indirect") or mine.buffer in self.written:
            return False
        alike = (mine.name, mine.dtype, mine.buffer, mine.index, mine.attribute, mine.masked) == (
            (other.name, other.dtype, other.buffer, other.index, other.attribute, other.masked)
        )
        return (
            alike
            and len(mine.operands) == len(other.operands)
            and all(map(self, mine.operands, other.operands))
        )
