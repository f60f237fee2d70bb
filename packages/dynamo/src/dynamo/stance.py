"""What compiled functions do with their entries, for the whole process: `set_stance`.

In: a stance by name. Out: `current()`, which the dispatcher asks on a miss, and a context manager that
puts the former stance back. Invariant: under "force_eager" no cache holds an entry, so that the fast
path needs no question; the entries are put back when the stance ends.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Self

from dynamo import dispatch
from dynamo.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["STANCES", "SetStance", "set_stance"]

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile")


class SetStance:
    """A stance that is in force; as a context manager it ends with the block."""

    def __init__(self, former: str) -> None:
        self._former = former

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        dispatch.take_stance(self._former)


def set_stance(stance: str) -> SetStance:
    """Say what compiled functions do from now on, in every thread.

    Args:
        stance: "default"; "force_eager": nothing compiled is used; "eager_on_recompile": a function
            that has entries runs eagerly when none fits; "fail_on_recompile": it raises
            `RecompileRefused` then. First compilations happen in both.

    Raises:
        UsageError: no stance has that name; the nearest one is given.
    """
    if stance not in STANCES:
        near = difflib.get_close_matches(stance, STANCES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(STANCES)}"
        raise UsageError(f"there is no stance {stance!r}; {hint}")
    return SetStance(dispatch.take_stance(stance))
