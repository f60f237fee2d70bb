"""A second backward without `retain_graph` raises where eager's does: where eager has saved something."""

import pytest
import torch

import aot_autograd

pytestmark = pytest.mark.usefixtures("form")


class Twice(torch.autograd.Function):
    """Saves nothing."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


MASK = torch.tensor([True, False, True])
FUNCTIONS = {
    "a number times": lambda x: x * 2,
    "a number times, and more": lambda x: x * 2 + 1,
    "divided by a number": lambda x: x / 2,
    "plus a number": lambda x: x + 1,
    "from a number": lambda x: 3 - x,
    "negative": torch.neg,
    "sum": torch.sum,
    "mean": torch.mean,
    "turned": lambda x: x.t() + 0,
    "seen, then scaled": lambda x: x.view(-1) * 1.0,
    "a constant tensor times": lambda x: x * torch.ones(1),
    "exp": torch.exp,
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(0, 1),
    "power": lambda x: x**2,
    "joined": lambda x: torch.cat([x, x]),
    "at positions": lambda x: x[torch.tensor([0, 1])],
    "masked": lambda x: x.masked_fill(MASK, 0.0),
    "running sum": lambda x: x.cumsum(0),
    "repeated": lambda x: x.repeat(2, 1),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 1)),
    "a custom function": Twice.apply,
    "two": lambda x: (x * 2, x + 1),
}


def outcome(function, retained):
    x = torch.ones(3, 3, requires_grad=True)
    result = function(x)
    result = result[0] if isinstance(result, tuple) else result
    tangent = torch.ones_like(result)
    try:
        for _ in range(retained):
            result.backward(tangent, retain_graph=True)
        result.backward(tangent)
        result.backward(tangent)
    except RuntimeError as error:
        return str(error)[:60], x.grad
    return "", x.grad


@pytest.mark.parametrize("retained", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_retaining_the_graph(name, retained):
    compiled = aot_autograd.aot_function(
        FUNCTIONS[name], lambda graph, _: aot_autograd.make_boxed_func(graph.forward)
    )
    for _ in range(2):
        message, gradient = outcome(compiled, retained)
        expected_message, expected = outcome(FUNCTIONS[name], retained)
        assert message == expected_message
        torch.testing.assert_close(gradient, expected)
