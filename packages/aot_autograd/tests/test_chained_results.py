"""Results that other results are made of: what arrives at one, in whatever way somebody sees it, is eager's."""

import threading
import warnings
import weakref

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

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
    """What a program leaves, what was told, and the number among `texts` of the error that ended it, or None."""
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
                return found, told, None
            else:
                more = leaves if way == "grad of both" else []
                found.append(
                    torch.autograd.grad(
                        total, [*wanted, *more], retain_graph=retain, allow_unused=True
                    )
                )
        except RuntimeError as error:
            return found, told, texts.setdefault(str(error)[:60], len(texts))
        found.append([value_of(one.grad) for one in leaves])
        found.append(
            [value_of(one.grad) if one is not None and one.retains_grad else 0 for one in made]
        )
    return found, told, None


@pytest.mark.filterwarnings("ignore::aot_autograd.FirstDerivativeOnly")
@settings(max_examples=80, deadline=None, phases=[Phase.generate])
@given(programs())
def test_drawn(program):
    ours, told, error = left_by(program, compiled, texts := {})
    eager, told_eager, error_eager = left_by(program, lambda function: function, texts)
    if (error, len(ours)) != (error_eager, len(eager)):
        # Of a graph that wasn't retained ours may have freed more, and less (README): all before that is the same.
        assert not all(retain for *_, retain in program[-1])
        same = min(len(ours), len(eager))
        assert_same(ours[:same], eager[:same])
    else:
        assert_same(ours, eager)
        if error is None:  # else how much of a backward has run is the order of its nodes
            assert told.keys() == told_eager.keys()
            assert_same(told, told_eager)


def scores_and_loss(x, w):
    logits = (x @ w).tanh()
    return logits, (logits.exp() * x.sum()).mean()


def leaves(*shape, count=2):
    torch.manual_seed(0)
    return [torch.randn(*shape, requires_grad=True) for _ in range(count)]


class Counted:
    """A compiler whose backwards count: `ran` holds the number of gradients of each run."""

    def __init__(self):
        self.ran = []

    def __call__(self, graph, _):
        run = aot_autograd.make_boxed_func(graph.forward)

        def counting(values):
            found = run(values)
            self.ran.append(len(found))
            return found

        counting.boxed = True
        return counting


def test_where_nobody_looks_one_backward_runs():
    """A way from the loss to the logits costs a backward nothing: it is one compiled program as before."""
    counted = Counted()
    called = aot_autograd.aot_function(
        scores_and_loss, lambda graph, _: aot_autograd.make_boxed_func(graph.forward), counted
    )
    x, w = leaves(3, 3)
    logits, loss = called(x, w)
    (loss + logits.sum()).backward()
    assert counted.ran == [2]
    logits, loss = called(x, w)
    logits.retain_grad()
    loss.backward()
    assert counted.ran == [2, 3, 2]  # the inputs', and what arrives at the logits


def test_hooks_of_saved_tensors_see_each_once_in_a_backward():
    """However many parts a backward is cut into."""
    x, w = leaves(3, 3)
    packed, unpacked = [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: packed.append(tensor) or len(packed) - 1,
        lambda number: unpacked.append(number) or packed[number],
    ):
        logits, loss = compiled(scores_and_loss)(x, w)
    logits.retain_grad()
    for retain in (True, True, False):
        unpacked.clear()
        loss.backward(retain_graph=retain)
        assert sorted(unpacked) == list(range(len(packed)))


def test_a_checkpoint_around_the_call():
    """Recomputed is what was saved, once in a backward, however many parts it is cut into."""

    def run(called):
        x, w = leaves(3, 3)
        logits, loss = checkpoint(called, x, w, use_reentrant=False)
        logits.retain_grad()
        loss.backward(retain_graph=True)
        (loss + logits.sum()).backward()
        return logits.grad, x.grad, w.grad

    assert_same(run(compiled(scores_and_loss)), run(scores_and_loss))


