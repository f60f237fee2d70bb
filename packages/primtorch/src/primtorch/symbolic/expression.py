"""Integer expressions in canonical form, for tensor sizes and for memory indices.

A value is a plain `int` or an `Expression`; every operation folds to `int` when it can. The
canonical form is a sum of products with integer coefficients over atoms: `Symbol`, `FloorDiv`,
`Modulo`, `Maximum`, `Minimum`. Division follows Python's floor semantics. Simplification uses the
ranges of the symbols and divisibility, never a solver.

Invariant: expressions are hash-consed. Two live expressions that are structurally equal are the
same object, so `==`, `hash` and dict look-ups are those of object identity. The table behind this
holds its values weakly, and the memo tables of the constructors are bounded: both are caches of
pure functions and hold no meaning. A simplified expression equals the original wherever the
original is defined: `(n * a) // n` is `a` although the former divides by zero for `n == 0`.
"""

# ruff: noqa: D102 - an overriding method has its contract in Expression
from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

from primtorch.errors import UnboundSymbolError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

Bounds = tuple[int | None, int | None]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MEMO_SIZE = 1 << 15
_EMPTY: frozenset[Symbol] = frozenset()


class ExpressionVisitor(Protocol[T_co]):
    """One method per kind of node; a method visits the arguments of its node itself.

    Call `map_expression(child, self)` for the children, which also takes plain ints. A code
    generator that prints C is such a visitor with `T_co = str`.
    """

    def integer(self, value: int) -> T_co:
        """Handle a constant."""

    def symbol(self, symbol: Symbol) -> T_co:
        """Handle a free symbol."""

    def sum(self, constant: int, terms: tuple[tuple[Expression, int], ...]) -> T_co:
        """Handle constant + sum of coefficient * term."""

    def product(self, factors: tuple[Expression, ...]) -> T_co:
        """Handle a product of at least two atoms; powers are repeated factors."""

    def floor_div(self, dividend: int | Expression, divisor: int | Expression) -> T_co:
        """Handle dividend // divisor with Python's floor semantics."""

    def modulo(self, dividend: int | Expression, divisor: int | Expression) -> T_co:
        """Handle dividend % divisor; the sign is the divisor's."""

    def maximum(self, arguments: tuple[int | Expression, ...]) -> T_co:
        """Handle the largest of at least two values."""

    def minimum(self, arguments: tuple[int | Expression, ...]) -> T_co:
        """Handle the smallest of at least two values."""


