"""Gradients of gradients: compiled, equal to eager, and differentiable again."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import randn

import aot_autograd


def second_order(function, inputs):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    outputs = function(*inputs)
    first = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    penalty = sum((g * g).sum() for g in first)
    return [*first, *torch.autograd.grad(penalty, inputs, allow_unused=True)]


FUNCTIONS = {
    "saved activation": lambda x: x.exp().tanh(),
    "softmax": lambda x: F.softmax(x, -1) ** 2,
    "layer norm": lambda x, w: F.layer_norm(x, (4,), w) ** 2,
    "product": lambda x, w: (x @ w).sin(),
    "in place": lambda x, w: (x * w).sin_().mul_(w),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_penalty(name, graph_runner):
    torch.manual_seed(0)
    shapes = {
        "layer norm": [(3, 4), (4,)],
        "product": [(3, 4), (4, 2)],
        "in place": [(4,), (4,)],
    }.get(name, [(3, 4)])
    inputs = [randn(*shape) for shape in shapes]
    function = FUNCTIONS[name]
    compiled = aot_autograd.aot_function(function, graph_runner, options={"verify": True})
    for want, got in zip(
        second_order(function, inputs), second_order(compiled, inputs), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_hessian_vector_product(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: (x**3).sum(), graph_runner)
    x, v = randn(5).requires_grad_(), randn(5)
    (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    (product,) = torch.autograd.grad(gradient @ v, x)
    torch.testing.assert_close(product, 6 * x.detach() * v)


def test_third_order(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: (x**4).sum(), graph_runner)
    x = randn(3).requires_grad_()
    value = compiled(x)
    for _ in range(3):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    torch.testing.assert_close(value.detach(), 24 * x.detach())


def test_random_numbers_of_the_call_are_used_again(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: F.dropout(x, 0.5) ** 2, graph_runner)
    x = torch.ones(64).requires_grad_()
    out = compiled(x)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.equal(gradient != 0, out != 0)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, (out.detach() != 0) * 8.0)


def test_batch_norm_statistics_do_not_stand_in_the_way(graph_runner):
    def function(x, mean, var):
        return F.batch_norm(x, mean, var, training=True) ** 3

    results = []
    for one in (function, aot_autograd.aot_function(function, graph_runner)):
        torch.manual_seed(0)
        x, mean, var = randn(6, 3).requires_grad_(), torch.zeros(3), torch.ones(3)
        (gradient,) = torch.autograd.grad(one(x, mean, var).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((gradient**2).sum(), x)
        results.append((gradient.detach(), second, mean, var))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_an_input_changed_in_between_raises_eagers_error(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, w: x.sin() + w, graph_runner)
    x, w = randn(3).requires_grad_(), randn(3)
    out = compiled(x, w)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_switched_off(graph_runner):
    compiled = aot_autograd.aot_function(
        lambda x: x.sin(), graph_runner, options={"double_backward": False}
    )
    x = randn(3).requires_grad_()
    out = compiled(x)
    torch.autograd.grad(out.sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(out.sum(), x, create_graph=True)


@pytest.mark.parametrize("kind", ["read before", "only written", "view of a base", "two views"])
def test_an_input_that_the_function_changes_is_read_as_it_was(kind, graph_runner):
    def function(x, w):
        if kind == "only written":
            x.copy_(w.exp())
            return (x * w).tanh()
        if kind == "two views":
            w.sigmoid_()
            return (x * x).exp() * w.sum()
        return x.sigmoid_() * w.exp()

    results = []
    for one in (function, aot_autograd.aot_function(function, graph_runner)):
        torch.manual_seed(0)
        start, w = randn(4).requires_grad_(), randn(3).requires_grad_()
        base = start * 2
        x = base[:3] if kind == "view of a base" else base
        if kind == "two views":
            whole = torch.cat([start, w]) * 2
            x, w = whole[:4], whole[2:5]
            out = one(x, w)
            first = torch.autograd.grad((out.sum() + whole.sum()), start, create_graph=True)
            (second,) = torch.autograd.grad(first[0].square().sum(), start)
            results.append([first[0].detach(), second])
            continue
        if kind != "view of a base":
            w = randn(4).requires_grad_()
        out = one(x, w)
        inputs = [w] if kind == "only written" else [start, w]
        first = torch.autograd.grad((out + x).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), inputs)
        results.append([*[g.detach() for g in first], *second])
    torch.testing.assert_close(*results)


def test_nothing_holds_a_changed_input_longer_than_its_user(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, w: x.copy_(w.exp()) * w, graph_runner)
    w, x = randn(3).requires_grad_(), torch.zeros(3)
    out, gone = compiled(x, w), weakref.ref(x)
    del x, out
    gc.collect()
    assert gone() is None


def test_random_numbers_drawn_in_order_are_drawn_again(graph_runner):
    def function(x):
        return (x * torch.rand_like(x)).exp() * F.dropout(x, 0.5)

    options = {"fallback_random": True}
    results = []
    for one in (function, aot_autograd.aot_function(function, graph_runner, options=options)):
        torch.manual_seed(3)
        x = torch.linspace(-1, 1, 6).requires_grad_()
        out = one(x).sum()
        torch.rand(2)
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.square().sum(), x)
        results.append([first.detach(), second.detach(), third, torch.rand(2)])
    torch.testing.assert_close(*results)


def test_an_input_without_influence_has_no_gradient(graph_runner):
    results = []
    for one in (
        lambda x, y: x.sin() + y.detach(),
        aot_autograd.aot_function(lambda x, y: x.sin() + y.detach(), graph_runner),
    ):
        x, y = (torch.linspace(-1, 1, 3).requires_grad_() for _ in range(2))
        out = one(x, y).sum()
        first, absent = torch.autograd.grad(out, (x, y), create_graph=True, allow_unused=True)
        results.append([first.detach(), *torch.autograd.grad(first.sum(), x)])
        assert absent is None
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("first", [True, False], ids=["before the storage", "behind it"])
def test_views_of_a_shared_storage_come_out_beside_another_input(graph_runner, first):
    def function(x, view, whole):
        last = whole[..., :1]
        view.detach().add_(1)
        x.view(-1)
        return x.sin() * 2, last, x[0]

    def behind(view, whole, x):
        return function(x, view, whole)

    def second(call):
        torch.manual_seed(0)
        x, leaf = randn(3, 4).requires_grad_(), randn(20).requires_grad_()
        whole = leaf * 1
        view = whole[8:].view(3, 4)
        outputs = call(x, view, whole) if first else call(view, whole, x)
        total = sum((one * one.sum()).sum() for one in outputs)
        found = torch.autograd.grad(total, [x, leaf], create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in found), [x, leaf])

    chosen = function if first else behind
    torch.testing.assert_close(
        second(aot_autograd.aot_function(chosen, graph_runner)), second(chosen)
    )
