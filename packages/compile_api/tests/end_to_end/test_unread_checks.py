"""Operators that look at their numbers raise as in eager, though nobody reads what they give."""

import pytest
import torch
from torch.nn import functional

import compile_api

TABLE = torch.arange(15.0).view(5, 3)


def index(x, i):
    x[i]
    return x + 1


def looked_up(x, i):
    functional.embedding(i, x).sum()
    return x + 1


def gathered(x, i):
    x.gather(0, i.view(1, -1).expand(1, 3))
    return x + 1


def selected(x, i):
    x.index_select(0, i) * 2
    return x + 1


def loss(x, i):
    functional.cross_entropy(x[:1], i)
    return x + 1


def written(x, i):
    x.clone()[i] = 0.0
    return x + 1


def scattered(x, i):
    x.scatter(0, i.view(1, -1), 1.0)
    return x + 1


def added(x, i):
    x.index_add(0, i, x[:1])
    return x + 1


def copied(x, i):
    x.index_copy(0, i, x[:1])
    return x + 1


PROGRAMS = [index, looked_up, gathered, selected, loss, written, scattered, added, copied]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_index_out_of_bounds(program, training):
    compiled = compile_api.compile(program, options={"strict": True})
    x = TABLE.clone().requires_grad_(training)
    inside, outside = torch.tensor([2]), torch.tensor([9])
    torch.testing.assert_close(compiled(x, inside), program(x, inside))
    with pytest.raises((IndexError, RuntimeError)) as eager:
        program(x, outside)
    with pytest.raises(eager.type):
        compiled(x, outside)
    torch.testing.assert_close(compiled(x, inside), program(x, inside))


def test_what_cannot_raise_is_left_out():
    found = compile_api.explain(lambda x: (x[torch.arange(3)], x + 1)[1], TABLE)
    assert "index" not in found.stages["04_forward.py"].text