class Expression:
    """An immutable integer expression in canonical form; see the module for the invariants."""

    __slots__ = ("__weakref__", "_bounds", "_free", "_text")

    _bounds: Bounds | None
    _free: frozenset[Symbol] | None
    _text: str | None

    # ---- arithmetic: returns int when the result is constant
    def __add__(self, other: int | Expression) -> int | Expression:
        if isinstance(other, (int, Expression)):
            return _add(self, other)
        return NotImplemented

    __radd__ = __add__

    def __sub__(self, other: int | Expression) -> int | Expression:
        if isinstance(other, int):
            return _add(self, -other)
        if isinstance(other, Expression):
            return _add(self, _scale(other, -1))
        return NotImplemented

    def __rsub__(self, other: int) -> int | Expression:
        if isinstance(other, int):
            return _add(_scale(self, -1), other)
        return NotImplemented

    def __neg__(self) -> int | Expression:
        return _scale(self, -1)

    def __pos__(self) -> Expression:
        return self

    def __mul__(self, other: int | Expression) -> int | Expression:
        if isinstance(other, int):
            return _scale(self, other)
        if isinstance(other, Expression):
            return _multiply(self, other)
        return NotImplemented

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> int | Expression:
        if not isinstance(exponent, int) or exponent < 0:
            return NotImplemented
        result: int | Expression = 1
        for _ in range(exponent):
            result = result * self
        return result

    def __floordiv__(self, other: int | Expression) -> int | Expression:
        if isinstance(other, (int, Expression)):
            return floor_div(self, other)
        return NotImplemented

    def __rfloordiv__(self, other: int) -> int | Expression:
        if isinstance(other, int):
            return floor_div(other, self)
        return NotImplemented

    def __mod__(self, other: int | Expression) -> int | Expression:
        if isinstance(other, (int, Expression)):
            return modulo(self, other)
        return NotImplemented

    def __rmod__(self, other: int) -> int | Expression:
        if isinstance(other, int):
            return modulo(other, self)
        return NotImplemented

    def __copy__(self) -> Expression:
        return self

    def __deepcopy__(self, memo: object) -> Expression:
        return self

    def __repr__(self) -> str:
        return self.text()

    # ---- questions
    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """The symbols on which the value depends."""
        free = self._free
        if free is None:
            free = self._free = self._compute_free()
        return free

    def bounds(self) -> Bounds:
        """Inclusive lower and upper bound by interval arithmetic; None is unbounded."""
        bounds = self._bounds
        if bounds is None:
            bounds = self._bounds = self._compute_bounds()
        return bounds

    def text(self) -> str:
        """Python source of the expression; equal expressions have equal texts in every process."""
        text = self._text
        if text is None:
            text = self._text = self._compute_text()
        return text

    def evaluate(self, mapping: Mapping[Symbol, int]) -> int:
        """The value under `mapping`.

        Raises:
            UnboundSymbolError: a free symbol has no value.
            ZeroDivisionError: a divisor is zero.
        """
        raise NotImplementedError

    def substitute(self, mapping: Mapping[Symbol, int | Expression]) -> int | Expression:
        """The expression with symbols replaced, simplified anew."""
        if self.free_symbols.isdisjoint(mapping):
            return self
        return self._replace(mapping, {})

    def map(self, visitor: ExpressionVisitor[T]) -> T:
        """Call the visitor's method for this kind of node."""
        raise NotImplementedError

    def _compute_free(self) -> frozenset[Symbol]:
        raise NotImplementedError

    def _compute_bounds(self) -> Bounds:
        raise NotImplementedError

    def _compute_text(self) -> str:
        raise NotImplementedError

    def _replace(
        self,
        mapping: Mapping[Symbol, int | Expression],
        memo: dict[Expression, int | Expression],
    ) -> int | Expression:
        done = memo.get(self)
        if done is None:
            done = memo[self] = (
                self
                if self.free_symbols.isdisjoint(mapping)
                else self._rebuild(lambda child: _replaced(child, mapping, memo))
            )
        return done

    def _rebuild(self, change: _Change) -> int | Expression:
        raise NotImplementedError


class _Change(Protocol):
    def __call__(self, child: int | Expression, /) -> int | Expression: ...


_INTERNED: WeakValueDictionary[Hashable, Expression] = WeakValueDictionary()
_INTERN_LOCK = threading.Lock()
_E = TypeVar("_E", bound=Expression)


def _intern(kind: type[_E], *fields: object) -> _E:
    """The one object for `kind(*fields)`; `fields` are in the order of `kind.__match_args__`."""
    key = (kind, *fields)
    found = _INTERNED.get(key)
    if found is None:
        with _INTERN_LOCK:
            found = _INTERNED.get(key)
            if found is None:
                found = object.__new__(kind)
                found._bounds = found._free = found._text = None
                for name, value in zip(kind.__match_args__, fields, strict=True):  # type: ignore[attr-defined]
                    setattr(found, name, value)
                _INTERNED[key] = found
    return found  # type: ignore[return-value]


