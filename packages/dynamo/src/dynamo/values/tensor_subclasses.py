# ruff: noqa: ARG001 - one signature for all rules
"""Tensor subclasses of the program: how they are made, and what torch's own parts of their protocol mean.

The overrides themselves are the program's code and interpreted (`graph.overrides`); here are the functions of torch
that they call: the default `__torch_function__`, switching overrides off, modes, `as_subclass`. Invariant: a tensor
whose class has overrides is a fake tagged with its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.overrides import overriding
from dynamo.graph.tensor_classes import (
    has_own_dispatch,
    is_traced,
    is_wrapper_class,
)
from dynamo.graph.wrappers import last_node, made_since, record_made
from dynamo.source import ConstantSource
from dynamo.values import attributes, iteration
from dynamo.values.regions import OpenState, leave_state
from dynamo.values.rules import RULES, rule, type_of
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine

__all__ = ["construct_tensor", "outer_modes"]

_AS_IS = torch.overrides.get_default_nowrap_functions


# -- the protocol's own functions ----------------------------------------------------------------------


@rule(torch.Tensor.__torch_function__.__func__)
def _default_override(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a subclass inherits: the function itself, its tensors as the subclass."""
    cls, function, kinds, *rest = _bound(args, kwargs)
    if not all(issubclass(cls, kind) for kind in iteration.iterate(machine, kinds)):
        return NotImplemented
    recorder = machine.session.recorder
    before = last_node(recorder)
    result = _without_overrides(machine, function, *rest)
    if function in _AS_IS():
        return result
    return _converted(machine, result, cls, before)


@rule(torch._C._disabled_torch_function_impl)
def _disabled_override(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _, function, _, *rest = _bound((None, *args), kwargs)
    return _without_overrides(machine, function, *rest)


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """`cls, func, types, args, kwargs`, however they are given."""
    names = ("cls", "func", "types", "args", "kwargs")
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given["cls"], given["func"], given["types"], given.get("args", ()), given.get("kwargs")]


def _without_overrides(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    from dynamo.values import calls

    overrides = machine.session.recorder.overrides
    values = tuple(iteration.iterate(machine, args))
    named = calls.keyword_arguments(machine, kwargs) if kwargs else {}
    overrides.off += 1
    try:
        return calls.call(machine, function, values, named)
    finally:
        overrides.off -= 1


def _converted(machine: Machine, result: Any, cls: type, before: Any) -> Any:
    """Tensors as the subclass; a tensor that the call made itself needs no alias for it."""
    if cls is torch.Tensor:
        return result
    if is_traced(result):
        if issubclass(type_of(machine, result), cls):
            return result
        recorder = machine.session.recorder
        if (
            type(result) is FakeTensor
            and made_since(recorder, result, before)
            and not has_own_dispatch(cls)
        ):
            recorder.kinds[id(result)] = cls
            return result
        return _as_class(machine, result, cls)
    if type(result) in (tuple, list):
        return type(result)(_converted(machine, item, cls, before) for item in result)
    if isinstance(result, tuple) and any(map(is_traced, result)):
        return type(result)(tuple(_converted(machine, item, cls, before) for item in result))
    return result


# -- making one ----------------------------------------------------------------------------------------


def _as_class(machine: Machine, tensor: Any, cls: Any) -> Any:
    """Another tensor on the same memory with the same history, of this class."""
    recorder = machine.session.recorder
    if not isinstance(cls, type) or has_own_dispatch(cls) or type(tensor) is not FakeTensor:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"a {type_of(machine, tensor).__name__} is given the class "
            f"{getattr(cls, '__name__', cls)}, which has operators of its own",
        )
    recorder.tag(cls)
    made = recorder.record(torch.ops.aten.alias.default, (tensor,), {})
    if cls is not torch.Tensor:
        recorder.kinds[id(made)] = cls
    return made


@rule(torch.Tensor.as_subclass)
def _as_subclass(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, cls = args if len(args) == 2 else (args[0], kwargs["cls"])
    return _as_class(machine, tensor, cls)


@rule(torch.Tensor._make_subclass)
def _make_subclass(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("cls", "data", "require_grad"), args, strict=False)) | kwargs
    if set(given) - {"cls", "data", "require_grad"} or given.get("require_grad"):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL, "a tensor subclass is made that requires a gradient"
        )
    plain = machine.session.recorder.record(torch.Tensor.detach, (given["data"],), {})
    return _as_class(machine, plain, given["cls"])


