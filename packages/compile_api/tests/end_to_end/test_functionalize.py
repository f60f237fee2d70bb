"""`torch.func.functionalize` and `make_fx` over what is compiled with kernels, and inside of it."""

import pytest
import torch
from torch.func import functionalize, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import compile_api


def program(x):
    y = x * 2
    y.add_(1).view(-1)[0] = 5
    return y.sin()


@pytest.mark.parametrize("warm", [False, True])
def test_functionalize_over_a_call(warm):
    compiled = compile_api.compile(program)
    x = torch.rand(3, 3)
    if warm:
        compiled(x)
    torch.testing.assert_close(functionalize(compiled)(x), program(x))
    torch.testing.assert_close(compiled(x), program(x))


def test_functionalize_inside_of_a_call():
    compiled = compile_api.compile(lambda x: functionalize(program)(x) + 1)
    x = torch.rand(3, 3)
    torch.testing.assert_close(compiled(x), program(x) + 1)


def gradient(result, x, tangent):
    return torch.autograd.grad(result, x, tangent, retain_graph=True)[0]


@pytest.mark.parametrize(
    "use",
    [
        lambda result, x: functionalize(lambda t: gradient(result, x, t))(torch.ones(4)),
        lambda result, x: functionalize(vmap(lambda t: gradient(result, x, t)))(torch.eye(4)),
        lambda result, x: vmap(functionalize(lambda t: gradient(result, x, t)))(torch.eye(4)),
    ],
    ids=["alone", "over a map", "inside of a map"],
)
def test_functionalize_over_a_backward(use):
    found = []
    for called in (torch.sin, compile_api.compile(torch.sin)):
        x = torch.linspace(0, 1, 4).requires_grad_()
        found.append(use(called(x), x))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_what_eager_calls(mode, pre_dispatch, warm):
    def recorded(function):
        module = make_fx(function, tracing_mode=mode, pre_dispatch=pre_dispatch)(torch.ones(3, 3))
        x = torch.rand(3, 3)
        torch.testing.assert_close(module(x), program(x))
        return [(node.op, str(node.target)) for node in module.graph.nodes]

    compiled = compile_api.compile(program)
    if warm:
        compiled(torch.ones(3, 3))
    assert recorded(compiled) == recorded(program)


def test_make_fx_over_a_backward_alone_is_refused():
    x = torch.ones(3, requires_grad=True)
    result = compile_api.compile(torch.sin)(x)
    with pytest.raises(RuntimeError, match="try: let make_fx contain the call"):
        make_fx(lambda t: torch.autograd.grad(result, x, t))(torch.ones(3))
