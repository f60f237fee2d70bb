"""Collectives of a group of one process: one graph, or named breaks. Two processes run in compile_api's tests."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import dynamo
from dynamo.testing import CompileCounter

sys.path.append(str(Path(__file__).parent))

import collective_programs as programs

GRAPHS = []


def backend(gm, example_inputs):
    graphs = [part.graph for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]  # of regions too
    GRAPHS.append([str(node.target) for node in nodes if node.op == "call_function"])
    return gm.forward


@pytest.fixture(autouse=True)
def group():
    if not dist.is_initialized():
        programs.start(0, 1, None)
    GRAPHS.clear()
    return dist.group.WORLD


@pytest.mark.parametrize(
    "function", [*programs.INFERENCE, *programs.TRAINING], ids=lambda function: function.__name__
)
def test_one_graph_equal_to_eager(function):
    compiled = dynamo.optimize(backend, fullgraph=True)(function)
    grad = function in programs.TRAINING
    assert programs.difference(function, compiled, grad=grad) is None
    assert len(GRAPHS) == 1
    assert any("wait_tensor" in name for name in GRAPHS[0])


def test_a_group_is_guarded(group):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True)(programs.in_a_group)
    for one, frames in ((group, 1), (dist.new_group([0]), 2), (group, 2)):
        compiled(torch.ones(2), one)
        assert counter.frame_count == frames


def test_the_size_of_a_group_by_name_and_by_mesh():
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1,))

    def function(x, mesh):
        reduced = programs.functional.all_reduce(x, "max", (mesh, 0))
        return reduced + programs.functional.all_reduce(x, "max", mesh)

    compiled = dynamo.optimize(backend, fullgraph=True)(function)
    assert torch.equal(compiled(torch.ones(2), mesh), torch.full((2,), 2.0))


def send_to_itself(x):
    dist.barrier()
    return x + 1


def handle(x):
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x + 1


def tracked(x):
    y = x * 1
    dist.all_reduce(y)
    return y * 2


def strided(x):
    dist.all_reduce(x.t())
    return x


BREAKS = {
    send_to_itself: "barrier is not captured: it has no functional operator",
    handle: "all_reduce is not captured: it returns a handle",
    tracked: "all_reduce is not captured: an argument requires a gradient",
    strided: "all_reduce is not captured: its tensors are not contiguous",
    programs.differentiable_reduction: "torch.distributed.nn.functional.all_reduce is not captured",
}


@pytest.mark.parametrize("function", BREAKS, ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore:c10d")
def test_named_breaks(function):
    grad = function in (tracked, programs.differentiable_reduction)
    with pytest.raises(dynamo.CaptureError, match=BREAKS[function]):
        dynamo.optimize("eager", fullgraph=True)(function)(torch.ones(2, 3, requires_grad=grad))
    options = dynamo.DynamoOptions(strict=True)
    compiled = dynamo.optimize("eager", options=options)(function)
    assert programs.difference(function, compiled, grad=grad) is None
