"""A batch of one after others is served by the version with a symbolic batch, forward and backward."""

import copy

import pytest
import torch

import compile_api


def _mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
    )


def _convolutional():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3),
    )  # fmt: skip


def _tokens():
    return torch.nn.Sequential(
        torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4), torch.nn.Softmax(-1)
    )


CASES = {
    "mlp": (_mlp, lambda n: torch.randn(n, 6)),
    "convolutional": (_convolutional, lambda n: torch.randn(n, 3, 8, 8)),
    "tokens": (_tokens, lambda n: torch.randint(0, 9, (n, 5))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_batch_of_one_is_served_by_the_symbolic_version(name):
    make, batch = CASES[name]
    compile_api.reset()
    torch.manual_seed(0)
    model = make()
    eager = copy.deepcopy(model)
    compiled = compile_api.compile(model, dynamic=None)
    for size in (4, 5, 1, 3):
        x = batch(size)
        ours, theirs = compiled(x), eager(x)
        torch.testing.assert_close(ours, theirs)
        for result, module in ((ours, model), (theirs, eager)):
            module.zero_grad()
            result.square().sum().backward()
        for mine, other in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)
    assert compile_api.graph_count() == 2
