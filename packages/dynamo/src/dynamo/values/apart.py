"""Objects and containers that a call changes, guarded to be other ones than all else of their kind.

The capture worked on one copy for each object that it met. Were two of them one object in a later call, a write by
one name would have to be seen by the other. Invariant: what nobody changes needs no guard, and what was one
object in the capture is guarded as one already (`values.wrap`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.guards import Guard, GuardKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo.values.session import Session

__all__ = ["changed_apart"]


def changed_apart(session: Session) -> Iterator[Guard]:
    """For each class of which the call changes an object: those of that class are different ones."""
    changed = set(_changed(session))
    if not changed:
        return
    found: dict[type, list[Any]] = {kind: [] for kind in changed}
    for guard in session.guards.values():
        if guard.kind is GuardKind.TYPE and guard.operand in changed:
            found[guard.operand].append(guard.source)
    for sources in found.values():
        if len(sources) > 1:
            yield Guard(sources[0], GuardKind.DISTINCT, tuple(sources[1:]))


def _changed(session: Session) -> Iterator[type]:
    for shadow in session.shadows.values():
        if shadow.contents_changed or shadow.attributes_changed:
            yield type(shadow.original if shadow.owner is None else shadow.owner)
    for owner, _, _ in session.slot_writes.values():
        if not session.is_created(owner):
            yield type(owner)
