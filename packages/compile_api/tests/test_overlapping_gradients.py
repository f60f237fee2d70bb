"""Gradients of results that overlap themselves, at several sizes: the gradient of each place is its own."""

import pytest
import torch

import compile_api


def leaf(length, steps):
    base = torch.linspace(0, 1, 60)
    return base.as_strided((2, 3, length), steps, 1).detach().requires_grad_()


@pytest.mark.parametrize("steps", [(1, 1, 1), (2, 1, 1), (1, 2, 3), (20, 3, 1)])
@pytest.mark.parametrize("dynamic", [None, True])
def test_each_place_has_a_gradient_of_its_own(steps, dynamic):
    def function(x):
        return x.slice_scatter(x[:1], 0, 0, 1)

    compile_api.reset()
    compiled = compile_api.compile(function, dynamic=dynamic)
    for length in (7, 9, 6):
        found, wanted = leaf(length, steps), leaf(length, steps)
        weight = torch.linspace(0.5, 1.5, 6 * length).view(2, 3, length)
        (compiled(found) * weight).sum().backward()
        (function(wanted) * weight).sum().backward()
        assert torch.equal(found.grad, wanted.grad), length
