"""Calls of `nn.Module`s.

Without hooks a module's call is its `forward`, which is interpreted directly; with hooks `_call_impl` itself
is interpreted. Modules are ordinary objects otherwise (`attributes`).
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import PackedSequence

from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import Guard, GuardKind
from dynamo.guards.kinds import HOOK_TABLES
from dynamo.values import attributes
from dynamo.values.packed import run_packed
from dynamo.values.session import runs_in_python

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["call_module", "runs_packed"]

_module_call = torch.nn.Module.__call__
_call_impl = torch.nn.Module._call_impl
_RECURRENT = frozenset(
    layer.forward.__code__ for layer in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU)
)
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


def call_module(
    machine: Machine,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    resumable: bool,
) -> Any:
    """`module(*args, **kwargs)`."""
    from dynamo.values import calls

    cls = type(module)
    if isinstance(module, torch.nn.RNNBase) and args and isinstance(args[0], PackedSequence):
        found = run_packed(machine, module, args, kwargs) if _unhooked(machine, module) else None
        if found is not None:
            return found
        raise GraphBreak(
            BreakReason.DATA_DEPENDENT_SHAPE,
            f"{cls.__qualname__} reads from data how many packed sequences there are",
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"{cls.__qualname__} is compiled TorchScript, which is not captured",
        )
    method: Any = attributes.class_attribute(cls, "__call__")
    if method is not _module_call:
        machine.session.guard_class_attribute(cls, "__call__", method)
        return calls.call(machine, method, (module, *args), kwargs, resumable=resumable)
    machine.session.assumptions.class_attribute(cls, "__call__", method)
    return call_hooked(machine, module, args, kwargs, resumable=resumable)


def call_hooked(
    machine: Machine,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    resumable: bool,
) -> Any:
    """`nn.Module.__call__`."""
    from dynamo.values import calls

    session = machine.session
    own = session.instance_dicts.get(id(module))
    hooked = _is_hooked(machine, module)
    path = _path(machine, module)
    if hooked or own is not None:
        return machine.inline(
            _call_impl,
            (module, *args),
            kwargs,
            module_path=path,
        )
    _guard_no_hooks(machine, module)
    forward = attributes.load(machine, module, "forward")
    if type(forward) is types.MethodType and type(forward.__func__) is types.FunctionType:
        function = forward.__func__
        if not session.is_created(function):
            session.guard_function_code(function)
        steering = runs_in_python(function.__globals__.get("__name__"))
        if not steering and not calls.is_marked(function):
            return machine.inline(
                function,
                (forward.__self__, *args),
                kwargs,
                resumable=resumable,
                module_path=path,
            )
    return calls.call(machine, forward, args, kwargs, resumable=resumable)


def _is_hooked(machine: Machine, module: torch.nn.Module) -> bool:
    own = machine.session.instance_dicts.get(id(module))
    names: Any = own.copy if own is not None else module.__dict__
    return any(names.get(name) for name in HOOK_TABLES) or any(
        getattr(torch.nn.modules.module, name) for name in _GLOBAL_HOOKS
    )


def _guard_no_hooks(machine: Machine, module: torch.nn.Module) -> None:
    session = machine.session
    source = session.source_of(module)
    if source is not None:
        session.guard(GuardKind.NO_HOOKS, source)
    session.guards.setdefault(
        (GuardKind.NO_GLOBAL_HOOKS, None, None),
        Guard(None, GuardKind.NO_GLOBAL_HOOKS, None, session.source_line),
    )


def _unhooked(machine: Machine, module: torch.nn.Module) -> bool:
    """Whether a module's call is its forward; guarded."""
    if id(module) in machine.session.instance_dicts or _is_hooked(machine, module):
        return False
    _guard_no_hooks(machine, module)
    return True


def runs_packed(function: types.FunctionType, arguments: tuple[Any, ...]) -> bool:
    """Whether a frame is a recurrent layer's on packed sequences: it asks for data at each step."""
    return function.__code__ in _RECURRENT and isinstance(arguments[1], PackedSequence)


def _path(machine: Machine, module: torch.nn.Module) -> str | None:
    source = machine.session.source_of(module)
    if source is None:
        return machine.frames[-1].module_path if machine.frames else None
    return source.name()
