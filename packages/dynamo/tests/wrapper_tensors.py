"""Tensor classes that are made of tensors, for the tests, and programs on them."""

import torch
from torch import randn
from torch.utils._pytree import tree_leaves, tree_map


def _half(name):
    return lambda value: getattr(value, name) if isinstance(value, Two) else value


class Two(torch.Tensor):
    """Two tensors of one shape; every operator works on both."""

    @staticmethod
    def __new__(cls, left, right):
        return torch.Tensor._make_wrapper_subclass(
            cls, left.shape, strides=left.stride(), dtype=left.dtype, device=left.device
        )

    def __init__(self, left, right):
        self.left, self.right = left, right

    def __tensor_flatten__(self):
        return ["left", "right"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Two(inner["left"], inner["right"])

    def both(self):
        return self.left + self.right

    @property
    def halves(self):
        return [self.left, self.right]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        halves = [
            func(*tree_map(_half(name), args), **tree_map(_half(name), kwargs))
            for name in ("left", "right")
        ]
        if func._schema.is_mutable:
            return args[0]
        if isinstance(halves[0], torch.Tensor):
            return Two(*halves)
        if isinstance(halves[0], (tuple, list)):
            return type(halves[0])(
                Two(*pair) if isinstance(pair[0], torch.Tensor) else pair[0]
                for pair in zip(*halves, strict=True)
            )
        return halves[0]


def _plain(value):
    return value.dequantized() if isinstance(value, Quantized) else value


class Quantized(torch.Tensor):
    """Whole numbers and a scale; operators work on their product."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, payload, scale, scheme):
        return torch.Tensor._make_wrapper_subclass(
            cls, payload.shape, dtype=scale.dtype, device=payload.device
        )

    def __init__(self, payload, scale, scheme):
        self.payload, self.scale, self.scheme = payload, scale, scheme

    def __tensor_flatten__(self):
        return ["payload", "scale"], {"scheme": self.scheme}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Quantized(inner["payload"], inner["scale"], context["scheme"])

    @classmethod
    def of(cls, value, scheme="symmetric"):
        scale = value.abs().amax() / 127
        return cls((value / scale).round().to(torch.int8), scale, scheme)

    def dequantized(self):
        return self.payload.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.t.default):
            return cls(func(args[0].payload), args[0].scale, args[0].scheme)
        return func(*tree_map(_plain, args), **tree_map(_plain, kwargs or {}))


def two(*shape, requires_grad=False):
    return Two(torch.randn(*shape), torch.randn(*shape)).requires_grad_(requires_grad)


def nested(*shape, requires_grad=False):
    return Two(two(*shape), two(*shape)).requires_grad_(requires_grad)


def quantized(*shape):
    return Quantized.of(torch.randn(*shape))


def parts(value):
    """The plain tensors that a tensor is made of."""
    if isinstance(value, (Two, Quantized)):
        return [
            part for name in value.__tensor_flatten__()[0] for part in parts(getattr(value, name))
        ]
    return [value]


def assert_same(want, got):
    """Equal in class, layout, history and parts."""
    assert type(want) is type(got)
    if not isinstance(want, torch.Tensor):
        assert want == got
        return
    assert want.requires_grad == got.requires_grad
    assert (want.shape, want.stride(), want.dtype) == (got.shape, got.stride(), got.dtype)
    for one, other in zip(parts(want), parts(got), strict=True):
        torch.testing.assert_close(other.detach(), one.detach())


def run(function, make, seed=0):
    """What a call leaves: outputs, inputs, gradients; versions of outputs and inputs."""
    torch.manual_seed(seed)
    inputs = make()
    outputs = tree_leaves(function(*inputs))
    for total in [out.sum() for out in outputs if isinstance(out, torch.Tensor)]:
        if total.requires_grad:
            total.backward(torch.ones_like(total), retain_graph=True)
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    versions = [v._version for v in (*outputs, *tensors) if isinstance(v, torch.Tensor)]
    grads = [value.grad for value in tensors if value.is_leaf]
    return [*outputs, *tensors, *grads], versions


def compare(function, compiled, make, calls=2):
    """Eager and compiled leave the same, in several calls."""
    for seed in range(calls):
        want, versions = run(function, make, seed)
        got, found = run(compiled, make, seed)
        for pair in zip(want, got, strict=True):
            assert_same(*pair)
        assert versions == found


def arithmetic(x, y):
    return (x * y).sin() + 1, x @ y


def beside_plain(x, plain):
    return (x * plain).exp(), plain.sin(), plain * x


def read_parts(x):
    return x, x * 2, x.left, x.left + x.right, x.shape, x.both(), x.halves


def made_inside(left, right):
    pair = Two(left.sin(), right)
    return (
        pair * 2,
        pair.left,
        Two(left, right).both(),
        isinstance(pair, Two),
        type(pair * 2) is Two,
    )


def read_results(x):
    y = x * 2
    return y.left, y.both().sin(), isinstance(y, torch.Tensor), y.requires_grad, len(y), y.dim()


def views(x):
    return x.t()[0], x.chunk(3), x.view(-1), x.max(dim=0)[0], x[None]


def linear(x, weight):
    return (
        x @ weight.t(),
        torch.nn.functional.linear(x, weight),
        weight.scheme,
        weight.dequantized(),
    )


def quantizing(x):
    return Quantized.of(x), Quantized.of(x * 2, "other").dequantized()


def written(x):
    x.mul_(2)
    x[0] = 1
    return x + 1


def written_part(x):
    x.left.add_(1)
    return x * 2


CASES = {
    "arithmetic": (arithmetic, lambda make, grad: [make(3, 3, requires_grad=grad) for _ in "xy"]),
    "beside_plain": (
        beside_plain,
        lambda make, grad: [make(3, 3, requires_grad=grad), randn(3, 3, requires_grad=grad)],
    ),
    "read_parts": (read_parts, lambda make, grad: [make(3, 3, requires_grad=grad)]),
    "read_results": (read_results, lambda make, grad: [make(3, 3, requires_grad=grad)]),
    "views": (views, lambda make, grad: [make(3, 3, requires_grad=grad)]),
}
