"""Seeds set in compiled code: what is drawn behind one follows from it alone."""

import pytest
import torch
from torch import nn

import compile_api


def seeded(x):
    before = torch.rand(4)
    torch.manual_seed(3)
    first = torch.rand(4) * x
    torch.manual_seed(3)
    second = torch.rand(4) * x
    torch.manual_seed(4)
    return before, first, second, torch.nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize("options", [{}, {"fallback_random": True}], ids=["ours", "eager's"])
def test_a_seed_decides_what_is_drawn(options):
    compiled = compile_api.compile(seeded, fullgraph=True, options=options)
    x = torch.ones(4)
    torch.manual_seed(0)
    first = compiled(x)
    torch.manual_seed(1)
    again = compiled(x)
    assert not torch.equal(first[0], again[0])
    for one, other in zip(first[1:], again[1:], strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(first[1], first[2])
    assert torch.initial_seed() == 4
    if options:
        torch.manual_seed(0)
        for one, other in zip(first, seeded(x), strict=True):
            torch.testing.assert_close(one, other)


def test_drawn_slopes_are_those_of_the_gradient():
    def gradient(function, x):
        torch.manual_seed(3)
        result = function(x)
        return result.detach(), *torch.autograd.grad(result.sum(), x)

    def slopes(x):
        return torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)

    compiled = compile_api.compile(slopes, options={"fallback_random": True, "strict": True})
    x = torch.linspace(-3, 3, 12, requires_grad=True)
    for want, got in zip(gradient(slopes, x), gradient(compiled, x), strict=True):
        assert torch.equal(want, got)


@pytest.mark.parametrize("draw", ["dropout", "normal_"])
def test_eager_order_over_transposed_memory(draw):
    """Kernels around a draw that eager makes in memory's order, forward and backward."""

    def function(x):
        y = (x * 2).sin()
        noise = torch.empty_like(y).normal_() if draw == "normal_" else 1
        return torch.nn.functional.dropout(y, 0.3) * noise

    options = {"fallback_random": True, "strict": True}
    compiled = compile_api.compile(function, fullgraph=True, options=options)
    results = []
    for one in (function, compiled):
        torch.manual_seed(0)
        x = torch.randn(20, 30).t().requires_grad_()
        y = one(x)
        y.sum().backward()
        results.append((y, x.grad, torch.rand(3)))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_a_draw_from_a_computed_value_that_nobody_reads():
    def function(x):
        probabilities = (x * 2).softmax(-1)
        torch.multinomial(probabilities, 1)
        torch.bernoulli(probabilities)
        return torch.rand(3) * x.sin()

    compiled = compile_api.compile(function, options={"fallback_random": True})
    results = []
    for run in (function, compiled):
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
        output = run(x)
        output.sum().backward()
        results.append((output, x.grad, torch.rand(3)))
    torch.testing.assert_close(*results)


ONES = torch.ones(3)
DRAWS = {
    "randint": lambda x: torch.randint(0, 50, (3,)) + x,
    "randint_like": lambda x: torch.randint_like(x, 50),
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randperm": lambda x: torch.randperm(9)[:3] + x,
    "random_": lambda x: torch.empty(3).random_(50) + x,
    "normal": lambda x: torch.normal(x, 1.0),
    "bernoulli": lambda x: torch.bernoulli(x * 0.5),
    "poisson": lambda x: torch.poisson(x * 3),
    "multinomial": lambda x: torch.multinomial(x, 5, replacement=True),
    "fractional pooling": lambda x: nn.functional.fractional_max_pool2d(
        x.expand(1, 1, 9, 3), 2, output_size=2
    ),
    "Laplace": lambda x: torch.distributions.Laplace(x, 1.0).rsample(),
    "Gamma": lambda x: torch.distributions.Gamma(x, x).rsample(),
    "an initialiser": lambda x: nn.init.kaiming_uniform_(torch.empty(3, 3)) + x,
}


@pytest.mark.parametrize("name", DRAWS)
def test_neither_a_first_call_nor_a_later_one_draws_more_than_eager(name):
    """What is asked of torch while a call is captured and compiled moves no generator of the program's."""
    function = DRAWS[name]
    options = {"fallback_random": True, "strict": True}
    compiled = compile_api.compile(function, fullgraph=True, options=options)
    for seed in range(2):
        torch.manual_seed(seed)
        expected, expected_state = function(ONES), torch.get_rng_state()
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(ONES), expected)
        assert torch.equal(torch.get_rng_state(), expected_state)
