"""Results that other results are made of: what arrives at one, in whatever way somebody sees it, is eager's."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import aot_autograd

pytestmark = pytest.mark.usefixtures("form")

UNARY = (torch.sin, torch.tanh, torch.sigmoid, lambda x: x * 2, lambda x: x + 1, torch.round)
BINARY = (torch.mul, torch.add, torch.sub, lambda x, y: torch.where(x > 0.5, x, y))


def compiled(function):
    return aot_autograd.aot_function(
        function, lambda graph, _: aot_autograd.make_boxed_func(graph.forward)
    )


def value_of(tensor):
    return None if tensor is None else tensor.detach().clone()


def assert_same(ours, eager):
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@st.composite
def programs(draw):
    """Instructions over a growing list of values that begins with the inputs; results; what is done with these."""
    inputs = draw(st.integers(1, 3))
    count = inputs
    instructions = []
    for _ in range(draw(st.integers(2, 8))):
        latest = st.integers(max(0, count - 3), count - 1)  # chains rather than fans
        if draw(st.booleans()):
            instructions.append((draw(st.sampled_from(UNARY)), (draw(latest),)))
        else:
            places = draw(latest), draw(st.integers(0, count - 1))
            instructions.append((draw(st.sampled_from(BINARY)), places))
        count += 1
    made = st.integers(inputs, count - 1)
    results = draw(st.lists(made, min_size=2, max_size=5, unique=True))
    some = st.lists(st.integers(0, len(results) - 1), min_size=1, max_size=3, unique=True)
    watches = st.sampled_from(["hook", "doubling", "retain", "node", "dropped"])
    watched = draw(st.lists(st.tuples(st.integers(0, len(results) - 1), watches), max_size=3))
    ways = st.sampled_from(["backward", "backward", "grad", "inputs", "grad of both", "create"])
    steps = draw(st.lists(st.tuples(ways, some, some, st.booleans()), min_size=1, max_size=3))
    return inputs, tuple(instructions), tuple(results), tuple(watched), tuple(steps)


def watch(result, way, tell):
    """Look at what arrives at a result; `tell` keeps it."""
    if way in ("hook", "dropped"):
        result.register_hook(tell)
    elif way == "doubling":
        result.register_hook(lambda gradient: (tell(gradient), gradient * 2)[1])
    elif way == "retain":
        result.retain_grad()
    elif way == "node":
        result.grad_fn.register_prehook(lambda gradients: tell(*gradients))


def left_by(program, compile_function, texts):
    """What a program leaves; of errors the numbers of their `texts`."""
    inputs, instructions, results, watched, steps = program

    def function(*given):
        values = list(given)
        for operator, places in instructions:
            values.append(operator(*[values[place] for place in places]))
        return [values[place] for place in results]

    leaves = []
    for number in range(inputs):
        torch.manual_seed(number)
        leaves.append(torch.rand(3).add_(0.2).requires_grad_())
    made = list(compile_function(function)(*leaves))
    weights = [torch.arange(1.0, 4.0) * (number + 1) for number in range(len(made))]
    told = {}
    totals = [(one * weight).sum() for one, weight in zip(made, weights, strict=True)]
    for number, way in watched:
        if made[number] is not None:
            watch(made[number], way, lambda g, n=number: told.setdefault(n, []).append(value_of(g)))
        if way == "dropped":
            made[number] = None
    found, second = [], False
    for way, differentiated, asked, retain in steps:
        total = sum(totals[number] for number in differentiated)
        wanted = [made[number] for number in asked if made[number] is not None]
        try:
            if way == "backward" or not wanted:
                total.backward(retain_graph=retain)
            elif way == "inputs":
                total.backward(inputs=wanted, retain_graph=retain)
            elif way == "create" and not second:
                # A result gets no part of second derivatives: nothing is looked at after it.
                second = True
                firsts = torch.autograd.grad(
                    total, [*wanted, *leaves], create_graph=True, allow_unused=True
                )
                found.append(list(map(value_of, firsts)))
                return found, told
            else:
                more = leaves if way == "grad of both" else []
                found.append(
                    torch.autograd.grad(
                        total, [*wanted, *more], retain_graph=retain, allow_unused=True
                    )
                )
        except RuntimeError as error:
            return [*found, texts.setdefault(str(error)[:60], len(texts))], {}
        found.append([value_of(one.grad) for one in leaves])
        found.append(
            [value_of(one.grad) if one is not None and one.retains_grad else 0 for one in made]
        )
    return found, told


@pytest.mark.filterwarnings("ignore::aot_autograd.FirstDerivativeOnly")
@settings(max_examples=80, deadline=None, phases=[Phase.generate])
@given(programs())
def test_drawn(program):
    eager = left_by(program, lambda function: function, texts := {})
    ours = left_by(program, compiled, texts)
    assert ours[1].keys() == eager[1].keys()
    assert_same(ours[1], eager[1])
    assert_same(ours[0], eager[0])
