"""Dropout that is switched off draws nothing, so it may stand after an operator that can raise in a try block."""

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


@pytest.mark.parametrize("training", [False, True])
def test_dropout_after_a_guarded_lookup(training):
    layer = torch.nn.Dropout(0.5).train(training)
    table = torch.randn(10, 4)

    def look_up(index):
        try:
            rows = torch.nn.functional.embedding(index, table)
        except IndexError:
            rows = torch.zeros(2, 4)
        return layer(rows) * 2

    counted = CompileCounter()
    index = torch.tensor([1, 3])
    torch.manual_seed(0)
    ours = dynamo.optimize(counted)(look_up)(index)
    torch.manual_seed(0)
    torch.testing.assert_close(ours, look_up(index))
    if not training:
        assert counted.frame_count == 1
