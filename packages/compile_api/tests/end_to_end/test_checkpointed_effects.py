"""Checkpointed functions that write what is outside: eager computes them again in the backward, writes and all."""

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import compile_api

STRICT = {"strict": True}


class Norms(torch.nn.Module):
    """Running statistics of two norms, in modules."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(),
            torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3, momentum=None),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


class Outside(torch.nn.Module):
    """A counter that the values are made of, written as told."""

    def __init__(self, write):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("spread", torch.ones(3))
        self.write = write

    def forward(self, x):
        return self.write(self, x)


def plainly(module, x):
    module.count.add_(1)
    return (x * module.count).sin()


def through_a_view(module, x):
    module.count[0].add_(1)
    return (x * module.count).exp()


def through_a_detached_one(module, x):
    module.count.detach().add_(1)
    return (x * module.count).tanh()


def by_a_norm(module, x):
    return functional.batch_norm(x, module.count, module.spread, training=True).sin()


WRITES = (plainly, through_a_view, through_a_detached_one, by_a_norm)


def seen(make, outer, inner, reentrant):
    """Results, gradients and buffers after each forward and each backward of two steps."""
    torch.manual_seed(0)
    module = make()
    x = torch.randn(4, 3, requires_grad=True)
    called = inner(module)
    step = outer(lambda x: checkpoint(called, x, use_reentrant=reentrant))
    found = []
    for _ in range(2):
        y = step(x)
        found += [y.detach(), *(buffer.clone() for buffer in module.buffers())]
        y.pow(3).sum().backward()
        found += [x.grad.clone(), *(buffer.clone() for buffer in module.buffers())]
    return found


def same(function):
    return function


def compiled(function):
    return compile_api.compile(function, options=STRICT)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("make", [Norms, *(lambda w=w: Outside(w) for w in WRITES)])
def test_it_is_written_twice(make, inside, reentrant):
    want = seen(make, same, same, reentrant)
    got = seen(make, compiled, same, reentrant) if inside else seen(make, same, compiled, reentrant)
    torch.testing.assert_close(got, want)


def test_what_is_made_inside_may_be_written():
    def body(x):
        y = x * 2
        y[0].mul_(3)
        z = torch.zeros(3)
        return z.add_(y).sin()

    function = compile_api.compile(
        lambda x: checkpoint(body, x, use_reentrant=False), fullgraph=True, options=STRICT
    )
    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(function(x), body(x))


def test_a_call_that_may_not_save_has_written():
    def function(x, count):
        count.add_(1)
        return (x * 2).exp()

    def refuse(_tensor):
        raise LookupError("not saved")

    x, counts = torch.randn(3, requires_grad=True), []
    for one in (function, compiled(function)):
        count = torch.zeros(1)
        for _ in range(2):
            with (
                torch.autograd.graph.saved_tensors_hooks(refuse, same),
                pytest.raises(LookupError, match="not saved"),
            ):
                one(x, count)
        one(x, count).sum().backward()
        counts.append((count.item(), count._version))
    assert counts == [(3, 3), (3, 3)]