class Symbol(Expression):
    """A free integer variable with an inclusive range.

    Symbols are equal when name and range are equal: two captures that both name a size `s0` may
    share the object.
    """

    __slots__ = ("lower", "name", "upper")
    __match_args__ = ("name", "lower", "upper")

    name: str
    lower: int | None
    upper: int | None

    def __new__(cls, name: str, lower: int | None = None, upper: int | None = None) -> Self:
        """The symbol of this name and inclusive range; an empty range raises ValueError."""
        if lower is not None and upper is not None and lower > upper:
            raise ValueError(f"symbol {name!r} has an empty range [{lower}, {upper}]")
        return _intern(cls, name, lower, upper)

    def __reduce__(self) -> tuple[object, ...]:
        return (Symbol, (self.name, self.lower, self.upper))

    def _compute_free(self) -> frozenset[Symbol]:
        return frozenset((self,))

    def _compute_bounds(self) -> Bounds:
        return (self.lower, self.upper)

    def _compute_text(self) -> str:
        return self.name

    def evaluate(self, mapping: Mapping[Symbol, int]) -> int:
        try:
            return mapping[self]
        except KeyError:
            raise UnboundSymbolError(self.name, tuple(s.name for s in mapping)) from None

    def map(self, visitor: ExpressionVisitor[T]) -> T:
        return visitor.symbol(self)

    def _replace(
        self,
        mapping: Mapping[Symbol, int | Expression],
        memo: dict[Expression, int | Expression],
    ) -> int | Expression:
        del memo
        return mapping.get(self, self)


class Sum(Expression):
    """`constant + sum(coefficient * term)`; terms are products or atoms sorted by text."""

    __slots__ = ("constant", "terms")
    __match_args__ = ("constant", "terms")

    constant: int
    terms: tuple[tuple[Expression, int], ...]

    def __reduce__(self) -> tuple[object, ...]:
        return (_sum_of, (self.constant, self.terms))

    def _compute_free(self) -> frozenset[Symbol]:
        return _EMPTY.union(*(term.free_symbols for term, _ in self.terms))

    def _compute_bounds(self) -> Bounds:
        lower: int | None = self.constant
        upper: int | None = self.constant
        for term, coefficient in self.terms:
            low, high = term.bounds()
            if coefficient < 0:
                low, high = high, low
            lower = None if lower is None or low is None else lower + coefficient * low
            upper = None if upper is None or high is None else upper + coefficient * high
            if lower is None and upper is None:
                break
        return (lower, upper)

    def _compute_text(self) -> str:
        parts: list[str] = []
        for term, coefficient in self.terms:
            sign = "-" if coefficient < 0 else "+"
            size = abs(coefficient)
            parts.append(f"{sign} {term.text()}" if size == 1 else f"{sign} {size}*{term.text()}")
        if self.constant:
            parts.append(f"{'-' if self.constant < 0 else '+'} {abs(self.constant)}")
        joined = " ".join(parts)
        return joined[2:] if joined[0] == "+" else "-" + joined[2:]

    def evaluate(self, mapping: Mapping[Symbol, int]) -> int:
        total = self.constant
        for term, coefficient in self.terms:
            total += coefficient * term.evaluate(mapping)
        return total

    def map(self, visitor: ExpressionVisitor[T]) -> T:
        return visitor.sum(self.constant, self.terms)

    def _rebuild(self, change: _Change) -> int | Expression:
        total: int | Expression = self.constant
        for term, coefficient in self.terms:
            total = total + change(term) * coefficient
        return total


class Product(Expression):
    """A product of at least two atoms, sorted by text; a power is a repeated factor."""

    __slots__ = ("factors",)
    __match_args__ = ("factors",)

    factors: tuple[Expression, ...]

    def __reduce__(self) -> tuple[object, ...]:
        return (_product_of, (self.factors,))

    def _compute_free(self) -> frozenset[Symbol]:
        return _EMPTY.union(*(factor.free_symbols for factor in self.factors))

    def _compute_bounds(self) -> Bounds:
        bounds: Bounds = (1, 1)
        for factor in self.factors:
            bounds = _multiply_bounds(bounds, factor.bounds())
        return bounds

    def _compute_text(self) -> str:
        return "*".join(factor.text() for factor in self.factors)

    def evaluate(self, mapping: Mapping[Symbol, int]) -> int:
        result = 1
        for factor in self.factors:
            result *= factor.evaluate(mapping)
        return result

    def map(self, visitor: ExpressionVisitor[T]) -> T:
        return visitor.product(self.factors)

    def _rebuild(self, change: _Change) -> int | Expression:
        result: int | Expression = 1
        for factor in self.factors:
            result = result * change(factor)
        return result


