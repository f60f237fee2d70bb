"""What a shape rule promised of an operator is checked when it has run: by both launchers, for all results."""

import logging
import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import InductorOptions, compile_fx
from inductor.codegen import program as program_module
from inductor.errors import PromiseError
from primtorch.fake import FakeTensor, ShapeContext, TensorMeta

CPU = torch.device("cpu")
LONG = TensorMeta((4,), (1,), torch.int64, CPU)
FLOAT = TensorMeta((4,), (1,), torch.float32, CPU)
aten = torch.ops.aten


def graph_of(target, promised):
    """`x + 1`, then `target` of it; its results are said to be those promised."""
    context = ShapeContext()
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["input"] = {"kind": "argument", "name": "x", "static": False}
    more = graph.call_function(aten.add.Tensor, (x, 1))
    for node in (x, more):
        node.meta["val"] = FakeTensor.create(FLOAT, context)
    call = graph.call_function(target, (more,))
    values = [FakeTensor.create(meta, context) for meta in promised]
    call.meta["val"] = tuple(values) if len(values) > 1 else values[0]
    outputs = [call]
    if len(values) > 1:
        outputs = [graph.call_function(operator.getitem, (call, n)) for n in range(len(values))]
    for node, value in zip(outputs, values, strict=True):
        node.meta["val"] = value
    graph.output(tuple(outputs))
    module = GraphModule(torch.nn.Module(), graph)
    module.meta.update(wire=1, role="inference")
    return module


BROKEN = {
    "dtype": (aten.special_ndtri.default, [LONG]),
    "dtype, fallback": (aten.special_log_ndtr.default, [LONG]),
    "size": (aten.special_ndtri.default, [TensorMeta((5,), (1,), torch.float32, CPU)]),
    "number of dimensions": (
        aten.special_ndtri.default,
        [TensorMeta((2, 2), (2, 1), FLOAT.dtype, CPU)],
    ),
    "fewer than promised": (aten.special_ndtri.default, [FLOAT, FLOAT]),
    "one of two": (aten.frexp.Tensor, [FLOAT, LONG]),
}


def inputs():
    return [torch.tensor([0.1, -0.3, -0.6, -0.5])]


@pytest.fixture(params=["C", "Python"])
def launcher(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setattr(program_module, "native_launcher", lambda: None)


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_an_error_of_ours(name):
    target, promised = BROKEN[name]
    compiled = compile_fx(graph_of(target, promised), options=InductorOptions(strict=True))
    with pytest.raises(PromiseError, match="promised"):
        compiled(inputs())


@pytest.mark.usefixtures("launcher")
def test_torch_s_operators_take_over_with_one_warning(caplog):
    compiled = compile_fx(graph_of(aten.special_log_ndtr.default, [LONG]))
    expected = torch.special.log_ndtr(inputs()[0] + 1)
    with caplog.at_level(logging.WARNING, logger="inductor"):
        for _ in range(3):
            (found,) = compiled(inputs())
            assert torch.equal(found, expected)
    assert sum("given up" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.usefixtures("launcher")
def test_where_the_inputs_are_gone_the_call_fails_and_the_next_one_does_not():
    compiled = compile_fx(graph_of(aten.special_ndtri.default, [LONG]))
    with pytest.raises(RuntimeError, match="special_ndtri"):
        compiled(inputs())
    (found,) = compiled(inputs())
    torch.testing.assert_close(found, torch.special.ndtri(inputs()[0] + 1), equal_nan=True)
