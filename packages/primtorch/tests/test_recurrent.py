"""The operator of recurrent layers: values, gradients and shapes of torch's own layers."""

import pytest
import torch
from torch import nn

from primtorch.fake import infer, meta_of

LAYERS = {
    "lstm": nn.LSTM(3, 4, 2, bidirectional=True),
    "lstm projected": nn.LSTM(3, 4, proj_size=2),
    "gru": nn.GRU(3, 4, bias=False),
    "rnn_tanh": nn.RNN(3, 4, 2),
    "rnn_relu": nn.RNN(3, 4, nonlinearity="relu"),
}


def call(name):
    layer = LAYERS[name]
    kind = name.split()[0]
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    x = torch.randn(7, 2, 3, requires_grad=True)
    states = [torch.randn(rows, 2, layer.proj_size or 4, requires_grad=True)]
    if kind == "lstm":
        states.append(torch.randn(rows, 2, 4, requires_grad=True))
    args = (x, states, layer._flat_weights, kind, layer.bias, layer.num_layers, layer.bidirectional)
    given = tuple(states) if kind == "lstm" else states[0]
    output, last = layer(x, given)
    expected = (output, *(last if kind == "lstm" else (last, None)))
    return args, expected, [x, *states, *layer._flat_weights]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
def test_values_gradients_and_shapes(name):
    args, expected, leaves = call(name)
    found = torch.ops.primtorch.recurrent(*args)
    for one, other in zip(found, expected, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other)
    loss = [
        sum(v.square().sum() for v in results if v is not None) for results in (found, expected)
    ]
    for one, other in zip(*(torch.autograd.grad(v, leaves) for v in loss), strict=True):
        torch.testing.assert_close(one, other)
    for meta, result in zip(infer(torch.ops.primtorch.recurrent.default, args), found, strict=True):
        assert (meta.shape, meta.stride) == (tuple(result.shape), result.stride())
        assert meta == meta_of(result)


def test_one_result_may_be_unused():
    args, (output, *_), leaves = call("lstm")
    found = torch.ops.primtorch.recurrent(*args)[0]
    for one, other in zip(
        torch.autograd.grad(found.sum(), leaves),
        torch.autograd.grad(output.sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
