"""Numbers drawn by Python's generators in a training step: eager's losses, gradients and states, in one graph."""

import random

import torch
from torch import nn

import compile_api


class Residual(nn.Module):
    """A stack whose blocks are left out by chance, with noise of a random strength."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            if self.training and random.random() < 0.4:
                continue
            x = x + block(x).tanh()
        return (x * random.uniform(0.9, 1.1)).square().mean()


def steps(run, model):
    """Losses, gradients and the generator's states of a few steps."""
    seen = []
    random.seed(11)
    x = torch.linspace(-1, 1, 18).view(3, 6)
    for _ in range(8):
        model.zero_grad()
        loss = run(x)
        loss.backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        seen.append((loss.detach(), gradients, random.getstate()))
    return seen


def test_stochastic_depth_trains_as_eager_does():
    torch.manual_seed(0)
    model = Residual()
    compiled = compile_api.compile(model, fullgraph=True)
    for (loss, gradients, state), (mine, my_gradients, my_state) in zip(
        steps(model, model), steps(compiled, model), strict=True
    ):
        torch.testing.assert_close(mine, loss)
        assert my_state == state
        for gradient, my_gradient in zip(gradients, my_gradients, strict=True):
            assert (gradient is None) is (my_gradient is None)
            if gradient is not None:
                torch.testing.assert_close(my_gradient, gradient)


def test_one_graph():
    random.seed(0)
    found = compile_api.explain(Residual(), torch.ones(3, 6))
    assert (len(found.graphs), len(found.graph_breaks)) == (1, 0)
