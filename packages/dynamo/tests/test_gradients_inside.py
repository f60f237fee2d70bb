"""`torch.autograd.grad`, `backward` and `requires_grad_` in captured code."""

import sys
from pathlib import Path

import pytest

import dynamo
from dynamo.testing import CompileCounter, same

sys.path.append(str(Path(__file__).parent))

from gradient_programs import BREAKING, PROGRAMS

STRICT = dynamo.DynamoOptions(strict=True)


def eager(function):
    return function


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", CompileCounter()], ids=["plain", "symbolic"])
def test_one_graph_gives_what_eager_gives(program, backend):
    found = program(dynamo.optimize(backend, fullgraph=True, options=STRICT))
    assert same(found, program(eager))


@pytest.mark.parametrize("program", BREAKING)
def test_a_break_where_the_way_leads_outside(program):
    assert same(program(dynamo.optimize("eager", options=STRICT)), program(eager))
    with pytest.raises(dynamo.CaptureError):
        program(dynamo.optimize("eager", fullgraph=True, options=STRICT))


def test_what_eager_refuses_is_refused():
    import torch

    def integers(x):
        return x.requires_grad_()

    def nothing(x):
        return torch.autograd.grad(x.sum(), x)

    def no_leaf(x):
        x.sum().backward()

    for function, x in (
        (integers, torch.arange(3)),
        (nothing, torch.ones(3)),
        (no_leaf, torch.ones(3)),
    ):
        compiled = dynamo.optimize("eager", options=STRICT)(function)
        for call in (function, compiled):
            with pytest.raises(RuntimeError):
                call(x)
