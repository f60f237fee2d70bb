# ruff: noqa: ARG001 - one signature for all rules
"""Regions of a program that change what operators mean: autocast, inference mode, attention kernels.

A state that a context manager sets is really set while capturing, so that results are inferred under it, and
recorded as calls of `primtorch.regions`. Where a graph ends inside such a block, the graph restores the state
and the generated code enters the block for real. Invariant: `session.open_states` holds the states that are
entered now, outermost first, and capture leaves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from dynamo.errors import BreakReason, GraphBreak, Restart
from dynamo.guards import Guard, GuardKind
from dynamo.source import ConstantSource
from dynamo.values import attributes
from dynamo.values.rules import rule
from primtorch import regions

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.emit.reconstruct import Emitter
    from dynamo.machine.interpreter import Machine

__all__ = [
    "OpenState",
    "enter_state",
    "leave_state",
    "leave_states",
    "record_exits",
    "reenter",
    "refuse",
    "restore_kernels",
]


@dataclass(slots=True)
class OpenState:
    """A block that was entered and not left: its manager, what undoes it, and the node of that."""

    manager: Any
    token: Any
    node: torch.fx.Node | None  # None: nothing of it is in the graph
    undo: Callable[[Any], None]
    tick: int = 0  # of a block that can't be entered again: a break inside is one before it


def refuse(machine: Machine, why: str) -> NoReturn:
    """Capture starts over and breaks at the current instruction: what was done since is undone."""
    machine.break_ticks[machine.frames[-1].tick] = (BreakReason.UNSUPPORTED_CALL, why)
    raise Restart


def leave_states(machine: Machine) -> None:
    """Restore the process's state when capture ends."""
    while machine.session.open_states:
        state = machine.session.open_states.pop()
        state.undo(state.token)


def record_exits(machine: Machine) -> list[Any]:
    """The graph ends here: it restores the state. Returns the managers to enter for real."""
    session = machine.session
    for state in session.open_states:
        if state.tick:
            why = "a graph break follows inside of the block"
            machine.break_ticks[state.tick] = (BreakReason.OUTSIDE_EFFECT, why)
            raise Restart
    for state in reversed(session.open_states):
        if state.node is not None:
            session.recorder.state_call(state.undo, (state.node,))
    return [state.manager for state in session.open_states]


def reenter(emitter: Emitter, managers: list[Any]) -> None:
    """The generated code enters blocks that the graph has left."""
    for manager in managers:
        emitter.line(f"{emitter.value(manager)}.__enter__()")


def enter_state(
    machine: Machine,
    manager: Any,
    do: Callable[..., Any],
    undo: Callable[[Any], None],
    args: tuple[Any, ...],
    *,
    once: bool = False,
) -> None:
    """A block begins: `do` sets the state, now and in the graph, `undo` restores it; can it be entered `once` only?"""
    session = machine.session
    node = session.recorder.state_call(do, args)
    tick = machine.frames[-1].tick if once else 0
    session.open_states.append(OpenState(manager, do(*args), node, undo, tick))


def leave_state(machine: Machine, manager: Any, what: str) -> None:
    """The block that was entered last ends.

    Raises:
        GraphBreak: it is another one, or began before the graph did.
    """
    session = machine.session
    if not session.open_states or session.open_states[-1].manager is not manager:
        raise GraphBreak(
            BreakReason.OUTSIDE_EFFECT, f"{what} that began before a graph break ends here"
        )
    state = session.open_states.pop()
    if state.node is not None:
        session.recorder.state_call(state.undo, (state.node,))
    state.undo(state.token)


# -- autocast ------------------------------------------------------------------------------------------


@rule(torch.autocast)
def _make_autocast(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return machine.session.created(torch.autocast(*args, **kwargs))


@rule(torch.autocast.__init__)
def _init_autocast(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    torch.autocast.__init__(*args, **kwargs)


@rule(torch.autocast.__enter__)
def _enter_autocast(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (manager,) = args
    settings = tuple(
        attributes.load(machine, manager, name)
        for name in ("device", "fast_dtype", "_enabled", "_cache_enabled")
    )
    enter_state(machine, manager, regions.enter_autocast, regions.exit_autocast, settings)
    return manager


@rule(torch.autocast.__exit__)
def _exit_autocast(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leave_state(machine, args[0], "an autocast block")
    return False


# -- inference mode ------------------------------------------------------------------------------------

_inference_mode: Any = torch.inference_mode


@rule(_inference_mode)
def _make_inference(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode = args[0] if args else kwargs.get("mode", True)
    if not isinstance(mode, bool):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "inference_mode decorates a function here")
    return machine.session.created(_inference_mode(mode))


@rule(_inference_mode.__enter__)
def _enter_inference(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode = attributes.load(machine, args[0], "mode")
    enter_state(
        machine,
        args[0],
        regions.enter_inference_mode,
        regions.exit_inference_mode,
        (mode,),
    )


@rule(_inference_mode.__exit__)
def _exit_inference(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leave_state(machine, args[0], "an inference_mode block")


# -- attention kernels ---------------------------------------------------------------------------------


_KERNELS = ("flash", "mem_efficient", "math", "cudnn", "fa3", "overrideable")


def _kernel_rules(name: str) -> None:
    setter: Any = getattr(torch._C, f"_set_sdp_use_{name}", None)
    getter: Any = getattr(torch._C, f"_get_{name}_sdp_enabled", None)
    if setter is None or getter is None:
        return

    @rule(getter)
    def read(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = machine.session
        now = getter()
        if setter not in session.kernel_choices:
            session.kernel_choices[setter] = (getter, now)
            holds = (lambda get: get() is now, f"{name} attention stays {now}")
            session.guards[(GuardKind.PREDICATE, getter, None)] = Guard(
                ConstantSource(getter), GuardKind.PREDICATE, holds, session.source_line
            )
        return now

    @rule(setter)
    def write(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(args[0], bool):
            raise TypeError(f"{setter.__name__} expects a bool")
        if read(machine, (), {}) is not args[0]:
            setter(args[0])
            machine.session.recorder.state_call(setter, (args[0],))


for _name in _KERNELS:
    _kernel_rules(_name)


def restore_kernels(machine: Machine, emitter: Emitter | None) -> None:
    """Put the choice of attention kernels back; the generated code makes the one in force now."""
    for setter, (getter, before) in machine.session.kernel_choices.items():
        now = getter()
        if now is not before:
            if emitter is not None:
                emitter.line(f"{emitter.constant(setter)}({now})")
            setter(before)
