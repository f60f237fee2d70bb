"""Which kernels read on at several places in turn: those whose inputs come from memory, and nothing else."""

import pytest
import torch

from inductor.ir import Kernel
from inductor.ir.text import kernel_text
from inductor.schedule import build, places

MEGABYTES_8 = torch.randn(1 << 21)


@pytest.fixture
def in_turn(lowered, monkeypatch):
    """The places of each kernel, of a processor with a third cache of 16 MB."""
    monkeypatch.setattr(places, "FAR", 16 << 20)

    def find(function, *arguments, symbolic=()):
        graph = lowered(function, *arguments, symbolic=symbolic)
        kernels = [step for step in build(graph).schedule.steps if isinstance(step, Kernel)]
        for kernel in kernels:
            count = kernel.decisions.places
            assert (f"at {count} places in turn" in kernel_text(kernel)) == (count > 1)
        steps = build(graph, for_gpu=True).schedule.steps
        assert all(step.decisions.places == 1 for step in steps if isinstance(step, Kernel))
        return [kernel.decisions.places for kernel in kernels]

    return find


def dot(x, y):
    return (x * y).sum()


def test_more_operands_have_fewer_places(in_turn):
    x, y, z = (MEGABYTES_8.clone() for _ in range(3))
    assert in_turn(dot, x, y) == [4]
    assert in_turn(lambda x, y, z: (x * y * z).sum(), x, y, z) == [2]
    assert in_turn(lambda x: x.sum(), torch.cat((x, y))) == [4]


def test_what_is_in_the_caches_is_read_straight_on(in_turn):
    few = torch.randn(1 << 20)
    assert in_turn(dot, few, few.clone()) == [1]  # the graph reads 8 MB
    made = in_turn(lambda x, y: (x @ y).sum(), torch.randn(2048, 2048), torch.randn(2048, 2048))
    assert made == [1]  # a product that was just written


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.t().contiguous() + y.t(),
        lambda x, y: x.sum(0) + y[0],
        lambda x, y: torch.cumsum(x.flatten(), 0) + y.flatten(),
        lambda x, y: x[:, ::2].sum() + y[:, ::2],
        lambda x, y: x + y,  # its result goes past the caches, strip by strip
    ],
)
def test_other_loops_run_as_before(in_turn, function):
    x = torch.randn(2048, 1024)
    assert set(in_turn(function, x, x.clone())) == {1}


def test_unknown_sizes_are_small(in_turn):
    x = torch.randn(2048, 1024)
    assert in_turn(dot, x, x.clone(), symbolic=((0, 0, "s0"), (1, 0, "s0"))) == [1]
