"""The operator of recurrent layers: values, gradients and shapes of torch's own layers."""

import pytest
import torch
from torch import nn

from primtorch.fake import infer, meta_of
from primtorch.recurrent_layer import RecurrentLayer

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


def of_one_layer(name, dtype, reverse):
    """Results and gradients of torch's own layer over one direction, and of the operator for it."""
    kind = name.split()[0]
    layer = {
        "lstm": nn.LSTM(3, 4), "lstm projected": nn.LSTM(3, 4, proj_size=2), "gru": nn.GRU(3, 4),
        "gru without biases": nn.GRU(3, 4, bias=False), "rnn_tanh": nn.RNN(3, 4),
        "rnn_relu": nn.RNN(3, 4, nonlinearity="relu"), "lstm without biases": nn.LSTM(3, 4, bias=False),
    }[name].to(dtype)  # fmt: skip
    x = torch.randn(7, 2, 3, dtype=dtype, requires_grad=True)
    widths = [layer.proj_size or 4, 4] if kind == "lstm" else [4]
    states = [torch.randn(2, width, dtype=dtype, requires_grad=True) for width in widths]
    firsts = [state.unsqueeze(0) for state in states]
    output, last = layer(
        x.flip(0) if reverse else x, tuple(firsts) if kind == "lstm" else firsts[0]
    )
    lasts = [value.squeeze(0) for value in (last if kind == "lstm" else [last])]
    expected = [output.flip(0) if reverse else output, *lasts]
    leaves = [x, *states, *layer._flat_weights]
    state, cell = (*states, None)[:2]

    def found(keep):
        made = RecurrentLayer.apply(x, state, cell, kind, reverse, keep, *layer._flat_weights)
        return made[: len(expected)]

    return expected, found, leaves


KINDS = (
    "lstm", "lstm without biases", "lstm projected", "gru", "gru without biases", "rnn_tanh", "rnn_relu",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", KINDS)
def test_one_layer_is_as_torch_computes_it(name, dtype, reverse):
    expected, found, leaves = of_one_layer(name, dtype, reverse)
    near = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {}
    with torch.no_grad():
        without = found(keep=False)
    kept = found(keep=True)
    for one, other, eager in zip(without, kept, expected, strict=True):
        torch.testing.assert_close(one, eager, **near)
        torch.testing.assert_close(other, eager, **near)
    for used in (range(len(kept)), [0], [1]):  # not every result need be used
        ours, theirs = (
            torch.autograd.grad(
                sum(results[n].square().sum() for n in used), leaves, retain_graph=True
            )
            for results in (kept, expected)
        )
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, **near)


def test_what_a_layer_keeps_is_promised_as_nothing():
    x, state = torch.randn(7, 2, 3), torch.zeros(2, 4)
    weights = list(nn.GRU(3, 4)._flat_weights)
    args = (x, state, None, weights, "gru", False, True)
    made = torch.ops.primtorch.recurrent_layer(*args)
    promised = infer(torch.ops.primtorch.recurrent_layer.default, args)
    for meta, result in zip(promised[:3], made[:3], strict=True):
        assert meta == meta_of(result)
    assert promised[3].shape == (0,)
    assert promised[3].dtype == made[3].dtype == torch.uint8
    assert made[3].numel() > 0
    assert torch.ops.primtorch.recurrent_layer(*args[:-1], False)[3].numel() == 0
