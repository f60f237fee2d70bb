"""Tensors made of tensors in training: written in place, mixed with plain tensors, with gradients of another make."""

import sys
from pathlib import Path

import pytest
import torch

import aot_autograd

sys.path.append(str(Path(__file__).parent))

from subclasses_of_two import Two, nested, parts, two
from wrapper_programs import MIXED, RAISING, WRITES, names, outcome


def assert_same(want, got):
    for one, other in zip(want, got, strict=True):
        assert type(one) is type(other)
        if one is None:
            continue
        for mine, theirs in zip(parts(one), parts(other), strict=True):
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(theirs.detach(), mine.detach())


def compare(function, make, graph_runner, class_of=two, tangents=None):
    compiled = aot_autograd.aot_function(function, graph_runner)
    for seed in range(2):
        want, facts = outcome(function, make, class_of, seed, tangents)
        got, found = outcome(compiled, make, class_of, seed, tangents)
        assert found == facts
        assert_same(want, got)
    return facts


@pytest.mark.parametrize("class_of", [two, nested])
@pytest.mark.parametrize(("function", "make"), WRITES, ids=names(WRITES))
def test_written_in_place(graph_runner, function, make, class_of):
    compare(function, make, graph_runner, class_of)


@pytest.mark.parametrize("tangents", [None, "wrapper", "plain"])
@pytest.mark.parametrize(("function", "make"), MIXED, ids=names(MIXED))
def test_gradients_of_another_make(graph_runner, function, make, tangents):
    compare(function, make, graph_runner, tangents=tangents)


@pytest.mark.parametrize(("function", "make"), RAISING, ids=names(RAISING))
def test_what_eager_refuses(graph_runner, function, make):
    (message,) = compare(function, make, graph_runner)
    assert message


def returned_turned(x):
    y = x * 2
    return y.t_()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
def test_one_turned_in_place_keeps_its_own_sizes_in_eager(graph_runner, shape, grad):
    """Its class makes another of the parts: as a result, and as an argument of a later call."""
    x = two(*shape).requires_grad_(grad) * 1
    turned = (two(*shape).requires_grad_(grad) * 1).t_()
    for function, argument in ((returned_turned, x), (torch.sin, turned)):
        compiled = aot_autograd.aot_function(function, graph_runner)
        with pytest.raises(aot_autograd.UnsupportedOperator, match="the make of a Two"):
            compiled(argument)


@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
def test_turned_in_place(graph_runner, shape):
    found = []
    for one in (torch.Tensor.t_, aot_autograd.aot_function(lambda x: x.t_(), graph_runner)):
        torch.manual_seed(0)
        x = two(*shape)
        former = parts(x)
        assert one(x) is x
        assert all(part is was for part, was in zip(parts(x), former, strict=True))
        found.append((*parts(x), x.shape, x.stride(), x._version, x.left._version))
    torch.testing.assert_close(*found)
    assert found[0][0].stride() == found[1][0].stride()


def test_views_of_one_subclass_are_refused(graph_runner):
    def function(x, y):
        x.mul_(2)
        return x + y

    compiled = aot_autograd.aot_function(function, graph_runner)
    x = two(2, 2).requires_grad_() * 1
    with pytest.raises(aot_autograd.UnsupportedAliasing, match="inputs share storage"):
        compiled(x, x.t())


class Replacing(Two):
    """One whose in-place operators put other tensors in the place of its parts."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Replacing(inner["left"], inner["right"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def half(name):
            return [getattr(one, name) if isinstance(one, Two) else one for one in args]

        if func is torch.ops.aten.mul_.Tensor:
            args[0].left, args[0].right = (torch.mul(*half(name)) for name in ("left", "right"))
            return args[0]
        return Replacing(func(*half("left")), func(*half("right")))


@pytest.mark.parametrize("grad", [False, True])
def test_parts_that_are_replaced(graph_runner, grad):
    def function(x):
        x.mul_(2)
        return x.sin()

    results = []
    for one in (function, aot_autograd.aot_function(function, graph_runner)):
        torch.manual_seed(0)
        leaf = Replacing(torch.randn(3), torch.randn(3)).requires_grad_(grad)
        x = leaf * 1
        former = x.left
        before = former.clone()
        out = one(x)
        assert torch.equal(former, before)
        assert x._version == 1
        assert x.left is not former
        results.append([*parts(out), *parts(x)])
        if grad:
            out.backward(Replacing(torch.ones(3), torch.ones(3)))
            results[-1] += parts(leaf.grad)
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("plain", [False, True])
def test_second_derivatives_through_writes_and_mixtures(graph_runner, plain):
    def function(x, p):
        y = x * 3
        y.mul_(p)
        x.add_(p.sin())
        return y.tanh() * x

    results = []
    for one in (function, aot_autograd.aot_function(function, graph_runner)):
        torch.manual_seed(0)
        x, p = two(3).requires_grad_(), torch.randn(3, requires_grad=True)
        out = one(x * 1, p)
        tangent = torch.randn(3) if plain else two(3)
        first = torch.autograd.grad(out, (x, p), tangent, create_graph=True)
        total = (first[0] * first[1]).sum()
        second = torch.autograd.grad(total, (x, p), torch.ones_like(total))
        results.append([part for value in (*first, *second) for part in parts(value)])
        results.append([type(value) for value in (*first, *second)])
    assert results.pop() == results.pop(1)
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
