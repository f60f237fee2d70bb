"""Which programs may be recorded and replayed; the recordings themselves need a card (codegen/test_on_card.py)."""

import dataclasses

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import InductorOptions
from inductor.pipeline import plan
from inductor.runtime.replay import replayable
from primtorch.fake import FakeTensor, ShapeContext, TensorMeta

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def planned(function, *, devices=(CUDA, CUDA), role="inference"):
    context = ShapeContext()
    graph = Graph()
    nodes = []
    for number, device in enumerate(devices):
        node = graph.placeholder(f"x{number}")
        meta = TensorMeta((4, 4), (4, 1), torch.float32, device)
        node.meta["val"] = FakeTensor.create(meta, context)
        node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        nodes.append(node)

    def call(target, *args):
        node = graph.call_function(target, args)
        node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]))
        return node

    graph.output((function(call, *nodes),))
    module = GraphModule(torch.nn.Module(), graph)
    module.meta |= {"wire": 1, "role": role}
    return plan(module, InductorOptions(verify=True))


def product(call, x, y):
    return call(aten.relu.default, call(aten.mm.default, x, y))


def drawn(call, x, y):
    return call(aten.add.Tensor, x, call(aten.bernoulli.p, y, 0.5))


def test_products_and_kernels_on_one_card_are_replayed():
    assert replayable(planned(product))


@pytest.mark.parametrize("role", ["forward", "backward"])
def test_what_a_training_step_saves_must_outlive_the_next_call(role):
    assert not replayable(planned(product, role=role))


def test_random_numbers_would_repeat():
    assert not replayable(planned(drawn))


def test_nothing_is_recorded_on_a_cpu():
    cpu = torch.device("cpu")
    assert not replayable(planned(product, devices=(cpu, cpu)))


def test_numbers_from_outside_would_be_frozen():
    program = planned(product)
    graph = program.graph
    entry = dataclasses.replace(graph.inputs[0], kind="scalar", dtype=torch.float64)
    changed = dataclasses.replace(graph, inputs=(entry, *graph.inputs[1:]))
    assert not replayable(dataclasses.replace(program, graph=changed))
