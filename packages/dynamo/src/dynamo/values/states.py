"""State of the process that captured code reads and changes: context variables, grad mode, compile checks.

A context variable's new value is kept here and set at the end; its token undoes it. Grad mode is really changed
while capturing (so that fakes get the right `requires_grad`) and recorded as a node. Questions whether code is
being compiled are answered yes.
"""

# ruff: noqa: ARG001 - one signature for all rules
from __future__ import annotations

import contextvars
import logging
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import Guard, GuardKind
from dynamo.source import ConstantSource
from dynamo.values import writing
from dynamo.values.rules import RULES, rule
from dynamo.values.wrap import CONSTANTS

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["NAMED_RULES", "ContextToken"]

_UNSET: Any = object()


class ContextToken:
    """What `ContextVar.set` returns while capturing."""

    __slots__ = ("old", "used", "variable")

    def __init__(self, variable: contextvars.ContextVar[Any], old: Any) -> None:
        self.variable = variable
        self.old = old
        self.used = False


def _original(machine: Machine, variable: contextvars.ContextVar[Any]) -> Any:
    """The value outside, guarded; `_UNSET` if there is none."""
    session = machine.session
    memo = session.attribute_memo
    key = (id(variable), "<context>")
    if key in memo:
        return memo[key]
    value = variable.get(_UNSET)
    if value is not _UNSET and type(value) not in CONSTANTS and value:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_VALUE, f"the context variable {variable.name} holds an object"
        )
    plain = value is _UNSET or type(value) in CONSTANTS

    def holds(found: contextvars.ContextVar[Any], value: Any = value) -> bool:
        now = found.get(_UNSET)
        return now is value or (
            plain and now is not _UNSET and type(now) is type(value) and now == value
        )

    session.guards.setdefault(
        (GuardKind.PREDICATE, key, None),
        Guard(
            ConstantSource(variable, variable.name),
            GuardKind.PREDICATE,
            (holds, f"{variable.name} is unchanged"),
            session.source_line,
        ),
    )
    memo[key] = value
    session.keep(variable)
    return value


def _current(machine: Machine, variable: contextvars.ContextVar[Any]) -> Any:
    written = machine.session.state_writes.get(variable)
    return written[1] if written is not None else _original(machine, variable)


@rule(contextvars.ContextVar.get)
def _get(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = _current(machine, args[0])
    if value is not _UNSET:
        return value
    if len(args) > 1:
        return args[1]
    default = args[0].get()  # it is unset outside: its own default, or LookupError
    return machine.session.wrap(default, ConstantSource(default))


@rule(contextvars.ContextVar.set)
def _set(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    variable, value = args
    old = _current(machine, variable)
    machine.session.state_writes[variable] = (variable, value)
    return ContextToken(variable, old)


@rule(contextvars.ContextVar.reset)
def _reset(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    variable, token = args
    if not isinstance(token, ContextToken):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a context variable is reset")
    if token.used:
        raise RuntimeError(f"{token!r} has already been used once")
    token.used = True
    writes = machine.session.state_writes
    if token.old is _original(machine, variable):
        writes.pop(variable, None)
    else:
        writes[variable] = (variable, token.old)


# -- logging ---------------------------------------------------------------------------------------------


def _logging(name: str, level: int | None) -> None:
    @rule(getattr(logging.Logger, name))
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted = args[1] if level is None else level
        if args[0].isEnabledFor(wanted):
            raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a message is logged")


for _name, _level in (
    ("debug", logging.DEBUG),
    ("info", logging.INFO),
    ("warning", logging.WARNING),
    ("error", logging.ERROR),
    ("critical", logging.CRITICAL),
    ("log", None),
):
    _logging(_name, _level)


# -- torch's state -------------------------------------------------------------------------------------


@rule(torch._C._set_grad_enabled)
def _set_grad_enabled(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (enabled,) = args
    machine.session.grad_modes += 1
    if torch.is_grad_enabled() is bool(enabled):
        return
    torch._C._set_grad_enabled(bool(enabled))
    machine.session.recorder.effect(torch._C._set_grad_enabled, (bool(enabled),))


def _answer(value: Any) -> Any:
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return value

    return run


# By module and qualified name, because importing these modules would load torch's own compiler.
NAMED_RULES: dict[tuple[str, str], Any] = {
    ("torch.compiler", "is_compiling"): _answer(True),
    ("torch.compiler", "is_dynamo_compiling"): _answer(True),
    ("torch.compiler", "is_exporting"): _answer(False),
    ("torch._dynamo.external_utils", "is_compiling"): _answer(True),
    ("torch._utils_internal", "is_compiling"): _answer(True),
    ("torch.jit", "is_scripting"): _answer(False),
    ("torch._jit_internal", "is_scripting"): _answer(False),
    ("torch.jit._trace", "is_tracing"): _answer(False),
    # The fused encoder kernels hide what a compiler fuses better, attention among it.
    ("torch.backends.mha", "get_fastpath_enabled"): _answer(False),
    ("torch.onnx", "is_in_onnx_export"): _answer(False),
}
for _function in (
    torch._C._get_tracing_state,
    torch._C._is_tracing,
):
    RULES[_function] = _answer(None if _function is torch._C._get_tracing_state else False)
RULES[torch.compiler.is_compiling] = _answer(True)
RULES[torch.compiler.is_dynamo_compiling] = _answer(True)
RULES[torch.jit.is_scripting] = _answer(False)
RULES[torch.jit.is_tracing] = _answer(False)


@rule(torch.autograd.profiler.record_function.__enter__)
def _record_enter(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # A profiler sees the compiled graph, not the ranges of what it was made from. Where the graph breaks inside, the
    # range is left by Python, which must not look for the one that was never entered.
    writing.store(machine, args[0], "run_callbacks_on_exit", False)
    return args[0]


@rule(torch.autograd.profiler.record_function.__exit__)
def _record_exit(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return None
