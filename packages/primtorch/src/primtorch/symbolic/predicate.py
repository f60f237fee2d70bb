"""Relations between integer expressions: what a guard on sizes states.

`equal`, `less_than`, `conjunction`, `disjunction` and `negation` return a `bool` when the ranges
decide, and otherwise a `Predicate` in a normal form, so that one question asked in several
spellings is one predicate: both sides are divided by common positive factors, and terms stand on
the side where their sign is positive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from primtorch.symbolic.expression import (
    Expression,
    Maximum,
    Minimum,
    Product,
    Symbol,
    bounds,
    evaluate,
    floor_div,
    free_symbols,
    product,
    substitute,
    text,
)
from primtorch.symbolic.real import Real, RealSymbol, evaluate_real, real_symbols, text_real
from primtorch.symbolic.simplify import split_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primtorch.symbolic.interval import Bounds

_MEMO_SIZE = 1 << 14


class Predicate:
    """A statement about symbols; one of Equal, LessThan, Not, And, Or, RealRelation."""

    __slots__ = ()

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """The integer symbols that occur."""
        return _free(self)

    def evaluate(self, mapping: Mapping[Symbol, int]) -> bool:
        """Whether it holds under `mapping`; UnboundSymbolError if a symbol is missing."""
        return evaluate_predicate(self, mapping)

    def substitute(self, mapping: Mapping[Symbol, int | Expression]) -> bool | Predicate:
        """The predicate with symbols replaced, decided if the ranges then decide it."""
        return _substitute(self, mapping)

    @property
    def text(self) -> str:
        """Python source."""
        return text_predicate(self)


@dataclass(frozen=True, slots=True)
class Equal(Predicate):
    """left == right."""

    left: int | Expression
    right: int | Expression


@dataclass(frozen=True, slots=True)
class LessThan(Predicate):
    """left < right."""

    left: int | Expression
    right: int | Expression


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The operand doesn't hold."""

    operand: Predicate


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """All operands hold; there are at least two."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """Some operand holds; there are at least two."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class RealRelation(Predicate):
    """left == right, or left < right, over reals; "is" is ==, of the same sign where both are zero."""

    operator: str  # "==", "<", "<=" or "is"
    left: float | Expression | Real | RealSymbol
    right: float | Expression | Real | RealSymbol


