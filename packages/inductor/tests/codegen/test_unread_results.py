"""A result that nobody reads may have a size that the graph's inputs don't tell: no launcher asks for it."""

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import InductorOptions, compile_fx
from inductor.codegen import program as program_module
from primtorch.fake import FakeTensor, ShapeContext, TensorMeta
from primtorch.symbolic import SizeEnvironment


def backward_graph():
    """A convolution's backward whose input gradient, of symbolic size, is not an output."""
    environment = SizeEnvironment()
    size = environment.create_size("s0", 8)
    context = ShapeContext()
    graph = Graph()
    nodes = []
    shapes = [
        ((1, 3, 6, 6), (108, 36, 6, 1)),
        ((1, 2, 8, 8), (128, 64, 8, 1)),
        ((3, 2, 3, 3), (18, 9, 3, 1)),
    ]
    for shape, stride in shapes:
        node = graph.placeholder(f"x{len(nodes)}")
        node.meta["val"] = FakeTensor.create(
            TensorMeta(shape, stride, torch.float32, torch.device("cpu")), context
        )
        node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        nodes.append(node)
    arguments = (*nodes, [3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True])
    call = graph.call_function(torch.ops.aten.convolution_backward.default, arguments)
    values = torch.fx.node.map_arg(arguments, lambda n: n.meta["val"])
    results = list(torch.ops.aten.convolution_backward.default(*values))
    from primtorch.symbolic import expression_of

    symbol = expression_of(size)
    strange = TensorMeta(
        (1, 2, symbol, 8), (16 * symbol, 8 * symbol, 8, 1), torch.float32, torch.device("cpu")
    )
    results[0] = FakeTensor.create(strange, context, environment=environment)
    call.meta["val"] = tuple(results)
    import operator

    part = graph.call_function(operator.getitem, (call, 1))
    part.meta["val"] = results[1]
    graph.output((part,))
    module = GraphModule(torch.nn.Module(), graph)
    module.meta["wire"] = 1
    module.meta["role"] = "backward"
    return module


@pytest.mark.parametrize("native", [True, False])
def test_it_is_left_alone(native, monkeypatch):
    if not native:
        monkeypatch.setattr(program_module, "native_launcher", lambda: None)
    grad, x, weight = torch.randn(1, 3, 6, 6), torch.randn(1, 2, 8, 8), torch.randn(3, 2, 3, 3)
    compiled = compile_fx(backward_graph(), options=InductorOptions(strict=True))
    (ours,) = compiled([grad, x, weight])
    theirs = torch.ops.aten.convolution_backward(
        grad, x, weight, [3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
    )[1]
    torch.testing.assert_close(ours, theirs)
