"""Tensors made of a size by torch's oldest makers: `x.new(size)`, `torch.Tensor(2, 3)`, `torch.LongTensor(size)`.

In: their arguments. Out: a call of `new_empty` or `empty` if they are a size, the call as it is otherwise. These makers
alone tell a size from a sequence of numbers: `x.new(torch.Size([3]))` has three elements, `x.new((3,))` one, and a
graph holds both as tuples. Invariant: what reaches a graph under their own names is data.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from dynamo.values.native import call_native
from dynamo.values.rules import RULES, rule
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

_DTYPES: dict[Any, torch.dtype | None] = {
    torch.Tensor: None,  # the default dtype
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.ByteTensor: torch.uint8,
    torch.CharTensor: torch.int8,
    torch.ShortTensor: torch.int16,
    torch.IntTensor: torch.int32,
    torch.LongTensor: torch.int64,
    torch.BoolTensor: torch.bool,
}


def _size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The size that the arguments name; None if they are data."""
    if not args or kwargs.keys() - {"device"}:
        return None
    if len(args) == 1 and type(args[0]) is torch.Size:
        return tuple(args[0])
    return args if all(type(one) in (int, torch.SymInt) for one in args) else None


@rule(torch.Tensor.new)
def _new(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    size = _size(args[1:], kwargs)
    if size is None or type(args[0]) is not FakeTensor:
        return call_native(machine, torch.Tensor.new, args, kwargs)
    return call_native(machine, torch.Tensor.new_empty, (args[0], size), kwargs)


def _made(
    maker: Any, dtype: Any, machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    size = _size(args, kwargs)
    if size is None:
        return call_native(machine, maker, args, kwargs)
    named = kwargs if dtype is None else {**kwargs, "dtype": dtype}
    return call_native(machine, torch.empty, (size,), {"device": "cpu", **named})


for _maker, _dtype in _DTYPES.items():
    RULES[_maker] = functools.partial(_made, _maker, _dtype)