@lru_cache(_MEMO_SIZE)
def equal(left: int | Expression, right: int | Expression) -> bool | Predicate:
    """Whether left == right."""
    if left is right:
        return True
    extreme = _equals_argument(left, right)
    if extreme is None:
        extreme = _equals_argument(right, left)
    if extreme is not None:
        return extreme
    difference = _divide_common(left - right)
    constant, terms = split_sum(difference)
    if not terms:
        return constant == 0
    low, high = _difference_bounds(difference)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    scale = math.gcd(*(count for _, count in terms))
    if constant % scale:
        return False
    positive, negative = _sides(constant // scale, [(t, c // scale) for t, c in terms])
    if isinstance(positive, int) or (
        isinstance(negative, Expression) and positive.text() > negative.text()
    ):
        positive, negative = negative, positive
    return Equal(positive, negative)


@lru_cache(_MEMO_SIZE)
def less_than(left: int | Expression, right: int | Expression) -> bool | Predicate:
    """Whether left < right."""
    difference = _divide_common(right - left)
    low, high = _difference_bounds(difference)
    if low is not None and low > 0:
        return True
    if high is not None and high <= 0:
        return False
    constant, terms = split_sum(difference)
    scale = math.gcd(*(count for _, count in terms))
    limit = floor_div(-constant, scale)
    assert isinstance(limit, int)
    larger, smaller = _sides(-limit, [(t, c // scale) for t, c in terms])
    return LessThan(smaller, larger)


def less_equal(left: int | Expression, right: int | Expression) -> bool | Predicate:
    """Whether left <= right."""
    return less_than(left, right + 1)


def negation(operand: bool | Predicate) -> bool | Predicate:
    """The operand doesn't hold."""
    match operand:
        case bool():
            return not operand
        case Not(inner):
            return inner
        case LessThan(left, right):
            return less_than(right, left + 1)
        case _:
            return Not(operand)


def conjunction(*operands: bool | Predicate) -> bool | Predicate:
    """All operands hold."""
    kept: dict[Predicate, None] = {}
    for operand in operands:
        if operand is False:
            return False
        if isinstance(operand, And):
            kept.update(dict.fromkeys(operand.operands))
        elif isinstance(operand, Predicate):
            kept[operand] = None
    if len(kept) <= 1:
        return next(iter(kept), True)
    return And(tuple(kept))


def disjunction(*operands: bool | Predicate) -> bool | Predicate:
    """Some operand holds."""
    kept: dict[Predicate, None] = {}
    for operand in operands:
        if operand is True:
            return True
        if isinstance(operand, Or):
            kept.update(dict.fromkeys(operand.operands))
        elif isinstance(operand, Predicate):
            kept[operand] = None
    if len(kept) <= 1:
        return next(iter(kept), False)
    return Or(tuple(kept))


def evaluate_predicate(value: bool | Predicate, mapping: Mapping[Symbol, int]) -> bool:
    """Whether `value` holds under `mapping`."""
    match value:
        case bool():
            return value
        case Equal(left, right):
            return evaluate(left, mapping) == evaluate(right, mapping)
        case LessThan(left, right):
            return evaluate(left, mapping) < evaluate(right, mapping)
        case Not(operand):
            return not evaluate_predicate(operand, mapping)
        case And(operands):
            return all(evaluate_predicate(operand, mapping) for operand in operands)
        case Or(operands):
            return any(evaluate_predicate(operand, mapping) for operand in operands)
        case RealRelation(operator, first, second):
            values: Mapping[Symbol | RealSymbol, float] = mapping  # type: ignore[assignment]
            one, two = evaluate_real(first, values), evaluate_real(second, values)
            match operator:
                case "==":
                    return one == two
                case "<":
                    return one < two
                case "<=":
                    return one <= two
                case _:
                    return one == two and math.copysign(1, one) == math.copysign(1, two)
        case _:
            raise AssertionError(f"unknown predicate {value!r}")


def text_predicate(value: bool | Predicate) -> str:
    """Python source of `value`."""
    match value:
        case bool():
            return str(value)
        case Equal(left, right):
            return f"{text(left)} == {text(right)}"
        case LessThan(left, right):
            return f"{text(left)} < {text(right)}"
        case Not(Equal(left, right)):
            return f"{text(left)} != {text(right)}"
        case Not(operand):
            return f"not ({text_predicate(operand)})"
        case And(operands):
            return " and ".join(f"({text_predicate(operand)})" for operand in operands)
        case Or(operands):
            return " or ".join(f"({text_predicate(operand)})" for operand in operands)
        case RealRelation(operator, first, second):
            return f"{text_real(first)} {operator} {text_real(second)}"
        case _:
            raise AssertionError(f"unknown predicate {value!r}")


def predicate_symbols(value: bool | Predicate) -> frozenset[Symbol | RealSymbol]:
    """All symbols, integer and real, that occur in `value`."""
    match value:
        case Equal(left, right) | LessThan(left, right):
            return frozenset(free_symbols(left) | free_symbols(right))
        case Not(operand):
            return predicate_symbols(operand)
        case And(operands) | Or(operands):
            return frozenset().union(*map(predicate_symbols, operands))
        case RealRelation(_, left, right):
            return real_symbols(left) | real_symbols(right)
        case _:
            return frozenset()


def _free(value: Predicate) -> frozenset[Symbol]:
    return frozenset(s for s in predicate_symbols(value) if isinstance(s, Symbol))


def _substitute(
    value: bool | Predicate, mapping: Mapping[Symbol, int | Expression]
) -> bool | Predicate:
    match value:
        case bool():
            return value
        case Equal(left, right):
            return equal(substitute(left, mapping), substitute(right, mapping))
        case LessThan(left, right):
            return less_than(substitute(left, mapping), substitute(right, mapping))
        case Not(operand):
            return negation(_substitute(operand, mapping))
        case And(operands):
            return conjunction(*(_substitute(operand, mapping) for operand in operands))
        case Or(operands):
            return disjunction(*(_substitute(operand, mapping) for operand in operands))
        case RealRelation():
            return value
        case _:
            raise AssertionError(f"unknown predicate {value!r}")


def _difference_bounds(difference: int | Expression) -> Bounds:
    """Bounds of a difference, also by measuring each symbol from its lower end.

    That proves b*t - b - t + 1 > 0 for b, t >= 2: with b = 2 + x and t = 2 + y all terms are
    positive.
    """
    low, high = bounds(difference)
    if isinstance(difference, int) or (low is not None and high is not None):
        return (low, high)
    if not any(isinstance(term, Product) for term, _ in split_sum(difference)[1]):
        return (low, high)
    shift: dict[Symbol, int | Expression] = {}
    for symbol in difference.free_symbols:
        start, end = symbol.bounds()
        if start is None:
            return (low, high)
        reach = None if end is None else end - start
        shift[symbol] = Symbol(f"{symbol.name}_from_{start}", 0, reach) + start
    other_low, other_high = bounds(difference.substitute(shift))
    lows = [value for value in (low, other_low) if value is not None]
    highs = [value for value in (high, other_high) if value is not None]
    return (max(lows, default=None), min(highs, default=None))


def _equals_argument(left: int | Expression, right: int | Expression) -> bool | Predicate | None:
    """min(a, b) == a is a <= b, and max(a, b) == a is b <= a; None for other forms."""
    if isinstance(left, Minimum) and right in left.arguments:
        return conjunction(*(less_equal(right, other) for other in left.arguments))
    if isinstance(left, Maximum) and right in left.arguments:
        return conjunction(*(less_equal(other, right) for other in left.arguments))
    return None


def _divide_common(value: int | Expression) -> int | Expression:
    """`value` without factors, positive by their ranges, that all its terms share."""
    constant, terms = split_sum(value)
    if constant or not terms:
        return value
    shared = list(_factors(terms[0][0]))
    for term, _ in terms[1:]:
        factors = list(_factors(term))
        kept = []
        for factor in shared:
            if factor in factors:
                factors.remove(factor)
                kept.append(factor)
        shared = kept
    positive = [factor for factor in shared if (factor.bounds()[0] or 0) > 0]
    return floor_div(value, product(positive)) if positive else value


def _factors(term: Expression) -> tuple[Expression, ...]:
    return getattr(term, "factors", (term,))


def _sides(
    constant: int, terms: list[tuple[Expression, int]]
) -> tuple[int | Expression, int | Expression]:
    """(p, n) with p - n == constant + terms, and no negative coefficient on either side."""
    positive: int | Expression = max(constant, 0)
    negative: int | Expression = max(-constant, 0)
    for term, count in terms:
        if count > 0:
            positive = positive + term * count
        else:
            negative = negative + term * -count
    return positive, negative
