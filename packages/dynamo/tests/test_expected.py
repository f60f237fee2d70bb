"""Branches on data of which one side only raises: in the graph, checked in each call; else the call is made eagerly."""

import copy
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import distributions
from torch.nn import functional

import dynamo
from dynamo.testing import CompileCounter, same

sys.path.insert(0, str(Path(__file__).parent))
import assertion_programs as programs

POSITIVE = torch.linspace(0.2, 2.0, 12).reshape(3, 4)
BAD = torch.full((3, 4), math.nan)


def outcome(program, *args):
    """The result or the exception, how the generator goes on, and the written arguments."""
    torch.manual_seed(3)
    try:
        result = program(*args)
    except Exception as error:  # noqa: BLE001 - compared
        result = (type(error), str(error))
    return result, torch.rand(1).item()


def check(program, *calls, graphs=1, dynamic=None):
    """Each call as eager makes it, in one compiled version."""
    counter = CompileCounter()
    options = dynamo.DynamoOptions(strict=True)
    compiled = dynamo.optimize(counter, fullgraph=True, options=options, dynamic=dynamic)(program)
    for args in calls:
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        assert same(outcome(compiled, *mine), outcome(program, *theirs), tolerance=1e-6)
        assert same(mine, theirs, tolerance=0)
    assert counter.frame_count == graphs


def breaks(program, *calls):
    """As eager, in more than one graph or none."""
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=dynamo.DynamoOptions(strict=True))(program)
    for args in calls:
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        assert same(outcome(compiled, *mine), outcome(program, *theirs), tolerance=1e-6)
        assert same(mine, theirs, tolerance=0)
    with pytest.raises(dynamo.CaptureError, match="data-dependent"):
        dynamo.optimize("eager", fullgraph=True)(program)(*copy.deepcopy(calls[0]))


# -- what programs write -------------------------------------------------------------------------------


@pytest.mark.parametrize("program", programs.PROGRAMS)
def test_a_branch_that_only_raises_is_no_break(program):
    check(program, (POSITIVE,), (BAD,), (-POSITIVE,), (POSITIVE * 2,))


def test_a_branch_with_two_ways_to_go_on_is_one():
    def program(x):
        if (x < 0).any():
            return -x
        return x

    breaks(program, (POSITIVE,), (-POSITIVE,))


def test_a_number_that_another_function_reads_is_one():
    breaks(programs.through_another_call, (POSITIVE,), (-POSITIVE,))


def test_where_the_program_catches_it_there_is_a_break():
    breaks(programs.caught, (POSITIVE,), (-POSITIVE,))


def test_effects_before_the_branch_are_made_once():
    check(programs.after_effects, (POSITIVE, [], {"n": 1}), (-POSITIVE, [1], {"n": 2}))


def test_the_graph_may_raise_where_it_would_not_have_come():
    def program(x):
        if not torch.linalg.cholesky_ex(x).info.eq(0).all():
            raise ValueError(f"not positive definite: {x[0, 0].item()}")
        return torch.linalg.cholesky(x)

    check(program, (torch.eye(3),), (-torch.eye(3),), (torch.eye(3) * 2,))


def test_after_a_break_too():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(programs.between_breaks)
    for x in (POSITIVE, -POSITIVE, BAD, POSITIVE):
        assert same(outcome(compiled, x), outcome(programs.between_breaks, x))
    assert counter.frame_count == 3


def test_a_fault_of_the_compiler_is_not_hidden():
    def backend(gm, inputs):
        def run(*args):
            raise dynamo.InternalError("a fault")

        return run

    with pytest.raises(dynamo.InternalError, match="a fault"):
        dynamo.optimize(backend)(programs.asserted)(POSITIVE)


# -- what is put back ----------------------------------------------------------------------------------


class Normalized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.4)
        self.after = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        h = self.drop(self.before(x))
        if not torch.isfinite(h).all():
            raise FloatingPointError("not finite")
        return self.after(h + torch.rand_like(h))


def test_statistics_and_generators_are_put_back():
    torch.manual_seed(0)
    eager = Normalized()
    mine = copy.deepcopy(eager)
    options = dynamo.DynamoOptions(strict=True)
    compiled = dynamo.optimize("eager", fullgraph=True, options=options)(mine)
    for x in (POSITIVE, BAD, POSITIVE * 3):
        assert same(outcome(compiled, x), outcome(eager, x), tolerance=0)
        assert same(dict(mine.state_dict()), dict(eager.state_dict()), tolerance=0)


