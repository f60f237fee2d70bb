"""Integer expressions equal brute evaluation, are canonical, and simplify as promised."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primtorch.errors import UnboundSymbolError
from primtorch.symbolic import (
    Expression,
    FloorDiv,
    Sum,
    Symbol,
    bounds,
    evaluate,
    free_symbols,
    map_expression,
    maximum,
    minimum,
    substitute,
    text,
)

SYMBOLS = (Symbol("a", 0, 5), Symbol("b", 1, 7), Symbol("n", 2, None), Symbol("z", -4, 4))
a, b, n, z = SYMBOLS
RANGES = {a: (0, 5), b: (1, 7), n: (2, 40), z: (-4, 4)}
OPERATORS = ("+", "-", "*", "//", "%", "max", "min")

leaf = st.one_of(st.sampled_from(SYMBOLS), st.integers(-9, 9))
trees = st.recursive(
    leaf, lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner), max_leaves=9
)
values = st.fixed_dictionaries({s: st.integers(*RANGES[s]) for s in SYMBOLS})


def apply(operator: str, left: Any, right: Any) -> Any:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//":
            return left // right
        case "%":
            return left % right
        case "max":
            return (
                max(left, right)
                if isinstance(left, int) and isinstance(right, int)
                else maximum(left, right)
            )
        case "min":
            return (
                min(left, right)
                if isinstance(left, int) and isinstance(right, int)
                else minimum(left, right)
            )
    raise AssertionError(operator)


def build(tree: Any, leaves: Any) -> Any:
    if isinstance(tree, tuple):
        operator, left, right = tree
        return apply(operator, build(left, leaves), build(right, leaves))
    return leaves.get(tree, tree)


@settings(max_examples=1500, deadline=None)
@given(trees, values)
@pytest.mark.property
def test_equals_brute_evaluation(tree, mapping) -> None:
    try:
        expected = build(tree, mapping)
        got = build(tree, {})
    except ZeroDivisionError:
        return
    assert evaluate(got, mapping) == expected
    low, high = bounds(got)
    assert low is None or low <= expected
    assert high is None or expected <= high
    assert substitute(got, mapping) == expected
    names = {symbol.name: value for symbol, value in mapping.items()}
    assert eval(text(got), {"max": max, "min": min}, names) == expected


@settings(max_examples=300, deadline=None)
@given(trees, trees, values)
@pytest.mark.property
def test_substitution_commutes_with_evaluation(tree, other, mapping) -> None:
    try:
        outer, inner = build(tree, {}), build(other, {})
        expected = evaluate(outer, {**mapping, z: evaluate(inner, mapping)})
        replaced = substitute(outer, {z: inner})
        low, high = -4, 4
        if not low <= evaluate(inner, mapping) <= high:
            return  # outside the range that the simplifier was promised
        assert evaluate(replaced, mapping) == expected
    except ZeroDivisionError:
        return


@settings(max_examples=300, deadline=None)
@given(trees)
def test_structural_equality_is_identity(tree) -> None:
    try:
        first, second = build(tree, {}), build(tree, {})
    except ZeroDivisionError:
        return
    assert first is second or (isinstance(first, int) and first == second)
    assert pickle.loads(pickle.dumps(first)) == first
    assert copy.deepcopy(first) == first


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ((a * n + b) // n, a + b // n),
        ((8 * n + a) // 8, n),
        ((8 * n + a) % 8, a),
        ((n // 3) // 4, n // 12),
        ((n // 3 + 1) // 4, (n + 3) // 12),
        (a % 6, a),
        (a % 9, a),
        (7 * (n // 7) + n % 7, n),
        (6 * (n // 6) + 2 * ((n // 2) % 3) + n % 2, n),
        (n * (z // n) + z % n, z),
        ((2 * n) % 4, 2 * (n % 2)),
        ((2 * n) // 4, n // 2),
        ((64 * n + 8 * b + a) // 128, n // 2),
        ((n % 12) // 4, (n // 4) % 3),
        ((n % 12) % 4, n % 4),
        ((n % 12 + b) % 4, (n + b) % 4),
        ((n * a) // n, a),
        ((n * b * a) % (n * b), 0),
        (((n + 1) * (n + 2)) // (n + 1), n + 2),
        ((n * 6 + 12) // (n + 2), 6),
        (n - n, 0),
        ((n + 1) * (n - 1), n * n - 1),
        (maximum(n, 1), n),
        (maximum(n, 2), n),
        (minimum(a, 5), a),
        (maximum(maximum(a, b), a), maximum(a, b)),
        (maximum(a + 1, a), a + 1),
        (a // 6, 0),
        ((b - 8) // 7, -1),
        ((b - 1) % 7, b - 1),
        (n // -3, (-n) // 3),
        (n % -3, -((-n) % 3)),
        (-(n % 1), 0),
        (n**2, n * n),
        ((n * n) // n, n),
        ((768 * n * b) // (n * b * z), 768 // z),
        ((6 * n + 3 * n * b) // (n * z), (6 + 3 * b) // z),
        ((8 * n) // (12 * n * b), 2 // (3 * b)),
        ((n * b) % (n * z), n * (b % z)),
    ],
)
def test_simplification(got: Any, expected: Any) -> None:
    assert got == expected, f"{got} is not {expected}"


def test_symbolic_divisor_uses_difference_of_bounds() -> None:
    wide = Symbol("w", 10, None)
    assert (a * wide + a) // wide == a
    assert (a * wide + a) % wide == a
    assert isinstance((n + a) // wide, FloorDiv)


def test_constants_are_ints_and_symbols_have_ranges() -> None:
    assert n - n == 0
    assert isinstance(n * 0, int)
    assert Symbol("a", 0, 5) is a
    assert Symbol("a", 0, 6) is not a
    with pytest.raises(ValueError, match="empty range"):
        Symbol("a", 3, 2)
    with pytest.raises(ZeroDivisionError):
        n // 0
    with pytest.raises(UnboundSymbolError, match="'n'"):
        n.evaluate({a: 1})
    with pytest.raises(TypeError):
        n / 2
    assert free_symbols(a * n + 3) == {a, n}
    assert free_symbols(3) == frozenset()


def test_visitor_prints_c() -> None:
    class Printer:
        def integer(self, value: int) -> str:
            return f"{value}L"

        def symbol(self, symbol: Symbol) -> str:
            return symbol.name

        def sum(self, constant: int, terms: tuple[tuple[Expression, int], ...]) -> str:
            parts = [f"{c}L*{map_expression(t, self)}" for t, c in terms]
            return " + ".join([*parts, f"{constant}L"])

        def product(self, factors):
            return "*".join(map_expression(f, self) for f in factors)

        def floor_div(self, dividend, divisor):
            return f"floor_div({map_expression(dividend, self)}, {map_expression(divisor, self)})"

        def modulo(self, dividend, divisor):
            return f"modulo({map_expression(dividend, self)}, {map_expression(divisor, self)})"

        def maximum(self, arguments):
            return f"max({', '.join(map_expression(v, self) for v in arguments)})"

        def minimum(self, arguments):
            return f"min({', '.join(map_expression(v, self) for v in arguments)})"

    printer = Printer()
    assert map_expression(n // 7 + 3 * a + 1, printer) == "1L*floor_div(n, 7L) + 3L*a + 1L"
    assert map_expression(maximum(a, b) * n, printer) == "max(a, b)*n"
    assert map_expression(minimum(a, b), printer) == "min(a, b)"
    assert map_expression(n % 7, printer) == "modulo(n, 7L)"
    assert map_expression(5, printer) == "5L"


def test_patterns_match_by_kind() -> None:
    match 3 * n + 1:
        case Sum(constant, terms):
            assert (constant, terms) == (1, ((n, 3),))
        case _:
            pytest.fail("a sum must match Sum")
