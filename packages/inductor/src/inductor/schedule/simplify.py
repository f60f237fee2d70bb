"""Joins neighbouring loops that every access walks as one, and drops loops of one iteration.

In: a body. Out: the same body with fewer loops: `for i0 < 4, i1 < 8` over `8*i0 + i1` is
`for i0 < 32` over `i0`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inductor.analysis import coefficient
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.nodes import LoopBody, Stage
from primtorch.symbolic import Expression, Symbol, substitute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inductor.ir.operations import Size


def simplify_loops(body: LoopBody) -> LoopBody:
    """The body with as few loops as possible."""
    indices = _indices(body)
    outer, outer_map = _joined(body.ranges, outer_symbols, indices)
    # Positions of extremes count reduction points in row-major order, which joining keeps.
    inner, inner_map = _joined(body.reduction_ranges, inner_symbols, indices)
    if outer == body.ranges and inner == body.reduction_ranges:
        return body
    mapping = {**outer_map, **inner_map}
    stages = tuple(
        Stage(
            stage.level,
            stage.start,
            tuple(
                operation
                if not isinstance(operation.index, Expression)
                else replace(operation, index=substitute(operation.index, mapping))
                for operation in stage.operations
            ),
        )
        for stage in body.stages
    )
    return LoopBody(outer, inner, stages)


def _indices(body: LoopBody) -> list[Expression]:
    found: dict[Expression, None] = {}
    for stage in body.stages:
        for operation in stage.operations:
            if isinstance(operation.index, Expression):
                found[operation.index] = None
    return list(found)


def _joined(
    extents: tuple[Size, ...],
    variables: Callable[[Sequence[Size]], tuple[Symbol, ...]],
    indices: Sequence[Expression],
) -> tuple[tuple[Size, ...], dict[Symbol, Size]]:
    """New extents, and the old variables over the new ones."""
    symbols = variables(extents)
    runs: list[list[int]] = []
    for axis, extent in enumerate(extents):
        if extent == 1 and len(extents) > 1:
            continue
        if runs and _walks_on(symbols, extents, runs[-1][-1], axis, indices):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if not runs and extents:
        runs = [[0]]
    new: list[Size] = []
    for run in runs:
        size: Size = 1
        for axis in run:
            size = size * extents[axis]
        new.append(size)
    fresh = variables(new)
    mapping: dict[Symbol, Size] = dict.fromkeys(symbols, 0)
    for run, symbol in zip(runs, fresh, strict=True):
        # All but the last variable are 0: the last one, running on, says the same.
        mapping[symbols[run[-1]]] = symbol
    return tuple(new), mapping


def _walks_on(
    symbols: Sequence[Symbol],
    extents: Sequence[Size],
    first: int,
    second: int,
    indices: Sequence[Expression],
) -> bool:
    """Whether a step of loop `first` continues where loop `second` ends, in every access."""
    for index in indices:
        large = coefficient(index, symbols[first])
        small = coefficient(index, symbols[second])
        if large is None or small is None or large != small * extents[second]:
            return False
    return True