@rule(torch.Tensor.__new__)
def _new(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    cls, *rest = args
    if len(rest) != 1 or kwargs or type(rest[0]) is not FakeTensor:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"a {cls.__qualname__} is made of something else than a tensor",
        )
    return _as_class(machine, rest[0], cls)


@rule(torch.Tensor._make_wrapper_subclass)
def _make_wrapper(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise GraphBreak(
        BreakReason.UNSUPPORTED_CALL, "a tensor with operators of its own is made by hand"
    )


def construct_tensor(
    machine: Machine, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`cls(*args, **kwargs)` of a tensor subclass: by its constructors, of a wrapper as one node."""
    from dynamo.values import calls

    session = machine.session
    recorder = session.recorder
    maker = attributes.class_attribute(cls, "__new__")
    initialiser = attributes.class_attribute(cls, "__init__")
    if has_own_dispatch(cls):
        if not is_wrapper_class(cls) or not any(map(is_traced, (*args, *kwargs.values()))):
            raise GraphBreak(
                BreakReason.UNSUPPORTED_CALL, f"a {cls.__qualname__} is made while capturing"
            )
        recorder.tag(cls)
        recorder.overrides.wrappers = True
        for name, found in (("__new__", maker), ("__init__", initialiser)):
            if found is not attributes.MISSING:
                session.guard_class_attribute(cls, name, found)
        return record_made(recorder, cls, args, kwargs)
    function = maker.__func__ if isinstance(maker, staticmethod) else maker
    session.guard_class_attribute(cls, "__new__", maker)
    made = calls.call(machine, function, (cls, *args), kwargs)
    if not issubclass(type_of(machine, made), cls):
        return made
    if initialiser is not torch.Tensor.__init__:
        session.guard_class_attribute(cls, "__init__", initialiser)
        calls.call(machine, initialiser, (made, *args), kwargs)
    return made


# -- switching overrides off ---------------------------------------------------------------------------


def _switch(manager: Any) -> None:
    @rule(manager)
    def make(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return machine.session.created(manager())

    @rule(manager.__enter__)
    def enter(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        overrides = machine.session.recorder.overrides
        modes = overrides.modes
        if manager is torch._C.DisableTorchFunction and modes:
            raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "torch-function modes are switched off")
        overrides.off += 1

        def undo(_: Any) -> None:
            overrides.off -= 1

        machine.session.open_states.append(OpenState(args[0], None, None, undo))

    @rule(manager.__exit__)
    def leave(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leave_state(machine, args[0], "a block without torch-function overrides")


for _manager in (torch._C.DisableTorchFunction, torch._C.DisableTorchFunctionSubclass):
    _switch(_manager)


# -- modes ---------------------------------------------------------------------------------------------


@rule(TorchFunctionMode.__enter__)
def _enter_mode(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (mode,) = args
    overrides = machine.session.recorder.overrides
    overrides.modes.append(mode)
    overrides.met = True

    def undo(_: Any) -> None:
        overrides.modes.remove(mode)

    machine.session.open_states.append(OpenState(mode, None, None, undo))
    return mode


@rule(TorchFunctionMode.__exit__)
def _exit_mode(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leave_state(machine, args[0], "a torch-function mode")


def outer_modes(machine: Machine, modes: tuple[Any, ...]) -> None:
    """The program's modes that are on when the call begins; the guard on the state names each."""
    overrides = machine.session.recorder.overrides
    for mode in modes:
        machine.session.remember(mode, ConstantSource(mode, type(mode).__name__))
        overrides.modes.append(mode)
    overrides.met = overrides.resolved = True


# -- questions -----------------------------------------------------------------------------------------


def _asked(take: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Any:
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        overrides = machine.session.recorder.overrides
        if not overrides.met:
            return False
        return bool(overrides.modes) or (
            not overrides.off and bool(overriding(machine, take(args), {}))
        )

    return run


RULES[torch.overrides.has_torch_function] = _asked(lambda args: tuple(args[0]))
RULES[torch.overrides.has_torch_function_unary] = _asked(lambda args: args)
RULES[torch.overrides.has_torch_function_variadic] = _asked(lambda args: args)


@rule(torch.overrides.handle_torch_function)
def _handle(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function, _, *rest = args
    return machine.session.recorder.overrides.dispatch(machine, function, tuple(rest), kwargs)
