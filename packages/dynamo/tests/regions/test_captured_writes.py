"""Functions under `torch.func` that write a tensor that they were not given: eager refuses, and so must the graph."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

import dynamo
from dynamo import DynamoOptions
from dynamo.testing import CompileCounter

TRANSFORMS = {
    "grad": lambda f, x: grad(lambda one: f(one).sum())(x),
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones(3)),
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones(3),)),
    "jacrev": lambda f, x: jacrev(f)(x),
    "hessian": lambda f, x: hessian(lambda one: f(one).sum())(x),
    "vmap": lambda f, x: vmap(f)(torch.stack([x, x + 1])),
    "vmap of grad": lambda f, x: vmap(grad(lambda one: f(one).sum()))(torch.stack([x, x + 1])),
}


def plainly(tensor):
    tensor.add_(1)


def through_a_view(tensor):
    tensor[0].mul_(2)


def through_a_detached_one(tensor):
    tensor.detach().add_(1)


def by_an_index(tensor):
    tensor[0] = 3.0


WRITES = (plainly, through_a_view, through_a_detached_one, by_an_index)


def what_happens(function, x):
    try:
        return function(x)
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("transform", list(TRANSFORMS))
@pytest.mark.parametrize("whose", ["argument", "outer", "own"])
def test_it_is_refused_where_eager_refuses(transform, write, whose):
    found = []
    for run in (
        lambda f: f,
        dynamo.optimize(CompileCounter(), options=DynamoOptions(strict=True)),
    ):
        outside = torch.zeros(3)

        def function(x, outside=outside):
            outer = x * 0

            def inner(one):
                written = {"argument": outside, "outer": outer}.get(whose)
                if written is None:
                    written = torch.zeros(3)
                write(written)
                return one.sin() * written

            return TRANSFORMS[transform](inner, x)

        torch.manual_seed(0)
        found.append((what_happens(run(function), torch.randn(3)), outside))
    (want, state), (got, state_then) = found
    assert torch.equal(state_then, state)
    if isinstance(want, type):
        assert got is want
    else:
        torch.testing.assert_close(got, want)
