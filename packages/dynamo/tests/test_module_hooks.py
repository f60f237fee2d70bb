"""Backward hooks of modules: one graph, and the hooks run when, as often and in the order that eager runs them."""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import dynamo
from dynamo.testing import CompileCounter

sys.path.append(str(Path(__file__).parent))

from module_hook_programs import PROGRAMS, Net, seen

STRICT = dynamo.DynamoOptions(strict=True)
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", CompileCounter()], ids=["whole", "staged"])
def test_the_hooks_see_what_eager_shows_them(program, backend):
    compiler = dynamo.optimize(backend, fullgraph=True, options=STRICT)
    assert program(compiler) == program(lambda module: module)


def test_one_graph_holds_the_call():
    net = Net()
    net.blocks[0].register_full_backward_hook(lambda *_: None)
    report = dynamo.explain(net)(torch.ones(2, 4, requires_grad=True))
    assert report.graph_count == 1
    assert report.breaks == ()
    targets = [node.target.__name__ for node in report.graphs[0].graph.nodes
               if node.op == "call_function"]  # fmt: skip
    assert targets.count("enter_module_hooks") == targets.count("leave_module_hooks") == 1


def test_a_hook_that_is_registered_in_the_call_breaks():
    net, log = Net(), []

    def call(x):
        handle = net.head.register_full_backward_hook(lambda _, i, o: log.append(seen(o)))
        out = net(x)
        handle.remove()
        return out

    compiled = dynamo.optimize("eager", options=STRICT)(call)
    for function in (call, compiled, compiled):
        function(torch.ones(2, 4)).sum().backward()
    assert len(log) == 3
    assert log[0] == log[1] == log[2]


def test_a_checkpointed_call_with_hooks_breaks():
    net, log = Net(), []
    net.head.register_full_backward_hook(lambda _, i, o: log.append(seen(i)))

    def call(x):
        return checkpoint(net, x * 2, use_reentrant=False) + 1

    with pytest.raises(dynamo.CaptureError, match="module with backward hooks"):
        dynamo.optimize("eager", fullgraph=True)(call)(torch.ones(2, 4, requires_grad=True))
    compiled = dynamo.optimize("eager", options=STRICT)(call)
    for function in (call, compiled, compiled):
        function(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert len(log) == 3
    assert log[0] == log[1] == log[2]


def test_writing_to_the_result_is_refused_as_in_eager():
    net = Net()
    net.head.register_full_backward_hook(lambda *_: None)

    def call(x):
        return net.head(x).add_(1)

    compiled = dynamo.optimize("eager", options=STRICT)(call)
    for function in (call, compiled):
        with pytest.raises(RuntimeError, match="BackwardHookFunction"):
            function(torch.ones(2, 4))
