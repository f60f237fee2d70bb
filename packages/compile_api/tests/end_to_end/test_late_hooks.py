"""Tensor hooks registered by compiled code on arguments, leaves and results: eager's values and order, no breaks."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests"))

from late_hook_drawn import drawn
from late_hook_programs import (
    BROKEN,
    WHOLE,
    assert_alike,
    in_autocast,
    left_by,
    of_a_view_of_an_argument,
    of_parts,
)

# Nodes of eager's that hold several results, or views that are made after the call, run at other places in the order.
IN_ANOTHER_ORDER = (of_parts, of_a_view_of_an_argument)


def left(function, seed, **options):
    made_of = getattr(function, "__wrapped__", function)
    return left_by(function, seed, several=made_of not in IN_ANOTHER_ORDER, **options)


whole = partial(compile_api.compile, fullgraph=True, options={"strict": True})


@pytest.mark.parametrize("function", WHOLE)
def test_whole(function):
    compiled = whole(function)
    for seed in range(2):
        narrow = {"rtol": 0.02, "atol": 0.1} if function is in_autocast else {}
        assert_alike(left(compiled, seed), left(function, seed), **narrow)


@pytest.mark.parametrize(("function", "reason"), BROKEN)
def test_broken(function, reason):
    with pytest.raises(Exception, match=reason):
        left_by(whole(function), 0)
    compiled = compile_api.compile(function, options={"strict": True})
    for seed in range(2):
        assert_alike(left(compiled, seed), left(function, seed))


def test_sizes_that_vary():
    """Of a graph in stages and of one that is not."""

    def staged(x, w, seen):
        y = x @ w
        y.register_hook(lambda gradient: seen.append(gradient.shape[0]))
        x.register_hook(lambda gradient: gradient * y.shape[0])
        z = y.sin()
        z.retain_grad()
        return z

    def of_a_result(x, w, seen):
        y = x @ w
        y.register_hook(lambda gradient: seen.append(gradient.shape[0]) or gradient * y.detach())
        return y

    compile_api.reset()
    for function in (staged, of_a_result):
        compiled, before = whole(function), compile_api.graph_count()
        for rows in (3, 5, 7, 4):
            found = []
            for one in (function, compiled):
                torch.manual_seed(rows)
                x, w = (torch.randn(n, 6, requires_grad=True) for n in (rows, 6))
                seen = []
                z = one(x, w, seen)
                z.sum().backward()
                found.append([x.grad, w.grad, z.grad if z.retains_grad else None, seen])
            assert_alike(*reversed(found))
        assert compile_api.graph_count() - before <= 4


def test_drawn_programs():
    """The order of what hooks of several results tell is that of their nodes."""

    def apart(found):
        told = [one for one in found if isinstance(one, tuple)]
        rest = [one for one in found if not isinstance(one, tuple)]
        return rest, sorted(told, key=lambda one: str(one[0]))

    for seed in range(15):
        program = drawn(seed)
        try:
            want = left(program, seed)
        except RuntimeError:  # it changed what its own backward needs
            continue
        compiled = compile_api.compile(program, backend="aot_eager", options={"strict": True})
        assert_alike(apart(left(compiled, seed)), apart(want))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("method", ["retain_grad", "register_hook"])
def test_a_tensor_detached_in_place_afterwards(method, again):
    """What was registered went with the history: it is not registered anew."""

    def program(x, seen):
        y = x * 2
        y.retain_grad() if method == "retain_grad" else y.register_hook(seen.append)
        y.detach_()
        return y.requires_grad_() if again else y

    found = []
    for one in (program, compile_api.compile(program)):
        x, seen = torch.ones(3, requires_grad=True), []
        y = one(x, seen)
        if again:
            (y * 3).sum().backward()
        found.append([y, y.requires_grad, y.retains_grad, x.grad, y.grad if again else None, seen])
    assert_alike(*reversed(found))


@pytest.mark.parametrize("returns_it", [False, True])
def test_an_argument_detached_in_place_that_requires_a_gradient_again(returns_it):
    def program(y):
        y.detach_()
        y.requires_grad_()
        return y if returns_it else y * 2

    found = []
    for one in (program, compile_api.compile(program)):
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        z = one(y)
        z.sum().backward()
        found.append([y.is_leaf, z.is_leaf, z is y, x.grad, y.grad if y.is_leaf else None])
    assert_alike(*reversed(found))


@pytest.mark.parametrize("method", ["register_hook", "retain_grad"])
@pytest.mark.parametrize("behind", ["used", "returned"])
def test_an_argument_written_through_another_that_shares_its_memory(method, behind):
    def program(base, view, seen):
        view.relu_()
        base.retain_grad() if method == "retain_grad" else base.register_hook(seen.append)
        return base * 2 if behind == "used" else base

    found = []
    for one in (program, compile_api.compile(program)):
        x, seen = torch.tensor([[1.0, -2.0], [3.0, 4.0]], requires_grad=True), []
        base = x * 1
        view = base.view(4)
        (one(base, view, seen) * 3).sum().backward()
        found.append([x.grad, base.retains_grad, view.retains_grad, base.grad, view.grad, seen])
    assert_alike(*reversed(found))


def test_a_view_whose_history_is_made_anew_takes_a_hook():
    """Autograd dies where it makes one for a hook; eager's program had asked before, capture knew the answer."""

    def program(base, seen):
        view = base.view(-1)
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            softened = base.softmax(-1)
        base.relu_()
        if not view.is_leaf:
            view.register_hook(seen.append)
        return view * 2 + softened.sum()

    found = []
    for one in (program, compile_api.compile(program)):
        x, seen = torch.tensor([[1.0, -2.0], [3.0, 4.0]], requires_grad=True), []
        one(x * 1, seen).sum().backward()
        found.append([x.grad, seen])
    assert_alike(*reversed(found))
