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


def test_packed_sequences_of_other_lengths_are_not_compiled_again():
    layer = torch.nn.GRU(4, 5, batch_first=True)

    def program(x, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            x * 2, lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = layer(packed)
        return torch.nn.utils.rnn.pad_packed_sequence(states, batch_first=True)[0].relu()

    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(program)
    counts = []
    for steps in (5, 7, 9, 4, 8, 11, 6):
        lengths = torch.tensor([2, steps, 3])
        x = torch.randn(3, steps, 4)
        torch.testing.assert_close(compiled(x, lengths), program(x, lengths))
        counts.append(counter.frame_count)
    assert counts[1:] == counts[1:2] * 6


PACKED = {
    "gru": nn.GRU(4, 5),
    "lstm": nn.LSTM(4, 5, 2),
    "both ways": nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True),
    "projected both ways": nn.LSTM(4, 5, proj_size=3, bidirectional=True),
    "rnn without bias": nn.RNN(4, 5, bias=False, bidirectional=True, batch_first=True),
    "relu": nn.RNN(4, 5, nonlinearity="relu"),
    "dropout": nn.GRU(4, 5, 2, dropout=0.5),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:RNN module weights")
@pytest.mark.parametrize("lengths", [[5, 3, 3, 1], [2, 5, 1, 5], [5, 5, 5, 5]])
@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_of_known_lengths_are_in_one_graph(name, lengths):
    layer = PACKED[name]
    first = layer.batch_first

    def program(x):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=first, enforce_sorted=lengths == sorted(lengths)[::-1]
        )
        states, last = layer(packed)
        padded, found = nn.utils.rnn.pad_packed_sequence(
            states, batch_first=first, padding_value=-1.0, total_length=7
        )
        return padded, found, last, states.data, states.batch_sizes

    x = torch.randn((4, 6, 4) if first else (6, 4, 4), requires_grad=True)
    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(program)
    for _ in range(2):
        results, gradients = [], []
        for run in (program, compiled):
            torch.manual_seed(0)
            results.append(run(x))
            layer.zero_grad()
            results[-1][0].square().sum().backward()
            gradients.append([x.grad.clone(), *(p.grad for p in layer.parameters())])
            x.grad = None
        assert same(results[0], results[1])
        assert same(gradients[0], gradients[1], tolerance=1e-4)


def test_packed_with_a_state_and_several_sequences():
    layer = nn.LSTM(4, 5)

    def program(parts, h, c):
        packed = nn.utils.rnn.pack_sequence(parts, enforce_sorted=False)
        states, (h, c) = layer(packed, (h, c))
        return states, h, c

    parts = [torch.randn(n, 4) for n in (2, 4, 1)]
    state = torch.randn(1, 3, 5), torch.randn(1, 3, 5)
    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(program)
    assert same(tuple(compiled(parts, *state)[0]), tuple(program(parts, *state)[0]))
    assert same(compiled(parts, *state)[1:], program(parts, *state)[1:])


def test_lengths_that_vary_are_left_to_torch():
    layer = nn.GRU(4, 5)

    def program(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x * 2, lengths, enforce_sorted=False)
        states, _ = layer(packed)
        return nn.utils.rnn.pad_packed_sequence(states)[0] + 1

    compiled = dynamo.optimize("eager", options=STRICT)(program)
    x = torch.randn(6, 3, 4)
    for lengths in ([5, 2, 6], [6, 2, 3], [4, 6, 3], [3, 3, 6], [6, 5, 4]):
        assert same(compiled(x, lengths), program(x, lengths))
