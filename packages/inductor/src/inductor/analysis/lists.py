"""Sums that take few of a sweep's terms: each row sums those whose index names it.

`sum over r of (place[r] == i0 ? value[r, ...] : 0)` is how rows that are scattered and added look from where they
arrive. A processor walks, for each row, the list of its terms. In: a body. Out: where its parts stand, if it is such a
sum and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.operations import Indirect
from inductor.ir.recorder import constant_value
from primtorch.symbolic import Symbol

if TYPE_CHECKING:
    from inductor.ir.nodes import LoopBody
    from inductor.ir.operations import Operation

__all__ = ["Listed", "listed"]


@dataclass(frozen=True, slots=True)
class Listed:
    """Positions of such a sum.

    Fields:
        mask: the comparison of a term's place with the row.
        place: the `indirect` that says which row a term belongs to.
        choice: the selection of the term or zero.
    """

    mask: int
    place: int
    choice: int


def listed(body: LoopBody) -> Listed | None:
    """The sum in `body`, None if it has none or more in its sweep."""
    if len(body.ranges) != 2 or len(body.reduction_ranges) != 1:
        return None
    if not all(isinstance(extent, int) for extent in (*body.ranges, *body.reduction_ranges)):
        return None
    sweeps = [stage for stage in body.stages if stage.level == "inner"]
    if len(sweeps) != 1:
        return None
    operations = {position: operation for position, operation, _ in body.operations()}
    sums: list[Operation] = []
    places: dict[Symbol, int] = {}
    for offset, operation in enumerate(sweeps[0].operations):
        if operation.name in {"store", "accumulate", "scan"}:
            return None
        if operation.name == "reduce":
            sums.append(operation)
        if isinstance(operation.attribute, Indirect):
            places[operation.attribute.symbol] = sweeps[0].start + offset
    if len(sums) != 1 or sums[0].attribute != "sum":
        return None
    choice = sums[0].operands[0]
    if operations[choice].name != "where":
        return None
    mask, _, other = operations[choice].operands
    zero = operations[other]
    if zero.name != "constant" or constant_value(str(zero.attribute)) != 0:
        return None
    if operations[mask].name != "eq":
        return None
    one, two = (operations[operand] for operand in operations[mask].operands)
    row, term = outer_symbols(body.ranges)[0], inner_symbols(body.reduction_ranges)[0]
    for left, right in ((one, two), (two, one)):
        if left.name != "index_expression" or right.name != "index_expression":
            return None
        place = places.get(right.index) if isinstance(right.index, Symbol) else None
        if left.index == row and place is not None and _only(operations, place, term):
            return Listed(mask, place, choice)
    return None


def _only(operations: dict[int, Operation], position: int, term: Symbol) -> bool:
    """Whether a value is computed from loads along the sweep alone."""
    operation = operations[position]
    if operation.masked or operation.name == "reduce":
        return False
    if operation.index is not None and operation.index != term:
        return False
    return all(_only(operations, operand, term) for operand in operation.operands)
