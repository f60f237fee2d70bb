"""`warnings.warn`: seen while capturing, issued when the call is over, as often as eager issues it.

Whether a warning is shown, raised or ignored is for the filters and registries in force at run time. Invariant:
warnings come in the program's order, each with the file, line and registry that eager gives it.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values.rules import rule
from dynamo.values.wrap import is_constant

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["Warned", "issue", "issue_above"]


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning: where it points to, in the call (file, line, names) or `above` frames over it."""

    message: Any
    category: type[Warning]
    place: tuple[str, int, dict[str, Any]] | None
    above: int


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
        # A filter may turn it into an exception, which a handler of the program would get.
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a warning is issued inside of a block")
    frames, level = machine.frames, max(level, 1)
    place = None
    if level <= len(frames):
        frame = frames[-level]
        place = (frame.code.co_filename, frame.line, frame.globals)
    machine.session.warned.append(Warned(message, category, place, level - len(frames)))
