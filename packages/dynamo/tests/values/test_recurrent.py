"""Recurrent modules of torch are captured in one graph: the layer stays one call."""

import pytest
import torch
from torch import nn

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.randn(5, 3, 8)

MODULES = {
    "lstm": (nn.LSTM(8, 16), (X,)),
    "stacked": (nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True), (X,)),
    "projected": (nn.LSTM(8, 16, proj_size=4), (X,)),
    "with state": (nn.LSTM(8, 16), (X, (torch.randn(1, 3, 16), torch.randn(1, 3, 16)))),
    "one sequence": (nn.GRU(8, 16), (X[:, 0],)),
    "gru": (nn.GRU(8, 16, 2), (X,)),
    "rnn": (nn.RNN(8, 16, nonlinearity="relu"), (X,)),
    "lstm cell": (nn.LSTMCell(8, 16), (X[0],)),
    "gru cell": (nn.GRUCell(8, 16), (X[0],)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", MODULES)
def test_one_graph(name):
    module, inputs = MODULES[name]
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(module)
    for _ in range(2):
        assert same(compiled(*inputs), module(*inputs))
    assert counter.frame_count == 1


def test_replaced_weights_are_used():
    module = nn.LSTM(8, 16)
    compiled = dynamo.optimize("eager", options=STRICT)(module)
    compiled(X)
    module.weight_ih_l0 = nn.Parameter(torch.randn(64, 8))
    assert same(compiled(X), module(X))
