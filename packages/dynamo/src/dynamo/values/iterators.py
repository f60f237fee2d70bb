"""Iterators from outside: read ahead while capturing, advanced when the captured code runs.

What a builtin iterator over a container gives next can be told without taking it. An `AheadIterator` stands for
one: its elements are guarded like others, and the emitter takes as many from the original as the program took.
Generators and iterators over other objects can't be told: there the program breaks. Invariant: an iterator that
was there before is not advanced by a capture, nor by a check of guards.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from dynamo.guards import GuardKind
from dynamo.source import AheadSource, twin_of

if TYPE_CHECKING:
    from dynamo.source import Source
    from dynamo.values.session import Session

__all__ = ["AheadIterator", "advance_original", "iterator_from_outside"]

_MOST = 1000  # elements that one capture takes from an iterator: more are not unrolled


class AheadIterator:
    """What stands for an iterator from outside."""

    __slots__ = (
        "__weakref__",
        "exhausted",
        "items",
        "original",
        "over",
        "session",
        "source",
        "taken",
    )

    def __init__(self, session: Session, original: Any, source: Source, items: list[Any]) -> None:
        self.session = session
        self.original = original
        self.source = source
        self.items = items
        self.over = _underlying(original)
        self.taken = 0
        self.exhausted = False

    def __iter__(self) -> AheadIterator:
        return self

    def __next__(self) -> Any:
        session = self.session
        for container in self.over:
            shadow = session.shadows.get(id(container))
            if shadow is not None and shadow.contents_changed:
                raise session.refuse(
                    "a container is changed while an iterator from outside runs over it"
                )
        if self.exhausted:
            raise StopIteration
        if self.taken < len(self.items):
            value = session.wrap(self.items[self.taken], AheadSource(self.source, self.taken))
            self.taken += 1
            return value
        if self.taken >= _MOST:
            raise session.refuse("an iterator from outside has very many elements")
        self.exhausted = True
        session.guard(GuardKind.PREDICATE, self.source, _ends_after(self.taken))
        raise StopIteration


def _ends_after(count: int) -> tuple[Any, str]:
    return _End(count), f"the iterator ends after {count} more"


class _End:
    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, iterator: Any) -> bool:
        return sum(1 for _ in islice(twin_of(iterator), self.count + 1)) == self.count


def _underlying(iterator: Any) -> tuple[Any, ...]:
    """The containers that the iterator runs over."""
    found: list[Any] = []
    pending = [iterator]
    while pending:
        for part in pending.pop().__reduce__()[1]:
            if isinstance(part, tuple):
                pending.extend(p for p in part if hasattr(p, "__next__"))
                found.extend(p for p in part if isinstance(p, list | dict | set))
            elif hasattr(part, "__next__"):
                pending.append(part)
            elif isinstance(part, list | dict | set):
                found.append(part)
    return tuple(found)


def iterator_from_outside(session: Session, value: Any, source: Source) -> Any:
    """The stand-in, or None where the next elements can't be told."""
    try:
        items = list(islice(twin_of(value), _MOST))
    except TypeError:
        return None
    made = AheadIterator(session, value, source, items)
    session.guard(GuardKind.TYPE, source, type(value))
    session.ahead[id(value)] = made
    session.keep(value)
    session.remember(made, source)
    return made


def advance_original(iterator: Any, count: int, exhausted: bool) -> None:
    """Take from the original what the captured program took."""
    for _ in islice(iterator, count):
        pass
    if exhausted:
        next(iterator, None)  # it then stays exhausted, whatever its container gets
