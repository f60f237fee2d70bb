"""Matrix products of symbolic sizes, where torch's own composition of them asks for plain numbers.

Before torch 2.13 `at::matmul`, and with it `linear`, reads sizes as integers. `product(function, args)` gives whoever
runs a captured graph on fakes the same composition in Python: one `mm`, `mv`, `dot` or `bmm`, as eager ends up with.
Invariant: shapes, strides and dtype are those of eager.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["linear", "matmul", "product"]

_NEEDED = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)


def product(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Our own composition for a product of symbolic sizes on such a torch; None otherwise."""
    if not _NEEDED:
        return None
    try:
        own = _COMPOSITIONS.get(function)
    except TypeError:
        return None
    if own is None or not any(
        isinstance(value, FakeTensor) and not value.meta.is_static for value in args
    ):
        return None
    return own


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """`torch.matmul` of tensors with at least one dimension each."""
    left, right = input.dim(), other.dim()
    if left == 0 or right == 0:
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {left}D and {right}D"
        )
    if left == 1 and right == 1:
        return torch.dot(input, other)
    if left == 2 and right == 1:
        return torch.mv(input, other)
    if left == 1 and right == 2:
        return torch.mm(input.unsqueeze(0), other).squeeze(0)
    if left == 2 and right == 2:
        return torch.mm(input, other)
    if right <= 2:  # rows of all batches are rows of one matrix
        sizes = input.shape[:-1]
        rows = input.reshape(math.prod(sizes), input.shape[-1])
        found = torch.mv(rows, other) if right == 1 else torch.mm(rows, other)
        return found.view(sizes if right == 1 else (*sizes, other.shape[1]))
    first = input.unsqueeze(0) if left == 1 else input
    second = other.unsqueeze(-1) if right == 1 else other
    batch = _common(first.shape[:-2], second.shape[:-2])
    count = math.prod(batch)
    found = torch.bmm(_stacked(first, batch, count), _stacked(second, batch, count))
    sizes = (*batch, *(() if left == 1 else (first.shape[-2],)), second.shape[-1])
    return found.view(sizes)


def _common(first: Any, second: Any) -> tuple[Any, ...]:
    """The shape of both batches; that sizes are equal is asked before whether one of them is 1."""
    if len(first) == len(second) and all(a == b for a, b in zip(first, second, strict=True)):
        return tuple(first)
    return tuple(torch.broadcast_shapes(first, second))


def _stacked(value: Tensor, batch: tuple[Any, ...], count: Any) -> Tensor:
    rows, columns = value.shape[-2:]
    return value.expand(*batch, rows, columns).reshape(count, rows, columns)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`."""
    if bias is None or weight.dim() != 2 or input.dim() < 2 or bias.dim() != 1:
        found = matmul(input, weight.t())
        return found if bias is None else found + bias
    sizes = input.shape[:-1]
    rows = input.reshape(math.prod(sizes), input.shape[-1]) if input.dim() > 2 else input
    found = torch.addmm(bias, rows, weight.t())
    return found.view(*sizes, weight.shape[0]) if input.dim() > 2 else found


def _reflected(input: Tensor, other: Tensor) -> Tensor:
    return matmul(other, input)


_COMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.matmul: matmul,
    torch.Tensor.matmul: matmul,
    torch.Tensor.__matmul__: matmul,
    torch.Tensor.__rmatmul__: _reflected,
    operator.matmul: matmul,
    torch.nn.functional.linear: linear,
}
