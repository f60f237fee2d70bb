# ruff: noqa: ARG001 - one signature for all rules
"""`warnings.warn`: seen while capturing, issued when the call is over, as often as eager issues it.

Whether a warning is shown or ignored is for the filters and registries in force at run time; what the program does
to the filters (`catch_warnings`, `simplefilter`) is done then, too. Invariant: warnings come in the program's order,
each with the file, line and registry that eager gives it.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import Guard, GuardKind
from dynamo.source import ConstantSource
from dynamo.values.regions import OpenState, leave_state
from dynamo.values.rules import rule
from dynamo.values.wrap import is_constant

if TYPE_CHECKING:
    from dynamo.emit.reconstruct import Emitter
    from dynamo.machine.interpreter import Machine

__all__ = ["emit_warnings"]


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning: where it points to, in the call (file, line, names) or `above` frames over it."""

    message: Any
    category: type[Warning]
    place: tuple[str, int, dict[str, Any]] | None
    above: int


@dataclass(frozen=True, slots=True)
class Filtered:
    """A change of the filters: one of the module's functions, with its arguments."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Caught:
    """A `catch_warnings` block and what happened in it."""

    manager: Any
    inside: list[Any] = field(default_factory=list)


def emit_warnings(emitter: Emitter, pending: list[str]) -> None:
    """Append the statements that do at run time what the program did."""
    for entry in emitter.session.warned:
        written = _written(emitter, entry)  # appends lines of its own
        pending.append(f"{emitter.constant(_replay)}({written})")


def _written(emitter: Emitter, entry: Any) -> str:
    match entry:
        case Caught(_, inside):
            return "(None, " + "".join(f"{_written(emitter, one)}, " for one in inside) + ")"
        case Filtered(function, args, kwargs):
            given = f"{emitter.value(args)}, {emitter.value(kwargs)}"
            return f"({emitter.constant(function)}, {given})"
    given = f"{emitter.value(entry.message)}, {emitter.value(entry.category)}"
    if entry.place is None:
        return f"({emitter.constant(issue_above)}, ({given}, {entry.above}), {{}})"
    filename, line, names = entry.place
    at = f"{filename!r}, {line}, {emitter.constant(names)}"
    return f"({emitter.constant(issue)}, ({given}, {at}), {{}})"


def _replay(entry: Any) -> None:
    if entry[0] is not None:
        function, args, kwargs = entry
        function(*args, **kwargs)
        return
    with warnings.catch_warnings():
        for inside in entry[1:]:
            _replay(inside)


def issue(message: Any, category: type[Warning], filename: str, line: int, names: Any) -> None:
    """Issue a warning of a place in the captured program."""
    registry = names.setdefault("__warningregistry__", {})
    module = names.get("__name__") or "<unknown>"
    warnings.warn_explicit(message, category, filename, line, module, registry)


def issue_above(message: Any, category: type[Warning], above: int) -> None:
    """Issue a warning that points to who called the captured program."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    for _ in range(above - 1):
        frame = None if frame is None else frame.f_back
    if frame is None:
        issue(message, category, "sys", 1, vars(sys))
    else:
        issue(message, category, frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def _is_ours(frame: Any) -> bool:
    """Whether a frame stands between the captured program and who called it."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in ("dynamo", "compile_api") or frame.f_code.co_filename.startswith("<dynamo")


@rule(warnings.warn)
def _warn(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    message, category = given["message"], given.get("category") or UserWarning
    level = given.get("stacklevel", 1)
    if isinstance(message, Warning):
        category = type(message)
    plain = isinstance(message, str) or (
        isinstance(message, Warning) and is_constant(message.args) and not vars(message)
    )
    fits = isinstance(category, type) and issubclass(category, Warning) and type(level) is int
    if not plain or not fits or set(given) - {"message", "category", "stacklevel"}:
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "warnings.warn is called in an unusual way")
    if machine.session.open_states or any(frame.op.handler >= 0 for frame in machine.frames):
        # The block may be one that records warnings, or a handler's; those of this call are known.
        if not any(isinstance(state.token, Caught) for state in machine.session.open_states):
            raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a warning is issued inside of a block")
        _require_no_errors(machine)
    frames, level = machine.frames, max(level, 1)
    place = None
    if level <= len(frames):
        frame = frames[-level]
        place = (frame.code.co_filename, frame.line, frame.globals)
    _entries(machine).append(Warned(message, category, place, level - len(frames)))


def _entries(machine: Machine) -> list[Any]:
    """Where the next entry belongs: into the innermost block."""
    session = machine.session
    found: list[Any] = session.warned
    for state in session.open_states:
        if isinstance(state.token, Caught):
            found = state.token.inside
    return found


def _no_errors(module: Any) -> bool:
    return not any(entry[0] == "error" for entry in module.filters)


def _require_no_errors(machine: Machine) -> None:
    """A filter may turn a warning into an exception, which a handler of the program would get."""
    if not _no_errors(warnings):
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a warning is issued inside of a block")
    session = machine.session
    session.guards[(GuardKind.PREDICATE, ConstantSource(warnings), None)] = Guard(
        ConstantSource(warnings, "warnings"),
        GuardKind.PREDICATE,
        (_no_errors, "no filter makes exceptions of warnings"),
        session.source_line,
    )


# -- filters -------------------------------------------------------------------------------------------


def _filter(function: Any) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not all(map(_may_stand_in_filters, (*args, *kwargs.values()))) or "error" in (
            *args,
            *kwargs.values(),
        ):
            raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a filter makes exceptions of warnings")
        _entries(machine).append(Filtered(function, args, dict(kwargs)))


def _may_stand_in_filters(value: Any) -> bool:
    return is_constant(value) or isinstance(value, type)


for _function in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    _filter(_function)


@rule(warnings.catch_warnings)
def _catch(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args or any(kwargs.get(name) for name in kwargs if name not in ("action", "category")):
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "warnings are recorded")
    return machine.session.created(warnings.catch_warnings(**kwargs))


@rule(warnings.catch_warnings.__enter__)
def _enter_catch(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    (manager,) = args
    if vars(manager)["_record"]:
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "warnings are recorded")
    made = vars(manager).get("_filter")  # (action, category, lineno, append), from Python 3.11 on
    block = Caught(manager)
    entries = _entries(machine)
    if made is not None:
        if made[0] == "error":
            raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a filter makes exceptions of warnings")
        block.inside.append(Filtered(warnings.simplefilter, tuple(made), {}))
    tick = machine.frames[-1].tick
    entries.append(block)
    machine.session.open_states.append(OpenState(manager, block, None, _nothing, tick))


@rule(warnings.catch_warnings.__exit__)
def _exit_catch(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    leave_state(machine, args[0], "a catch_warnings block")


def _nothing(token: Any) -> None:
    """Nothing to undo: the filters were not changed."""