def test_a_checkpoint_around_a_call_whose_backward_ends_at_a_result():
    """No input is on the way: nothing but the results' nodes runs."""

    def function(x):
        first = x.sin()
        second = x * first
        return second.round(), second.sum(), first

    def run(called):
        rounded, total, first = checkpoint(called, leaves(3, 1)[0], use_reentrant=False)
        edge = torch.autograd.graph.get_gradient_edge(first)
        loss = rounded.sum() + total + first.sum()
        found = [torch.autograd.grad(loss, [edge], retain_graph=True) for _ in range(2)]
        return [*found, torch.autograd.grad(loss, [total, edge], retain_graph=True)]

    assert_same(run(compiled(function)), run(function))


def test_what_arrives_at_a_result_repeats_one_number():
    """Behind it is nothing: zeros that lie in memory as what arrives there."""

    def function(a, b, c):
        scaled = c * torch.where(b > 0.5, b, a).sum()
        less = scaled - b.flip(0)
        return scaled, (scaled * (b + c).sum()).sum(), b.flip(0).sum(), scaled * less, less.sum()

    def run(called):
        inputs = leaves(3, count=3)
        results = called(*inputs)
        results[4].grad_fn.register_hook(lambda *_: None)
        total = results[2] * 4 + results[4] * 6
        return torch.autograd.grad(total, inputs, allow_unused=True)

    assert_same(run(compiled(function)), run(function))


def test_one_part_after_the_other():
    """`grad(loss, logits)` frees what is between them alone; what is behind the logits can still be differentiated."""

    def run(called):
        x, w = leaves(3, 3)
        logits, loss = called(x, w)
        (at_logits,) = torch.autograd.grad(loss, logits)
        logits.backward(at_logits)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
        return at_logits, x.grad, w.grad

    assert_same(run(compiled(scores_and_loss)), run(scores_and_loss))


def test_hooks_of_a_result_that_is_gone():
    def run(called):
        x, w = leaves(3, 3)
        seen = []
        logits, loss = called(x, w)
        logits.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
        watched = weakref.ref(logits)
        del logits
        assert watched() is None
        loss.backward()
        return seen, x.grad, w.grad

    assert_same(run(compiled(scores_and_loss)), run(scores_and_loss))


def test_a_hook_that_was_taken_away():
    counted = Counted()
    called = aot_autograd.aot_function(
        scores_and_loss, lambda graph, _: aot_autograd.make_boxed_func(graph.forward), counted
    )
    logits, loss = called(*leaves(3, 3))
    logits.register_hook(lambda gradient: gradient * 2).remove()
    loss.backward()
    assert counted.ran == [2]


def test_more_ways_to_look_than_are_compiled():
    """Each set of results at which a backward ends is a graph of its own; beyond a number these run by ATen."""

    def function(x):
        found = [x.sin()]
        for _ in range(6):
            found.append(found[-1].tanh() * 2)
        return tuple(found)

    counted = Counted()
    called = aot_autograd.aot_function(
        function, lambda graph, _: aot_autograd.make_boxed_func(graph.forward), counted
    )

    def run(called, looked):
        (x,) = leaves(3, count=1)
        found = called(x)
        for number in range(6):
            if looked >> number & 1:
                found[number].retain_grad()
        found[-1].sum().backward()
        return [x.grad, *[one.grad for one in found[:-1] if one.retains_grad]]

    for looked in range(1 << 6):
        assert_same(run(called, looked), run(function, looked))
    assert len(counted.ran) < 3 * 64


def test_a_result_that_is_written_afterwards():
    """The new value has a history of its own; hooks from before stand at the value of before, as in eager."""

    def run(called):
        x, w = leaves(3, 3)
        seen = []
        logits, _ = called(x, w)
        logits.register_hook(lambda gradient: seen.append(gradient.clone()))
        with torch.no_grad():
            other = logits * 1
        logits.mul_(other)
        logits.register_hook(lambda gradient: seen.append(gradient.clone()))
        logits.sum().backward()
        return seen, x.grad, w.grad

    def separate(x, w):
        logits = (x @ w).sin()
        return logits, (logits + x.sum()).mean()

    assert_same(run(compiled(separate)), run(separate))


