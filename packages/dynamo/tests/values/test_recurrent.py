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


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_packed_sequences_break_once_for_each_step_that_reads_lengths(layer):
    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer(4, 5, batch_first=True)
            self.head = torch.nn.Linear(5, 2)

        def forward(self, x, lengths):
            packed = torch.nn.utils.rnn.pack_padded_sequence(
                x * 2, lengths, batch_first=True, enforce_sorted=False
            )
            states, _ = self.layer(packed)
            states, found = torch.nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
            return self.head(states).relu(), found

    breaks = []
    model = Tagger()
    compiled = dynamo.optimize(
        "eager", observer=lambda name, text: breaks.append(text) if name == "break" else None
    )(model)
    x = torch.randn(3, 6, 4)
    for lengths in ([6, 2, 4], [3, 3, 6], [6, 6, 6]):
        result, expected = (run(x, torch.tensor(lengths)) for run in (compiled, model))
        torch.testing.assert_close(result, expected)
        if lengths == [6, 2, 4]:
            assert len(breaks) == 3
