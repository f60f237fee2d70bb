"""Sums over a row that is zero but in one place: the term itself, no sweep.

In: a body. Out: the same body where `sum over r of (r == place ? value : 0)` is `value` wherever the place lies in
the row. The gradient of a loss over classes sums such rows. Adding zeros changes no number: the result is the same
to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.nodes import LoopBody
from inductor.ir.recorder import Recorder, constant_value
from primtorch.symbolic import free_symbols

if TYPE_CHECKING:
    from inductor.ir.operations import Operation, Size
    from inductor.ir.recorder import Scalar
    from primtorch.symbolic import Symbol

__all__ = ["shorten_one_hot_sums"]


@dataclass(frozen=True, slots=True)
class _Term:
    """Positions of the compared place and of the value there, and what rounds it (to a half type)."""

    place: int
    value: int
    rounding: Operation | None
    extent: int


def shorten_one_hot_sums(body: LoopBody) -> LoopBody:
    """The body without the sweeps of such sums."""
    terms = _find(body)
    if not terms:
        return body
    recorder = Recorder(body.ranges, body.reduction_ranges, hoist=True)
    variables = (*outer_symbols(body.ranges), *inner_symbols(body.reduction_ranges))
    mapping: dict[Symbol, Size] = {symbol: symbol for symbol in variables}
    values: dict[int, Scalar] = {}
    symbols: dict[Symbol, Size] = {}
    for stage in body.stages:
        recorder.stage(stage.level)
        for offset, operation in enumerate(stage.operations):
            position = stage.start + offset
            term = terms.get(position)
            if term is None:
                recorder.replay([(position, operation)], mapping, values, symbols)
            else:
                values[position] = _record(recorder, values, term, operation.dtype)
    shortened = recorder.finish()
    if any(stage.level == "inner" for stage in shortened.stages):
        return shortened
    return LoopBody(body.ranges, (), shortened.stages)


def _find(body: LoopBody) -> dict[int, _Term]:
    """The reductions that are such sums."""
    if len(body.reduction_ranges) != 1 or not isinstance(body.reduction_ranges[0], int):
        return {}
    (variable,) = inner_symbols(body.reduction_ranges)
    operations: dict[int, Operation] = {}
    varies: set[int] = set()
    sums: list[int] = []
    for position, operation, _ in body.operations():
        operations[position] = operation
        own = operation.index is not None and variable in free_symbols(operation.index)
        if operation.name == "reduce":
            if operation.attribute == "sum" and operation.dtype.is_floating_point:
                sums.append(position)
        elif own or not varies.isdisjoint(operation.operands):
            varies.add(position)
    found = {}
    for position in sums:
        term = _term(operations, position, varies, variable, body.reduction_ranges[0])
        if term is not None:
            found[position] = term
    return found


def _term(
    operations: dict[int, Operation],
    reduce: int,
    varies: set[int],
    variable: Symbol,
    extent: int,
) -> _Term | None:
    summed = operations[operations[reduce].operands[0]]
    rounding = None
    if summed.name == "round_to":
        rounding, summed = summed, operations[summed.operands[0]]
    if summed.name != "where" or summed.dtype != operations[reduce].dtype:
        return None
    condition, _, other = (operations[operand] for operand in summed.operands)
    if condition.name != "eq" or other.name != "constant" or summed.operands[1] in varies:
        return None
    if constant_value(str(other.attribute)) != 0:
        return None
    for own, fixed in (condition.operands, condition.operands[::-1]):
        index = operations[own]
        integers = operations[fixed].dtype == index.dtype == torch.int64
        if index.name == "index_expression" and index.index == variable and integers:
            return None if fixed in varies else _Term(fixed, summed.operands[1], rounding, extent)
    return None


def _record(
    recorder: Recorder, values: dict[int, Scalar], term: _Term, dtype: torch.dtype
) -> Scalar:
    place, value = values[term.place], values[term.value]
    if term.rounding is not None:
        value = recorder.emit(replace(term.rounding, operands=(value.position,)))
    zero = recorder.constant(0, dtype)
    value = recorder.op("add", value, zero)  # a sum is never negative zero
    first, end = recorder.constant(0, torch.int64), recorder.constant(term.extent, torch.int64)
    inside = recorder.op(
        "logical_and", recorder.op("ge", place, first), recorder.op("lt", place, end)
    )
    return recorder.op("where", inside, value, zero)
