"""The rules that make expressions: canonical sums and products, division, extremes.

Each constructor takes canonical operands and returns the canonical result, an int where it is
constant. A rule holds for all integers within the ranges of the symbols, wherever the original is
defined; each is covered by the property tests against brute evaluation. The memo tables are
bounded and hold pure functions.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from primtorch.symbolic.expression import (
    Expression,
    FloorDiv,
    Maximum,
    Minimum,
    Modulo,
    Product,
    Sum,
    bounds,
    floor_div,
    intern,
    modulo,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_MEMO_SIZE = 1 << 15


def _sort_key(pair: tuple[Expression, int]) -> str:
    return pair[0].text()


def split_sum(value: int | Expression) -> tuple[int, tuple[tuple[Expression, int], ...]]:
    """`value` as (constant, ((term, coefficient), ...)); the terms are products or atoms."""
    if isinstance(value, int):
        return value, ()
    if isinstance(value, Sum):
        return value.constant, value.terms
    return 0, ((value, 1),)


def sum_of(constant: int, terms: Iterable[tuple[Expression, int]]) -> int | Expression:
    """The canonical sum of a constant and (term, coefficient) pairs of distinct terms."""
    kept = [pair for pair in terms if pair[1]]
    if not kept:
        return constant
    if len(kept) == 1:
        if not constant and kept[0][1] == 1:
            return kept[0][0]
    else:
        kept.sort(key=_sort_key)
    return intern(Sum, constant, tuple(kept))


def product_of(factors: tuple[Expression, ...]) -> Expression:
    """The canonical product of atoms."""
    if len(factors) == 1:
        return factors[0]
    return intern(Product, tuple(sorted(factors, key=Expression.text)))


@lru_cache(_MEMO_SIZE)
def add(left: Expression, right: int | Expression) -> int | Expression:
    """The value of left + right."""
    constant, terms = split_sum(left)
    if isinstance(right, int):
        return sum_of(constant + right, terms) if right else left
    merged = dict(terms)
    other, more = split_sum(right)
    for term, coefficient in more:
        merged[term] = merged.get(term, 0) + coefficient
    constant += other
    if any(isinstance(term, Modulo) for term in merged):
        return _join_quotients(constant, merged)
    return sum_of(constant, merged.items())


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
            return sum_of(constant - offset, rest.items()) + term.dividend * coefficient
    return sum_of(constant, merged.items())


@lru_cache(_MEMO_SIZE)
def scale(value: Expression, factor: int) -> int | Expression:
    """The value of value * factor."""
    if factor == 0:
        return 0
    if factor == 1:
        return value
    constant, terms = split_sum(value)
    return sum_of(constant * factor, [(term, count * factor) for term, count in terms])


@lru_cache(_MEMO_SIZE)
def multiply(left: Expression, right: Expression) -> int | Expression:
    """The value of left * right, distributed over sums."""
    first, left_terms = split_sum(left)
    second, right_terms = split_sum(right)
    merged: dict[Expression, int] = {}
    for term, count in left_terms:
        if second:
            merged[term] = merged.get(term, 0) + count * second
        for other, times in right_terms:
            both = product_of(_factors(term) + _factors(other))
            merged[both] = merged.get(both, 0) + count * times
    if first:
        for other, times in right_terms:
            merged[other] = merged.get(other, 0) + first * times
    if any(isinstance(term, Modulo) for term in merged):
        return _join_quotients(first * second, merged)
    return sum_of(first * second, merged.items())


def _factors(term: Expression) -> tuple[Expression, ...]:
    return term.factors if isinstance(term, Product) else (term,)


# ---------------------------------------------------------------- division
@lru_cache(_MEMO_SIZE)
def divide(dividend: int | Expression, divisor: int | Expression) -> int | Expression:
    """The value of dividend // divisor."""
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError(f"({text(dividend)}) // 0")
        if divisor < 0:
            return divide(dividend * -1, -divisor)
        return dividend if divisor == 1 else _floor_div_constant(dividend, divisor)
    whole, rest = _extract_multiples(dividend, divisor)
    constant = _constant_quotient(rest, divisor)
    if constant is not None:
        return whole + constant
    common, smaller, unit = _cancelled(rest, divisor)
    if common is not None:
        return whole + floor_div(smaller, unit)
    return whole + intern(FloorDiv, rest, divisor)


@lru_cache(_MEMO_SIZE)
def remainder(dividend: int | Expression, divisor: int | Expression) -> int | Expression:
    """The value of dividend % divisor."""
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError(f"({text(dividend)}) % 0")
        if divisor < 0:
            return remainder(dividend * -1, -divisor) * -1
        return 0 if divisor == 1 else _modulo_constant(dividend, divisor)
    _, rest = _extract_multiples(dividend, divisor)
    constant = _constant_quotient(rest, divisor)
    if constant is not None:
        return rest - divisor * constant
    common, smaller, unit = _cancelled(rest, divisor)
    if common is not None:
        return modulo(smaller, unit) * common
    return intern(Modulo, rest, divisor)


