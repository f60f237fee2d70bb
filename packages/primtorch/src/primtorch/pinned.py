"""Functions whose C++ takes a size as a number, which would tie a graph to it: the same in operators that don't.

`unpinned(function, args)` gives whoever runs a captured graph on fakes what to run in place of a function, or None
where nothing varies. Invariant: values, shapes and dtypes are those of eager.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["get_item", "linspace", "max_pool1d", "set_item", "unpinned"]

_eager_pool: Any = torch.nn.functional.max_pool1d


def unpinned(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """What to run on fakes in place of `function` for these arguments; None to leave it."""
    if not args:
        return None
    first = args[0]
    if function is torch.linspace:
        return linspace if any(isinstance(value, torch.SymInt) for value in args) else None
    if not isinstance(first, FakeTensor) or first.meta.is_static:
        return None
    if function is torch.Tensor.__setitem__ or function is operator.setitem:
        return set_item if _is_basic(args[1]) else None
    if function is torch.Tensor.__getitem__ or function is operator.getitem:
        return get_item if _is_basic(args[1]) else None
    if function is _eager_pool or function is torch.max_pool1d:
        return max_pool1d
    return None


def _is_basic(index: Any) -> bool:
    """Whether an index selects a view, by numbers of which one varies."""
    parts = index if isinstance(index, tuple) else (index,)
    plain = (int, slice, torch.SymInt, type(None), type(Ellipsis))
    return any(isinstance(part, torch.SymInt) for part in parts) and all(
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
    numbers = isinstance(start, int | float) and isinstance(end, int | float)
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
    return torch.max_pool2d(
        input.unsqueeze(-2), flat(kernel_size, 1), strides, flat(padding, 0), flat(dilation, 1), ceil_mode,
    ).squeeze(-2)  # fmt: skip
