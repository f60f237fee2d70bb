"""Tensors made of tensors through capture: as inputs, parameters, outputs, made inside, in inference and training."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import randn

import dynamo
from dynamo.testing import CompileCounter

sys.path.insert(0, str(Path(__file__).parent.parent))
from wrapper_tensors import (
    CASES,
    Quantized,
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


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_inputs(name, make, grad):
    function, inputs = CASES[name]
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True)(function)
    compare(function, compiled, partial(inputs, make, grad))
    assert counter.frame_count == 1


@pytest.mark.parametrize("grad", [False, True])
def test_made_inside(grad):
    compiled = dynamo.optimize("eager", fullgraph=True)(made_inside)
    compare(made_inside, compiled, lambda: [randn(3, requires_grad=grad), randn(3)])


@pytest.mark.parametrize("grad", [False, True])
def test_of_quantized_weights(grad):
    compiled = dynamo.optimize("eager", fullgraph=True)(linear)
    compare(linear, compiled, lambda: [randn(2, 3, requires_grad=grad), quantized(4, 3)])


def test_quantizing_inside():
    compiled = dynamo.optimize("eager", fullgraph=True)(quantizing)
    compare(quantizing, compiled, lambda: [randn(3, 3)])


@pytest.mark.parametrize("function", [written, written_part])
@pytest.mark.parametrize("make", [lambda: [two(3)], lambda: [two(3, requires_grad=True) * 1]])
def test_written_in_place(function, make):
    compare(function, dynamo.optimize("eager", fullgraph=True)(function), make)


def test_a_module_of_wrappers():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(two(3, 3))
            self.register_buffer("bias", two(3))

        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight, self.bias), isinstance(
                self.weight, torch.nn.Parameter
            )

    layer = Layer()

    def make():
        layer.zero_grad()
        return [two(2, 3, requires_grad=True), layer.weight]

    compiled = dynamo.optimize("eager", fullgraph=True)(layer)
    compare(lambda x, _: layer(x), lambda x, _: compiled(x), make)


def test_what_is_guarded():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(lambda x: x + 1)
    one = randn(3)
    steps = [
        (two(3), 1),
        (two(3), 1),
        (randn(3), 2),
        (nested(3), 3),
        (Two(one, one), 4),  # one memory for both parts
        (quantized(3), 5),
        (Quantized.of(one, "other"), 6),  # the context
        (Quantized.of(one), 6),
        (Quantized(torch.ones(3, dtype=torch.int16), one[0], "symmetric"), 7),  # a part's dtype
        (two(3, requires_grad=True), 8),
    ]
    for value, frames in steps:
        compiled(value)
        assert counter.frame_count == frames


def test_the_class_replaced():
    counter = CompileCounter()

    class Mine(Two):
        def both(self):
            return self.left

        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            return Mine(inner["left"], inner["right"])

    compiled = dynamo.optimize(counter)(lambda x: x.both() * 2)
    value = Mine(randn(3), randn(3))
    assert torch.equal(compiled(value), value.left * 2)
    Mine.both = lambda self: self.right
    assert torch.equal(compiled(value), value.right * 2)
    assert counter.frame_count == 2


class Opaque(torch.Tensor):
    """Operators of its own, and no way to take it apart."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        given = [one.inner if isinstance(one, Opaque) else one for one in args]
        return func(*given, **(kwargs or {}))


def test_a_class_without_flatten_is_a_named_break():
    compiled = dynamo.optimize("eager", fullgraph=True)(lambda x: x + 1)
    with pytest.raises(dynamo.CaptureError, match="x is a Opaque.*no __tensor_flatten__"):
        compiled(Opaque(randn(3)))
    value = randn(3)
    assert torch.equal(dynamo.optimize("eager")(lambda x: x + 1)(Opaque(value)), value + 1)
