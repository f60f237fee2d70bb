"""Compiled functions and modules inside a captured function are taken in as what they were made from."""

import functools
import types

import torch
from torch import distributed, nn

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)


def compiled_with(function, **arguments):
    counter = CompileCounter()
    return counter, dynamo.optimize(counter, options=STRICT, **arguments)(function)


def test_a_compiled_function():
    inner_graphs, inner = compiled_with(lambda x, factor=2.0: (x * factor).relu())
    graphs, outer = compiled_with(lambda x: inner(x).sin() + inner(x, factor=3.0), fullgraph=True)
    x = torch.randn(4, requires_grad=True)
    assert same(outer(x), (x * 2).relu().sin() + (x * 3).relu())
    assert graphs.frame_count == 1
    assert inner_graphs.frame_count == 0
    assert outer(x).requires_grad


def test_another_compiled_function_in_the_same_place_is_seen():
    _, double = compiled_with(lambda x: x * 2)
    _, negate = compiled_with(lambda x: -x)
    current = double
    graphs, outer = compiled_with(lambda x: current(x) + 1, fullgraph=True)
    x = torch.randn(4)
    assert same(outer(x), x * 2 + 1)
    current = negate
    assert same(outer(x), 1 - x)
    assert graphs.frame_count == 2


def test_a_compiled_method_that_a_tool_wrapped():
    """What accelerate does to a module's forward for mixed precision."""

    def in_half(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return function(*args, **kwargs)

        return wrapped

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x).relu()

    net = Net()
    _, method = compiled_with(net.forward)
    wrapped = types.MethodType(in_half(method.__func__), net)
    graphs, outer = compiled_with(wrapped, fullgraph=True)
    x = torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = net(x)
    assert same(outer(x), wanted)
    assert outer(x).requires_grad
    assert graphs.frame_count == 1


def test_what_steers_processes_runs_in_python_and_its_network_is_captured(tmp_path):
    ours = not distributed.is_initialized()  # another module of tests may have a group already
    if ours:
        distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
        )
    try:
        net = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        wrapped = nn.parallel.DistributedDataParallel(net)
        graphs, outer = compiled_with(wrapped)
        for _ in range(3):
            x = torch.randn(2, 4)
            outer(x).sum().backward()
            found = net[0].weight.grad.clone()
            net.zero_grad()
            wrapped(x).sum().backward()
            torch.testing.assert_close(found, net[0].weight.grad)
            net.zero_grad()
        assert graphs.frame_count == 1
        assert wrapped._lazy_init_ran
    finally:
        if ours:
            distributed.destroy_process_group()
