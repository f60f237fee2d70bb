"""Derivatives of derivatives arrive at results as in eager, which has saved the results themselves."""

import contextlib
import gc
import random
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aot_autograd

pytestmark = pytest.mark.usefixtures("form")


def compiled(function):
    return aot_autograd.aot_function(
        function, lambda graph, _: aot_autograd.make_boxed_func(graph.forward)
    )


def leaf():
    return torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3).clone().requires_grad_()


def same(found, expected):
    assert len(found) == len(expected)
    for ours, eagers in zip(found, expected, strict=True):
        assert (ours is None) == (eagers is None)
        if ours is not None:
            torch.testing.assert_close(ours, eagers)


def noting(number, seen):
    return lambda grad: seen.append((number, grad.detach()))


def of_one_another(x, w):
    hidden = (x @ w).tanh()
    return hidden, (hidden * hidden * w).sum()


def divided(x, w):
    sine = (x * w).sin()
    return sine / (w * w + 1), sine


def detached(x, w):
    hidden = (x * w).sigmoid()
    return hidden, hidden.detach() * x * hidden


FUNCTIONS = {
    "a saved result": lambda x, w: ((x * w).exp(),),
    "softmax": lambda x, w: ((x @ w).softmax(-1),),
    "a result that nobody reads": lambda x, w: (x @ w,),
    "one of another": of_one_another,
    "beside one another": lambda x, w: ((x * w).exp(), (x + w).tanh()),
    "two that are equal": lambda x, w: ((x * w).softmax(-1), (x * w).softmax(-1)),
    "one divided by another": divided,
    "a detached way": detached,
    "normalized": lambda x, w: (torch.nn.functional.layer_norm(x @ w, (3,)),),
}


