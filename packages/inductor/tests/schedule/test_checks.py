"""A backward checks its saved indices first, and lets go of what it has read from then on."""

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import InductorOptions
from inductor.codegen.program import build_kernels
from inductor.ir import Indirect, Kernel
from inductor.ir.execute import run_program
from inductor.pipeline import plan
from inductor.runtime import BuildSettings
from primtorch.fake import ShapeContext, fakeify

aten = torch.ops.aten


def planned(function, *inputs, role="backward"):
    """The program of `function(call, *nodes)`."""
    context, graph, nodes = ShapeContext(), Graph(), []
    for number, tensor in enumerate(inputs):
        node = graph.placeholder(f"x{number}")
        node.meta["val"] = fakeify(tensor, context)
        node.meta["input"] = {"kind": "saved", "name": node.name, "static": False}
        nodes.append(node)

    def call(target, *args):
        node = graph.call_function(target, args)
        node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]))
        return node

    graph.output(tuple(function(call, *nodes)))
    module = GraphModule(torch.nn.Module(), graph)
    module.meta |= {"wire": 1, "role": role}
    return plan(module, InductorOptions(strict=True, verify=True))


def checking(program):
    """For each kernel whether it checks an index."""
    return [
        any(
            isinstance(operation.attribute, Indirect) and operation.attribute.check is not None
            for _, operation, _ in step.body.operations()
        )
        for step in program.schedule.steps
        if isinstance(step, Kernel)
    ]


def embedding_gradient(call, grad, weight, index):
    hidden = call(aten.mm.default, call(aten.relu.default, grad), weight)
    return [
        call(aten.index_put.default, call(aten.zeros_like.default, weight), [index], hidden, True)
    ]


@pytest.fixture
def inputs():
    return torch.randn(6, 8), torch.randn(8, 8), torch.tensor([1, 7, 0, -1, 3, 3])


def test_saved_indices_are_checked_before_anything_else(inputs):
    program = planned(embedding_gradient, *inputs)
    assert checking(program)[0]
    assert not any(checking(program)[1:])
    assert not program.schedule.steps[0].body.writes
    (result,) = run_program(program, inputs)
    grad, weight, index = inputs
    expected = torch.zeros_like(weight).index_put([index], grad.relu() @ weight, True)
    torch.testing.assert_close(result, expected)


def test_a_bad_index_is_refused_first(inputs, tmp_path):
    grad, weight, _ = inputs
    bad = torch.tensor([1, 7, 0, -9, 3, 3])
    program = planned(embedding_gradient, *inputs)
    with pytest.raises(IndexError, match="-9"):
        run_program(program, (grad, weight, bad))
    built = build_kernels(program, BuildSettings(cache_directory=tmp_path))
    fallible = [
        k.name
        for k in program.schedule.steps
        if isinstance(k, Kernel) and built[k.name].source.checks
    ]
    assert fallible == [program.schedule.steps[0].name]


def test_the_checks_of_other_graphs_stay_where_they_are(inputs):
    program = planned(embedding_gradient, *inputs, role="inference")
    assert checking(program)[-1]
    assert all(step.body.writes for step in program.schedule.steps if isinstance(step, Kernel))


def test_integers_that_indices_are_computed_from_move_along(inputs):
    def function(call, grad, weight, index):
        place = call(aten.mul.Tensor, call(aten.add.Tensor, index, 1), index)
        place = call(aten.sub.Tensor, call(aten.mul.Tensor, place, index), index)
        hidden = call(aten.mm.default, grad, weight)
        zeros = call(aten.zeros_like.default, weight)
        put = call(aten.index_put.default, zeros, [place], hidden, True)
        return [put, call(aten.index.Tensor, weight, [place])]

    grad, weight, index = torch.randn(6, 8), torch.randn(8, 8), torch.tensor([1, 0, 0, -1, 1, 1])
    program = planned(function, grad, weight, index)
    source, check, *_ = program.schedule.steps
    assert source.body.writes == check.body.reads
    assert not check.body.writes
    assert checking(program) == [False, True, *([False] * len(checking(program)[2:]))]
    put, rows = run_program(program, (grad, weight, index))
    place = (index + 1) * index * index - index
    torch.testing.assert_close(
        put, torch.zeros_like(weight).index_put([place], grad @ weight, True)
    )
    torch.testing.assert_close(rows, weight[place])


def test_computed_indices_are_checked_where_they_are_used(inputs):
    def function(call, grad, weight, index):
        place = call(aten.argmax.default, call(aten.mm.default, grad, weight), 1)
        both = call(aten.index.Tensor, weight, [call(aten.add.Tensor, place, index)])
        return [call(aten.mm.default, both, weight)]

    program = planned(function, *inputs)
    assert any(checking(program))
    assert all(step.body.writes for step in program.schedule.steps if isinstance(step, Kernel))


def test_nothing_is_checked_in_loops_without_iterations():
    """As in eager, and as before the check moved."""

    def function(call, weight, index):
        return [call(aten.index.Tensor, call(aten.neg.default, weight), [index])]

    weight, index = torch.randn(4, 0), torch.tensor([9, 0])
    first, *_ = planned(function, weight, index).schedule.steps
    assert 0 in first.body.ranges
    assert (-weight)[index].shape == (2, 0)
