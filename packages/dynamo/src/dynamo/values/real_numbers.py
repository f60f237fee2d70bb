"""Arithmetic on floats that vary from call to call, as Python does it.

Torch's symbolic float divides and rounds where Python's `//` and `%` reckon exactly, and raises nothing. Here a number
stays symbolic under the conditions, kept as guards, that Python's operator neither raises nor leaves the floats;
where it would raise, it does, and what has no symbolic form takes the number for a constant.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from dynamo.values.native import call_native
from dynamo.values.rules import RULES
from primtorch.symbolic import REAL_ARITHMETIC, REAL_FUNCTIONS, real_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_LARGEST_EXPONENT = math.log(1.7976931348623157e308)


def _quotient(function: Callable[..., Any], message: str) -> Callable[[Any, Any], Any]:
    def run(left: Any, right: Any) -> Any:
        if right == 0:
            raise ZeroDivisionError(message)
        return REAL_ARITHMETIC[function](left, right)

    return run


def _power(left: Any, right: Any) -> Any:
    whole = type(right) in (int, float) and float(right).is_integer()
    if left == 0 and right < 0:
        raise ZeroDivisionError("0.0 cannot be raised to a negative power")
    if not whole and left < 0:  # complex, unless the exponent is a whole number
        return float(left) ** float(right)
    return REAL_ARITHMETIC[operator.pow](left, right)


_OPERATORS: dict[Callable[..., Any], Callable[[Any, Any], Any]] = {
    operator.truediv: _quotient(operator.truediv, "float division by zero"),
    operator.floordiv: _quotient(operator.floordiv, "float floor division by zero"),
    operator.mod: _quotient(operator.mod, "float modulo"),
    operator.pow: _power,
}
_OPERATORS |= {
    getattr(operator, f"i{function.__name__}"): own for function, own in list(_OPERATORS.items())
}


def binary(function: Callable[..., Any], left: Any, right: Any) -> Any:
    """`left <op> right` of a number that varies and a float, or a float that varies; NotImplemented to leave it."""
    own = _OPERATORS.get(function)
    if own is None or not isinstance(left, _NUMBERS) or not isinstance(right, _NUMBERS):
        return NotImplemented
    if type(left) is float and type(right) is torch.SymInt:
        right = torch.sym_float(right)
    elif type(left) is torch.SymInt and type(right) in (int, float):
        left = torch.sym_float(left)
    return own(left, right)


# -- math ----------------------------------------------------------------------------------------------


def _inside(name: str, value: Any) -> bool:
    """Whether the function of `math` raises nothing for the number."""
    match name:
        case "log" | "log2" | "log10":
            return bool(value > 0)
        case "sqrt":
            return bool(value >= 0)
        case "log1p":
            return bool(value > -1)
        case "asin" | "acos":
            return bool(value >= -1) and bool(value <= 1)
        case "exp" | "expm1" | "sinh" | "cosh":
            return bool(value < _LARGEST_EXPONENT) and bool(value > -_LARGEST_EXPONENT)
        case "sin" | "cos" | "tan":
            return bool(value < math.inf) and bool(value > -math.inf)
        case _:
            return True


def _function(name: str) -> None:
    function = getattr(math, name)

    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(value, torch.SymInt):
            value = torch.sym_float(value)
        if not isinstance(value, torch.SymFloat) or not value.node.has_hint():
            return call_native(machine, function, args, kwargs)
        if not _inside(name, value):
            return function(float(value))
        return torch.sym_sqrt(value) if name == "sqrt" else real_function(name, value)

    RULES[function] = run


for _name in ("sqrt", *REAL_FUNCTIONS):
    _function(_name)


def _math_power(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and any(isinstance(one, torch.SymFloat) for one in args):
        base, exponent = args
        if base > 0 and all(isinstance(one, _NUMBERS) for one in args):
            return REAL_ARITHMETIC[operator.pow](base, exponent)
    return call_native(machine, math.pow, args, kwargs)


RULES[math.pow] = _math_power


# -- max and min -----------------------------------------------------------------------------------------


def _extreme(builtin: Any, function: Any) -> None:
    plain = RULES[builtin]

    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        floats = len(args) > 1 and all(type(one) in (float, torch.SymFloat) for one in args)
        symbolic = floats and not kwargs and torch.SymFloat in map(type, args)
        if symbolic and all(one == one for one in args):  # noqa: PLR0124 - a NaN hangs on the order
            return functools.reduce(function, args)
        return plain(machine, args, kwargs)

    RULES[builtin] = run


_extreme(max, torch.sym_max)
_extreme(min, torch.sym_min)
