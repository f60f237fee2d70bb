"""torch.distributions with their checks, whole: samples, gradients, a variational autoencoder, a policy."""

import copy

import pytest
import torch
from torch import distributions, nn
from torch.nn import functional

import compile_api

STRICT = {"strict": True, "fallback_random": True}

DRAWN = {
    "normal": lambda p: distributions.Normal(p, p),
    "gamma": lambda p: distributions.Gamma(p, p + 1),
    "dirichlet": distributions.Dirichlet,
    "beta": lambda p: distributions.Beta(p, p + 1),
    "multivariate normal": lambda p: distributions.MultivariateNormal(p, torch.diag_embed(p)),
    "binomial": lambda p: distributions.Binomial(5, logits=p),
    "one-hot": lambda p: distributions.OneHotCategoricalStraightThrough(logits=p),
}


@pytest.mark.parametrize("name", DRAWN)
def test_samples_and_their_gradients(name):
    def program(parameter):
        found = DRAWN[name](parameter)
        value = found.rsample() if found.has_rsample else found.sample()
        return value * 2, found.log_prob(value.detach())

    def run(function):
        torch.manual_seed(2)
        parameter = (torch.rand(4, 3) + 0.5).requires_grad_()
        results = function(parameter)
        total = sum(result.sum() for result in results if result.requires_grad)
        return [*results, *torch.autograd.grad(total, parameter), torch.rand(1)]

    compiled = compile_api.compile(program, fullgraph=True, options=STRICT)
    torch.testing.assert_close(run(compiled), run(program), rtol=1e-4, atol=1e-5)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)
        )
        self.decoder = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 12)
        )

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, -1)
        code = distributions.Normal(mean, functional.softplus(spread) + 1e-3)
        prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        seen = distributions.Independent(
            distributions.Bernoulli(logits=self.decoder(code.rsample())), 1
        )
        divergence = distributions.kl_divergence(code, prior).sum(-1)
        return (divergence - seen.log_prob(x)).mean()


@pytest.fixture
def validated():
    """Parameters are looked at, which torch.compile turns off for the process as soon as it runs once."""
    before = distributions.Distribution._validate_args
    distributions.Distribution.set_default_validate_args(True)
    yield
    distributions.Distribution.set_default_validate_args(before)


def test_a_variational_autoencoder_learns_and_refuses_as_eager_does(validated):
    torch.manual_seed(0)
    eager = Autoencoder()
    mine = copy.deepcopy(eager)
    compiled = compile_api.compile(mine, fullgraph=True, options=STRICT)
    pairs = [
        (eager, torch.optim.SGD(eager.parameters(), 0.01)),
        (compiled, torch.optim.SGD(mine.parameters(), 0.01)),
    ]
    for step in range(4):
        torch.manual_seed(step)
        x = torch.rand(8, 12).round()
        if step == 2:
            x[0, 0] = torch.nan
        losses = []
        for model, optimizer in pairs:
            torch.manual_seed(step)
            optimizer.zero_grad()
            try:
                loss = model(x)
            except ValueError as error:
                losses.append(str(error).split("tensor", 1)[0])
                continue
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if step == 2:
            assert losses[0] == losses[1]
            assert losses[0].startswith("Expected parameter loc")
        else:
            assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        statistics = [model.encoder[1].running_mean for model in (eager, mine)]
        torch.testing.assert_close(*statistics, rtol=1e-4, atol=1e-5, equal_nan=True)
        if step == 2:
            mine.load_state_dict(eager.state_dict())
            for model in (eager, mine):
                model.encoder[1].reset_running_stats()


def test_a_policys_loss():
    def loss(logits, action, former, advantage):
        policy = distributions.Categorical(logits=logits)
        ratio = (policy.log_prob(action) - former).exp()
        if not torch.isfinite(ratio).all():
            raise FloatingPointError(f"the ratio is {ratio.max().item()}")
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -clipped.mean() - 0.01 * policy.entropy().mean()

    torch.manual_seed(0)
    compiled = compile_api.compile(loss, fullgraph=True, options={"strict": True})
    logits = torch.randn(8, 3, requires_grad=True)
    action, former, advantage = torch.randint(0, 3, (8,)), torch.randn(8), torch.randn(8)
    for offset in (0.0, 1.0):
        given = (logits, action, former + offset, advantage)
        value, wanted = compiled(*given), loss(*given)
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(
            torch.autograd.grad(value, logits), torch.autograd.grad(wanted, logits)
        )
    with pytest.raises(FloatingPointError, match="the ratio is inf"):
        compiled(logits, action, former - 1e30, advantage)


def test_a_divergence_inside_a_divergence_that_torch_has_not_noted_yet():
    def program(mean, spread):
        one = distributions.Independent(distributions.Normal(mean, spread), 1)
        other = distributions.Independent(distributions.Normal(spread, spread + 1), 1)
        return distributions.kl_divergence(one, other)

    for noted_before in (False, True):
        if not noted_before:
            torch.distributions.kl._KL_MEMOIZE.clear()
        compiled = compile_api.compile(program, fullgraph=True, options=STRICT)
        given = torch.rand(2, 3) + 0.5, torch.rand(2, 3) + 0.5
        for _ in range(2):
            torch.testing.assert_close(compiled(*given), program(*given))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_sample_by_rejection_breaks_in_its_loop_only():
    def program(mean, concentration):
        return distributions.VonMises(mean, concentration).sample() * 2

    compiled = compile_api.compile(program, options=STRICT)
    for seed in range(2):
        found = []
        for one in (compiled, program):
            torch.manual_seed(seed)
            found.append(one(torch.rand(4), torch.rand(4) + 1))
        torch.testing.assert_close(*found)
