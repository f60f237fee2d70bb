"""Views among results, and arguments that are written, on the way from one result to another: as in eager.

Programs are drawn: instructions over a growing list of values that make views, new tensors and in-place changes; what
is returned; who looks at what; which backwards run.
"""

import threading
import warnings
import weakref
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import aot_autograd

pytestmark = pytest.mark.usefixtures("form")

VIEWS = {
    "t": lambda a: a.t(),
    "rows": lambda a: a[1:] if len(a) > 1 else a[:],
    "row": lambda a: a[:1],
    "same": lambda a: a.view_as(a),
    "flat": lambda a: a.reshape(-1, 1),
    "split": lambda a: a.split(1)[0],
    "unbind": lambda a: a.unbind(0)[-1].unsqueeze(0),
    "expand": lambda a: a[:1].expand(3, -1),
    "strided": lambda a: a.as_strided((1, 1), (1, 1), a.storage_offset()),
    "detach": lambda a: a.detach(),
}
NEW = {
    "sin": lambda a, b: a.sin(),
    "double": lambda a, b: a * 2,
    "shift": lambda a, b: a + 1,
    "mul": lambda a, b: a * b.sum(),
    "add": lambda a, b: a + b.mean(),
    "sum": lambda a, b: (a * b.sum()).sum().reshape(1, 1),
    "round": lambda a, b: a.round(),
}
WRITES = {
    "scale_": lambda a, b: a.mul_(2),
    "mul_": lambda a, b: a.mul_(b.sum()),
    "add_": lambda a, b: a.add_(b.mean()),
    "zero_": lambda a, b: a.zero_(),
    "sin_": lambda a, b: a.sin_(),
}
OPERATIONS = {**VIEWS, **NEW, **WRITES}


@dataclass(frozen=True)
class Program:
    """Values begin with a leaf, a tensor made of another leaf, and a view of a tensor made of a third."""

    instructions: tuple  # (name, operand, operand)
    returned: tuple  # numbers of values
    watched: tuple  # (number among the tensors that can be looked at, how)
    steps: tuple  # (how, results that are differentiated, results that are asked for, whether to retain)


def compiled(function):
    return aot_autograd.aot_function(
        function, lambda graph, _: aot_autograd.make_boxed_func(graph.forward)
    )


def assert_same(ours, eager):
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def value_of(tensor):
    return None if tensor is None else tensor.detach().clone()


def made_inputs():
    torch.manual_seed(0)
    leaves = [torch.rand(3, 2).add_(0.2).requires_grad_() for _ in range(3)]
    return leaves, [leaves[0], leaves[1] * 1, (leaves[2] * 1)[1:]]


def run(program, inputs):
    values = list(inputs)
    for name, left, right in program.instructions:
        a = values[left % len(values)]
        if name in VIEWS:
            values.append(VIEWS[name](a))
        else:
            values.append(OPERATIONS[name](a, values[right % len(values)]))
    return [values[number % len(values)] for number in program.returned]


@st.composite
def programs(draw):
    instructions = []
    for _ in range(draw(st.integers(2, 8))):
        names = draw(st.sampled_from([VIEWS, VIEWS, NEW, NEW, WRITES]))
        late = max(0, len(instructions) - 2)
        operands = st.one_of(st.integers(late, 2 + len(instructions)), st.integers(0, 10))
        instructions.append((draw(st.sampled_from(sorted(names))), draw(operands), draw(operands)))
    count = 3 + len(instructions)
    returned = draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=5))
    some = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
    looks = st.sampled_from(["hook", "doubling", "retain", "prehook", "posthook", "dropped", "behind"])
    watched = draw(st.lists(st.tuples(st.integers(0, 7), looks), max_size=3))
    ways = st.sampled_from(["backward", "backward", "grad", "inputs", "grad of both"])
    steps = draw(st.lists(st.tuples(ways, some, some, st.booleans()), min_size=1, max_size=3))
    return Program(tuple(instructions), tuple(returned), tuple(watched), tuple(steps))


def watch(one, how, tell):
    """Look at what arrives at a tensor; `tell` keeps it."""
    if how in ("hook", "dropped"):
        one.register_hook(tell)
    elif how == "doubling":
        one.register_hook(lambda gradient: (tell(gradient), gradient * 2)[1])
    elif how == "retain":
        one.retain_grad()
    elif how == "prehook":
        number = one.output_nr
        one.grad_fn.register_prehook(lambda gradients: tell(gradients[number]))
    elif how == "posthook":
        one.grad_fn.register_hook(lambda *_: tell(None))  # of another node: a view's own, or a write's
    elif how == "behind":
        one.grad_fn.next_functions[0][0].register_hook(lambda *_: tell(None))


