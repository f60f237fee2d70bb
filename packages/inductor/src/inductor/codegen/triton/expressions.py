"""Integer expressions as Triton source.

Comes in: an expression over loop symbols and size symbols. Goes out: text over names that are in scope in the kernel.
Divisions of values known to be non-negative are plain `//` and `%` (Triton truncates); others go through the prelude's
floor versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primtorch.symbolic import Expression, Symbol, bounds, map_expression

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inductor.ir import Size


def _nonnegative(value: Size) -> bool:
    low = value if isinstance(value, int) else bounds(value)[0]
    return low is not None and low >= 0


class _Printer:
    """An `ExpressionVisitor` that yields text; every result is parenthesised where it must be."""

    def __init__(self, names: Mapping[Symbol, str], *, host: bool) -> None:
        self._names = names
        self._host = host

    def integer(self, value: int) -> str:
        return str(value) if value >= 0 else f"({value})"

    def symbol(self, symbol: Symbol) -> str:
        return self._names[symbol]

    def sum(self, constant: int, terms: tuple[tuple[Expression, int], ...]) -> str:
        parts = []
        for term, coefficient in terms:
            printed = map_expression(term, self)
            parts.append(printed if coefficient == 1 else f"{self.integer(coefficient)}*{printed}")
        if constant:
            parts.append(self.integer(constant))
        return f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]

    def product(self, factors: tuple[Expression, ...]) -> str:
        return f"({'*'.join(map_expression(factor, self) for factor in factors)})"

    def _divide(self, dividend: Size, divisor: Size, sign: str, function: str) -> str:
        left, right = map_expression(dividend, self), map_expression(divisor, self)
        if self._host or (_nonnegative(dividend) and _nonnegative(divisor)):
            return f"({left} {sign} {right})"
        return f"prelude.{function}({left}, {right})"

    def floor_div(self, dividend: Size, divisor: Size) -> str:
        return self._divide(dividend, divisor, "//", "floor_div")

    def modulo(self, dividend: Size, divisor: Size) -> str:
        return self._divide(dividend, divisor, "%", "floor_modulo")

    def _extreme(self, arguments: tuple[Size, ...], function: str) -> str:
        text = map_expression(arguments[0], self)
        for argument in arguments[1:]:
            text = f"{function}({text}, {map_expression(argument, self)})"
        return text

    def maximum(self, arguments: tuple[Size, ...]) -> str:
        return self._extreme(arguments, "max" if self._host else "tl.maximum")

    def minimum(self, arguments: tuple[Size, ...]) -> str:
        return self._extreme(arguments, "min" if self._host else "tl.minimum")


def expression_text(value: Size, names: Mapping[Symbol, str], *, host: bool = False) -> str:
    """Source text of `value`; `host` asks for Python (for a grid), else it is for device code.

    Raises:
        KeyError: a symbol has no name in `names`.
    """
    return map_expression(value, _Printer(names, host=host))
