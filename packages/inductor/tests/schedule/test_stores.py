"""Which results are written past the caches: by what a kernel moves, who reads them, and how many threads there are."""

import pytest
import torch
from torch.nn import functional

from inductor.ir import Kernel
from inductor.ir.text import kernel_text
from inductor.schedule import build

LARGE = torch.randn(1024, 1024)  # 4 MB
SMALLER = torch.randn(1020, 1020)
ALWAYS, ALONE = (0, False), (0, True)


@pytest.fixture
def streamed(lowered):
    """How all results that go past the caches do so, in the order of the kernels."""

    def find(function, *arguments, symbolic=()):
        graph = lowered(function, *arguments, symbolic=symbolic)
        steps = build(graph).schedule.steps
        found = []
        for kernel in (step for step in steps if isinstance(step, Kernel)):
            for one in kernel.decisions.streamed:
                where = " where one thread does all" if one.alone else ""
                assert f"{one.buffer} past the caches{where}" in kernel_text(kernel)
                found.append((one.least, one.alone))
        assert not any(
            step.decisions.streamed
            for step in build(graph, for_gpu=True).schedule.steps
            if isinstance(step, Kernel)
        )
        return found

    return find


def layer_norm(x):
    return functional.layer_norm(x, (x.shape[-1],))


@pytest.mark.parametrize("function", [functional.gelu, layer_norm, lambda x: x.softmax(-1)])
def test_a_kernel_that_moves_much_and_whose_result_nobody_reads_here(streamed, function):
    assert streamed(function, LARGE.repeat(4, 1)) == [ALWAYS]  # 32 MB
    assert streamed(function, LARGE.repeat(2, 1)) == [ALONE]
    assert streamed(function, SMALLER.repeat(2, 1)) == []


def test_bytes_that_are_read_count_as_stored(streamed):
    def dequantized(x, scale):
        return x.float() * scale

    scale = torch.rand(1)
    assert streamed(dequantized, LARGE.repeat(2, 1).to(torch.int8), scale) == []  # 10 MB
    assert streamed(dequantized, LARGE.repeat(4, 1).to(torch.int8), scale) == [ALONE]


def test_a_result_that_is_read_here_is_kept_until_it_is_larger(streamed):
    def function(x, weight):
        return layer_norm(x) @ weight

    assert streamed(function, LARGE.repeat(2, 1), torch.randn(1024, 8)) == []
    assert streamed(function, LARGE.repeat(4, 1), torch.randn(1024, 8)) == [ALWAYS]


def test_rows_that_lie_apart_are_large_whoever_reads_them(streamed):
    def function(x, y, weight):
        return torch.cat((x.relu(), y.relu()), 1) @ weight

    assert streamed(function, LARGE, LARGE, torch.randn(2048, 8)) == [ALWAYS]


def test_what_was_read_is_in_the_caches(streamed):
    def function(x):
        scaled = x * x.sum(-1, keepdim=True).exp()
        return scaled / scaled.amax(-1, keepdim=True), scaled

    assert streamed(function, LARGE.repeat(2, 1)) == [
        ALONE
    ]  # the second is read by the kernel itself


def test_a_transposition_of_unknown_size_decides_when_it_runs(streamed):
    symbolic = ((0, 0, "s"),)
    assert streamed(lambda x: x.t().contiguous(), LARGE, symbolic=symbolic) == [(4 << 20, False)]
    assert streamed(lambda x: x.t().contiguous(), LARGE) == [ALWAYS]
    assert streamed(lambda x: x.t().contiguous(), SMALLER) == []
    assert streamed(functional.gelu, LARGE, symbolic=symbolic) == []
