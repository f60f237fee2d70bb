"""`torch.func.functionalize` and `make_fx` over compiled calls and over their backwards."""

import pytest
import torch
from torch.func import functionalize, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import aot_autograd


def products(x):
    return x.sin() * x, x.cos()


def writing(x):
    y = x * 1
    y.view(-1)[0] = 5
    return y.sin().mul_(2), y


def changing(x):
    x.add_(1)
    return x * 2, x.t()


def over_the_call(function, x):
    return functionalize(function)(x)


def over_a_gradient(function, x):
    return functionalize(grad(lambda y: function(y * 1)[0].sum()))(x)


def inside_of_a_gradient(function, x):
    return grad(lambda y: functionalize(function)(y * 1)[0].sum())(x)


def over_a_map(function, x):
    return functionalize(vmap(lambda y: function(y * 1)[0]))(x)


def inside_of_a_map(function, x):
    return vmap(functionalize(lambda y: function(y * 1)[0]))(x)


def after_a_call(function, x):
    function(x.clone())
    return functionalize(function)(x)


@pytest.mark.parametrize("function", [products, writing, changing])
@pytest.mark.parametrize(
    "use",
    [
        over_the_call,
        over_a_gradient,
        inside_of_a_gradient,
        over_a_map,
        inside_of_a_map,
        after_a_call,
    ],
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_call_inside(use, function, graph_runner):
    found = []
    if (use, function) == (inside_of_a_gradient, writing):
        function = products  # eager has no derivative of what that becomes
    for called in (function, aot_autograd.aot_function(function, graph_runner)):
        x = torch.linspace(0.1, 2, 9).view(3, 3)
        found.append((use(called, x), x))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def tangent(result, x):
    return functionalize(lambda t: torch.autograd.grad(result, x, t)[0])(torch.ones(3))


def tangent_written_before(result, x):
    def gradient(t):
        t.view(3).mul_(3)
        return torch.autograd.grad(result, x, t)[0].add_(1)

    return functionalize(gradient)(torch.ones(3))


def many_inside(result, x):
    return functionalize(
        vmap(lambda t: torch.autograd.grad(result, x, t, retain_graph=True)[0] + t)
    )(torch.eye(3))


def many_outside(result, x):
    return vmap(functionalize(lambda t: torch.autograd.grad(result, x, t)[0].add_(t)))(torch.eye(3))


def many_gradients(result, x):
    def gradient(t):
        return torch.autograd.grad(result, x, t, is_grads_batched=True)[0]

    return functionalize(gradient)(torch.eye(3))


def twice(result, x):
    def gradient(t):
        return torch.autograd.grad(result, x, t, create_graph=True)[0]

    first = functionalize(gradient)(torch.ones(3))
    return first.detach(), torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize(
    "use", [tangent, tangent_written_before, many_inside, many_outside, many_gradients, twice]
)
@pytest.mark.parametrize("results", [1, 2])
def test_a_backward_inside(use, results, graph_runner):
    def function(x):
        return products(x)[:results]

    found = []
    for called in (function, aot_autograd.aot_function(function, graph_runner)):
        x = torch.linspace(0.1, 2, 3).requires_grad_()
        found.append(use(called(x)[0], x))
    torch.testing.assert_close(*found)


def test_a_bare_graph_is_refused_by_name(graph_runner):
    class Module(torch.nn.Module):
        def forward(self, x):
            return products(x)

    x = torch.ones(3, requires_grad=True)
    called = aot_autograd.aot_module_simplified(Module(), [x], fw_compiler=graph_runner)
    with pytest.raises(aot_autograd.UnsupportedTransform, match="try: call what was compiled"):
        functionalize(lambda t: called([t])[0])(x)


def recorded(function, x, **options):
    nodes = make_fx(function, **options)(x).graph.nodes
    return [(node.op, str(node.target)) for node in nodes]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("function", [products, writing, changing])
def test_make_fx_records_what_eager_calls(function, mode, pre_dispatch, warm, graph_runner):
    compiled = aot_autograd.aot_function(function, graph_runner)
    x = torch.ones(3, 3)
    if warm:
        compiled(x)
    options = {"tracing_mode": mode, "pre_dispatch": pre_dispatch}
    assert recorded(compiled, x, **options) == recorded(function, x, **options)


def test_make_fx_over_call_and_backward(graph_runner):
    def gradient(called):
        return lambda x: torch.autograd.grad(called(x)[0].sum(), x)

    compiled = aot_autograd.aot_function(products, graph_runner)
    x = torch.ones(3, requires_grad=True)
    assert recorded(gradient(compiled), x) == recorded(gradient(products), x)


@pytest.mark.parametrize("results", [1, 2])
def test_make_fx_over_a_backward_alone_is_refused(results, graph_runner):
    x = torch.ones(3, requires_grad=True)
    result = aot_autograd.aot_function(lambda x: products(x)[:results], graph_runner)(x)[0]
    with pytest.raises(
        aot_autograd.UnsupportedTransform, match="try: let make_fx contain the call"
    ):
        make_fx(lambda t: torch.autograd.grad(result, x, t))(torch.ones(3))
