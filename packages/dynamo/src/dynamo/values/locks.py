# ruff: noqa: ARG001 - one signature for all rules
"""Locks from outside, around code that only reads.

A lock orders what threads do to shared state. Captured code changes what is outside only after its graph has run,
so a block under a lock that changes nothing needs no lock; one that changes something runs for real. Invariant:
no lock is held when capture ends.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn

from dynamo.errors import BreakReason, GraphBreak, Restart, SkipFrame
from dynamo.values.functions import is_unchanged, outside_now
from dynamo.values.rules import rule

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["require_released"]

_KINDS: tuple[Any, ...] = (type(threading.Lock()), type(threading.RLock()))


@rule(*(kind.__enter__ for kind in _KINDS))
def _enter(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    session = machine.session
    session.keep(args[0])
    session.held_locks.append((args[0], machine.frames[-1].tick, outside_now(session)))
    return True


@rule(*(kind.__exit__ for kind in _KINDS))
def _exit(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    session = machine.session
    if not session.held_locks or session.held_locks[-1][0] is not args[0]:
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a lock is released")
    _, tick, before = session.held_locks.pop()
    if not is_unchanged(before, outside_now(session)):
        _take(machine, tick, "a lock protects a change of something outside")


def require_released(machine: Machine) -> None:
    """Capture ends here: where a lock is held it starts over, and the lock is taken for real."""
    if machine.session.held_locks:
        _take(machine, machine.session.held_locks[0][1], "a graph break lies under a lock")


def _take(machine: Machine, tick: int, why: str) -> NoReturn:
    if tick in machine.break_ticks:
        raise SkipFrame(why)
    machine.break_ticks[tick] = (BreakReason.OUTSIDE_EFFECT, why)
    raise Restart
