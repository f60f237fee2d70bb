"""Tensor subclasses through the whole compiler: made of tensors, or with overrides of torch's functions."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import randn

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests"))

from wrapper_tensors import (
    CASES,
    Two,
    compare,
    linear,
    made_inside,
    nested,
    quantized,
    quantizing,
    two,
    written,
    written_part,
)

whole = partial(compile_api.compile, fullgraph=True, options={"strict": True})


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_inputs(name, make, grad):
    function, inputs = CASES[name]
    compare(function, whole(function), partial(inputs, make, grad))


@pytest.mark.parametrize("grad", [False, True])
def test_made_inside(grad):
    compare(made_inside, whole(made_inside), lambda: [randn(3, requires_grad=grad), randn(3)])


@pytest.mark.parametrize("grad", [False, True])
def test_of_quantized_weights(grad):
    compare(linear, whole(linear), lambda: [randn(2, 3, requires_grad=grad), quantized(4, 3)])


def test_quantizing_inside():
    compare(quantizing, whole(quantizing), lambda: [randn(3, 3)])


@pytest.mark.parametrize("function", [written, written_part])
def test_written_in_place(function):
    compare(function, whole(function), lambda: [two(3)])


def test_views_of_an_input_are_its_views():
    def function(x):
        return x.t(), x[0]

    for grad in (False, True):
        x = two(3, 3, requires_grad=grad) * 1
        for view in whole(function)(x):
            assert type(view) is Two
            assert view._is_view()
            assert view._base is x
            with torch.no_grad():
                view.zero_()
        assert not x.left[0].any()


def test_training_a_module_of_wrappers():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(two(4, 4))

        def forward(self, x):
            return torch.nn.functional.gelu(torch.nn.functional.linear(x, self.weight))

    results = []
    for wrap in (lambda module: module, whole):
        torch.manual_seed(0)
        layer = Layer()
        step = torch.optim.SGD(layer.parameters(), lr=0.1)
        run = wrap(layer)
        for _ in range(3):
            step.zero_grad()
            loss = run(two(2, 4)).square().sum()
            loss.backward(torch.ones_like(loss))
            step.step()
        assert type(layer.weight.grad) is Two
        results.append([layer.weight.left.detach(), layer.weight.right.detach()])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


class Scaled(torch.Tensor):
    """A tensor with a number beside it, which results inherit."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Scaled):
            result.scale = max(getattr(one, "scale", 0) for one in args) * 2
        return result


def scaled(data, scale):
    made = data.as_subclass(Scaled)
    made.scale = scale
    return made


def test_overrides_in_training():
    def function(x, weight):
        y = torch.nn.functional.linear(x, weight).relu()
        return y, y.scale

    compiled = whole(function)
    results = []
    for one in (function, compiled, compiled):
        torch.manual_seed(0)
        x, weight = randn(2, 3), torch.randn(4, 3, requires_grad=True)
        out, scale = one(scaled(x, 3), weight)
        assert type(out) is Scaled
        assert scale == 12
        out.sum().backward()
        results.append((out.as_subclass(torch.Tensor), weight.grad))
    for result in results[1:]:
        for want, got in zip(results[0], result, strict=True):
            torch.testing.assert_close(got, want)
