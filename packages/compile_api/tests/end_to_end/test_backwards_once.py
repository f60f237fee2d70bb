"""Backwards of custom functions: what may be differentiated twice, and the count of gradients that come back."""

import pytest
import torch
from torch.autograd.function import once_differentiable

import compile_api


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2


class Once(Square):
    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class PartlyConstant(Square):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            first = x * gradient
        return first + x * gradient


class Detached(Square):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x.detach() * gradient


class TooMany(Square):
    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


class TooManyAbsent(Square):
    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class TooFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def outcome(function, *arguments, **keywords):
    try:
        return function(*arguments, **keywords)
    except RuntimeError as error:
        return type(error)


def both(function):
    return function, compile_api.compile(function, options={"strict": True})


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("kind", [PartlyConstant, Detached])
def test_second_derivatives_are_eagers(kind, power):
    found = []
    for function in both(lambda x: kind.apply(x.sin()).pow(power).sum()):
        x = torch.linspace(0.5, 1.5, 3, requires_grad=True)
        (plain,) = torch.autograd.grad(function(x), x)
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        second = outcome(torch.autograd.grad, first.sum(), x)
        found.append((plain, first.detach(), first.requires_grad, second))
    (plain, first, tracked, second), got = found
    torch.testing.assert_close(got[:2], (plain, first))
    assert got[2] is tracked
    if isinstance(second, type):
        assert got[3] is second
    else:
        torch.testing.assert_close(got[3], second)


def test_one_that_is_differentiable_once_is_captured():
    def function(x):
        return Once.apply(x.sin()).sum()

    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True})
    x = torch.linspace(0.5, 1.5, 3, requires_grad=True)
    want, got = (torch.autograd.grad(one(x), x) for one in (function, compiled))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", [TooMany, TooManyAbsent])
def test_more_gradients_than_arguments_are_refused_unless_absent(kind):
    found = []
    for function in both(lambda x: kind.apply(x).sum()):
        x = torch.ones(3, requires_grad=True)
        found.append((outcome(function(x).backward), x.grad))
    assert str(found[1]) == str(found[0])


def test_fewer_gradients_than_arguments_are_refused():
    for function in both(lambda x, factor: TooFew.apply(x, factor).sum()):
        x, factor = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        result = function(x, factor)
        with pytest.raises(RuntimeError, match="incorrect number of gradients"):
            result.backward()
        assert x.grad is None
