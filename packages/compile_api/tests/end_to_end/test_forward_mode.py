"""Derivatives that dual tensors carry forward (`torch.autograd.forward_ad`): never lost by what was compiled before."""

import pytest
import torch
from torch.autograd import forward_ad

import compile_api


def function(x, scale=2):
    return (x.sin() * scale).cumsum(0)


def tangent_of(called, x, tangent):
    with forward_ad.dual_level():
        found = called(forward_ad.make_dual(x, tangent))
        return forward_ad.unpack_dual(found).tangent


@pytest.mark.parametrize("first", ["plain", "dual"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_dual_arguments(first, requires_grad):
    compile_api.reset()
    torch.manual_seed(0)
    compiled = compile_api.compile(function)
    x, tangent = torch.randn(4, requires_grad=requires_grad), torch.randn(4)
    for kind in (first, "plain", "dual", "plain"):
        if kind == "plain":
            torch.testing.assert_close(compiled(x), function(x))
        else:
            torch.testing.assert_close(
                tangent_of(compiled, x, tangent), tangent_of(function, x, tangent)
            )
    assert compile_api.graph_count() == 1


def test_jacobian_by_forward_mode():
    compile_api.reset()
    compiled = compile_api.compile(function)
    x = torch.randn(4)
    compiled(x)
    jacobian = torch.autograd.functional.jacobian
    found = jacobian(compiled, x, vectorize=True, strategy="forward-mode")
    torch.testing.assert_close(found, jacobian(function, x))


def test_a_level_inside_of_the_compiled_function():
    def inside(x, tangent):
        with forward_ad.dual_level():
            found = (forward_ad.make_dual(x * 1, tangent)).sin()
            return forward_ad.unpack_dual(found).tangent + x

    compile_api.reset()
    x, tangent = torch.randn(2, 4)
    torch.testing.assert_close(compile_api.compile(inside)(x, tangent), inside(x, tangent))


@pytest.mark.parametrize("several", [False, True])
def test_a_dual_gradient_is_refused(several):
    """Not lost: where the call was made outside of the level, nothing can follow what its backward does."""

    def both(x):
        return function(x), x.cos()

    compile_api.reset()
    x = torch.randn(4, requires_grad=True)
    found = compile_api.compile(both if several else function)(x)
    result = found[0] if several else found
    with forward_ad.dual_level():
        with pytest.raises(Exception, match="carries a derivative forward"):
            torch.autograd.grad(result, x, forward_ad.make_dual(torch.ones(4), torch.ones(4)))
        torch.autograd.grad(compile_api.compile(function)(x), x, torch.ones(4))
