"""Functions whose C++ takes a size as a number, which would tie a graph to it: the same in operators that don't.

`unpinned(function, args)` gives whoever runs a captured graph on fakes what to run in place of a function, or None
where nothing varies. Invariant: values, shapes and dtypes are those of eager.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.tensor import FakeTensor
from primtorch.promotion import result_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["get_item", "linspace", "max_pool1d", "set_item", "tensor_split", "unpinned", "where"]

_eager_pool: Any = torch.nn.functional.max_pool1d
_where: Any = torch.where


def unpinned(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """What to run on fakes in place of `function` for these arguments; None to leave it."""
    if not args:
        return None
    first = args[0]
    if function is torch.linspace:
        return linspace if any(isinstance(value, torch.SymInt) for value in args) else None
    if function is _where and any(isinstance(value, torch.SymInt) for value in args):
        return where
    if function is torch.Tensor.where and any(isinstance(value, torch.SymInt) for value in args):
        return where_method
    if not isinstance(first, FakeTensor):
        return None
    pools = function is _eager_pool or function is torch.max_pool1d
    if pools and first.device.type == "cpu" and not _wants_gradient(first):
        return max_pool1d
    if function is torch.Tensor.__setitem__ or function is operator.setitem:
        varies = isinstance(args[2], torch.SymInt)
        return set_item if _is_basic(args[1], varies=varies) else None
    if function is torch.Tensor.__getitem__ or function is operator.getitem:
        return get_item if _is_basic(args[1]) else None
    if first.meta.is_static:
        return None
    if function is torch.tensor_split or function is torch.Tensor.tensor_split:
        return tensor_split if len(args) > 1 and type(args[1]) is int and args[1] > 0 else None
    return max_pool1d if pools else None


def _wants_gradient(tensor: Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def _is_basic(index: Any, *, varies: bool = False) -> bool:
    """Whether an index selects a view, by numbers of which one varies if nothing else `varies`."""
    parts = index if isinstance(index, tuple) else (index,)
    plain = (int, slice, torch.SymInt, type(None), type(Ellipsis))
    return (varies or any(isinstance(part, torch.SymInt) for part in parts)) and all(
        isinstance(part, plain) and not isinstance(part, bool) for part in parts
    )


def get_item(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]` for an index that selects a view."""
    parts = index if isinstance(index, tuple) else (index,)
    given = sum(part is not None and part is not Ellipsis for part in parts)
    dimension = 0
    for part in parts:
        if part is Ellipsis:
            dimension += tensor.dim() - dimension - (given - _taken(parts, part))
        elif part is None:
            tensor = tensor.unsqueeze(dimension)
            dimension += 1
        elif isinstance(part, slice):
            tensor = tensor[(*(slice(None),) * dimension, part)]
            dimension += 1
        else:
            tensor = tensor.select(dimension, part)
    return tensor


def _taken(parts: tuple[Any, ...], until: Any) -> int:
    """How many parts before the ellipsis stand for a dimension."""
    count = 0
    for part in parts:
        if part is until:
            return count
        count += part is not None
    return count


def set_item(tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value` for an index that selects a view."""
    target = get_item(tensor, index)
    if not isinstance(value, torch.Tensor):
        target.fill_(value)
        return
    while value.dim() > target.dim() and value.shape[0] == 1:
        value = value.squeeze(0)
    target.copy_(value)


def linspace(start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    """`torch.linspace`: from both ends to the middle, as eager counts.

    Args:
        start: a number; tensors are left to eager.
        end: likewise.
        steps: how many.
        **options: those of a factory.
    """
    plain = (int, float, torch.SymInt)
    numbers = isinstance(start, plain) and isinstance(end, plain)
    dtype = options.get("dtype") or torch.get_default_dtype()
    if not numbers or dtype not in (torch.float32, torch.float64) or "out" in options:
        return torch.linspace(start, end, steps, **options)
    index = torch.arange(steps, **{**options, "dtype": torch.int64, "requires_grad": False})
    step = (end - start) / torch.sym_float(torch.sym_max(steps - 1, 1))
    place = index.to(dtype)
    last = torch.sym_float(steps - 1)
    half = torch.sym_max(steps // 2, 1)  # of one step there is the start
    found = torch.where(index < half, start + step * place, end - step * (last - place))
    return found.requires_grad_(bool(options.get("requires_grad", False)))


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`torch.nn.functional.max_pool1d`: pooling of images that are one pixel high."""
    if return_indices:
        return _eager_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)

    def flat(value: Any, rest: int) -> tuple[Any, Any]:
        return (rest, value[0] if isinstance(value, tuple | list) else value)

    strides = flat(kernel_size if stride in (None, [], ()) else stride, 1)
    found = torch.max_pool2d(
        input.unsqueeze(-2), flat(kernel_size, 1), strides, flat(padding, 0), flat(dilation, 1), ceil_mode,
    ).squeeze(-2)  # fmt: skip
    # Without a gradient, eager's kernel on a CPU is another one, and its result row-major.
    return found if _wants_gradient(input) or input.device.type != "cpu" else found.contiguous()


def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    """`torch.where` with an integer that varies on one side or both."""
    dtype = result_dtype(input, other)
    sides = [
        side if isinstance(side, torch.Tensor) else condition.new_full((), side, dtype=dtype)
        for side in (input, other)
    ]
    return _where(condition, *sides)


def where_method(input: Any, condition: Tensor, other: Any) -> Tensor:
    """`Tensor.where`, likewise."""
    return where(condition, input, other)


def tensor_split(input: Tensor, sections: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`torch.tensor_split` into a number of parts: which of them are one longer is not asked."""
    if not input.dim():
        raise RuntimeError(
            "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims"
        )
    size, start, parts = input.size(dim), 0, []
    for part in range(sections):
        length = (size + sections - 1 - part) // sections
        parts.append(input.narrow(dim, start, length))
        start = start + length
    return tuple(parts)
