"""Reductions that the last program of a kernel finishes: one launch, the same values each time."""

import itertools

import pytest
import torch

from inductor import compile_fx
from inductor.ir import Kernel
from inductor.options import InductorOptions

from .test_graphs import trace

aten = torch.ops.aten
OPTIONS = InductorOptions(executor="triton_interpreter", strict=True, verify=True)


def total(call, x):
    return [call(aten.sum.default, x)]


def statistics(call, x):
    """Of the columns, by groups of programs."""
    mean = call(aten.mean.dim, x, [0])
    return [mean, call(aten.var.correction, x, [0], correction=0)]


def loss(call, x, targets):
    """A cross entropy: the rows that count are counted where their losses are added up."""
    high = call(aten.amax.default, x, [1], True)
    total = call(
        aten.sum.dim_IntList, call(aten.exp.default, call(aten.sub.Tensor, x, high)), [1], True
    )
    counts = call(aten.ne.Scalar, targets, -100)
    safe = call(aten.unsqueeze.default, call(aten.mul.Tensor, targets, counts), 1)
    picked = call(aten.sub.Tensor, call(aten.gather.default, x, 1, safe), high)
    losses = call(aten.squeeze.dim, call(aten.sub.Tensor, call(aten.log.default, total), picked), 1)
    added = call(aten.sum.default, call(aten.mul.Tensor, losses, counts))
    return [call(aten.div.Tensor, added, call(aten.sum.default, counts))]


def largest(call, x):
    rows = call(aten.amax.default, x, [1])
    return [rows, call(aten.amax.default, rows, [0]), call(aten.sum.dim_IntList, rows, [0])]


def loss_inputs():
    targets = torch.randint(0, 60, (20,))
    targets[::7] = -100
    return [torch.randn(20, 60), targets]


CASES = {
    "all": (total, lambda: [torch.randn(100, 700)]),
    "columns": (statistics, lambda: [torch.randn(2500, 48)]),
    "columns of uneven width": (statistics, lambda: [torch.randn(8000, 12)]),
    "loss": (loss, loss_inputs),
    "rows and all": (largest, lambda: [torch.randn(19, 60)]),
}


def kernels_of(program):
    return [step for step in program.schedule.steps if isinstance(step, Kernel)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_gives_the_same_each_time(name):
    """The counters are as before after each call, so that the next one finds them so."""
    function, make = CASES[name]
    torch.manual_seed(0)
    inputs = make()
    expected = function(lambda operator, *args, **kwargs: operator(*args, **kwargs), *inputs)
    compiled = compile_fx(trace(function, *inputs), options=OPTIONS)
    kernels = kernels_of(compiled.program)
    assert any(kernel.ending is not None for kernel in kernels)
    found = [compiled(list(inputs)) for _ in range(3)]
    for ours, theirs in zip(found[0], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for first, again in itertools.product(found[:1], found[1:]):
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_endings_compile(target):
    x = torch.randn(8000, 12)
    options = InductorOptions(executor="triton_interpreter", strict=True, gpu_target=target)
    compiled = compile_fx(trace(statistics, x), options=options)
    assert [kernel.ending is not None for kernel in kernels_of(compiled.program)] == [True]


def test_a_processor_has_no_endings():
    x = torch.randn(8000, 12)
    compiled = compile_fx(trace(statistics, x), options=InductorOptions(executor="interpreter"))
    assert all(kernel.ending is None for kernel in kernels_of(compiled.program))