def backward(program, tensors, leaves, totals, found):
    """Run the backwards; the error that ended them, or empty."""
    for how, differentiated, asked, retain in program.steps:
        total = sum(totals[number % len(totals)] for number in differentiated)
        wanted = [tensors[number % len(tensors)] for number in asked]
        wanted = [one for one in wanted if one is not None]
        try:
            if how == "backward" or not wanted:
                total.backward(retain_graph=retain)
            elif how == "inputs":
                total.backward(inputs=wanted, retain_graph=retain)
            else:
                more = leaves if how == "grad of both" else []
                gradients = torch.autograd.grad(
                    total, [*wanted, *more], retain_graph=retain, allow_unused=True
                )
                found.append(list(map(value_of, gradients)))
        except RuntimeError as error:
            return str(error)[:60]
        found.append([value_of(one.grad) for one in leaves])
        kept = [one for one in tensors if one is not None]
        found.append([value_of(one.grad) if one.retains_grad else 0 for one in kept])
    return ""


def looked_at(results, inputs):
    """The tensors that somebody may look at, each once."""
    tensors = []
    for one in [*results, *inputs]:
        if one.requires_grad and not one.is_leaf and not any(one is other for other in tensors):
            tensors.append(one)
    return tensors


def left_by(program, compile_function):
    """What a program leaves, what was told, and the error that ended it; None if there is nothing to differentiate."""
    leaves, inputs = made_inputs()
    results = list(compile_function(lambda *given: run(program, given))(*inputs))
    tensors = looked_at(results, inputs)
    if not tensors:
        return None
    weights = [torch.linspace(0.5, 1.5, one.numel()).view(one.shape) for one in tensors]
    totals = [(one * weight).sum() for one, weight in zip(tensors, weights, strict=True)]
    told, found = {}, []
    del results, inputs
    for number, how in program.watched:
        number %= len(tensors)
        if tensors[number] is None:
            continue
        watch(
            tensors[number],
            how,
            lambda g, n=number: told.setdefault(n, []).append(value_of(g)),
        )
        if how == "dropped":
            tensors[number] = None
    return found, told, backward(program, tensors, leaves, totals, found)


def accepted(program):
    """The program with the instructions that eager accepts, or None."""
    for count in range(len(program.instructions), 0, -1):
        shorter = replace(program, instructions=program.instructions[:count])
        try:
            if left_by(shorter, lambda function: function) is not None:
                return shorter
        except (RuntimeError, IndexError):
            continue
    return None


REFUSED = (aot_autograd.UnsupportedAliasing, aot_autograd.UnsupportedOperator)


def comparable(program):
    """Without hooks behind what eager has as a view of a temporary, and a compiled function as a tensor of its own."""
    if all(how != "behind" for _, how in program.watched):
        return program
    views = []
    for compile_function in (lambda function: function, compiled):
        _, inputs = made_inputs()
        results = compile_function(lambda *given: run(program, given))(*inputs)
        given = set(map(id, inputs))
        tensors = looked_at(results, inputs)
        views.append([one._is_view() and id(one) not in given for one in tensors])
    watched = [
        (number, how)
        for number, how in program.watched
        if how != "behind" or all(found[number % len(found)] for found in views)
    ]
    return replace(program, watched=tuple(watched))


def difference(program):
    """None where both do the same."""
    program = comparable(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, told_eager, error_eager = left_by(program, lambda function: function)
        ours, told, error = left_by(program, compiled)
    if (error, len(ours)) != (error_eager, len(eager)):
        # Of a graph that wasn't retained ours may have freed more, and less (README): all before that is the same.
        if all(retain for *_, retain in program.steps):
            return f"{error!r} {error_eager!r}"
        same = min(len(ours), len(eager))
        assert_same(ours[:same], eager[:same])
    else:
        assert_same(ours, eager)
        if not error:  # else how much of a backward has run is the order of its nodes
            assert told.keys() == told_eager.keys()
            assert_same(told, told_eager)
    return None


@settings(max_examples=150, deadline=None, phases=[Phase.generate])
@given(programs())
def test_drawn(program):
    program = accepted(program)
    if program is None:
        return
    try:
        found = difference(program)
    except REFUSED:
        return
    assert found is None, program
