"""Recurrent layers as the library's calls: which go there without Python, and that they are right."""

import pytest
import torch

from inductor import InductorOptions, compile_fx
from inductor.codegen.direct import direct_call
from inductor.ir import OperatorCall
from inductor.lowering import lower
from inductor.runtime.launch import DIRECT_CALLS
from primtorch import fuses_lstm

LAYER = torch.ops.primtorch.recurrent_layer
BACKWARD = torch.ops.primtorch.recurrent_layer_backward
STEPS, BATCH, DEPTH, WIDTH = 20, 3, 5, 4
ALL = frozenset(DIRECT_CALLS.values())
pytestmark = pytest.mark.skipif(
    not fuses_lstm(torch.float32), reason="this build of torch has no oneDNN"
)


def layer_inputs(*, biases=True, gates=4, batch=BATCH):
    torch.manual_seed(0)
    shapes = [(gates * WIDTH, DEPTH), (gates * WIDTH, WIDTH)] + [(gates * WIDTH,)] * 2 * biases
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    states = [torch.randn(batch, WIDTH) for _ in range(2)]
    return torch.randn(STEPS, batch, DEPTH), *states, *weights


def calls(gm):
    return [node for node in lower(gm).nodes if isinstance(node, OperatorCall)]


@pytest.mark.cxx
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("scattered", [False, True], ids=["row-major", "transposed"])
def test_an_lstm_is_called_without_python(traced, reverse, keep, scattered):
    def run(x, h, c, *weights):
        rows = x.transpose(0, 1).clone().transpose(0, 1) if scattered else x
        return LAYER(rows, h, c, list(weights), "lstm", reverse, keep)[:3]

    inputs = layer_inputs()
    gm = traced(run, *inputs)
    (step,) = calls(gm)
    assert direct_call(step, ALL) is not None
    made = compile_fx(gm, options=InductorOptions(strict=True))(list(inputs))
    with torch.no_grad():
        torch.testing.assert_close(made, run(*inputs))
    assert not any(result.requires_grad for result in made)  # though weights want gradients


@pytest.mark.cxx
def test_the_workspace_serves_the_backward_whose_biases_have_their_own_gradients(traced):
    def run(x, h, c, *weights):
        return LAYER(x, h, c, list(weights), "lstm", False, True)

    def back(grad, x, h, c, w, v, b, d, *results):
        return BACKWARD(grad, None, None, x, h, c, [w, v, b, d], *results, "lstm", False)

    inputs = layer_inputs()
    made = compile_fx(traced(run, *inputs), options=InductorOptions(strict=True))(list(inputs))
    with torch.no_grad():
        eager = run(*inputs)
    assert made[3].numel() == eager[3].numel() > 0
    torch.testing.assert_close(made[:3], tuple(eager[:3]))
    grad = torch.randn(STEPS, BATCH, WIDTH)
    promised = (grad, *inputs, *made[:3], torch.empty(0, dtype=torch.uint8))
    gm = traced(back, *promised)
    (step,) = calls(gm)
    assert step.operator is torch.ops.aten.mkldnn_rnn_layer_backward.default
    given = [grad, *inputs, *made]
    found = compile_fx(gm, options=InductorOptions(strict=True))(given)
    with torch.no_grad():
        expected = back(grad, *inputs, *eager)
    torch.testing.assert_close(list(found), list(expected))
    assert len({gradient.untyped_storage().data_ptr() for gradient in found}) == len(found)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("lstm", {"biases": False}), ("gru", {"gates": 3}), ("lstm", {"batch": 0})],
    ids=["without biases", "gru", "empty batch"],
)
def test_other_layers_stay_the_operator(traced, kind, options):
    def run(x, h, c, *weights):
        cell = c if kind == "lstm" else None
        return LAYER(x, h, cell, list(weights), kind, False, False)[:2]

    inputs = layer_inputs(**options)
    gm = traced(run, *inputs)
    (step,) = calls(gm)
    assert step.operator is LAYER.default
    assert direct_call(step, ALL) is None
    made = compile_fx(gm, options=InductorOptions(strict=True))(list(inputs))
    with torch.no_grad():
        torch.testing.assert_close(made, run(*inputs))
