"""What the steps of torch's optimizers do with numbers that live in tensors.

An optimizer's step count is a tensor, from which eager takes the number; a capture keeps the tensor, so that the
graph serves every step. Numbers taken from it are of Python's precision, as eager's are. Operators that accept
such a number only as a scalar (`addcdiv_(..., value=)`) are recorded in terms of ones that take a tensor. Optimizers
that decide by a step count take the road they have for graphs on a card, where both sides are computed.
"""

# ruff: noqa: ARG001 - one signature for all rules
from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import iteration
from dynamo.values.native import call_native
from dynamo.values.rules import RULES
from dynamo.values.states import NAMED_RULES
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine


def _line_search(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its history grows by two lists of tensors and it branches on numbers read from them, some ten times a step."""
    raise GraphBreak(
        BreakReason.UNSUPPORTED_CALL,
        "LBFGS.step decides by numbers that it reads from tensors; it runs as in eager, and what its closure calls "
        "is compiled",
    )


NAMED_RULES["torch.optim.lbfgs", "LBFGS.step"] = _line_search


def _get_value(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.item()` of eager: the same number, with the precision of Python's floats."""
    value = args[0] if args else kwargs["x"]
    if type(value) is FakeTensor and value.is_floating_point():
        return value.double()
    return value


NAMED_RULES["torch.optim.optimizer", "_get_value"] = _get_value


def _dtypes(target: Any, *others: Any) -> tuple[torch.dtype, torch.dtype]:
    """The dtype of a result, and the one that eager computes it in: half types are rounded once, at the end."""
    result = torch.result_type(target, others[0])
    for other in others[1:]:
        result = torch.promote_types(result, torch.result_type(target, other))
    return result, torch.float32 if result in (torch.float16, torch.bfloat16) else result


def _scaled_quotient(scale: Any, first: Any, second: Any) -> Any:
    return scale * first / second


def _scaled_product(scale: Any, first: Any, second: Any) -> Any:
    return scale * first * second


def _with_tensor_scale(function: Any, term: Callable[..., Any], *, in_place: bool) -> None:
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scale = kwargs.get("value")
        if type(scale) is not FakeTensor or len(args) != 3 or len(kwargs) != 1:
            return call_native(machine, function, args, kwargs)
        result, wide = _dtypes(*args)
        added = term(scale, *(one.to(wide) for one in args[1:]))
        return args[0].add_(added) if in_place else (args[0].to(wide) + added).to(result)

    RULES[function] = run


for _owner in (torch.Tensor, torch):
    for _name, _term in (("addcdiv", _scaled_quotient), ("addcmul", _scaled_product)):
        _with_tensor_scale(getattr(_owner, _name), _term, in_place=False)
for _name, _term in (("addcdiv_", _scaled_quotient), ("addcmul_", _scaled_product)):
    _with_tensor_scale(getattr(torch.Tensor, _name), _term, in_place=True)


def _with_tensor_scales(name: str, term: Callable[..., Any]) -> None:
    function = getattr(torch, f"_foreach_{name}")

    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scales: Any = args[3] if len(args) == 4 else kwargs.get("scalars", kwargs.get("value"))
        tensors = type(scales) is FakeTensor or (
            type(scales) is list and any(type(one) is FakeTensor for one in scales)
        )
        if not tensors or len(args) + len(kwargs) != 4:
            return call_native(machine, function, args, kwargs)
        targets, first, second = (list(iteration.iterate(machine, one)) for one in args[:3])
        if "value" in kwargs:
            scales = [scales.detach().reshape(())] * len(targets)
        made = []
        for number, (target, one, other) in enumerate(zip(targets, first, second, strict=True)):
            result, wide = _dtypes(target, one, other)
            added = term(scales[number], one.to(wide), other.to(wide))
            in_place = name.endswith("_")
            made.append(target.add_(added) if in_place else (target.to(wide) + added).to(result))
        return args[0] if name.endswith("_") else machine.session.created(made)

    RULES[function] = run


for _name, _term in (("addcdiv", _scaled_quotient), ("addcmul", _scaled_product)):
    _with_tensor_scales(_name, _term)
    _with_tensor_scales(f"{_name}_", _term)


# -- a tensor as the factor of what is added ------------------------------------------------------------


def _is_factor(value: Any) -> bool:
    """Whether eager would take a floating-point number from this tensor."""
    return type(value) is FakeTensor and value.is_floating_point() and value.numel() == 1


def _with_factor(function: Any, target: Any, value: Any, factor: Any) -> Any:
    """`function(target, value, alpha=factor)` for a function that adds or subtracts, in place or not."""
    result, wide = _dtypes(target, value)
    scaled = value.to(wide) * factor.detach().reshape(())
    if function.__name__.endswith("_"):
        return function(target, scaled)
    return function(target.to(wide), scaled).to(result)


def _with_tensor_factor(function: Any) -> None:
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        factor = kwargs.get("alpha")
        if not (
            _is_factor(factor)
            and len(args) == 2
            and len(kwargs) == 1
            and all(type(one) is FakeTensor and one.is_floating_point() for one in args)
        ):
            return call_native(machine, function, args, kwargs)
        return _with_factor(function, *args, factor)

    RULES[function] = run


for _owner in (torch.Tensor, torch):
    for _name in ("add", "add_", "sub", "sub_"):
        if hasattr(_owner, _name):
            _with_tensor_factor(getattr(_owner, _name))


def _lists_with_tensor_factor(name: str) -> None:
    function, of_each = getattr(torch, f"_foreach_{name}"), getattr(torch.Tensor, name)

    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        factor = kwargs.get("alpha")
        if not (_is_factor(factor) and len(args) == 2 and len(kwargs) == 1):
            return call_native(machine, function, args, kwargs)
        targets, added = (list(iteration.iterate(machine, one)) for one in args)
        if not all(
            type(one) is FakeTensor and one.is_floating_point() for one in (*targets, *added)
        ):
            return call_native(machine, function, args, kwargs)
        made = [_with_factor(of_each, *pair, factor) for pair in zip(targets, added, strict=True)]
        return args[0] if name.endswith("_") else machine.session.created(made)

    RULES[function] = run


for _name in ("add", "add_", "sub", "sub_"):
    _lists_with_tensor_factor(_name)


# -- tensors filled with a rate ----------------------------------------------------------------------------


def _full_like(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a tensor of one number: what eager reads it for is a copy of it into every element."""
    if len(args) != 2 or not _is_factor(args[1]) or type(args[0]) is not FakeTensor:
        return call_native(machine, torch.full_like, args, kwargs)
    filled = call_native(machine, torch.empty_like, args[:1], kwargs)
    with torch.no_grad():
        return filled.fill_(args[1].detach().reshape(()))


RULES[torch.full_like] = _full_like


# -- numbers that an optimizer's own code takes from tensors --------------------------------------------


def _in_optimizer(machine: Machine) -> bool:
    """Whether code of torch's optimizers makes this call."""
    name = machine.frames[-1].globals.get("__name__") if machine.frames else None
    return isinstance(name, str) and name.startswith("torch.optim.")


def _item(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs and _is_factor(args[0]) and _in_optimizer(machine):
        return args[0].detach().reshape(()).double()
    return call_native(machine, torch.Tensor.item, args, kwargs)


RULES[torch.Tensor.item] = _item


def _extreme(function: Any, better: Callable[[Any, Any], Any]) -> None:
    plain = RULES[function]

    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        numbers = all(type(one) in (int, float, torch.SymFloat) or _is_factor(one) for one in args)
        tensors = any(type(one) is FakeTensor for one in args)
        if len(args) < 2 or kwargs or not (numbers and tensors and _in_optimizer(machine)):
            return plain(machine, args, kwargs)
        best = args[0]
        for one in args[1:]:
            best = torch.where(better(one, best), one, best)
        return best

    RULES[function] = run


_extreme(max, lambda one, best: one > best)
_extreme(min, lambda one, best: one < best)


def _interpolated(start: Any, end: Any, weight: Any) -> Any:
    return start.lerp_(end, weight.to(start.dtype))


def _lerp(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 3 and _is_factor(args[2]) and _in_optimizer(machine):
        return _interpolated(*args)
    return call_native(machine, torch.Tensor.lerp_, args, kwargs)


RULES[torch.Tensor.lerp_] = _lerp


def _lerp_lists(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    weights = args[2] if len(args) == 3 else None
    tensors = type(weights) is list and any(map(_is_factor, weights))
    if tensors and _in_optimizer(machine):
        lists = (list(iteration.iterate(machine, one)) for one in args)
        for operands in zip(*lists, strict=True):
            _interpolated(*operands)
        return args[0]
    return call_native(machine, torch._foreach_lerp_, args, kwargs)


RULES[torch._foreach_lerp_] = _lerp_lists


def _without_decisions(module: str, name: str) -> None:
    """The step as it is for graphs on a card, which computes both sides of what eager decides by a step count.

    There the count is a tensor of the default dtype; here it has the precision of the number that eager takes from
    it, because one minus a power close to one loses half of float32's digits.
    """

    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = getattr(sys.modules[module], name)
        bound = inspect.signature(function).bind(*args, **kwargs)
        given = bound.arguments
        session = machine.session
        session.guard_function_code(function)
        if given.get("capturable") or given.get("differentiable"):
            return machine.inline(function, args, kwargs)
        counts = list(iteration.iterate(machine, given["state_steps"]))
        if not all(type(one) is FakeTensor and one.is_floating_point() for one in counts):
            return machine.inline(function, args, kwargs)
        exact = [one.double() for one in counts]
        given["state_steps"] = session.created(exact)
        given["capturable"] = True
        machine.inline(function, bound.args, bound.kwargs)
        for count, counted in zip(counts, exact, strict=True):
            count.copy_(counted)
        return None

    NAMED_RULES[module, name] = run


for _optimizer in ("asgd", "radam"):
    for _kind in ("single", "multi"):
        _without_decisions(f"torch.optim.{_optimizer}", f"_{_kind}_tensor_{_optimizer}")
