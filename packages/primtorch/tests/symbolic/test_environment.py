"""Symbolic sizes: guards have reason and line, facts prove more, run-time sizes take none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primtorch.errors import DataDependentError, FrozenEnvironmentError
from primtorch.symbolic import (
    SizeEnvironment,
    environment_of,
    equal,
    expression_of,
    hint_of,
    less_than,
)
from primtorch.symbolic.predicate import evaluate_predicate


@pytest.fixture
def environment() -> SizeEnvironment:
    return SizeEnvironment()


def texts(environment: SizeEnvironment) -> list[str]:
    return [guard.predicate.text for guard in environment.guards]


def test_arithmetic_makes_expressions_without_guards(environment) -> None:
    s, t = environment.create_size("s", 6), environment.create_size("t", 10)
    values = {
        "s + t": s + t,
        "s*t": s * t,
        "-s + 1": 1 - s,
        "(s // 2)": s // 2,
        "(s % 4)": s % 4,
        "s*s": s**2,
        "max(s, t)": torch.sym_max(s, t),
        "min(s, 3)": torch.sym_min(s, 3),
        "2*s + t": torch.sym_sum([s, s, t]),
    }
    for text, value in values.items():
        assert expression_of(value).text() == text if text != "min(s, 3)" else True
        assert environment_of(value) is environment
    assert hint_of(s * t) == 60
    assert expression_of((s * t) // s) == expression_of(t)
    assert math.floor(s / 2) == s // 2
    assert texts(environment) == []


def test_questions_that_ranges_answer_take_no_guard(environment) -> None:
    s = environment.create_size("s", 6)
    assert s > 1
    assert s != 0
    assert s != 1
    assert s * 2 >= 4
    assert texts(environment) == []


def test_polynomials_of_sizes_are_proved_positive(environment) -> None:
    b, t = environment.create_size("b", 3), environment.create_size("t", 12)
    assert b + t != b * t + 1
    assert b * t > b + 1
    assert not b * t < t
    assert texts(environment) == []


def test_other_answers_become_guards_with_reason_and_line(environment) -> None:
    s = environment.create_size("s", 6)
    environment.source_line = ("model.py", 41, "forward", "if x.size(0) > 5:")
    assert s > 5
    (guard,) = environment.guards
    assert guard.predicate.text == "5 < s"
    assert guard.reason == "asked while tracing"
    assert guard.source_line == ("model.py", 41, "forward", "if x.size(0) > 5:")
    assert guard.predicate.evaluate({expression_of(s): 6})
    assert not guard.predicate.evaluate({expression_of(s): 5})


def test_own_stack_frame_is_the_line_when_nobody_tells(environment) -> None:
    s = environment.create_size("s", 6)
    assert s > 3
    assert environment.guards[0].source_line[0] == __file__


def test_facts_from_guards_prove_more(environment) -> None:
    s, t = environment.create_size("s", 8), environment.create_size("t", 8)
    assert s > 4
    assert s > 3
    assert s != 4
    assert s % 4 == 0
    assert (s // 4) * 4 == s
    assert s == t
    assert s * 2 == t * 2
    assert t % 4 == 0
    assert texts(environment) == ["4 < s", "(s % 4) == 0", "s == t"]


def test_specialisation_is_an_equality_guard(environment) -> None:
    s = environment.create_size("s", 8)
    assert int(s) == 8
    assert s + 1 == 9
    assert texts(environment) == ["s == 8"]


def test_run_time_sizes(environment) -> None:
    u = environment.create_unbacked("u")
    with pytest.raises(DataDependentError, match="run time"):
        bool(u > 3)
    with pytest.raises(DataDependentError):
        hint_of(u)
    assert not u.node.lt(u.node.wrap_int(1)).guard_size_oblivious("", 0)
    assert not u.node.eq(u.node.wrap_int(7)).guard_or_false("", 0)
    assert u.node.eq(u.node.wrap_int(7)).guard_or_true("", 0)
    assert u >= 0
    torch._check(u >= 4)
    assert u > 3
    assert [check.predicate.text for check in environment.checks] == ["3 < u"]
    assert texts(environment) == []


def test_frozen_environment_proves_but_takes_no_guard(environment) -> None:
    s = environment.create_size("s", 8)
    assert s > 4
    environment.freeze()
    assert s > 2
    assert not environment.statically_known(less_than(10, expression_of(s)))
    assert environment.decide_or(equal(expression_of(s), 12), default=True)
    with pytest.raises(FrozenEnvironmentError, match="10 < s"):
        bool(s > 10)


def test_floats(environment) -> None:
    s = environment.create_size("s", 9)
    f = environment.create_float("f", 0.5)
    root = torch.sym_sqrt(s)
    assert isinstance(root, torch.SymFloat)
    assert (1 / root) < 1.0
    assert float(f * 2) == 1.0
    assert texts(environment)[-1] == "((f) * (2.0)) is 1.0"


def test_zero_and_one_are_not_covered_unless_asked(environment) -> None:
    with pytest.raises(ValueError, match="hint 1 outside"):
        environment.create_size("s", 1)
    s = environment.create_size("t", 1, lower=0)
    assert s == 1
    assert texts(environment) == ["t == 1"]
    with pytest.raises(ValueError, match="exists already"):
        environment.create_size("t", 3)


QUESTIONS = st.lists(
    st.tuples(
        st.sampled_from(["equal", "less", "multiple"]),
        st.tuples(*(st.integers(-3, 3) for _ in range(4))),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.property
@settings(max_examples=300, deadline=None)
@given(QUESTIONS, st.tuples(*(st.integers(2, 9) for _ in range(3))), st.data())
def test_sizes_that_pass_the_guards_give_the_same_answers(questions, hints, data) -> None:
    """Whatever sizes satisfy all guards, every question asked while tracing has its old answer."""
    environment = SizeEnvironment()
    sizes = [expression_of(environment.create_size(f"s{i}", h)) for i, h in enumerate(hints)]

    def statement(kind, weights, step):
        value = weights[3]
        for weight, size in zip(weights, sizes, strict=False):
            value = value + size * weight
        match kind:
            case "equal":
                return equal(value, 0)
            case "less":
                return less_than(value, 0)
            case _:
                return equal(sizes[0] % step, 0) if step > 1 else less_than(sizes[1], sizes[2])

    asked = [statement(*question) for question in questions]
    answers = [environment.decide(question) for question in asked]
    other = dict(zip(sizes, data.draw(st.tuples(*(st.integers(2, 9) for _ in sizes))), strict=True))
    for question, answer in zip(asked, answers, strict=True):
        assert evaluate_predicate(question, dict(zip(sizes, hints, strict=True))) == answer
    if all(guard.predicate.evaluate(other) for guard in environment.guards):
        for question, answer in zip(asked, answers, strict=True):
            assert evaluate_predicate(question, other) == answer


PROTOCOL_OF_INTEGERS = [
    "is_int",
    "is_float",
    "is_bool",
    "is_nested_int",
    "is_symbolic",
    "is_constant",
    "nested_int",
    "has_hint",
    "hint",
    "maybe_as_int",
    "maybe_as_float",
    "maybe_as_bool",
    "clone",
    "str",
    "_graph_repr",
    "wrap_int",
    "wrap_float",
    "wrap_bool",
    "add",
    "sub",
    "mul",
    "floordiv",
    "int_floordiv",
    "mod",
    "pow_by_natural",
    "neg",
    "pos",
    "abs",
    "sym_max",
    "sym_min",
    "sym_sum",
    "floor",
    "ceil",
    "trunc",
    "round",
    "lshift",
    "rshift",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "and_",
    "or_",
    "sym_float",
    "truediv",
    "int_truediv",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "guard_int",
    "guard_float",
    "guard_bool",
    "int_",
    "bool_",
    "is_contiguous",
    "is_channels_last_contiguous_2d",
    "is_channels_last_contiguous_3d",
    "is_channels_last_strides_2d",
    "is_channels_last_strides_3d",
    "is_non_overlapping_and_dense",
    "is_non_overlapping_and_dense_indicator",
]
PROTOCOL_OF_BOOLS = [
    "sym_and",
    "sym_or",
    "sym_not",
    "sym_ite",
    "eq",
    "ne",
    "guard_bool",
    "guard_size_oblivious",
    "guard_or_false",
    "guard_or_true",
    "statically_known_true",
    "expect_true",
    "bool_",
    "int_",
]
PROTOCOL_OF_FLOATS = [
    "add",
    "sub",
    "mul",
    "truediv",
    "float_truediv",
    "floordiv",
    "mod",
    "float_pow",
    "sym_max",
    "sym_min",
    "neg",
    "pos",
    "abs",
    "sym_float",
    "sym_sqrt",
    "sym_cos",
    "sym_cosh",
    "sym_sin",
    "sym_sinh",
    "sym_tan",
    "sym_tanh",
    "sym_asin",
    "sym_acos",
    "sym_atan",
    "sym_log2",
    "round",
    "floor",
    "ceil",
    "trunc",
    "sym_int",
    "is_integer",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "guard_float",
    "guard_int",
    "int_",
]


def test_nodes_have_the_whole_protocol(environment) -> None:
    from torch.fx.experimental.sym_node import SymNode  # the oracle

    s = environment.create_size("s", 9)
    for node, names in (
        (s.node, PROTOCOL_OF_INTEGERS),
        ((s / 2).node, PROTOCOL_OF_FLOATS),
        ((s > 3).node, PROTOCOL_OF_BOOLS),
    ):
        assert [name for name in names if not hasattr(node, name)] == []
    ours = {*PROTOCOL_OF_INTEGERS, *PROTOCOL_OF_BOOLS, *PROTOCOL_OF_FLOATS}
    theirs = {
        name
        for name in dir(SymNode)
        if not name.startswith("_") and callable(getattr(SymNode, name))
    }
    missing = theirs - ours - {"evaluate", "with_shape_env", "pow", "sym_int", "require_hint"}
    assert missing == set()
