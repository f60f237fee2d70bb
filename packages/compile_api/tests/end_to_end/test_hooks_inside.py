"""Tensor hooks registered in compiled code: part of the joint graph, equal to eager, second derivatives too."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests" / "values"))

from test_tensor_hooks import CAPTURED, left_by

whole = partial(compile_api.compile, fullgraph=True, options={"strict": True})


@pytest.mark.parametrize("function", CAPTURED)
def test_captured(function):
    compiled = whole(function)
    for seed in range(2):
        for want, got in zip(left_by(function, seed), left_by(compiled, seed), strict=True):
            torch.testing.assert_close(got, want)


def test_order_among_the_users_hooks():
    """The hook of a result is registered for real, before those of its user."""

    def function(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient + 1)
        return y

    gradients = []
    for one in (function, compile_api.compile(function, options={"strict": True})):
        x = torch.ones(3, requires_grad=True)
        y = one(x)
        y.register_hook(lambda gradient: gradient * 10)
        y.sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_sizes_and_numbers_that_vary():
    def function(x, factor):
        y, rows = x * 2, x.shape[0]
        y.register_hook(lambda gradient: gradient * rows + factor * gradient.shape[1])
        return y.sin()

    compile_api.reset()
    compiled = whole(function)
    before = compile_api.graph_count()
    for size, factor in ((5, 0.5), (7, 0.25), (9, 2.0), (4, 3.0)):
        gradients = []
        for one in (function, compiled):
            torch.manual_seed(size)
            x = torch.randn(size, 6, requires_grad=True)
            one(x, factor).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)
    assert compile_api.graph_count() - before <= 3
