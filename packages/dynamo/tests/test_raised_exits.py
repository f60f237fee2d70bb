"""What a program raises that is no `Exception`: handlers, effects and results before it are as in eager."""

from __future__ import annotations

import pytest
import torch

import dynamo
from dynamo import DynamoOptions
from dynamo.testing import CompileCounter


class Own(BaseException):
    """Of the program."""


EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit, Own)


def compiled(function):
    return dynamo.optimize(CompileCounter(), options=DynamoOptions(strict=True))(function)


@pytest.mark.parametrize("kind", EXITS)
def test_what_came_before_it_has_happened(kind):
    log = []

    def function(x):
        x.add_(1)
        log.append("before")
        if x.shape[0] == 3:
            raise kind("stop")
        return x * 2

    x = torch.zeros(3)
    with pytest.raises(kind, match="stop"):
        compiled(function)(x)
    assert log == ["before"]
    assert torch.equal(x, torch.ones(3))


@pytest.mark.parametrize("kind", EXITS)
def test_it_is_handled_by_who_catches_it(kind):
    log = []

    def inner(x):
        log.append("inner")
        raise kind(str(x.shape[0]))

    def function(x):
        try:
            inner(x)
        except Exception:  # noqa: BLE001 - it is not one
            log.append("wrong")
        except kind as error:
            return x + len(str(error))
        finally:
            log.append("finally")
        return x

    assert torch.equal(compiled(function)(torch.ones(2)), torch.full((2,), 2.0))
    assert log == ["inner", "finally"]


@pytest.mark.parametrize("kind", EXITS)
def test_a_backward_raises_it_in_the_backward(kind):
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise kind("backward")

    x = torch.ones(2, requires_grad=True)
    y = compiled(lambda x: Raises.apply(x.exp()).sum())(x)
    assert torch.allclose(y, 2 * x.exp().sum())
    with pytest.raises(kind, match="backward"):
        y.backward()
    assert x.grad is None
