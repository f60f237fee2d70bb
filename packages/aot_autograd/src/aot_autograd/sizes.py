"""Symbolic numbers: as graph nodes while tracing, as values at run time.

Comes in: integer and real expressions of `primtorch.symbolic`. Goes out: for each, a number or the
node that computes it from size and scalar placeholders by `operator.add/mul/floordiv/mod/...` and
`torch.sym_max/min`; at run time the number itself (`evaluated`). Invariant: one node per
expression; a symbol without a placeholder is an error, never a guess.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.errors import TraceError
from primtorch.symbolic import (
    REAL_FUNCTIONS,
    Expression,
    Real,
    RealSymbol,
    evaluate_real,
    expression_of,
    map_expression,
    maximum,
    minimum,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aot_autograd.graph import Node
    from primtorch.fake import TensorMeta
    from primtorch.symbolic import Symbol

_REAL_FUNCTIONS: dict[str, Any] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "max": torch.sym_max,
    "min": torch.sym_min,
    "float": torch.sym_float,
    "sqrt": torch.sym_sqrt,
    "abs": operator.abs,
    **REAL_FUNCTIONS,
}


class SizeNodes:
    """Memo from expression to node; `append(target, args, meta)` adds a call to the graph."""

    __slots__ = ("_append", "_known")

    def __init__(self, append: Callable[[Any, tuple[Any, ...], Any], Node]) -> None:
        self._append = append
        self._known: dict[Any, Any] = {}

    def bind(self, symbol: Any, node: Node) -> None:
        """Say which placeholder holds a symbol's value."""
        self._known.setdefault(symbol, node)

    def node(self, expression: Any) -> Any:
        """The node of an expression (emitted when it is new); a number stays a number."""
        if isinstance(expression, (int, float)):
            return expression
        known = self._known.get(expression)
        if known is None:
            integer = isinstance(expression, Expression)
            known = map_expression(expression, self) if integer else self._real(expression)
            self._known[expression] = known
        return known

    # ---- one method per kind of expression, called by map_expression

    def integer(self, value: int) -> Any:
        """A constant."""
        return value

    def symbol(self, symbol: Symbol) -> Any:
        """A size that no placeholder carries."""
        raise TraceError(
            f"the size {symbol.name} is used in the graph",
            "no input of the graph carries this size",
            "pass the size as an input of its own (docs/interfaces.md, placeholders)",
        )

    def sum(self, constant: int, terms: tuple[tuple[Expression, int], ...]) -> Any:
        """Constant + sum of coefficient * term."""
        total: Any = None
        for term, coefficient in terms:
            value = self.node(term)
            if coefficient != 1:
                value = self._call(operator.mul, value, coefficient, term * coefficient)
            total = value if total is None else self._call(operator.add, total, value, None)
        return self._call(operator.add, total, constant, None) if constant else total

    def product(self, factors: tuple[Expression, ...]) -> Any:
        """A product."""
        total = self.node(factors[0])
        for factor in factors[1:]:
            total = self._call(operator.mul, total, self.node(factor), None)
        return total

    def floor_div(self, dividend: int | Expression, divisor: int | Expression) -> Any:
        """A floor division."""
        return self._call(operator.floordiv, self.node(dividend), self.node(divisor), None)

    def modulo(self, dividend: int | Expression, divisor: int | Expression) -> Any:
        """A remainder with the divisor's sign."""
        return self._call(operator.mod, self.node(dividend), self.node(divisor), None)

    def maximum(self, arguments: tuple[int | Expression, ...]) -> Any:
        """The largest."""
        return self._fold(torch.sym_max, arguments)

    def minimum(self, arguments: tuple[int | Expression, ...]) -> Any:
        """The smallest."""
        return self._fold(torch.sym_min, arguments)

    def _fold(self, function: Any, arguments: tuple[int | Expression, ...]) -> Any:
        total = self.node(arguments[0])
        for argument in arguments[1:]:
            total = self._call(function, total, self.node(argument), None)
        return total

    def _call(self, function: Any, left: Any, right: Any, meta: Any) -> Any:
        if meta is None:
            meta = _META[function](_meta(left), _meta(right))
        known = self._known.get(meta)
        if known is None:
            known = self._known[meta] = self._append(function, (left, right), meta)
        return known

    def _real(self, value: Real | RealSymbol) -> Any:
        if isinstance(value, RealSymbol):
            raise TraceError(
                f"the number {value.name} is used in the graph",
                "no input of the graph carries it",
                "pass the number as an input of its own (docs/interfaces.md, placeholders)",
            )
        function = _REAL_FUNCTIONS.get(value.operator)
        if function is None:
            raise TraceError(
                f"{value.operator} of a number that varies from call to call",
                "graphs hold only arithmetic of such numbers",
                "compute it outside and pass the result",
            )
        arguments = tuple([self.node(argument) for argument in value.arguments])
        return self._append(function, arguments, value)


def _meta(value: Any) -> Any:
    return value if isinstance(value, int) else symbol_of(value.meta)


_META: dict[Any, Callable[[Any, Any], Any]] = {
    operator.add: operator.add,
    operator.mul: operator.mul,
    operator.floordiv: operator.floordiv,
    operator.mod: operator.mod,
    torch.sym_max: maximum,
    torch.sym_min: minimum,
}


def symbol_of(value: Any) -> Any:
    """What a symbolic number stands for: an expression, a real, or itself when it is plain."""
    if isinstance(value, torch.SymInt):
        return expression_of(value)
    if isinstance(value, torch.SymFloat):
        return value.node.value
    return value


def is_symbolic(value: Any) -> bool:
    """Whether an argument (a number, a nested sequence) holds something symbolic."""
    if isinstance(value, (tuple, list)):
        return any(is_symbolic(item) for item in value)
    return isinstance(value, (torch.SymInt, torch.SymFloat, Expression, Real, RealSymbol))


def evaluated(value: Any, sizes: Mapping[Any, Any]) -> Any:
    """An argument with every symbolic number replaced by its value in this call."""
    if isinstance(value, (tuple, list)):
        return [evaluated(item, sizes) for item in value]
    value = symbol_of(value)
    if isinstance(value, Expression):
        return value.evaluate(sizes)
    if isinstance(value, (Real, RealSymbol)):
        return evaluate_real(value, sizes)
    return value


def zeros_of(meta: TensorMeta, sizes: Mapping[Any, Any] | None) -> torch.Tensor:
    """Zeros in this layout; `sizes` are the values of symbols in this call."""
    shape: Any = evaluated(meta.shape, sizes) if sizes else meta.shape
    stride: Any = evaluated(meta.stride, sizes) if sizes else meta.stride
    made = torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
    return made.zero_()
