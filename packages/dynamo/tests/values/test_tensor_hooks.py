"""Tensor hooks that are part of the graph, for nothing that they read can change; of others see `test_late_hooks`."""

import pytest
import torch

import dynamo


def clipped(gradient):
    return gradient.clamp(-1, 1)


def scaled(x, w):
    y = x @ w
    y.register_hook(lambda gradient: gradient * 3)
    return y.sin()


def used_before_and_after(x, w):
    y = x @ w
    before, weight = y.cos(), w.abs().sum()
    y.register_hook(lambda gradient: torch.where(gradient > 0, gradient, gradient * weight))
    y.register_hook(clipped)
    return before * y


def viewed(x, w):
    y = x * w
    y.register_hook(lambda gradient, factor=2: gradient * factor)
    return y[0], y.t(), y + 1


def only_viewed(x, w):
    y = x * w
    y.register_hook(lambda gradient: gradient + 1)
    return y[1:]


def written_later(x, w):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 5)
    y.mul_(w)
    y.register_hook(lambda gradient: gradient.neg())
    return y.sin()


def left_alone(x, w):
    y = x * w
    y.register_hook(lambda gradient: None)
    return y.exp()


def of_a_mask_that_changes(x, w):
    y, mask = x * w, torch.ones_like(x)
    y.register_hook(lambda gradient: gradient * mask)
    mask[0] = 0
    return y.sin()


def gradient_inside(x, w):
    y = x * w
    y.register_hook(lambda gradient: gradient * 2)
    (found,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    return found * y


def second_use(x, w):
    y = x * w
    y.register_hook(lambda gradient: gradient * gradient)
    return y.exp()


CAPTURED = [
    *(scaled, used_before_and_after, viewed, only_viewed, written_later, left_alone),
    *(of_a_mask_that_changes, gradient_inside, second_use),
]


def left_by(function, seed):
    torch.manual_seed(seed)
    x, w = (torch.randn(3, 3, requires_grad=True) for _ in "xw")
    outputs = function(x, w)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum(
        (one * torch.linspace(0.5, 1.5, one.numel()).view(one.shape)).sum() for one in outputs
    )
    first = torch.autograd.grad(total, (x, w), create_graph=True)
    second = torch.autograd.grad(sum(one.sum() for one in first), (x, w), allow_unused=True)
    return [*outputs, *first, *second]


@pytest.mark.parametrize("function", CAPTURED)
def test_captured(function):
    compiled = dynamo.optimize("eager", fullgraph=True)(function)
    for seed in range(2):
        for want, got in zip(left_by(function, seed), left_by(compiled, seed), strict=True):
            torch.testing.assert_close(got, want)
