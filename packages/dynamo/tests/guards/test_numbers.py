"""Conditions on floats that vary are guards of the condition: both evaluators agree, and a graph serves what it may."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dynamo
from dynamo.guards import Guard, GuardKind, compile_program
from dynamo.source import LocalSource, SizeSource
from dynamo.testing import CompileCounter
from primtorch.symbolic import (
    RealRelation,
    RealSymbol,
    Symbol,
    conjunction,
    disjunction,
    less_than,
    negation,
)
from primtorch.symbolic.real import real

A, B, N = RealSymbol("a"), RealSymbol("b"), Symbol("n", 0)
SOURCES = {A: LocalSource("a"), B: LocalSource("b"), N: SizeSource(LocalSource("x"), 0)}
FLOATS = st.sampled_from(
    [0.0, -0.0, 0.5, 1.0, -1.0, 3.0, 1e300, -1e300, math.inf, -math.inf, math.nan]
)


def function(a, b, x):
    pass


symbols = st.sampled_from([A, B, N])
reals = st.recursive(
    symbols | FLOATS | st.integers(-3, 3),
    lambda inner: st.builds(
        real, st.sampled_from(["add", "sub", "mul", "truediv", "max"]), inner, symbols
    ),
    max_leaves=4,
)
relations = st.builds(RealRelation, st.sampled_from(["==", "<", "<=", "is"]), reals, reals)
predicates = st.recursive(
    relations | st.just(less_than(N, 3)),
    lambda inner: st.one_of(
        st.builds(negation, inner),
        st.builds(conjunction, inner, inner),
        st.builds(disjunction, inner, inner),
    ),
    max_leaves=4,
).filter(lambda predicate: not isinstance(predicate, bool))
values = FLOATS | st.sampled_from([1, True, None, "a"])


@given(predicates, values, values, st.integers(0, 4))
def test_both_evaluators_agree(predicate, a, b, n):
    guards = [Guard(None, GuardKind.SHAPE, predicate)]
    program = compile_program(guards, SOURCES, code=function.__code__)
    slots = (a, b, torch.empty(n))
    assert (program.match(slots, function) is None) == (
        program.match_in_python(slots, function) is None
    )


CONDITIONS = {
    "positive": lambda s: s > 0,
    "not positive": lambda s: not s > 0,
    "zero": lambda s: s == 0,
    "not one": lambda s: s != 1,
    "truth": bool,
    "sum": lambda s: s + 1 < 2.5,
    "quotient": lambda s: 1 / (s * s + 1) >= 0.5,
    "two": lambda s: -1 <= s <= 1,
    "extreme": lambda s: max(s, 0.25) == s,
}


@pytest.mark.parametrize("name", CONDITIONS)
@given(st.lists(FLOATS, min_size=2, max_size=6))
def test_a_graph_serves_all_numbers_for_which_the_condition_is_as_it_was(name, numbers):
    condition = CONDITIONS[name]

    def program(x, scale):
        return x * scale if condition(scale) else x - scale

    dynamo.reset()
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True)(program)
    x = torch.tensor([1.5, -2.0])
    for number in numbers:
        assert torch.equal(compiled(x, number).nan_to_num(), program(x, number).nan_to_num())
    special = sum(not math.isfinite(number) for number in numbers)
    assert counter.frame_count <= 3 + special


def test_a_number_that_is_needed_is_told_from_its_negative():
    def program(x, scale):
        return x * math.copysign(1.0, scale)

    dynamo.reset()
    compiled = dynamo.optimize("eager", fullgraph=True)(program)
    x = torch.ones(2)
    for number in (1.0, 0.0, -0.0, 0.0):
        assert torch.equal(compiled(x, number), program(x, number))


def test_the_guard_that_failed_is_named():
    guard = Guard(None, GuardKind.SHAPE, RealRelation("<", A, 1.0))
    program = compile_program([guard], SOURCES, code=function.__code__)
    failed = program.explain((2.0, 0.0, torch.empty(1)), function)
    assert str(failed) == "sizes: expected a < 1.0, found a = 2.0"