def test_two_threads_look():
    """Each backward has what arrives in it alone."""
    x, w = leaves(3, 3)
    for called in (scores_and_loss, compiled(scores_and_loss)):
        logits, loss = called(x, w)
        (expected,) = torch.autograd.grad(loss, logits, retain_graph=True)
        failures = []

        def look(factor, loss=loss, logits=logits, expected=expected, failures=failures):
            for _ in range(50):
                (found,) = torch.autograd.grad(loss * factor, logits, retain_graph=True)
                if not torch.allclose(found, expected * factor):
                    failures.append(found)

        threads = [threading.Thread(target=look, args=(factor,)) for factor in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


def test_the_gradient_at_a_result_is_differentiated():
    def run(called):
        x, w = leaves(3, 3)
        logits, loss = called(x, w)
        (at_logits,) = torch.autograd.grad(loss, logits, create_graph=True)
        (at_logits.square().sum() * 3 + loss).backward()
        return at_logits, x.grad, w.grad

    assert_same(run(compiled(scores_and_loss)), run(scores_and_loss))


def test_a_sparse_gradient_at_a_result_is_refused():
    def function(weight, rows):
        table = weight * 2
        return table, torch.nn.functional.embedding(rows, table, sparse=True).sum()

    (weight,) = leaves(4, 3, count=1)
    with pytest.raises(aot_autograd.UnsupportedOperator, match="sparse gradient"):
        compiled(function)(weight, torch.tensor([1, 2]))


def written_and_turned(x):
    x.mul_(2)
    x.t_()
    return x.exp()


def written(x):
    x.mul_(2)
    return x.exp()


def not_on_the_way(x):
    made = x.sin()
    return made[1:], (made * 2).sum()


@pytest.mark.parametrize(
    ("function", "told"),
    [(written_and_turned, 1), (written, 0), (not_on_the_way, 0)],
)
def test_a_gradient_that_misses_a_part_is_told_of(function, told):
    """Once, and only where somebody looks at it."""
    called = compiled(function)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for watched in (False, True, True):
            (leaf,) = leaves(3, 3, count=1)
            x = leaf * 1
            found = called(x)
            alone = isinstance(found, torch.Tensor)
            looked_at, result = (x, found) if alone else (found[0], found[-1])
            if watched:
                looked_at.retain_grad()
            result.sum().backward()
            if not watched:
                assert not seen
    assert [one.category for one in seen] == [aot_autograd.IncompleteGradient] * told


def of_an_inner_leaf(x):
    leaf = x.detach().clone().requires_grad_()
    return leaf * x.detach() * 2


def beside_one(x):
    leaf = x.detach().clone().requires_grad_()
    return leaf * 2, x * 3


def chained_beyond(x):
    leaf = x.detach().clone().requires_grad_()
    first = leaf.sin()
    return first, (first * 2).sum()


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("function", [of_an_inner_leaf, beside_one, chained_beyond])
def test_results_that_lead_to_no_argument(function, requires_grad):
    """They require a gradient all the same, and a backward of the arguments doesn't come by them."""

    def run(called):
        x = torch.ones(3, requires_grad=requires_grad)
        found = called(x)
        found = [
            one for one in (found if isinstance(found, tuple) else (found,)) if one.requires_grad
        ]
        seen = []
        for number, one in enumerate(found):
            assert not one.is_leaf
            one.register_hook(lambda gradient, n=number: seen.append((n, gradient)))
        total = sum(one.sum() for one in found)
        gradients = []
        if requires_grad:
            gradients = torch.autograd.grad(total, [x], allow_unused=True, retain_graph=True)
        before = len(seen)
        total.backward()
        return len(found), before, seen, gradients, x.grad

    assert_same(run(compiled(function)), run(function))