class _Quotient(Expression):
    """What FloorDiv and Modulo share."""

    __slots__ = ("dividend", "divisor")
    __match_args__ = ("dividend", "divisor")

    dividend: int | Expression
    divisor: int | Expression

    def _compute_free(self) -> frozenset[Symbol]:
        return free_symbols(self.dividend) | free_symbols(self.divisor)


class FloorDiv(_Quotient):
    """`dividend // divisor` that no rule could remove; `divisor` is not 0, 1 or negative."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return (floor_div, (self.dividend, self.divisor))

    def _compute_bounds(self) -> Bounds:
        return _floor_div_bounds(bounds(self.dividend), bounds(self.divisor))

    def _compute_text(self) -> str:
        return f"({_operand(self.dividend)} // {_operand(self.divisor)})"

    def evaluate(self, mapping: Mapping[Symbol, int]) -> int:
        return evaluate(self.dividend, mapping) // evaluate(self.divisor, mapping)

    def map(self, visitor: ExpressionVisitor[T]) -> T:
        return visitor.floor_div(self.dividend, self.divisor)

    def _rebuild(self, change: _Change) -> int | Expression:
        return floor_div(change(self.dividend), change(self.divisor))


class Modulo(_Quotient):
    """`dividend % divisor` that no rule could remove; `divisor` is not 0, 1 or negative."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return (modulo, (self.dividend, self.divisor))

    def _compute_bounds(self) -> Bounds:
        lower, upper = bounds(self.divisor)
        low, high = bounds(self.dividend)
        if lower is not None and lower >= 0:
            top = None if upper is None else max(upper - 1, 0)
            if low is not None and low >= 0 and high is not None:
                top = high if top is None else min(top, high)
            return (0, top)
        return (None, None)

    def _compute_text(self) -> str:
        return f"({_operand(self.dividend)} % {_operand(self.divisor)})"

    def evaluate(self, mapping: Mapping[Symbol, int]) -> int:
        return evaluate(self.dividend, mapping) % evaluate(self.divisor, mapping)

    def map(self, visitor: ExpressionVisitor[T]) -> T:
        return visitor.modulo(self.dividend, self.divisor)

    def _rebuild(self, change: _Change) -> int | Expression:
        return modulo(change(self.dividend), change(self.divisor))


class _Extreme(Expression):
    """What Maximum and Minimum share."""

    __slots__ = ("arguments",)
    __match_args__ = ("arguments",)

    arguments: tuple[int | Expression, ...]

    def _compute_free(self) -> frozenset[Symbol]:
        return _EMPTY.union(*(free_symbols(argument) for argument in self.arguments))


class Maximum(_Extreme):
    """The largest of at least two values of which none is known to be the largest."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return (_maximum_of, (self.arguments,))

    def _compute_bounds(self) -> Bounds:
        lows, highs = zip(*map(bounds, self.arguments), strict=True)
        known = [low for low in lows if low is not None]
        return (max(known, default=None), None if None in highs else max(highs))

    def _compute_text(self) -> str:
        return f"max({', '.join(map(text, self.arguments))})"

    def evaluate(self, mapping: Mapping[Symbol, int]) -> int:
        return max(evaluate(argument, mapping) for argument in self.arguments)

    def map(self, visitor: ExpressionVisitor[T]) -> T:
        return visitor.maximum(self.arguments)

    def _rebuild(self, change: _Change) -> int | Expression:
        return _maximum_of(tuple(map(change, self.arguments)))


class Minimum(_Extreme):
    """The smallest of at least two values of which none is known to be the smallest."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return (_minimum_of, (self.arguments,))

    def _compute_bounds(self) -> Bounds:
        lows, highs = zip(*map(bounds, self.arguments), strict=True)
        known = [high for high in highs if high is not None]
        return (None if None in lows else min(lows), min(known, default=None))

    def _compute_text(self) -> str:
        return f"min({', '.join(map(text, self.arguments))})"

    def evaluate(self, mapping: Mapping[Symbol, int]) -> int:
        return min(evaluate(argument, mapping) for argument in self.arguments)

    def map(self, visitor: ExpressionVisitor[T]) -> T:
        return visitor.minimum(self.arguments)

    def _rebuild(self, change: _Change) -> int | Expression:
        return _minimum_of(tuple(map(change, self.arguments)))


