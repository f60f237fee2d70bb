"""A tensor class that is made of two tensors, for the tests."""

import torch
from torch import randn
from torch.utils._pytree import tree_map


def _half(name):
    return lambda value: getattr(value, name) if isinstance(value, Two) else value


class Two(torch.Tensor):
    """A tensor of two tensors, with every operator applied to both."""

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

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        halves = [
            func(*tree_map(_half(name), args), **tree_map(_half(name), kwargs))
            for name in ("left", "right")
        ]
        written = func._schema.is_mutable
        if written:
            return args[0]
        if isinstance(halves[0], torch.Tensor):
            return Two(*halves)
        if isinstance(halves[0], (tuple, list)):
            return type(halves[0])(
                Two(*pair) if isinstance(pair[0], torch.Tensor) else pair[0]
                for pair in zip(*halves, strict=True)
            )
        return halves[0]


def two(*shape, requires_grad=False):
    return Two(randn(*shape), randn(*shape)).requires_grad_(requires_grad)


def nested(*shape, requires_grad=False):
    return Two(two(*shape), two(*shape)).requires_grad_(requires_grad)


def parts(value):
    if isinstance(value, Two):
        return [*parts(value.left), *parts(value.right)]
    return [value]
