"""Regions mean on real tensors what eager's constructs mean, and can be traced on fakes."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from primtorch.fake import FactoryMode, ShapeContext, fakeify, meta_of
from primtorch.regions import autograd_function, checkpoint, enter_autocast, exit_autocast


def test_autocast_is_eagers_and_is_restored() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    token = enter_autocast("cpu", torch.bfloat16)
    inner = enter_autocast("cpu", enabled=False)
    exact = x @ w
    exit_autocast(inner)
    low = x @ w
    exit_autocast(token)
    with torch.autocast("cpu", torch.bfloat16):
        expected = x @ w
    assert torch.equal(low, expected)
    assert exact.dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert (x @ w).dtype is torch.float32


def test_autocast_is_traced_on_fakes_with_gradients() -> None:
    context = ShapeContext()
    x = fakeify(torch.randn(3, 4), context)
    w = fakeify(torch.randn(4, 5, requires_grad=True), context)
    token = enter_autocast("cpu", torch.bfloat16)
    y = x @ w
    exit_autocast(token)
    assert y.dtype is torch.bfloat16
    (grad,) = torch.autograd.grad(y.sum(), w)
    assert grad.dtype is torch.float32


def test_autocast_of_a_device_that_is_not_there() -> None:
    token = enter_autocast("cuda", torch.float16)
    assert torch.is_autocast_enabled("cuda")
    exit_autocast(token)
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled("cpu")


def body(x, w):
    return torch.dropout(torch.relu(x @ w), 0.5, True)


def test_checkpoint_recomputes_the_same_values() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    torch.manual_seed(0)
    (expected,) = torch.autograd.grad(body(x, w).sum(), w)
    torch.manual_seed(0)
    calls = []
    out = checkpoint(lambda *a: (calls.append(1), body(*a))[1], x, w)
    (got,) = torch.autograd.grad(out.sum(), w)
    assert torch.equal(got, expected)
    assert len(calls) == 2


def test_checkpoint_on_fakes_is_a_region_run_once() -> None:
    entered = []

    class Regions(ShapeContext):
        @contextmanager
        def region(self, kind, options):
            entered.append((kind, options["preserve_rng_state"]))
            yield
            entered.append("left")

    context = Regions()
    x = fakeify(torch.randn(3, 4), context)
    w = fakeify(torch.randn(4, 5, requires_grad=True), context)
    out = checkpoint(body, x, w)
    (grad,) = torch.autograd.grad(out.sum(), w)
    assert meta_of(grad).shape == (4, 5)
    assert entered == [("checkpoint", True), "left"]


def forward(x, scale):
    y = torch.exp(x * scale)
    return (y, y.detach() + 1), (y, scale)


def backward(y, scale, grad, unused):
    return grad * y * scale * 10, None


def test_autograd_function_uses_the_given_derivative() -> None:
    x = torch.randn(4, requires_grad=True)
    y, other = autograd_function(forward, backward, x, 2.0, non_differentiable=(1,))
    assert torch.equal(y, torch.exp(x * 2.0))
    assert not other.requires_grad
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(grad, torch.exp(x * 2.0) * 20)


def test_autograd_function_is_traced_on_fakes() -> None:
    context = ShapeContext()
    x = fakeify(torch.randn(4, requires_grad=True), context)
    with FactoryMode(context):
        y, _ = autograd_function(forward, backward, x, 2.0)
        (grad,) = torch.autograd.grad(y.sum(), x)
    assert meta_of(grad).shape == (4,)


def test_autograd_function_that_writes_its_input() -> None:
    x = torch.ones(3, requires_grad=True)
    z = x * 2
    out = autograd_function(lambda t: (t.mul_(3), ()), lambda grad: grad * 3, z, dirty=(0,))
    assert out is z
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.tolist() == [6.0, 6.0, 6.0]
