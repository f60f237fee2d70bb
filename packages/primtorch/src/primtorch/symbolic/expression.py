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

import os
import threading
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

from primtorch.errors import UnboundSymbolError
from primtorch.symbolic.interval import Bounds, floor_div_bounds, multiply_bounds

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

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
            return _rules.add(self, other)
        return NotImplemented

    __radd__ = __add__

    def __sub__(self, other: int | Expression) -> int | Expression:
        if isinstance(other, int):
            return _rules.add(self, -other)
        if isinstance(other, Expression):
            return _rules.add(self, _rules.scale(other, -1))
        return NotImplemented

    def __rsub__(self, other: int) -> int | Expression:
        if isinstance(other, int):
            return _rules.add(_rules.scale(self, -1), other)
        return NotImplemented

    def __neg__(self) -> int | Expression:
        return _rules.scale(self, -1)

    def __pos__(self) -> Expression:
        return self

    def __mul__(self, other: int | Expression) -> int | Expression:
        if isinstance(other, int):
            return _rules.scale(self, other)
        if isinstance(other, Expression):
            return _rules.multiply(self, other)
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
# Entered again by what runs at any time: a finaliser, a signal's handler.
_INTERN_LOCK = threading.RLock()
_E = TypeVar("_E", bound=Expression)


def _in_child_of_fork() -> None:
    """Another thread may have held the lock, which the child doesn't have."""
    global _INTERN_LOCK  # noqa: PLW0603 - nobody would give the old one back
    _INTERN_LOCK = threading.RLock()


os.register_at_fork(after_in_child=_in_child_of_fork)


def intern(kind: type[_E], *fields: object) -> _E:
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
                found = _INTERNED.setdefault(key, found)
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
        return intern(cls, name, lower, upper)

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
        return (_rules.sum_of, (self.constant, self.terms))

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
        return (_rules.product_of, (self.factors,))

    def _compute_free(self) -> frozenset[Symbol]:
        return _EMPTY.union(*(factor.free_symbols for factor in self.factors))

    def _compute_bounds(self) -> Bounds:
        bounds: Bounds = (1, 1)
        for factor in self.factors:
            bounds = multiply_bounds(bounds, factor.bounds())
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
        return floor_div_bounds(bounds(self.dividend), bounds(self.divisor))

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
        return (_rules.largest, (self.arguments,))

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
        return _rules.largest(tuple(map(change, self.arguments)))


class Minimum(_Extreme):
    """The smallest of at least two values of which none is known to be the smallest."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return (_rules.smallest, (self.arguments,))

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
        return _rules.smallest(tuple(map(change, self.arguments)))


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
    return _rules.largest((left, right))


def minimum(left: int | Expression, right: int | Expression) -> int | Expression:
    """The smaller of two values."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return _rules.smallest((left, right))


def floor_div(dividend: int | Expression, divisor: int | Expression) -> int | Expression:
    """`dividend // divisor` with Python's floor semantics, simplified."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    return _rules.divide(dividend, divisor)


def modulo(dividend: int | Expression, divisor: int | Expression) -> int | Expression:
    """`dividend % divisor`; the sign is the divisor's, as in Python."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend % divisor
    return _rules.remainder(dividend, divisor)


def product(values: Iterable[int | Expression]) -> int | Expression:
    """The product of all values; 1 if there are none."""
    result: int | Expression = 1
    for value in values:
        result = result * value
    return result


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


# The classes and the rules that make them need each other; the rules come last.
from primtorch.symbolic import simplify as _rules  # noqa: E402
