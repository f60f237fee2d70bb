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
