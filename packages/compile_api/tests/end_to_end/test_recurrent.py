"""Recurrent layers through the whole compiler: short ones as a loop, long ones as one call, any length."""

import pytest
import torch
from torch import nn

import compile_api

MODULES = {
    "short": (nn.LSTM(3, 4), (4, 2, 3)),
    "long": (nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), (2, 60, 3)),
    "gru": (nn.GRU(3, 4), (70, 2, 3)),
    "projected": (nn.LSTM(3, 4, 2, proj_size=2), (70, 2, 3)),
    "dropout": (nn.GRU(3, 4, 2, dropout=0.5), (5, 2, 3)),
    "long dropout": (nn.LSTM(3, 4, 2, dropout=0.5, bidirectional=True), (40, 2, 3)),
}


def step(function, module, x):
    module.zero_grad()
    torch.manual_seed(0)
    output, state = function(x)
    (output.square().sum() + state[0].sum()).backward()
    return output, [parameter.grad.clone() for parameter in module.parameters()]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", MODULES)
def test_inference_and_training(name):
    module, shape = MODULES[name]
    options = {"strict": True, "fallback_random": True}
    compiled = compile_api.compile(module, fullgraph=True, options=options)
    x = torch.randn(shape)
    torch.testing.assert_close(step(compiled, module, x), step(module, module, x))
    with torch.no_grad():
        module.eval()
        torch.testing.assert_close(compiled(x), module(x))


def test_any_length_takes_two_graphs():
    module = nn.LSTM(3, 4).eval()
    compiled = compile_api.compile(module, fullgraph=True, options={"strict": True})
    with torch.no_grad():
        for length in (30, 40, 50, 60):
            x = torch.randn(length, 2, 3)
            torch.testing.assert_close(compiled(x), module(x))


def test_any_length_is_trained():
    module = nn.LSTM(3, 4)
    compiled = compile_api.compile(module, fullgraph=True, options={"strict": True})
    for length in (30, 40, 50):
        x = torch.randn(length, 2, 3)
        torch.testing.assert_close(step(compiled, module, x), step(module, module, x))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers_under_autocast_have_eagers_dtypes(kind):
    """oneDNN takes an LSTM whole, in bfloat16; the others are loops, whose sums with states are float32."""
    module = kind(3, 4, 2)
    options = {"strict": True}
    compiled = compile_api.compile(module, fullgraph=kind is nn.LSTM, options=options)
    for length in (4, 9, 20) if kind is nn.LSTM else (4,):
        x = torch.randn(length, 2, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected, found = step(module, module, x), step(compiled, module, x)
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("length", [9, 40])
def test_a_layer_of_bfloat16_is_trained(length):
    """The library's own backward gives float32 here: what was promised to be bfloat16 was read as it."""
    module = nn.LSTM(3, 4, 2, bidirectional=True).bfloat16()
    compiled = compile_api.compile(module, fullgraph=True, options={"strict": True})
    x = torch.randn(length, 2, 3, dtype=torch.bfloat16)
    torch.testing.assert_close(
        step(compiled, module, x), step(module, module, x), atol=0.05, rtol=0.05
    )
