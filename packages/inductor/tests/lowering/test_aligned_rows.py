"""Rows of half types on a GPU begin at 16 bytes: the library's products are three times faster there."""

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import InductorOptions
from inductor.ir import Kernel, OperatorCall
from inductor.lowering.builder import aligned_rows
from inductor.pipeline import plan
from primtorch.fake import FakeTensor, ShapeContext, TensorMeta

aten = torch.ops.aten
CUDA, CPU, BF16 = torch.device("cuda", 0), torch.device("cpu"), torch.bfloat16


@pytest.mark.parametrize(
    ("shape", "dtype", "device", "expected"),
    [
        ((64, 30522), BF16, CUDA, (30528, 1)),
        ((2, 64, 30522), BF16, CUDA, (64 * 30528, 30528, 1)),
        ((64, 30528), BF16, CUDA, (30528, 1)),
        ((64, 30522), torch.float32, CUDA, (30522, 1)),
        ((64, 30522), BF16, CPU, (30522, 1)),
        ((64, 7), BF16, CUDA, (7, 1)),
    ],
)
def test_strides(shape, dtype, device, expected):
    stride = torch.empty(shape, device="meta").stride()
    assert aligned_rows(shape, stride, dtype, device) == expected


def test_other_layouts_stay():
    assert aligned_rows((64, 30522), (1, 64), BF16, CUDA) == (1, 64)


def logits_graph():
    """Logits with a bias, returned, and their softmax consumed by another product."""
    context = ShapeContext()
    graph = Graph()

    def value(shape):
        meta = TensorMeta(shape, torch.empty(shape, device="meta").stride(), BF16, CUDA)
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = FakeTensor.create(meta, context)
        node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        return node

    def call(operator, *args):
        node = graph.call_function(operator, args)
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        node.meta["val"] = operator(*values)
        return node

    tokens, weight, bias = value((64, 32)), value((32, 1001)), value((1001,))
    logits = call(aten.addmm.default, bias, tokens, weight)
    scaled = call(aten.exp.default, logits)
    back = call(aten.mm.default, scaled, call(aten.t.default, weight))
    graph.output((logits, back))
    module = GraphModule(torch.nn.Module(), graph)
    module.meta["wire"] = 1
    return module


def test_products_write_and_read_padded_rows_and_outputs_keep_eagers_layout():
    program = plan(logits_graph(), InductorOptions(strict=True, verify=True))
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert [call.operator for call in calls] == [aten.mm.default, aten.mm.default]
    product, back = calls
    assert program.graph.buffers[product.outputs[0]].stride == (1008, 1)
    assert next(view for view in back.views() if view.shape == (64, 1001)).stride == (1008, 1)
    assert program.graph.outputs[0].stride == (1001, 1)
    assert any(isinstance(step, Kernel) for step in program.schedule.steps)
