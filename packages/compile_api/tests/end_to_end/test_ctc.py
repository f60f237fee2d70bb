"""`ctc_loss` with lengths that are numbers: the loss and its gradient, under strict."""

import pytest
import torch
from torch.nn import functional

import compile_api


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_lengths_as_numbers(reduction):
    def loss(scores, targets):
        return functional.ctc_loss(
            scores.log_softmax(-1), targets, (6, 5), (3, 2), reduction=reduction
        )

    scores = torch.linspace(-1, 1, 60).sin().view(6, 2, 5)
    targets = torch.tensor([[1, 2, 4], [3, 1, 0]])
    compiled = compile_api.compile(loss, fullgraph=True, options={"strict": True})
    found = []
    for function in (loss, compiled):
        given = scores.clone().requires_grad_()
        value = function(given, targets)
        found.append((value.detach(), *torch.autograd.grad(value, given)))
    torch.testing.assert_close(found[1], found[0])
