"""The order of a program: less memory at once where that is clear, draws of random numbers as they come."""

from dataclasses import replace

import torch

from inductor.ir import OperatorCall

torch.manual_seed(0)


def most_at_once(program, shape):
    """How many buffers of a shape are alive at the worst step."""
    steps = program.schedule.steps
    chosen = {name for name, buffer in program.graph.buffers.items() if buffer.shape == shape}
    last = {name: k for k, step in enumerate(steps) for name in reads(step) & chosen}
    first = {
        name: k for k, step in reversed(list(enumerate(steps))) for name in writes(step) & chosen
    }
    return max(sum(first[n] <= k <= last[n] for n in first) for k in range(len(steps)))


def reads(step):
    return set(step.reads if isinstance(step, OperatorCall) else step.body.reads)


def writes(step):
    return set(step.writes if isinstance(step, OperatorCall) else step.body.writes)


def test_large_results_are_used_up_one_after_the_other(compare):
    x = torch.randn(512, 64)
    weights = [torch.randn(64, 512) for _ in range(6)]

    def branches(x, *weights):
        wide = [x @ weight for weight in weights]
        narrow = [w @ weight.t() for w, weight in zip(wide, weights, strict=True)]
        return torch.stack(narrow).sum(0)

    program = compare(branches, x, *weights, tolerance=1e-2)
    assert most_at_once(program, (512, 512)) == 1  # not six


def test_small_graphs_and_chains_stay_in_the_graphs_order(compare):
    x = torch.randn(8, 8)

    def chain(x):
        return torch.mm(torch.mm(x, x).exp(), x).relu() + torch.mm(x, x.t())

    calls = [
        step.args[1].stride
        for step in compare(chain, x, tolerance=1e-4).schedule.steps
        if isinstance(step, OperatorCall)
    ]
    assert calls == [(8, 1), (8, 1), (1, 8)]


def test_a_graph_with_effects_keeps_its_order(compare):
    from inductor.schedule import build

    x = torch.randn(512, 64)
    weights = [torch.randn(64, 512) for _ in range(3)]

    def branches(x, *weights):
        wide = [x @ weight for weight in weights]
        return [w @ weight.t() for w, weight in zip(wide, weights, strict=True)]

    graph = compare(branches, x, *weights, tolerance=1e-2).graph
    last = next(node for node in reversed(graph.nodes) if isinstance(node, OperatorCall))
    effect = replace(last, name="n99", operator=torch.ops.aten.add_.Tensor, outputs=())
    program = build(replace(graph, nodes=(*graph.nodes, effect)))
    assert most_at_once(program, (512, 512)) == 3
