"""Autocast, inference mode, attention kernels, checkpoint and `autograd.Function` inside captured code."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import dynamo

BACKENDS = ["eager", "aot"]


def check(compiled, function, *args, backend="eager", graphs=1, fullgraph=True, tolerance=1e-5):
    """Values, gradients and the state afterwards are eager's."""
    fast, counter = compiled(function, backend, fullgraph=fullgraph)
    for _ in range(2):
        ours = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        theirs = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        got, expected = fast(*ours), function(*theirs)
        first = got if isinstance(got, tuple) else (got,)
        second = expected if isinstance(expected, tuple) else (expected,)
        for a, b in zip(first, second, strict=True):
            if isinstance(b, torch.Tensor):
                assert a.dtype is b.dtype
                assert a.requires_grad is b.requires_grad
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
            else:
                assert a == b
        total = [b for b in second if isinstance(b, torch.Tensor) and b.requires_grad]
        if total:
            sum(a.float().sum() for a in first if isinstance(a, torch.Tensor) and a.requires_grad
                ).backward()  # fmt: skip
            sum(b.float().sum() for b in total).backward()
            for a, b in zip(ours, theirs, strict=True):
                assert (a.grad is None) is (b.grad is None)
                if b.grad is not None:
                    torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)
    assert counter.frame_count == graphs
    return counter


def tensor(*shape, grad=True):
    return torch.randn(*shape, requires_grad=grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_block(compiled, backend):
    def function(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = a @ b
            with torch.autocast("cpu", enabled=False):
                d = a @ b
        return c, d, torch.is_autocast_enabled("cpu")

    check(compiled, function, tensor(4, 4), tensor(4, 4), backend=backend, tolerance=2e-2)
    assert not torch.is_autocast_enabled("cpu")


@torch.autocast("cpu", dtype=torch.bfloat16)
def low(a, b):
    return a @ b


def test_autocast_decorator(compiled):
    check(compiled, lambda a, b: low(a, b) + 1, tensor(4, 4), tensor(4, 4), tolerance=2e-2)


def test_a_break_inside_autocast(compiled):
    def inner(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = a @ b
            dynamo.graph_break()
            return c @ b

    def function(a, b):
        return inner(a, b) + a, torch.is_autocast_enabled("cpu")

    fast, _ = compiled(function, fullgraph=False)
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(2):
        got, expected = fast(a, b), function(a, b)
        assert got[1] is expected[1] is False
        assert got[0].dtype is expected[0].dtype
        torch.testing.assert_close(got[0], expected[0], rtol=2e-2, atol=2e-2)


def test_an_exception_leaves_autocast(compiled):
    def function(a):
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                b = a @ a
                raise KeyError("left")  # noqa: TRY301 - it must leave the block
        except KeyError:
            pass
        return b, a @ a

    check(compiled, function, tensor(4, 4), tolerance=2e-2)


def test_inference_mode_block(compiled):
    def function(a):
        with torch.inference_mode():
            b = a * 2
        return b, a * 3

    fast, counter = compiled(function)
    a = tensor(3)
    b, c = fast(a)
    assert not b.requires_grad
    assert c.requires_grad
    assert b.is_inference()
    assert counter.frame_count == 1


def test_attention_kernels(compiled):
    def function(q):
        with sdpa_kernel(SDPBackend.MATH):
            r = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return r, torch.backends.cuda.flash_sdp_enabled()

    check(compiled, function, tensor(1, 2, 4, 8))
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpoint(compiled, backend):
    layer = torch.nn.Linear(4, 4)

    def block(x, scale):
        y = layer(x).relu()
        return {"y": y, "z": (y * scale, x)}

    def function(x):
        a = x.sin()
        out = checkpoint(block, a, 2.0, use_reentrant=False)
        out = checkpoint(block, out["z"][0] + out["y"], 3.0, use_reentrant=False)
        return out["y"] + out["z"][0] + out["z"][1]

    check(compiled, function, tensor(3, 4), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpoint_nested_and_leaking(compiled, backend):
    kept = {"y": None}

    def inner(x):
        y = x.exp()
        kept["y"] = y
        return y.sin()

    def outer(x):
        return checkpoint(inner, x.cos(), use_reentrant=False) * 2

    def function(x):
        r = checkpoint(outer, x, use_reentrant=False)
        return r + kept["y"]

    check(compiled, function, tensor(3, 4), backend=backend)


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < ctx.bound) * 3, None


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y, (x > y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[0])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        x, y, product = ctx.saved_tensors
        return grad * y + product if ctx.needs_input_grad[0] else None, grad * x


class AddOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_function(compiled, backend):
    check(compiled, lambda x: Clamp.apply(x.sin(), 0.5) * 2, tensor(8), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_function_with_setup_context(compiled, backend):
    def function(x, y):
        product, mask = Pair.apply(x, y)
        return product.sin(), mask

    check(compiled, function, tensor(8), tensor(8), backend=backend)
    check(compiled, function, tensor(8, grad=False), tensor(8), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_function_marks_dirty(compiled, backend):
    def function(x):
        y = x * 2
        z = AddOne.apply(y)
        return z * y, z is y

    check(compiled, function, tensor(8), backend=backend)


def test_function_without_gradient(compiled):
    check(compiled, lambda x: Clamp.apply(x, 0.5) + 1, tensor(8, grad=False))


calls = []


class Logged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        calls.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        calls.append("backward")
        return grad * 2


def test_a_backward_with_effects_is_not_captured(compiled):
    def function(x):
        return Logged.apply(x.sin()).cos()

    fast, _ = compiled(function, fullgraph=False)
    calls.clear()
    x = tensor(3)
    result = fast(x).sum()
    assert calls == ["forward"]
    result.backward()
    assert calls == ["forward", "backward"]
