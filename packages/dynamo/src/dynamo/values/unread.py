"""Lists, deques and sets from outside that the program has not read: what is appended is all that is known.

Wrapped, such a container is empty but for an `Unread` in front; it needs no guard beyond its type. Appending,
adding, `len`, truth and single elements leave it so: the write-back appends to whatever the live object holds, the
length is a number from outside like any other, an element is guarded at its place. Everything else opens it
(`open_container`): the elements move in, guarded one by one, with the length. Invariant: who reads a container
in another way than by this module opens it first; an `Unread` that turns up among elements shows who did not.
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Any

from dynamo.guards import GuardKind
from dynamo.source import ItemSource, LengthSource
from dynamo.values.shadows import CLEARED, snapshot
from dynamo.values.wrap import CONSTANTS, open_container, wrap

if TYPE_CHECKING:
    from dynamo.values.session import Session
    from dynamo.values.shadows import Shadow

__all__ = [
    "NOT_HERE",
    "STORING",
    "ask",
    "contains_in_set",
    "element",
    "length",
    "method",
    "open_all",
    "truth",
]

NOT_HERE: Any = object()
# Methods of lists and deques whose arguments become elements, unread.
STORING = frozenset({"append", "appendleft", "insert", "setdefault", "__setitem__", "add"})

_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_WITH_PARTS = (list, tuple, dict, set, collections.deque, slice)


def open_all(session: Session, value: Any) -> None:
    """Open a value and what is inside it: C code reads all of it."""
    pending, seen = [value], set()
    while pending and session.unread:
        item = pending.pop()
        item = getattr(item, "__self__", item) if isinstance(item, _BOUND) else item
        if id(item) in seen or not isinstance(item, _WITH_PARTS):
            continue
        seen.add(id(item))
        if id(item) in session.unread:
            open_container(session, item)
        if isinstance(item, dict):
            pending.extend(dict.values(item))
        elif isinstance(item, slice):
            pending += (item.start, item.stop, item.step)
        elif not isinstance(item, set):
            pending.extend(snapshot(item))


def ask(
    session: Session, container: Any, question: Any, otherwise: Any, key: Any = NOT_HERE
) -> Any:
    """What an unread container tells as it is; `otherwise` of the open one."""
    given = () if key is NOT_HERE else (key,)
    found = question(session, session.unread[id(container)], *given)
    if found is NOT_HERE:
        open_container(session, container)
        found = otherwise(container, *given)
    return found


def length(session: Session, shadow: Shadow) -> Any:
    """The number of elements: that of the live object, known or a symbol, and what was added."""
    container = shadow.copy
    if isinstance(container, set) or getattr(container, "maxlen", None) is not None:
        return NOT_HERE
    before = _length_before(session, shadow)
    if before is NOT_HERE:
        return NOT_HERE
    return before + (len(container) - 1 - shadow.taken)


def truth(session: Session, shadow: Shadow) -> Any:
    """Whether there are elements."""
    if len(shadow.copy) > 1:
        return True
    count = length(session, shadow)
    return count if count is NOT_HERE else bool(count > 0)


def element(session: Session, shadow: Shadow, key: Any) -> Any:
    """The element at an index, guarded at its place; NOT_HERE if only the length tells which that is."""
    if type(key) is not int or isinstance(shadow.copy, set):
        return NOT_HERE
    original, added = shadow.original, len(shadow.copy) - 1
    if -added <= key < 0:
        return shadow.copy[key]
    bound = getattr(original, "maxlen", None)
    if key < 0:
        place = key + added
        if -place > len(original) - shadow.taken or shadow.taken:
            return NOT_HERE
        if bound is not None and -key > bound:
            return NOT_HERE
    else:
        place = key + shadow.taken
        if place >= len(original) or (bound is not None and added):
            return NOT_HERE
    return wrap(session, original[place], ItemSource(shadow.source, place))


def method(
    session: Session, shadow: Shadow, name: str, args: tuple[Any, ...], *, dropped: bool = False
) -> Any:
    """A method that leaves the container unread; NOT_HERE for others. Is the result `dropped`?"""
    container = shadow.copy
    if isinstance(container, set):
        return _set_method(session, shadow, name, args)
    kind: Any = list if isinstance(container, list) else collections.deque
    match name, args:
        case "append", (value,):
            return _extend(shadow, kind, [value])
        case (("extend" | "__iadd__"), (values,)) if type(values) in (list, tuple):
            if values is container:
                return NOT_HERE
            made = _extend(shadow, kind, list(values))
            return container if made is None and name == "__iadd__" else made
        case ("clear", ()) if kind is list:
            del session.unread[id(container)]
            list.clear(container)
            shadow.snapshot = [CLEARED]
            return None
        case ("__len__", ()):
            return length(session, shadow)
        case ("__getitem__", (key,)):
            return element(session, shadow, key)
        case ("pop", (0,)) | ("popleft", ()):
            return take_first(session, shadow, dropped=dropped)
    return NOT_HERE


def take_first(session: Session, shadow: Shadow, *, dropped: bool) -> Any:
    """`pop(0)` of an element that is there; of one that is `dropped` only that."""
    if len(shadow.original) <= shadow.taken or getattr(shadow.original, "maxlen", None) is not None:
        return NOT_HERE
    found = None
    if not dropped:
        found = element(session, shadow, 0)
    else:
        longer = bool(_length_before(session, shadow) > shadow.taken)  # a guard
        assert longer, "it is, in this call"
    if found is not NOT_HERE:
        shadow.taken += 1
    return found


def contains_in_set(session: Session, shadow: Shadow, key: Any) -> Any:
    """Whether an unread set has a constant; guarded for that one."""
    if type(key) not in CONSTANTS:
        return NOT_HERE
    if key in shadow.copy:
        return True
    _ask(session, shadow, key)
    return key in shadow.copy


def _ask(session: Session, shadow: Shadow, key: Any) -> None:
    """What the live set says of a key comes into the copy, once."""
    if key in shadow.asked:
        return
    shadow.asked.add(key)
    present = key in shadow.original
    session.guard(GuardKind.CONTAINS if present else GuardKind.LACKS, shadow.source, key)
    if present:
        set.add(shadow.copy, key)
        shadow.snapshot.append(key)
        shadow.snapshot.sort(key=id)


def _set_method(session: Session, shadow: Shadow, name: str, args: tuple[Any, ...]) -> Any:
    container = shadow.copy
    match name, args:
        case "add", (value,):
            set.add(container, value)
            return None
        case "__contains__", (value,):
            return contains_in_set(session, shadow, value)
        case (("discard" | "remove"), (value,)) if type(value) in CONSTANTS:
            _ask(session, shadow, value)
            return getattr(set, name)(container, value)
        case "update", values if all(type(items) in (list, tuple) for items in values):
            set.update(container, *values)
            return None
    return NOT_HERE


def _extend(shadow: Shadow, kind: Any, values: list[Any]) -> Any:
    container = shadow.copy
    bound = getattr(container, "maxlen", None)
    if bound is not None and len(container) + len(values) > bound:
        return NOT_HERE  # it would push out what marks it as unread
    kind.extend(container, values)
    return None


def _length_before(session: Session, shadow: Shadow) -> Any:
    """The length at the start: a symbol where it varies, else guarded."""
    source, count = LengthSource(shadow.source), len(shadow.original)
    known = session.numbers.get(source)
    if known is not None:
        return known
    sizes = session.recorder.sizes
    symbolic = None if sizes is None else sizes.scalar(source, count)
    if symbolic is None:
        session.guard(GuardKind.LENGTH, shadow.source, count)
        return count
    session.numbers[source] = symbolic
    return symbolic
