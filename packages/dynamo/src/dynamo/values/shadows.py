"""Copies that stand for mutable containers which existed before the capture.

The captured program works on the copy; `changes` compares it with what it was at the start, and the emitter
writes the difference back into the original, whose identity so is kept. Elements of dicts are `Lazy` until
they are read: an unread element needs no guard.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynamo.source import Source

__all__ = ["CLEARED", "DELETED", "Lazy", "Shadow", "Unread", "same"]


class _Deleted:
    __slots__ = ()

    def __repr__(self) -> str:
        return "DELETED"


DELETED: Any = _Deleted()


class Unread:
    """What stands for all elements of a container that the program has not read."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Unread()"


CLEARED: Any = Unread()  # elements that the program has thrown away unread


class Lazy:
    """An element of an outside container or cell that nobody has read yet."""

    __slots__ = ("original", "requirement", "source")

    def __init__(self, original: Any, source: Source, requirement: Any = None) -> None:
        self.original = original
        self.source = source
        self.requirement = requirement  # a guard to add when it is read: kind, source, operand

    def __repr__(self) -> str:
        return f"Lazy({self.source.name()})"


class Shadow:
    """One copied container: the original, the copy, and the copy's contents at the start."""

    __slots__ = (
        "asked",
        "attributes",
        "copy",
        "keys_guarded",
        "original",
        "owner",
        "snapshot",
        "source",
        "taken",
    )

    def __init__(self, original: Any, copy: Any, source: Source, owner: Any = None) -> None:
        self.original = original
        self.copy = copy
        self.source = source
        self.owner = owner
        self.snapshot = snapshot(copy)
        self.attributes = dict(vars(copy)) if hasattr(copy, "__dict__") else None
        self.keys_guarded = False
        self.asked: set[Any] = set()  # keys that the program asked for, wrote or deleted by itself
        self.taken = 0  # elements taken from the front of an unread list

    @property
    def contents_changed(self) -> bool:
        """Whether elements, their order or their identity changed."""
        now = snapshot(self.copy)
        if self.taken or len(now) != len(self.snapshot):
            return True
        return not all(map(same, now, self.snapshot))

    @property
    def attributes_changed(self) -> bool:
        """Whether an attribute of a container subclass changed."""
        if self.attributes is None:
            return False
        now = vars(self.copy)
        return now.keys() != self.attributes.keys() or not all(
            same(now[name], value) for name, value in self.attributes.items()
        )


def snapshot(container: Any) -> list[Any]:
    """The contents as a flat list: for dicts keys and values in turn."""
    if isinstance(container, dict):
        flat: list[Any] = []
        for key in dict.__iter__(container) if not _ordered(container) else container.__iter__():
            flat.append(key)
            flat.append(dict.__getitem__(container, key))
        return flat
    if isinstance(container, set | frozenset):
        return sorted(container, key=id)
    return list(list.__iter__(container) if isinstance(container, list) else container)


def _ordered(container: Any) -> bool:
    return isinstance(container, collections.OrderedDict)


def same(first: Any, second: Any) -> bool:
    """Whether two elements are one value: the same object, or equal immutable constants."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if type(first) is Lazy:
        return first.original is second.original
    if type(first) in (int, str, bytes):
        return bool(first == second)
    if type(first) is float:
        return first == second and repr(first) == repr(second)
    return False
