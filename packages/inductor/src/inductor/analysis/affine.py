"""Linear coefficients of index expressions.

`i0` occurs linearly in `768*i0 + r0` and not in `i0 // 2`. Coefficients may be expressions over
size symbols.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from primtorch.symbolic import Expression, Product, Symbol, product, split_sum

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inductor.ir.operations import Size


def coefficient(index: Size, symbol: Symbol) -> Size | None:
    """The factor of `symbol` in `index`, 0 if it doesn't occur; None if it occurs nonlinearly."""
    if isinstance(index, int) or symbol not in index.free_symbols:
        return 0
    return _coefficient(index, symbol)


@lru_cache(1 << 14)
def _coefficient(index: Expression, symbol: Symbol) -> Size | None:
    _, terms = split_sum(index)
    total: Size = 0
    for term, count in terms:
        if symbol not in term.free_symbols:
            continue
        if term is symbol:
            total = total + count
            continue
        if not isinstance(term, Product):
            return None
        rest = [factor for factor in term.factors if factor is not symbol]
        if len(rest) != len(term.factors) - 1:
            return None
        if any(symbol in factor.free_symbols for factor in rest):
            return None
        total = total + product(rest) * count
    return total


def coefficients(index: Size, symbols: Iterable[Symbol]) -> dict[Symbol, Size] | None:
    """Nonzero coefficients of all `symbols`; None if one occurs nonlinearly."""
    result: dict[Symbol, Size] = {}
    for symbol in symbols:
        factor = coefficient(index, symbol)
        if factor is None:
            return None
        if factor != 0:
            result[symbol] = factor
    return result


def linear_in(index: Size, symbols: Iterable[Symbol]) -> bool:
    """Whether all `symbols` occur linearly or not at all."""
    return coefficients(index, symbols) is not None
