"""Iteration spaces: how one node's loops can be written in another's.

A space is a tuple of extents. `align` finds for each variable of one space an expression over the
variables of another with the same points, guided by an element that both access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.analysis import coefficients
from inductor.ir.index import delinearize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.operations import Size
    from primtorch.symbolic import Symbol

Mapping = dict["Symbol", "Size"]


def common_refinement(first: Sequence[Size], second: Sequence[Size]) -> tuple[Size, ...] | None:
    """Extents of which both spaces are mergers of neighbours, or None."""
    if tuple(first) == tuple(second):
        return tuple(first)
    result: list[Size] = []
    left, right = list(reversed(first)), list(reversed(second))
    while left and right:
        mine, other = left.pop(), right.pop()
        if mine == other:
            result.append(mine)
        elif _divides(mine, other):
            result.append(mine)
            right.append(other // mine)
            # The larger extent's leading part was taken; what is left of it must come after.
        elif _divides(other, mine):
            result.append(other)
            left.append(mine // other)
        else:
            return None
    if any(extent != 1 for extent in (*left, *right)):
        return None
    return tuple(extent for extent in result if extent != 1)


def _divides(small: Size, large: Size) -> bool:
    if isinstance(small, int) and small == 0:
        return False
    return (large % small) == 0


def refine_mapping(
    symbols: Sequence[Symbol],
    extents: Sequence[Size],
    fine_symbols: Sequence[Symbol],
    fine: Sequence[Size],
) -> Mapping | None:
    """Each coarse variable as an expression over the variables of a refinement."""
    mapping: Mapping = {}
    position = 0
    for symbol, extent in zip(symbols, extents, strict=True):
        value: Size = 0
        size: Size = 1
        while size != extent:
            if position >= len(fine):
                return None
            value = value * fine[position] + fine_symbols[position]
            size = size * fine[position]
            position += 1
        mapping[symbol] = value
    return mapping if position == len(fine) else None


def align_by_access(
    theirs: Size,
    their_symbols: Sequence[Symbol],
    their_extents: Sequence[Size],
    ours: Size,
    our_symbols: Sequence[Symbol],
    our_extents: Sequence[Size],
) -> Mapping | None:
    """Map our variables to theirs so that `ours` becomes `theirs`, by equal coefficients."""
    first = coefficients(theirs, their_symbols)
    second = coefficients(ours, our_symbols)
    if first is None or second is None:
        return None
    extent_of = dict(zip(their_symbols, their_extents, strict=True))
    by_factor = {factor: symbol for symbol, factor in first.items()}
    mapping: Mapping = {}
    used: set[Symbol] = set()
    for symbol, extent in zip(our_symbols, our_extents, strict=True):
        factor = second.get(symbol)
        if factor is None:
            continue
        partner = by_factor.get(factor)
        if partner is None or partner in used or extent_of[partner] != extent:
            return None
        mapping[symbol] = partner
        used.add(partner)
    # What the shared element doesn't depend on is matched in order of the loops left over.
    rest = [symbol for symbol in their_symbols if symbol not in used]
    for symbol, extent in zip(our_symbols, our_extents, strict=True):
        if symbol in mapping:
            continue
        partner = next((other for other in rest if extent_of[other] == extent), None)
        if partner is None:
            return None
        rest.remove(partner)
        mapping[symbol] = partner
    return mapping


def unflatten(symbol: Symbol, extents: Sequence[Size]) -> tuple[Size, ...]:
    """Coordinates of a merged variable."""
    return delinearize(symbol, extents)