def _cancelled(
    dividend: int | Expression, divisor: Expression
) -> tuple[Expression | None, int | Expression, int | Expression]:
    """(common, dividend / common, divisor / common); common None if no symbol is in every term.

    Where the quotient is defined, no factor of the divisor is zero, and floor((a * c) / (b * c)) is
    floor(a / b) for a negative c too.
    """
    constant, terms = split_sum(dividend)
    base, divisor_terms = split_sum(divisor)
    if constant or base or not terms:
        return None, dividend, divisor
    shared = list(_factors(terms[0][0]))
    for term, _ in (*terms[1:], *divisor_terms):
        there = list(_factors(term))
        kept = []
        for factor in shared:
            if factor in there:
                there.remove(factor)
                kept.append(factor)
        shared = kept
    if not shared:
        return None, dividend, divisor
    factors = tuple(shared)
    size = math.gcd(*(count for _, count in (*terms, *divisor_terms)))
    common = product_of(factors) * size
    assert isinstance(common, Expression)
    return common, _quotient_of(terms, factors, size), _quotient_of(divisor_terms, factors, size)


def _quotient_of(
    terms: tuple[tuple[Expression, int], ...], factors: tuple[Expression, ...], size: int
) -> int | Expression:
    """The sum of `terms`, each an exact multiple, divided by size * factors."""
    constant = 0
    rest: list[tuple[Expression, int]] = []
    for term, count in terms:
        left = _without(_factors(term), factors)
        assert left is not None, "shared by every term"
        if left:
            rest.append((product_of(left), count // size))
        else:
            constant += count // size
    return sum_of(constant, rest)


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
                whole = whole + (product_of(left) if left else 1) * (count // size)
        return whole, sum_of(constant, kept)
    # A sum divides exactly when the ratio of one pair of terms explains every term.
    unit, size = max(divisor_terms, key=_degree)
    for term, count in sorted(terms, key=_degree, reverse=True):
        left = _without(_factors(term), _factors(unit)) if count % size == 0 else None
        if left is not None:
            ratio = (product_of(left) if left else 1) * (count // size)
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
    rest = sum_of(rest_constant, kept)
    quotient = _constant_quotient(rest, divisor)
    if quotient is not None:
        return result + quotient
    reduced = _drop_small_part(rest_constant, kept, divisor)
    if reduced is not None:
        value, _ = reduced
        scale = math.gcd(divisor, *(count for _, count in split_sum(value)[1]))
        return result + divide(_divide_exactly(value, scale), divisor // scale)
    if len(kept) == 1 and kept[0][1] == 1:
        inner = kept[0][0]
        if isinstance(inner, FloorDiv):
            return result + divide(
                inner.dividend + inner.divisor * rest_constant, inner.divisor * divisor
            )
        if (
            isinstance(inner, Modulo)
            and not rest_constant
            and isinstance(inner.divisor, int)
            and inner.divisor % divisor == 0
        ):
            return result + _modulo_of_quotient(inner, divisor)
    return result + intern(FloorDiv, rest, divisor)


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
    rest = sum_of(rest_constant, kept)
    quotient = _constant_quotient(rest, divisor)
    if quotient is not None:
        return rest - quotient * divisor
    reduced = _drop_small_part(rest_constant, kept, divisor)
    if reduced is not None:
        value, small = reduced
        scale = math.gcd(divisor, *(count for _, count in split_sum(value)[1]))
        return remainder(_divide_exactly(value, scale), divisor // scale) * scale + small
    return intern(Modulo, rest, divisor)


def _drop_small_part(
    constant: int, terms: list[tuple[Expression, int]], divisor: int
) -> tuple[Expression, int | Expression] | None:
    """Split into (multiple of g, small) with g > 1 dividing `divisor`, 0 <= small < g, or None.

    Then (multiple + small) // divisor == (multiple / g) // (divisor / g): the small part can't
    carry.
    """
    for scale in sorted({math.gcd(count, divisor) for _, count in terms} - {1}, reverse=True):
        large = [(term, count) for term, count in terms if count % scale == 0]
        small = sum_of(constant % scale, [pair for pair in terms if pair[1] % scale])
        low, high = bounds(small)
        if low is not None and high is not None and low >= 0 and high < scale:
            value = sum_of(constant - constant % scale, large)
            assert isinstance(value, Expression)
            return value, small
    return None


def _divide_exactly(value: int | Expression, divisor: int) -> int | Expression:
    constant, terms = split_sum(value)
    return sum_of(constant // divisor, [(term, count // divisor) for term, count in terms])


# ---------------------------------------------------------------- extremes
@lru_cache(_MEMO_SIZE)
def largest(arguments: tuple[int | Expression, ...]) -> int | Expression:
    """The largest of the arguments."""
    kept = _prune(arguments, Maximum, 1)
    return kept[0] if len(kept) == 1 else intern(Maximum, kept)


@lru_cache(_MEMO_SIZE)
def smallest(arguments: tuple[int | Expression, ...]) -> int | Expression:
    """The smallest of the arguments."""
    kept = _prune(arguments, Minimum, -1)
    return kept[0] if len(kept) == 1 else intern(Minimum, kept)


def _prune(
    arguments: tuple[int | Expression, ...], kind: type[Maximum | Minimum], sign: int
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
