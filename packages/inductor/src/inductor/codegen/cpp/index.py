"""Index expressions as C++ over 64-bit integers."""

# ruff: noqa: D102 - the visitor's methods are described by ExpressionVisitor
from __future__ import annotations

from typing import TYPE_CHECKING

from primtorch.symbolic import Expression, Symbol, bounds, map_expression

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inductor.ir import Size

__all__ = ["IndexPrinter"]


class IndexPrinter:
    """Prints expressions with the symbols spelled as `names` says; memoised by expression."""

    def __init__(self, names: Mapping[Symbol, str]) -> None:
        self._names = names
        self._memo: dict[Expression, str] = {}

    def __call__(self, value: Size) -> str:
        """The text of `value`, in parentheses where needed."""
        if isinstance(value, int):
            return self.integer(value)
        text = self._memo.get(value)
        if text is None:
            text = self._memo[value] = map_expression(value, self)
        return text

    def forget(self) -> None:
        """Drop remembered texts after `names` changed."""
        self._memo.clear()

    def integer(self, value: int) -> str:
        return f"{value}l" if value >= 0 else f"({value}l)"

    def symbol(self, symbol: Symbol) -> str:
        return self._names[symbol]

    def sum(self, constant: int, terms: tuple[tuple[Expression, int], ...]) -> str:
        parts = []
        for term, count in terms:
            text = self(term)
            parts.append(text if count == 1 else f"{self.integer(count)} * {text}")
        if constant:
            parts.append(self.integer(constant))
        return f"({' + '.join(parts)})"

    def product(self, factors: tuple[Expression, ...]) -> str:
        return f"({' * '.join(self(factor) for factor in factors)})"

    def floor_div(self, dividend: Size, divisor: Size) -> str:
        if _natural(dividend) and _positive(divisor):
            return f"({self(dividend)} / {self(divisor)})"
        return f"ci_floordiv_signed<i64>({self(dividend)}, {self(divisor)})"

    def modulo(self, dividend: Size, divisor: Size) -> str:
        if _natural(dividend) and _positive(divisor):
            return f"({self(dividend)} % {self(divisor)})"
        return f"ci_mod_signed<i64>({self(dividend)}, {self(divisor)})"

    def maximum(self, arguments: tuple[Size, ...]) -> str:
        return self._nested("ci_maximum<i64>", arguments)

    def minimum(self, arguments: tuple[Size, ...]) -> str:
        return self._nested("ci_minimum<i64>", arguments)

    def _nested(self, function: str, arguments: tuple[Size, ...]) -> str:
        text = self(arguments[0])
        for argument in arguments[1:]:
            text = f"{function}({text}, {self(argument)})"
        return text


def _natural(value: Size) -> bool:
    low = bounds(value)[0]
    return low is not None and low >= 0


def _positive(value: Size) -> bool:
    low = bounds(value)[0]
    return low is not None and low > 0
