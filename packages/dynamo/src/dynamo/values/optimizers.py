"""What the steps of torch's optimizers do with numbers that live in tensors.

An optimizer's step count is a tensor, from which eager takes the number; a capture keeps the tensor, so that the
graph serves every step. Numbers taken from it are of Python's precision, as eager's are. Operators that accept
such a number only as a scalar (`addcdiv_(..., value=)`) are recorded in terms of ones that take a tensor.
"""

# ruff: noqa: ARG001 - one signature for all rules
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.values import operators
from dynamo.values.native import call_native
from dynamo.values.rules import RULES
from dynamo.values.states import NAMED_RULES
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine


def _get_value(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.item()` of eager: the same number, with the precision of Python's floats."""
    value = args[0] if args else kwargs["x"]
    if type(value) is FakeTensor and value.is_floating_point():
        return value.double()
    return value


NAMED_RULES["torch.optim.optimizer", "_get_value"] = _get_value


def _scaled_quotient(scale: Any, first: Any, second: Any) -> Any:
    return scale * first / second


def _scaled_product(scale: Any, first: Any, second: Any) -> Any:
    return scale * first * second


def _with_tensor_scale(function: Any, term: Callable[..., Any], *, in_place: bool) -> None:
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scale = kwargs.get("value")
        if type(scale) is not FakeTensor or len(args) != 3 or len(kwargs) != 1:
            return call_native(machine, function, args, kwargs)
        added = term(scale, *args[1:])
        return args[0].add_(added) if in_place else args[0] + added

    RULES[function] = run


for _owner in (torch.Tensor, torch):
    for _name, _term in (("addcdiv", _scaled_quotient), ("addcmul", _scaled_product)):
        _with_tensor_scale(getattr(_owner, _name), _term, in_place=False)
for _name, _term in (("addcdiv_", _scaled_quotient), ("addcmul_", _scaled_product)):
    _with_tensor_scale(getattr(torch.Tensor, _name), _term, in_place=True)


def _with_tensor_scales(function: Any, term: Callable[..., Any]) -> None:
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scales = args[3] if len(args) == 4 else kwargs.get("scalars")
        if type(scales) is not FakeTensor or len(args) + len(kwargs) != 4:
            return call_native(machine, function, args, kwargs)
        targets, first, second = (list(operators.iterate(machine, one)) for one in args[:3])
        for number, (target, one, other) in enumerate(zip(targets, first, second, strict=True)):
            target.add_(term(scales[number], one, other))
        return args[0]

    RULES[function] = run


_with_tensor_scales(torch._foreach_addcdiv_, _scaled_quotient)
_with_tensor_scales(torch._foreach_addcmul_, _scaled_product)
