"""Which results are written past the caches: large ones that no later step reads, and larger ones."""

import pytest
import torch
from torch.nn import functional

from inductor.ir import Kernel
from inductor.ir.text import kernel_text
from inductor.schedule import build

LARGE = torch.randn(1024, 1024)  # 4 MB
SMALLER = torch.randn(1020, 1020)


@pytest.fixture
def streamed(lowered):
    """The thresholds of all results that go past the caches, in the order of the kernels."""

    def find(function, *arguments, symbolic=()):
        graph = lowered(function, *arguments, symbolic=symbolic)
        steps = build(graph).schedule.steps
        found = []
        for kernel in (step for step in steps if isinstance(step, Kernel)):
            for buffer, least in kernel.decisions.streamed:
                assert f"{buffer} past the caches" in kernel_text(kernel)
                found.append(least)
        assert not any(
            step.decisions.streamed
            for step in build(graph, for_gpu=True).schedule.steps
            if isinstance(step, Kernel)
        )
        return found

    return find


def layer_norm(x):
    return functional.layer_norm(x, (x.shape[-1],))


@pytest.mark.parametrize(
    "function",
    [functional.gelu, layer_norm, lambda x: x.softmax(-1), lambda x: x.t().contiguous()],
)
def test_a_large_result_that_nobody_reads_here(streamed, function):
    assert streamed(function, LARGE) == [0]
    assert streamed(function, SMALLER) == []


def test_a_result_that_is_read_here_is_kept_until_it_is_larger(streamed):
    def function(x, weight):
        return layer_norm(x) @ weight

    assert streamed(function, LARGE, torch.randn(1024, 8)) == []
    assert streamed(function, LARGE.repeat(4, 1), torch.randn(1024, 8)) == [0]


def test_rows_that_lie_apart_are_large_whoever_reads_them(streamed):
    def function(x, y, weight):
        return torch.cat((x.relu(), y.relu()), 1) @ weight

    assert streamed(function, LARGE, LARGE, torch.randn(2048, 8)) == [0]


def test_what_was_read_is_in_the_caches(streamed):
    def function(x):
        scaled = x * x.sum(-1, keepdim=True).exp()
        return scaled / scaled.amax(-1, keepdim=True), scaled

    assert streamed(function, LARGE) == [0]  # the second is read by the kernel itself


def test_a_transposition_of_unknown_size_decides_when_it_runs(streamed):
    symbolic = ((0, 0, "s"),)
    assert streamed(lambda x: x.t().contiguous(), LARGE, symbolic=symbolic) == [4 << 20]
    assert streamed(functional.gelu, LARGE, symbolic=symbolic) == []
