"""Real-valued expressions over symbolic sizes: what `torch.SymFloat` carries.

A value is a `float` (or an int or an integer `Expression` inside arguments) or a `Real`. Reals are
only built, printed and evaluated; nothing is simplified but constants. Invariant: a `Real` has at
least one free symbol.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primtorch.errors import UnboundSymbolError
from primtorch.symbolic.expression import Expression, Symbol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


REAL_FUNCTIONS: dict[str, Callable[[float], float]] = {
    name: getattr(math, name)
    for name in (
        *("exp", "expm1", "log", "log10", "log1p", "log2"),
        *("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"),
    )
}
"""Functions of `math` that graphs hold of numbers that vary, by name."""

_FUNCTIONS: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": abs,
    "max": max,
    "min": min,
    "float": float,
    "round": lambda value, digits: float(round(value, digits)),
    "sqrt": math.sqrt,
    **REAL_FUNCTIONS,
}
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
}


@dataclass(frozen=True, slots=True)
class RealSymbol:
    """A float that varies from call to call."""

    name: str


@dataclass(frozen=True, slots=True)
class Real:
    """`operator(*arguments)`; the operator is a key of the table above."""

    operator: str
    arguments: tuple[float | Expression | Real | RealSymbol, ...]


def real(name: str, *arguments: float | Expression | Real | RealSymbol) -> float | Real:
    """The value of an operator on reals, folded when all arguments are numbers."""
    if all(isinstance(argument, (int, float)) for argument in arguments):
        return _FUNCTIONS[name](*arguments)
    return Real(name, arguments)


def real_symbols(value: float | Expression | Real | RealSymbol) -> frozenset[Symbol | RealSymbol]:
    """The integer and real symbols on which the value depends."""
    match value:
        case Expression():
            return frozenset(value.free_symbols)
        case RealSymbol():
            return frozenset((value,))
        case Real(_, arguments):
            return frozenset().union(*map(real_symbols, arguments))
        case _:
            return frozenset()


def evaluate_real(
    value: float | Expression | Real | RealSymbol,
    mapping: Mapping[Symbol | RealSymbol, float],
) -> float:
    """The number that the value is under `mapping`; UnboundSymbolError if a symbol is missing."""
    match value:
        case Expression():
            return value.evaluate(mapping)  # type: ignore[arg-type]
        case RealSymbol(name):
            if value not in mapping:
                raise UnboundSymbolError(name, tuple(s.name for s in mapping))
            return mapping[value]
        case Real(name, arguments):
            return _FUNCTIONS[name](*(evaluate_real(item, mapping) for item in arguments))
        case _:
            return value


def text_real(value: float | Expression | Real | RealSymbol) -> str:
    """Python source; functions are those of `math`."""
    match value:
        case Expression():
            return value.text()
        case RealSymbol(name):
            return name
        case Real(name, arguments):
            parts = [text_real(item) for item in arguments]
            if name in _INFIX:
                return f"(({parts[0]}) {_INFIX[name]} ({parts[1]}))"
            if name == "neg":
                return f"(-({parts[0]}))"
            plain = name in ("max", "min", "abs", "float", "round")
            return f"{name if plain else 'math.' + name}({', '.join(parts)})"
        case float() if math.isnan(value):
            return "math.nan"
        case float() if math.isinf(value):
            return "math.inf" if value > 0 else "(-math.inf)"
        case _:
            return repr(value)
