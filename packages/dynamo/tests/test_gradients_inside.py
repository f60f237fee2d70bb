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


def test_a_hook_is_registered_once():
    """Not by torch's own Python, statement by statement, nor on what stands for the tensor while capturing."""
    import torch

    def call(x, seen):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        y.grad_fn.register_prehook(lambda g: seen.append("before"))
        return y.sin()

    breaks = []
    for one in (
        call,
        dynamo.optimize(
            "eager", observer=lambda stage, text: breaks.append(text) if stage == "break" else None
        )(call),
    ):
        x, seen = torch.ones(3).requires_grad_(), []
        one(x, seen).sum().backward()
        assert same(x.grad, 6 * torch.cos(torch.full((3,), 2.0)))
        assert seen == ["before"]
    assert not any(name in text for text in breaks for name in ("tensor hook", "_backward_hooks"))


def test_a_result_whose_history_ends_inside_takes_what_changes_a_history():
    import torch

    def call(x):
        y = x.detach().clone().requires_grad_()
        return torch.autograd.grad((y * y).sum(), y, create_graph=True)[0] * 1

    for one in (call, dynamo.optimize("eager", options=STRICT)(call)):
        made = one(torch.ones(3))
        assert (made.requires_grad, made.is_leaf, made._is_view()) == (True, False, False)
        assert made.detach_().is_leaf


def test_lazy_conjugates_are_asked_for_real():
    import torch

    def call(x):
        if x.is_conj():
            return torch.view_as_real(x.resolve_conj()) * 2
        return torch.view_as_real(x * 1)

    compiled = dynamo.optimize("eager", options=STRICT)(call)
    x = torch.complex(torch.arange(3.0), torch.ones(3))
    for given in (x.conj(), x, x.conj()):
        assert same(compiled(given), call(given))


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