def test_a_written_argument_is_put_back():
    check(programs.writes_argument, (POSITIVE, torch.ones(3, 4)), (-POSITIVE, torch.ones(3, 4)))
    check(programs.writes_own, (POSITIVE, torch.ones(3, 4)), (-POSITIVE, torch.ones(3, 4)))


def test_much_that_is_written_is_a_break():
    breaks(
        programs.writes_much, (POSITIVE, torch.zeros(1 << 21)), (-POSITIVE, torch.zeros(1 << 21))
    )


def test_a_written_tensor_with_a_history_is_a_break():
    leaf = torch.ones(3, 4, requires_grad=True)
    for x in (POSITIVE, -POSITIVE):
        mine, theirs = leaf * 2, leaf * 2
        compiled = dynamo.optimize("eager")(programs.writes_argument)
        assert same(outcome(compiled, x, mine), outcome(programs.writes_argument, x, theirs))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("program", programs.IN_REGIONS)
def test_inside_of_regions(program):
    compiled = dynamo.optimize("eager")(program)
    for x in (POSITIVE.clone().requires_grad_(), -POSITIVE, POSITIVE * 2):
        assert same(outcome(compiled, x), outcome(program, x))


# -- torch's own ---------------------------------------------------------------------------------------

DISTRIBUTIONS = {
    "bernoulli": (lambda p: distributions.Bernoulli(probs=p.clamp(max=1)), lambda p: p.round().clamp(max=1)),
    "bernoulli logits": (lambda p: distributions.Bernoulli(logits=p), lambda p: p.round().clamp(max=1)),
    "beta": (lambda p: distributions.Beta(p, p + 1), torch.sigmoid),
    "binomial": (lambda p: distributions.Binomial(5, logits=p), torch.round),
    "categorical": (lambda p: distributions.Categorical(probs=p), lambda p: p.argmax(-1)),
    "categorical logits": (lambda p: distributions.Categorical(logits=p), lambda p: p.argmax(-1)),
    "cauchy": (lambda p: distributions.Cauchy(p, p), torch.sin),
    "chi2": (distributions.Chi2, torch.exp),
    "continuous bernoulli": (lambda p: distributions.ContinuousBernoulli(logits=p), torch.sigmoid),
    "dirichlet": (distributions.Dirichlet, lambda p: p.softmax(-1)),
    "exponential": (distributions.Exponential, torch.exp),
    "gamma": (lambda p: distributions.Gamma(p, p + 1), torch.exp),
    "geometric": (lambda p: distributions.Geometric(logits=p), torch.round),
    "gumbel": (lambda p: distributions.Gumbel(p, p), torch.sin),
    "half normal": (distributions.HalfNormal, torch.exp),
    "independent": (lambda p: distributions.Independent(distributions.Normal(p, p), 1), torch.sin),
    "laplace": (lambda p: distributions.Laplace(p, p), torch.sin),
    "log normal": (lambda p: distributions.LogNormal(p, p), torch.exp),
    "low rank": (
        lambda p: distributions.LowRankMultivariateNormal(p, p.unsqueeze(-1), p),
        torch.sin,
    ),
    "mixture": (
        lambda p: distributions.MixtureSameFamily(
            distributions.Categorical(logits=p), distributions.Normal(p, p)
        ),
        lambda p: p[:, 0],
    ),
    "multinomial": (lambda p: distributions.Multinomial(4, logits=p), torch.ones_like),
    "multivariate normal": (
        lambda p: distributions.MultivariateNormal(p, torch.diag_embed(p)),
        torch.sin,
    ),
    "multivariate precision": (
        lambda p: distributions.MultivariateNormal(p, precision_matrix=torch.diag_embed(p)),
        torch.sin,
    ),
    "negative binomial": (lambda p: distributions.NegativeBinomial(p, logits=p), torch.round),
    "normal": (lambda p: distributions.Normal(p, p), torch.sin),
    "one-hot": (
        lambda p: distributions.OneHotCategorical(logits=p),
        lambda p: functional.one_hot(p.argmax(-1), 4).float(),
    ),
    "pareto": (lambda p: distributions.Pareto(p, p), lambda p: p * 2),
    "poisson": (distributions.Poisson, torch.round),
    "relaxed bernoulli": (
        lambda p: distributions.RelaxedBernoulli(torch.tensor(0.5), logits=p),
        torch.sigmoid,
    ),
    "student": (lambda p: distributions.StudentT(p, p, p), torch.sin),
    "transformed": (
        lambda p: distributions.TransformedDistribution(
            distributions.Normal(p, p), [distributions.TanhTransform()]
        ),
        torch.tanh,
    ),
    "uniform": (lambda p: distributions.Uniform(p, p * 2), lambda p: p * 1.5),
    "von mises": (lambda p: distributions.VonMises(p, p), torch.sin),
    "weibull": (lambda p: distributions.Weibull(p, p), torch.exp),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_check_their_arguments_in_the_graph(name):
    make, sample = DISTRIBUTIONS[name]

    def program(parameter, value):
        return make(parameter).log_prob(sample(value)), make(parameter).batch_shape

    other = POSITIVE.clone()
    check(program, (POSITIVE, other), (POSITIVE, BAD), (BAD, POSITIVE), (POSITIVE + 1, POSITIVE))


def test_what_a_distribution_computes_when_it_is_first_asked():
    def program(x):
        found = distributions.Categorical(logits=x)
        first = found.probs
        return first is found.probs, first, found.entropy(), "probs" in vars(found)

    check(program, (POSITIVE,), (BAD,))


def test_a_divergence_of_distributions_over_sizes_that_vary():
    def program(mean, deviation):
        one = distributions.Normal(mean, deviation)
        other = distributions.Normal(torch.zeros_like(mean), torch.ones_like(deviation))
        return distributions.kl_divergence(one, other), one.cdf(mean + 1), one.stddev

    calls = [(torch.ones(n, 4), torch.full((n, 4), 0.5)) for n in (3, 5, 7)]
    check(program, *calls, (torch.ones(6, 4), -torch.ones(6, 4)), dynamic=True)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_gaussian_loss(reduction):
    def program(x, y, variance):
        return functional.gaussian_nll_loss(x, y, variance, full=True, reduction=reduction)

    check(
        program,
        (POSITIVE, POSITIVE + 1, POSITIVE * 2),
        (POSITIVE, POSITIVE * 2, -POSITIVE),
        (POSITIVE, BAD, POSITIVE * 2),
    )


WINDOWS = {
    "hann": torch.hann_window,
    "narrow": lambda n: torch.hann_window(n // 2),
    "none": lambda n: None,
}


@pytest.mark.filterwarnings("ignore:A window was not provided")
@pytest.mark.filterwarnings("ignore:The length of signal is shorter")
@pytest.mark.parametrize("length", [None, 100, 300])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_signal_of_its_spectra(window, normalized, length):
    def program(x, scale):
        found = WINDOWS[window](32)
        width = None if found is None else len(found)
        found = found if found is None else found * scale
        options = {"window": found, "win_length": width, "normalized": normalized}
        return torch.istft(x, 32, 8, length=length, **options)

    torch.manual_seed(0)
    spectra = [torch.randn(2, 17, frames, dtype=torch.cfloat) for frames in (20, 23, 31)]
    calls = [(x, torch.tensor(1.0)) for x in spectra]
    check(program, *calls, (spectra[0], torch.tensor(0.0)), (spectra[0][0], torch.tensor(2.0)),
          dynamic=True, graphs=2)  # fmt: skip


def test_a_complex_signal_of_its_spectra():
    def program(x):
        window = torch.hann_window(32)
        both = torch.istft(x, 32, 8, window=window, center=False, return_complex=True)
        return both, x.istft(32, 8, window=window, onesided=False)

    x = torch.randn(32, 20, dtype=torch.cfloat)
    check(program, (x,))
    check(lambda x: torch.istft(x, 32, 8, window=torch.hann_window(32)), (x,), (x[:17],), graphs=2)
    check(lambda x: torch.istft(x, 30, 8, window=torch.hann_window(30)), (x,), graphs=0)


@pytest.mark.parametrize("size", [5, 1, 0])
@pytest.mark.parametrize(
    "options",
    [{}, {"r": 3}, {"r": 1}, {"r": 0}, {"r": 9}, {"with_replacement": True}, {"r": -1}],
)
def test_combinations_follow_from_the_size(size, options):
    def program(x):
        return torch.combinations(x, **options) * 2

    def run(function):
        x = torch.arange(1.0, size + 1).requires_grad_()
        try:
            found = function(x)
        except RuntimeError as error:
            return str(error)
        gradient = torch.autograd.grad(found.sum(), x) if found.requires_grad else None
        return found.detach(), found.stride(), gradient

    compiled = dynamo.optimize("eager", fullgraph=True)(program)
    assert same(run(compiled), run(program))
