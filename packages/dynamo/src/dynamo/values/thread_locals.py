"""Objects of `threading.local`: their attributes are those of the thread that asks.

Such an object has no dict that could be read past it. Comes in: an object and a name. Goes out: what this thread has
under it, guarded as `getattr` finds it, so that a call on another thread is judged by that thread's. Writes are kept
with those of slots and made in their place. Invariant: nothing is written while capturing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from dynamo.source import AttributeSource
from dynamo.values.shadows import DELETED
from dynamo.values.wrap import wrap

if TYPE_CHECKING:
    from dynamo.values.session import Session

__all__ = ["Member", "is_local", "read_local", "write_local"]

_MISSING: Any = object()


def is_local(owner: Any) -> bool:
    """Whether an object's attributes are a thread's own."""
    return isinstance(owner, threading.local)


class Member:
    """An attribute of such an object, written and deleted as a slot's descriptor does."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(owner, self.__name__, value)

    def __delete__(self, owner: Any) -> None:
        delattr(owner, self.__name__)


def read_local(session: Session, owner: Any, name: str, missing: Any) -> Any:
    """This thread's attribute, or `missing`."""
    written = session.slot_writes.get((id(owner), name))
    if written is not None:
        return missing if written[2] is DELETED else written[2]
    value = getattr(owner, "__dict__").get(name, _MISSING)  # noqa: B009 - the type's stub hides it
    if value is _MISSING:
        return missing
    source = session.source_of(owner)
    if source is None or session.is_created(owner):
        return session.resolve(value)
    key = (id(owner), name)
    if key not in session.attribute_memo:
        session.attribute_memo[key] = wrap(session, value, AttributeSource(source, name))
    return session.attribute_memo[key]


def write_local(session: Session, owner: Any, name: str, value: Any) -> None:
    """Set this thread's attribute when the call's effects are made; `DELETED` deletes it."""
    if session.source_of(owner) is not None and not session.is_created(owner):
        session.slot_writes[id(owner), name] = (owner, Member(name), value)
    elif value is DELETED:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
