"""Exception groups as `except*` takes them apart and puts together what is left.

In: the exception that reached an `except*`, and what its handlers left. Out: groups as CPython makes them, of the
program's own classes. Invariant: a group's `split`, if the program wrote it, is a graph break, for it is called
by C code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values.attributes import special

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["remaining", "split"]


def split(
    machine: Machine, error: BaseException, classes: tuple[type[BaseException], ...]
) -> tuple[BaseException | None, BaseException | None]:
    """What of `error` is of other classes, and what is of these: a group, or None."""
    del machine
    if not isinstance(error, BaseExceptionGroup):
        return (None, _group([error])) if isinstance(error, classes) else (error, None)
    if isinstance(error, classes):
        return None, error
    for name in ("split", "derive"):
        if special(type(error), name) is not None:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_CALL,
                f"{type(error).__qualname__}.{name} is called by C code",
            )
    match, rest = error.split(classes)
    return rest, match


def remaining(error: BaseException, left: list[BaseException | None]) -> BaseException | None:
    """What is raised behind the last `except*`: unhandled parts of `error` and what handlers raised."""
    if not left:
        return None
    if not isinstance(error, BaseExceptionGroup):
        return left[0]
    again = [part for part in left if part is not None and _is_part(part, error)]
    raised = [part for part in left if part is not None and not _is_part(part, error)]
    leaves = {id(leaf) for part in again for leaf in _leaves(part)}
    unhandled = error.subgroup(lambda one: id(one) in leaves) if leaves else None
    if not raised:
        return unhandled
    if unhandled is not None:
        raised.append(unhandled)
    return raised[0] if len(raised) == 1 else _group(raised)


def _group(errors: list[BaseException]) -> BaseException:
    return BaseExceptionGroup("", errors)


def _is_part(part: BaseException, whole: BaseException) -> bool:
    """Whether a group was split off another one: what splitting keeps is the same."""
    return (
        isinstance(part, BaseExceptionGroup)
        and part.__cause__ is whole.__cause__
        and part.__context__ is whole.__context__
        and getattr(part, "__notes__", None) == getattr(whole, "__notes__", None)
    )


def _leaves(error: BaseException) -> list[Any]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]
