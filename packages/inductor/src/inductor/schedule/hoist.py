"""Takes what is the same along the last loop of a pointwise kernel out of it.

`y = x * scale[channel]` walks long rows with one scale each: the last loop becomes a sweep, what
doesn't depend on it moves to the outer stage and is computed once a row. A C++ compiler can't do it
for us, since it must assume that a store may change what is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.analysis.cost import operation_weight, smallest
from inductor.ir.index import outer_symbols
from inductor.ir.operations import EFFECTS
from inductor.ir.recorder import Recorder, Scalar
from primtorch.symbolic import Symbol, free_symbols

if TYPE_CHECKING:
    from inductor.ir.nodes import LoopBody
    from inductor.ir.operations import Operation, Size

SHORTEST_ROW = 16


def hoist_invariants(body: LoopBody) -> LoopBody:
    """The body with its last loop as a sweep, if something can move out of it."""
    if body.reduction_ranges or len(body.ranges) < 2 or len(body.stages) != 1:
        return body
    if smallest(body.ranges[-1]) < SHORTEST_ROW:
        return body
    last = outer_symbols(body.ranges)[-1]
    operations = body.stages[0].operations
    if not _worthwhile(operations, last):
        return body
    recorder = Recorder(body.ranges[:-1], body.ranges[-1:], hoist=True)
    recorder.stage("outer")
    recorder.stage("inner")
    mapping: dict[Symbol, Size] = {last: recorder.inner[0]}
    values: dict[int, Scalar] = {}
    symbols: dict[Symbol, Size] = {}
    recorder.replay(list(enumerate(operations)), mapping, values, symbols)
    return recorder.finish()


def _worthwhile(operations: tuple[Operation, ...], last: Symbol) -> bool:
    """Whether a load or a dear operation doesn't depend on the last loop, and all stores do."""
    varies: list[bool] = []
    moved = 0
    for operation in operations:
        own = operation.index is not None and last in free_symbols(operation.index)
        depends = own or any(varies[operand] for operand in operation.operands)
        varies.append(depends)
        if operation.name in EFFECTS:
            if not own:
                return False
        elif not depends and operation.name not in ("constant", "index_expression"):
            moved += 4 if operation.name == "load" else operation_weight(operation.name)
    return moved >= 4
