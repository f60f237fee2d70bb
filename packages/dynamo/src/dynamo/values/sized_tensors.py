"""torch's oldest makers of tensors: `x.new(size)`, `torch.Tensor(2, 3)`, `torch.LongTensor(size)`, `x.type(dtype)`.

In: their arguments. Out: a call of `new_empty`, `empty` or `to` if they are a size or a dtype, the call as it is
otherwise. These makers alone tell a size from a sequence of numbers: `x.new(torch.Size([3]))` has three elements,
`x.new((3,))` one, and a graph holds both as tuples. Invariant: what reaches a graph under their own names is data.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
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


def _named_dtype(name: Any) -> torch.dtype | None:
    """The dtype that `Tensor.type` is asked for, by itself, a class of the CPU or that class's name."""
    if isinstance(name, torch.dtype):
        return name
    for maker, dtype in _DTYPES.items():
        if dtype is not None and (name is maker or name == f"torch.{maker.__name__}"):
            return dtype
    return None


@rule(torch.Tensor.type)
def _type(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    named = dict(zip(("dtype", "non_blocking"), args[1:], strict=False)) | kwargs
    asked = named.pop("dtype", None)
    if asked is None or type(args[0]) is not FakeTensor:
        return call_native(machine, torch.Tensor.type, args, kwargs)
    dtype = _named_dtype(asked)
    if dtype is None or (args[0].device.type != "cpu" and not isinstance(asked, torch.dtype)):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, f"Tensor.type({asked!r}) is not captured")
    return call_native(machine, torch.Tensor.to, (args[0], dtype), named)


for _maker, _dtype in _DTYPES.items():
    RULES[_maker] = functools.partial(_made, _maker, _dtype)
