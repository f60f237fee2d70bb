"""Functions with a float that varies, captured: at most two compiles over six numbers, equal to eager bit for bit.

`nox -s symbolic_operators` compiles them with kernels too, in inference and training.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import compile_api

sys.path.append(str(Path(__file__).parent / "symbolic_operators"))

from number_calls import NUMBER_CALLS, PINNED_NUMBERS
from run_numbers import number_fault_of


@pytest.mark.parametrize("name", [name for name in NUMBER_CALLS if name not in PINNED_NUMBERS])
def test_captured_at_most_twice(name):
    assert number_fault_of(name, "eager", training=False) == ("", True)


KERNELS = (
    *("add alpha", "lerp", "addcmul", "addmm both", "baddbmm", "clamp", "celu", "threshold", "where scalar"),
    *("layer_norm eps", "batch_norm momentum", "huber delta", "label_smoothing", "vector_norm ord"),
    *("std correction", "index_add alpha", "rpow", "pow", "zeta", "pad value", "quantile", "logit eps"),
    *("python pow 3", "floordiv python", "math log", "dropout", "normal_ std", "bernoulli_"),
)  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_compiled_at_most_twice(name):
    assert number_fault_of(name, "inductor", training=name != "zeta")[0] == ""


def strictly(function, **options):
    compile_api.reset()
    return compile_api.compile(function, fullgraph=True, options={"strict": True, **options})


@pytest.mark.parametrize("numbers", [(0.5, 0.0, 1.0, 0.25, 0.75, 0.0, 1.0)])
def test_a_dropout_of_everything_and_of_nothing(numbers):
    def function(x, p):
        return F.dropout(x, p)

    compiled = strictly(function, fallback_random=True)
    x = torch.rand(8, 8) + 0.5
    for number in numbers:
        torch.manual_seed(0)
        found = compiled(x, number)
        torch.manual_seed(0)
        assert torch.equal(found, function(x, number))
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        compile_api.compile(function)(x, 1.5)


def test_bounds_are_conditions():
    """Huber's loss asks whether its bound is positive, and raises for one that isn't."""

    def function(x, y, delta):
        return F.huber_loss(x, y, delta=delta)

    compiled = strictly(function)
    x, y = torch.randn(5), torch.randn(5)
    before = compile_api.graph_count()
    for delta in (1.0, 0.5, 2.0, 1e-3):
        torch.testing.assert_close(compiled(x, y, delta), function(x, y, delta))
    assert compile_api.graph_count() - before == 2
    with pytest.raises(RuntimeError, match="non-positive values for delta"):
        function(x, y, -1.0)
    with pytest.raises(RuntimeError, match="non-positive values for delta"):
        compile_api.compile(function)(x, y, -1.0)


def test_python_raises_where_it_would():
    def function(x, number):
        try:
            return x * (1.0 / number)
        except ZeroDivisionError:
            return x - 1

    compiled = strictly(function)
    x = torch.randn(3)
    for number in (2.0, 4.0, 0.0, 8.0):
        assert torch.equal(compiled(x, number), function(x, number))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_beside_half_types_are_rounded_as_eager_rounds_them(dtype):
    functions = {
        "add": lambda x, y: x + 0.3,
        "sub": lambda x, y: 0.3 - x,
        "add alpha": lambda x, y: torch.add(x, y, alpha=0.3),
        "sub alpha": lambda x, y: torch.sub(x, y, alpha=0.3),
        "rsub alpha": lambda x, y: torch.rsub(x, y, alpha=0.3),
        "add_ alpha": lambda x, y: x.clone().add_(y, alpha=0.3),
        "both": lambda x, y: torch.add(x, 2.7, alpha=0.3),
        "lists": lambda x, y: torch._foreach_add([x], [y], alpha=0.3)[0],
        "mul": lambda x, y: x * 0.3,
        "tensor": lambda x, y: x + torch.tensor(0.3),
        "wider": lambda x, y: torch.add(x, y.float(), alpha=0.3),
        "pow": lambda x, y: x**1.3,
    }
    torch.manual_seed(0)
    x, y = (torch.rand(256).add(0.5).to(dtype) for _ in range(2))
    for name, function in functions.items():
        assert torch.equal(strictly(function)(x, y), function(x, y)), name


@pytest.mark.parametrize("eps", [None, -1.0, 0.2, 0.5, 0.75])
def test_logit_clamps_from_below_first(eps):
    def function(x):
        return torch.logit(x, eps)

    x = torch.linspace(-0.2, 1.2, 29, requires_grad=True)
    found, expected = strictly(function)(x), function(x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    gradients = [torch.autograd.grad(one.sum(), x)[0] for one in (found, expected)]
    torch.testing.assert_close(*gradients, equal_nan=True)


def test_second_derivatives_take_the_number_as_it_is():
    def function(x, y, beta):
        loss = F.smooth_l1_loss(x, y, beta=beta)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return (slope * slope).sum()

    compiled = compile_api.compile(function)
    y = torch.randn(6)
    for beta in (0.5, 1.5, 2.5):
        found, expected = (torch.randn(6, generator=torch.manual_seed(1)) for _ in range(2))
        for x, run in ((found.requires_grad_(), compiled), (expected.requires_grad_(), function)):
            run(x, y, beta).backward()
        torch.testing.assert_close(found.grad, expected.grad)


def test_integers_are_filled_with_a_float_that_varies():
    def function(x, mask, number):
        return x.masked_fill(mask, number), torch.where(mask, x, number)

    compiled = strictly(function)
    x = torch.arange(6)
    for number in (0.3, 1.7, 2.5, -4.2):
        for found, expected in zip(
            compiled(x, x > 2, number), function(x, x > 2, number), strict=True
        ):
            assert torch.equal(found, expected)
            assert found.dtype is expected.dtype


def test_a_number_made_of_two_is_made_again_in_the_backward():
    def function(x, w, a, b):
        return (x * w * min(0.9 * a + b, 2.0)).sin()

    compile_api.reset()
    compiled = strictly(function)
    w = torch.randn(4)
    for a, b in ((0.1, 0.2), (0.3, 0.5), (0.4, 0.7), (0.8, 0.1)):
        results = []
        for run in (function, compiled):
            x = torch.ones(4, requires_grad=True)
            run(x, w, a, b).sum().backward()
            results.append(x.grad)
        torch.testing.assert_close(*results)
    assert compile_api.graph_count() <= 2
