"""`fallback_random` over every layout: the numbers, the order in which they are drawn, and the gradients of eager."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aot_autograd


def _filled(name, *numbers):
    def fill(x):
        return getattr(torch.empty_like(x), name)(*numbers)

    return fill


PROGRAMS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of a result": lambda x: F.dropout((x * 2).sin(), 0.3) * x,
    "dropout in place": lambda x: F.dropout(x * 1, 0.3, inplace=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "bernoulli": lambda x: torch.bernoulli(x.detach().sigmoid()) * x,
    "bernoulli with p": lambda x: torch.bernoulli(x.detach(), 0.3) * x,
    "poisson": lambda x: torch.poisson(x.detach().abs() * 3) * x,
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randn_like": lambda x: torch.randn_like(x * 2) * x,
    "randint_like": lambda x: torch.randint_like(x, 0, 9) * x,
    "bernoulli_": _filled("bernoulli_", 0.3),
    "bernoulli_ with a tensor": lambda x: torch.empty_like(x).bernoulli_(x.detach().sigmoid()),
    "uniform_": _filled("uniform_", -1, 2),
    "normal_": _filled("normal_"),
    "exponential_": _filled("exponential_"),
    "cauchy_": _filled("cauchy_"),
    "log_normal_": _filled("log_normal_"),
    "geometric_": _filled("geometric_", 0.3),
    "random_": _filled("random_", 3, 50),
    "random_ to": _filled("random_", 50),
    "normal_ on a part": lambda x: x.detach().clone()[..., 1:].normal_(),
    "uniform_ on a part": lambda x: x.detach().clone()[::2].uniform_(),
}


@st.composite
def layouts(draw):
    """What makes a tensor of random numbers: dense in some order of dimensions, sliced, or with steps."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    sizes[draw(st.integers(0, len(sizes) - 1))] = draw(st.integers(2, 20))
    order = draw(st.permutations(range(len(sizes))))
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2]), min_size=len(sizes), max_size=len(sizes)))

    def make():
        whole = torch.randn([size * step for size, step in zip(sizes, steps, strict=True)])
        return whole[tuple(slice(None, None, step) for step in steps)].permute(order)

    return make


def left_by(function, x):
    """A call's result, its gradient, and what the user draws next."""
    x = x.detach().requires_grad_()
    torch.manual_seed(3)
    result = function(x)
    after = torch.rand(3)
    gradient = torch.autograd.grad(result.sin().sum(), x)[0] if result.requires_grad else None
    return result, after, gradient


@pytest.mark.parametrize("name", PROGRAMS)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it keeps nothing
)
@given(layouts())
def test_numbers_and_gradients_are_those_of_eager(graph_runner, name, layout):
    function = PROGRAMS[name]
    compiled = aot_autograd.aot_function(
        function, graph_runner, options={"fallback_random": True, "backward_worker": False}
    )
    torch.manual_seed(0)
    x = layout()
    for want, got in zip(left_by(function, x), left_by(compiled, x), strict=True):
        if want is None:
            assert got is None
        else:
            torch.testing.assert_close(got, want)
            assert got.shape == want.shape


@pytest.mark.parametrize("name", PROGRAMS)
def test_strides_are_those_of_eager(graph_runner, name):
    function = PROGRAMS[name]
    compiled = aot_autograd.aot_function(function, graph_runner, options={"fallback_random": True})
    for x in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(2, 5, 3).permute(2, 0, 1)):
        want, _, wanted = left_by(function, x)
        got, _, found = left_by(compiled, x)
        assert got.stride() == want.stride()
        if wanted is not None:
            assert found.stride() == wanted.stride()