# ---------------------------------------------------------------- total over int | Expression
def free_symbols(value: int | Expression) -> frozenset[Symbol]:
    """The symbols on which `value` depends; empty for an int."""
    return _EMPTY if isinstance(value, int) else value.free_symbols


def substitute(
    value: int | Expression, mapping: Mapping[Symbol, int | Expression]
) -> int | Expression:
    """`value` with symbols replaced; an int stays what it is."""
    return value if isinstance(value, int) else value.substitute(mapping)


def evaluate(value: int | Expression, mapping: Mapping[Symbol, int]) -> int:
    """The integer that `value` is under `mapping`; errors as `Expression.evaluate`."""
    return value if isinstance(value, int) else value.evaluate(mapping)


def bounds(value: int | Expression) -> Bounds:
    """Inclusive bounds of `value`; None is unbounded."""
    return (value, value) if isinstance(value, int) else value.bounds()


def text(value: int | Expression) -> str:
    """Python source of `value`."""
    return str(int(value)) if isinstance(value, int) else value.text()


def map_expression(value: int | Expression, visitor: ExpressionVisitor[T]) -> T:
    """Visit `value`; an int is visited by `visitor.integer`."""
    return visitor.integer(value) if isinstance(value, int) else value.map(visitor)


def maximum(left: int | Expression, right: int | Expression) -> int | Expression:
    """The larger of two values."""
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return _maximum_of((left, right))


def minimum(left: int | Expression, right: int | Expression) -> int | Expression:
    """The smaller of two values."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return _minimum_of((left, right))


def floor_div(dividend: int | Expression, divisor: int | Expression) -> int | Expression:
    """`dividend // divisor` with Python's floor semantics, simplified."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    return _floor_div(dividend, divisor)