@pytest.mark.parametrize("tangent", ["numbers", "of the results", "the results"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_who_asks_for_a_result(name, tangent):
    function = FUNCTIONS[name]
    found = []
    for called in (function, compiled(function)):
        x, w = leaf(), leaf()
        results = called(x, w)
        grads = {
            "numbers": [torch.full_like(one, 0.5) for one in results],
            "of the results": [2 * one for one in results],
            "the results": list(results),
        }[tangent]
        first = torch.autograd.grad(results, (x, w), grads, create_graph=True)
        total = sum((one * one).sum() for one in first)
        second = torch.autograd.grad(total, (*results, x, w), create_graph=True, allow_unused=True)
        third_of = sum((one * one).sum() for one in second if one is not None)
        third = torch.autograd.grad(third_of, (*results, x, w), allow_unused=True)
        found.append([*first, *second, *third])
    expected, ours = found
    same(ours, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_who_watches_a_result(name):
    function = FUNCTIONS[name]
    found = []
    for called in (function, compiled(function)):
        x, w = leaf(), leaf()
        results = called(x, w)
        seen = []
        for number, one in enumerate(results):
            one.retain_grad()
            one.register_hook(noting(number, seen))
        total = sum((one * one).sum() for one in results)
        first = torch.autograd.grad(total, (x, w), create_graph=True)
        sum((one * one).sum() for one in first).backward()
        found.append((seen, [x.grad, w.grad, *[one.grad for one in results]]))
    (expected_seen, expected), (seen, ours) = found
    same(ours, expected)
    assert [number for number, _ in seen] == [number for number, _ in expected_seen]
    same([grad for _, grad in seen], [grad for _, grad in expected_seen])


def test_a_tangent_that_was_a_result_and_is_another_tensor_the_next_time():
    found = []
    for called in (torch.exp, compiled(torch.exp)):
        for tangent in (lambda y: y, lambda y: y.detach() * 3, lambda y: y * 3, lambda y: y):
            x = leaf()
            y = called(x)
            (first,) = torch.autograd.grad(y, x, tangent(y), create_graph=True)
            found.append(torch.autograd.grad(first.sum(), (x, y)))
    for ours, expected in zip(found[4:], found[:4], strict=True):
        same(ours, expected)


def test_the_next_call_may_be_given_an_input_as_the_tangent():
    """What was compiled for a tangent that is an input isn't for one that is none."""
    found = []
    for called in (torch.sin, compiled(torch.sin)):
        for tangent in (lambda x: x, lambda x: x.detach().clone().requires_grad_()):
            x = leaf()
            given = tangent(x)
            (first,) = torch.autograd.grad(called(x), x, given, create_graph=True)
            found.append(torch.autograd.grad((first * first).sum(), {x, given}))
    for ours, expected in zip(found[2:], found[:2], strict=True):
        assert len(ours) == len(expected)
        same(sorted(ours, key=torch.sum), sorted(expected, key=torch.sum))


@pytest.mark.parametrize("name", ["a saved result", "one of another"])
def test_a_result_that_is_gone_takes_nothing(name):
    function = FUNCTIONS[name]
    found = []
    for called in (function, compiled(function)):
        x, w = leaf(), leaf()
        results = called(x, w)
        total = (results[-1] * results[-1]).sum()
        del results
        first = torch.autograd.grad(total, (x, w), create_graph=True)
        found.append(torch.autograd.grad(sum((one * one).sum() for one in first), (x, w)))
    same(found[1], found[0])


def test_nothing_lives_on_with_a_gradient_that_is_gone():
    function = compiled(FUNCTIONS["one of another"])
    x, w = leaf(), leaf()
    enabled = gc.isenabled()
    gc.disable()
    try:
        results = function(x, w)
        alive = list(map(weakref.ref, results))
        first = torch.autograd.grad(results[1], (x, w), create_graph=True)
        second = torch.autograd.grad(first[0].sum(), results, allow_unused=True)
        assert second[0] is not None
        del results, first, second
        assert [one() for one in alive] == [None, None]
    finally:
        if enabled:
            gc.enable()


OPERATORS = {
    "exp": lambda a, b: (a * 0.3).exp(),
    "tanh": lambda a, b: a.tanh(),
    "mul": lambda a, b: a * b.sum(),
    "softmax": lambda a, b: a.softmax(-1),
    "add": lambda a, b: a + b.sum(),
    "sin": lambda a, b: a.sin(),
    "sigmoid": lambda a, b: (a * b.mean()).sigmoid(),
    "detach": lambda a, b: a.detach() * b.mean(),
    "div": lambda a, b: a / (b.square().mean() + 1),
    "normalize": lambda a, b: torch.nn.functional.layer_norm(a, a.shape[-1:]),
}
VIEWS = {
    "view": lambda a: a.view(-1),
    "t": lambda a: a.t(),
    "row": lambda a: a[0],
    "columns": lambda a: a[:, 1:],
    "expand": lambda a: a.unsqueeze(0).expand(2, *a.shape),
    "unbind": lambda a: a.unbind(0)[1],
}


def drawn(draw, *, writes):
    steps = []
    for known in range(2, 2 + draw.randint(1, 6)):
        one, other = draw.randrange(known), draw.randrange(known)
        if draw.random() < 0.35:
            steps.append(("view", draw.choice(sorted(VIEWS)), one, other))
        elif writes and draw.random() < 0.15:
            steps.append(("write", "", one, other))
        else:
            steps.append(("operator", draw.choice(sorted(OPERATORS)), one, other))
    returned = draw.sample(range(2, 2 + len(steps)), draw.randint(1, len(steps)))

    def function(x, w):
        values = [x, w]
        for kind, name, one, other in steps:
            left = values[one]
            match kind:
                case "view":
                    values.append(VIEWS[name](left) if left.dim() == 2 else left.view(-1))
                case "write":
                    x.mul_(w.sigmoid())
                    values.append(x if other % 2 else x * 1)
                case _:
                    values.append(OPERATORS[name](left, values[other]))
        return tuple([values[place] for place in returned])

    return function


def derivatives(called, seed, *, writes):
    """What is to be seen of derivatives up to the third, by ways that are drawn."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    leaves = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    given = [one * 1 for one in leaves] if writes or draw.random() < 0.3 else leaves
    packed = torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved)
    with packed if draw.random() < 0.2 else contextlib.nullcontext():
        results = [one for one in called(*given) if one.requires_grad]
    for one in results:
        _ = one.grad_fn  # where a hook is the first to ask for a view's new history, autograd dies
    seen, found = [], []
    dropped = draw.random() < 0.3
    for number, one in enumerate(results):
        if draw.random() < 0.4:
            one.retain_grad()
        if dropped:  # who is forgotten gets no part of further derivatives (README)
            continue
        if draw.random() < 0.3:
            one.register_hook(noting(number, seen))
    kept = [one for one in results if draw.random() < 0.8]
    chosen = [one for one in results if draw.random() < 0.7]
    if not chosen:
        return [], []
    power = draw.choice([1, 2])
    total = sum((one**power).sum() for one in chosen)
    last = [total]
    if dropped:
        del results, chosen
    for rest in reversed(range(draw.choice([1, 1, 2, 2, 3]))):
        if not rest and draw.random() < 0.5:
            total.backward()
            found += [one.grad for one in (*leaves, *kept) if one.is_leaf or one.retains_grad]
            break
        asked = leaves if last[0] is total else leaves + kept
        last = torch.autograd.grad(total, asked, create_graph=True, allow_unused=True)
        found += [one if one is None else one.detach() for one in last]
        last = [one for one in last if one is not None and one.requires_grad]
        if not last:
            break
        total = sum((one * one).sum() if draw.random() < 0.5 else one.sum() for one in last)
    return found, sorted(seen, key=lambda one: one[0])


def outcome(called, seed, *, writes):
    try:
        return derivatives(called, seed, writes=writes)
    except RuntimeError as error:
        return [str(error)[:40]]


@pytest.mark.parametrize("writes", [False, True])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_drawn(seed, writes):
    """Of views, results of one another, written arguments; watched, asked for, dropped."""
    function = drawn(random.Random(seed), writes=writes)
    expected = outcome(function, seed, writes=writes)
    ours = outcome(compiled(function), seed, writes=writes)
    assert len(ours) == len(expected)
    if len(expected) == 1:
        assert ours[0].split()[:4] == expected[0].split()[:4]
        return
    same(ours[0], expected[0])
    assert [number for number, _ in ours[1]] == [number for number, _ in expected[1]]
    same(*[[grad for _, grad in one[1]] for one in (ours, expected)])


def test_what_waits_for_several_nodes_is_kept():
    """Two results that are watched, on ways that part and meet again, and no way past them."""

    def function(x, w):
        product = x * w
        double, tanh = product * 2, product.tanh()
        power = double.exp()
        return power, power * tanh, double, tanh, product

    found = []
    for called in (function, compiled(function)):
        x, w = leaf(), leaf()
        results = called(x, w)
        results[0].retain_grad()
        results[4].retain_grad()
        results[1].sum().backward()
        found.append([x.grad, w.grad, results[0].grad, results[4].grad])
    same(found[1], found[0])


class OfNone(torch.autograd.Function):
    """Its backward must not be asked without a gradient, and divides by zero if it is with zeros."""

    @staticmethod
    def forward(ctx, tensor):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tensor)
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        (tensor,) = ctx.saved_tensors
        return gradient * 2 + tensor - tensor.detach()


class Raising(torch.autograd.Function):
    """Its backward is no linear function."""

    @staticmethod
    def forward(ctx, tensor, factor):
        return tensor * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + 1, None


def hooked(x):
    inner = x * 2
    inner.register_hook(lambda gradient: gradient * gradient)
    return inner.exp()


def hooked_result(x):
    result = x.tanh()
    result.register_hook(lambda gradient: gradient * 3 + 1)
    return result


BEHIND = {
    "a function that takes None": lambda x: OfNone.apply(x).exp(),
    "a function that isn't linear": lambda x: Raising.apply(x, 2.0).exp(),
    "a hook": hooked,
    "a hook of the result": hooked_result,
}


@pytest.mark.parametrize("name", BEHIND)
def test_nobody_is_called_behind_a_result_that_stands(name):
    found = []
    for called in (BEHIND[name], compiled(BEHIND[name])):
        x = leaf()
        result = called(x)
        (first,) = torch.autograd.grad((result * result).sum(), x, create_graph=True)
        found.append([first, *torch.autograd.grad(first.sum(), (x, result))])
    same(found[1], found[0])