def modulo(dividend: int | Expression, divisor: int | Expression) -> int | Expression:
    """`dividend % divisor`; the sign is the divisor's, as in Python."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend % divisor
    return _modulo(dividend, divisor)


def product(values: Iterable[int | Expression]) -> int | Expression:
    """The product of all values; 1 if there are none."""
    result: int | Expression = 1
    for value in values:
        result = result * value
    return result


# ---------------------------------------------------------------- constructors
def _sort_key(pair: tuple[Expression, int]) -> str:
    return pair[0].text()


def split_sum(value: int | Expression) -> tuple[int, tuple[tuple[Expression, int], ...]]:
    """`value` as (constant, ((term, coefficient), ...)); the terms are products or atoms."""
    if isinstance(value, int):
        return value, ()
    if isinstance(value, Sum):
        return value.constant, value.terms
    return 0, ((value, 1),)


def _sum_of(constant: int, terms: Iterable[tuple[Expression, int]]) -> int | Expression:
    kept = [pair for pair in terms if pair[1]]
    if not kept:
        return constant
    if len(kept) == 1:
        if not constant and kept[0][1] == 1:
            return kept[0][0]
    else:
        kept.sort(key=_sort_key)
    return _intern(Sum, constant, tuple(kept))


def _product_of(factors: tuple[Expression, ...]) -> Expression:
    if len(factors) == 1:
        return factors[0]
    return _intern(Product, tuple(sorted(factors, key=Expression.text)))


def _replaced(
    value: int | Expression,
    mapping: Mapping[Symbol, int | Expression],
    memo: dict[Expression, int | Expression],
) -> int | Expression:
    return value if isinstance(value, int) else value._replace(mapping, memo)


def _operand(value: int | Expression) -> str:
    if isinstance(value, (Sum, Product)) or (isinstance(value, int) and value < 0):
        return f"({text(value)})"
    return text(value)


@lru_cache(_MEMO_SIZE)
def _add(left: Expression, right: int | Expression) -> int | Expression:
    constant, terms = split_sum(left)
    if isinstance(right, int):
        return _sum_of(constant + right, terms) if right else left
    merged = dict(terms)
    other, more = split_sum(right)
    for term, coefficient in more:
        merged[term] = merged.get(term, 0) + coefficient
    constant += other
    if any(isinstance(term, Modulo) for term in merged):
        return _join_quotients(constant, merged)
    return _sum_of(constant, merged.items())


def _join_quotients(constant: int, merged: dict[Expression, int]) -> int | Expression:
    """Apply n * (x // n) + x % n -> x wherever both parts are there with matching coefficients."""
    for term, coefficient in merged.items():
        if not isinstance(term, Modulo) or not coefficient:
            continue
        whole = floor_div(term.dividend, term.divisor) * term.divisor * coefficient
        offset, parts = split_sum(whole)
        if parts and all(merged.get(part) == count for part, count in parts):
            rest = {key: count for key, count in merged.items() if key is not term}
            for part, _ in parts:
                del rest[part]
            return _sum_of(constant - offset, rest.items()) + term.dividend * coefficient
    return _sum_of(constant, merged.items())


@lru_cache(_MEMO_SIZE)
def _scale(value: Expression, factor: int) -> int | Expression:
    if factor == 0:
        return 0
    if factor == 1:
        return value
    constant, terms = split_sum(value)
    return _sum_of(constant * factor, [(term, count * factor) for term, count in terms])


@lru_cache(_MEMO_SIZE)
def _multiply(left: Expression, right: Expression) -> int | Expression:
    first, left_terms = split_sum(left)
    second, right_terms = split_sum(right)
    merged: dict[Expression, int] = {}
    for term, count in left_terms:
        if second:
            merged[term] = merged.get(term, 0) + count * second
        for other, times in right_terms:
            both = _product_of(_factors(term) + _factors(other))
            merged[both] = merged.get(both, 0) + count * times
    if first:
        for other, times in right_terms:
            merged[other] = merged.get(other, 0) + first * times
    if any(isinstance(term, Modulo) for term in merged):
        return _join_quotients(first * second, merged)
    return _sum_of(first * second, merged.items())


def _factors(term: Expression) -> tuple[Expression, ...]:
    return term.factors if isinstance(term, Product) else (term,)


# ---------------------------------------------------------------- division
@lru_cache(_MEMO_SIZE)
def _floor_div(dividend: int | Expression, divisor: int | Expression) -> int | Expression:
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError(f"({text(dividend)}) // 0")
        if divisor < 0:
            return _floor_div(dividend * -1, -divisor)
        return dividend if divisor == 1 else _floor_div_constant(dividend, divisor)
    whole, rest = _extract_multiples(dividend, divisor)
    constant = _constant_quotient(rest, divisor)
    if constant is not None:
        return whole + constant
    return whole + _intern(FloorDiv, rest, divisor)


@lru_cache(_MEMO_SIZE)
def _modulo(dividend: int | Expression, divisor: int | Expression) -> int | Expression:
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError(f"({text(dividend)}) % 0")
        if divisor < 0:
            return _modulo(dividend * -1, -divisor) * -1
        return 0 if divisor == 1 else _modulo_constant(dividend, divisor)
    _, rest = _extract_multiples(dividend, divisor)
    constant = _constant_quotient(rest, divisor)
    if constant is not None:
        return rest - divisor * constant
    return _intern(Modulo, rest, divisor)


def _extract_multiples(
    dividend: int | Expression, divisor: Expression
) -> tuple[int | Expression, int | Expression]:
    """(whole, rest) with dividend == whole * divisor + rest, as much as is seen term by term."""
    constant, terms = split_sum(dividend)
    base, divisor_terms = split_sum(divisor)
    if base == 0 and len(divisor_terms) == 1:
        unit, size = divisor_terms[0]
        needed = _factors(unit)
        whole: int | Expression = 0
        kept: list[tuple[Expression, int]] = []
        for term, count in terms:
            left = _without(_factors(term), needed) if count % size == 0 else None
            if left is None:
                kept.append((term, count))
            else:
                whole = whole + (_product_of(left) if left else 1) * (count // size)
        return whole, _sum_of(constant, kept)
    # A sum divides exactly when the ratio of one pair of terms explains every term.
    unit, size = max(divisor_terms, key=_degree)
    for term, count in sorted(terms, key=_degree, reverse=True):
        left = _without(_factors(term), _factors(unit)) if count % size == 0 else None
        if left is not None:
            ratio = (_product_of(left) if left else 1) * (count // size)
            rest = dividend - divisor * ratio
            if len(split_sum(rest)[1]) < len(terms):
                more, rest = _extract_multiples(rest, divisor)
                return more + ratio, rest
    return 0, dividend


def _degree(pair: tuple[Expression, int]) -> int:
    return len(_factors(pair[0]))


def _without(
    factors: tuple[Expression, ...], needed: tuple[Expression, ...]
) -> tuple[Expression, ...] | None:
    """`factors` less `needed`, or None when one is missing."""
    left = list(factors)
    for factor in needed:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _constant_quotient(dividend: int | Expression, divisor: int | Expression) -> int | None:
    """The value of dividend // divisor if the bounds leave only one."""
    low, high = bounds(dividend)
    if isinstance(divisor, int):
        if low is None or high is None:
            return None
        quotient = low // divisor
        return quotient if quotient == high // divisor else None
    if dividend == 0:
        return 0
    smallest = divisor.bounds()[0]
    if smallest is None or smallest < 0:
        return None
    if low is not None and low >= 0:
        gap = bounds(divisor - dividend)[0]
        return 0 if gap is not None and gap >= 1 else None
    if high is not None and high < 0:
        gap = bounds(divisor + dividend)[0]
        return -1 if gap is not None and gap >= 0 else None
    return None


def _floor_div_constant(dividend: int | Expression, divisor: int) -> int | Expression:
    constant, terms = split_sum(dividend)
    whole, rest_constant = divmod(constant, divisor)
    result: int | Expression = whole
    kept: list[tuple[Expression, int]] = []
    for term, count in terms:
        if count % divisor == 0:
            result = result + term * (count // divisor)
        else:
            kept.append((term, count))
    if not kept:
        return result
    rest = _sum_of(rest_constant, kept)
    quotient = _constant_quotient(rest, divisor)
    if quotient is not None:
        return result + quotient
    reduced = _drop_small_part(rest_constant, kept, divisor)
    if reduced is not None:
        value, _ = reduced
        scale = math.gcd(divisor, *(count for _, count in split_sum(value)[1]))
        return result + _floor_div(_divide_exactly(value, scale), divisor // scale)
    if len(kept) == 1 and kept[0][1] == 1:
        inner = kept[0][0]
        if isinstance(inner, FloorDiv):
            return result + _floor_div(
                inner.dividend + inner.divisor * rest_constant, inner.divisor * divisor
            )
        if (
            isinstance(inner, Modulo)
            and not rest_constant
            and isinstance(inner.divisor, int)
            and inner.divisor % divisor == 0
        ):
            return result + _modulo_of_quotient(inner, divisor)
    return result + _intern(FloorDiv, rest, divisor)


def _modulo_of_quotient(inner: Modulo, divisor: int) -> int | Expression:
    """(x % (a * n)) // n -> (x // n) % a."""
    assert isinstance(inner.divisor, int)
    return modulo(floor_div(inner.dividend, divisor), inner.divisor // divisor)


def _modulo_constant(dividend: int | Expression, divisor: int) -> int | Expression:
    constant, terms = split_sum(dividend)
    rest_constant = constant % divisor
    kept: list[tuple[Expression, int]] = []
    opened = False
    for term, count in terms:
        if count % divisor == 0:
            continue
        if (
            isinstance(term, Modulo)
            and isinstance(term.divisor, int)
            and count * term.divisor % divisor == 0
        ):
            opened = True
        kept.append((term, count))
    if not kept:
        return rest_constant
    if opened:
        total: int | Expression = rest_constant
        for term, count in kept:
            inner = (
                term.dividend
                if isinstance(term, Modulo)
                and isinstance(term.divisor, int)
                and count * term.divisor % divisor == 0
                else term
            )
            total = total + inner * count
        return modulo(total, divisor)
    rest = _sum_of(rest_constant, kept)
    quotient = _constant_quotient(rest, divisor)
    if quotient is not None:
        return rest - quotient * divisor
    reduced = _drop_small_part(rest_constant, kept, divisor)
    if reduced is not None:
        value, small = reduced
        scale = math.gcd(divisor, *(count for _, count in split_sum(value)[1]))
        return _modulo(_divide_exactly(value, scale), divisor // scale) * scale + small
    return _intern(Modulo, rest, divisor)


def _drop_small_part(
    constant: int, terms: list[tuple[Expression, int]], divisor: int
) -> tuple[Expression, int | Expression] | None:
    """Split into (multiple of g, small) with g > 1 dividing `divisor`, 0 <= small < g, or None.

    Then (multiple + small) // divisor == (multiple / g) // (divisor / g): the small part can't
    carry.
    """
    for scale in sorted({math.gcd(count, divisor) for _, count in terms} - {1}, reverse=True):
        large = [(term, count) for term, count in terms if count % scale == 0]
        small = _sum_of(constant % scale, [pair for pair in terms if pair[1] % scale])
        low, high = bounds(small)
        if low is not None and high is not None and low >= 0 and high < scale:
            value = _sum_of(constant - constant % scale, large)
            assert isinstance(value, Expression)
            return value, small
    return None


def _divide_exactly(value: int | Expression, divisor: int) -> int | Expression:
    constant, terms = split_sum(value)
    return _sum_of(constant // divisor, [(term, count // divisor) for term, count in terms])


# ---------------------------------------------------------------- extremes
@lru_cache(_MEMO_SIZE)
def _maximum_of(arguments: tuple[int | Expression, ...]) -> int | Expression:
    kept = _prune(arguments, Maximum, 1)
    return kept[0] if len(kept) == 1 else _intern(Maximum, kept)


@lru_cache(_MEMO_SIZE)
def _minimum_of(arguments: tuple[int | Expression, ...]) -> int | Expression:
    kept = _prune(arguments, Minimum, -1)
    return kept[0] if len(kept) == 1 else _intern(Minimum, kept)


def _prune(
    arguments: tuple[int | Expression, ...], kind: type[_Extreme], sign: int
) -> tuple[int | Expression, ...]:
    """The arguments, flattened, less those known to be dominated; sorted by text."""
    flat: dict[int | Expression, None] = {}
    for argument in arguments:
        inner = argument.arguments if isinstance(argument, kind) else (argument,)
        flat.update(dict.fromkeys(inner))
    kept: list[int | Expression] = []
    for candidate in sorted(flat, key=text):
        if any(_dominates(other, candidate, sign) for other in kept):
            continue
        kept = [other for other in kept if not _dominates(candidate, other, sign)]
        kept.append(candidate)
    return tuple(kept)


def _dominates(left: int | Expression, right: int | Expression, sign: int) -> bool:
    low, high = bounds(left - right)
    return (low is not None and low >= 0) if sign > 0 else (high is not None and high <= 0)


# ---------------------------------------------------------------- intervals
def _multiply_bounds(left: Bounds, right: Bounds) -> Bounds:
    low, high = left
    other_low, other_high = right
    if low is not None and low >= 0 and other_low is not None and other_low >= 0:
        upper = None if high is None or other_high is None else high * other_high
        return (low * other_low, 0 if high == 0 or other_high == 0 else upper)
    if low is None or high is None or other_low is None or other_high is None:
        return (0, 0) if left == (0, 0) or right == (0, 0) else (None, None)
    corners = (low * other_low, low * other_high, high * other_low, high * other_high)
    return (min(corners), max(corners))


def _floor_div_bounds(dividend: Bounds, divisor: Bounds) -> Bounds:
    small, large = divisor
    if small is None or small < 0:
        return (None, None)
    small = max(small, 1)  # a divisor of zero has no value to bound
    if large is not None and large < small:
        return (None, None)
    low, high = dividend
    if low is None:
        lower = None
    elif low >= 0:
        lower = 0 if large is None else low // large
    else:
        lower = low // small
    if high is None:
        upper = None
    elif high >= 0:
        upper = high // small
    else:
        upper = -1 if large is None else high // large
    return (lower, upper)
