"""The tree of what guards look at: each value hangs below the value it is reached from.

Comes in: guards. Goes out: the guards in the order of evaluation, and the `Place` of every source, for
lowering. Members of modules are spelled out on the way (the table, then its item), so that places
are shared however a source is written. Invariant: a value comes before what is inside it, equal guards
on one place are one, and what relates several values comes last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo.guards.kinds import Guard, GuardKind, Weakly
from dynamo.source import InstanceAttributeSource, ItemSource, ModuleMemberSource, base_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dynamo.source import Source

__all__ = ["ATTRIBUTE", "ITEM", "OTHER", "Place", "Places"]

# Lower is earlier among the guards on one value.
_RANK: dict[GuardKind, int] = {
    kind: rank
    for rank, kind in enumerate(
        (
            GuardKind.TYPE,
            GuardKind.IDENTITY,
            GuardKind.TENSOR,
            GuardKind.EQUAL,
            GuardKind.LENGTH,
            GuardKind.CODE,
            GuardKind.NO_HOOKS,
            GuardKind.LACKS_OWN_ATTRIBUTE,
            GuardKind.CLASS_ATTRIBUTE,
            GuardKind.CONTAINS,
            GuardKind.LACKS,
            GuardKind.KEYS,
            GuardKind.HAS_ATTRIBUTE,
            GuardKind.LACKS_ATTRIBUTE,
            GuardKind.PREDICATE,
            # what looks at several values comes after all that looks at one
            GuardKind.GLOBAL_STATE,
            GuardKind.NO_GLOBAL_HOOKS,
            GuardKind.SAME_OBJECT,
            GuardKind.DISTINCT,
            GuardKind.STORAGES,
            GuardKind.APART,
            GuardKind.SHAPE,
        )
    )
}
_RELATIONS = frozenset(
    {
        GuardKind.SAME_OBJECT,
        GuardKind.DISTINCT,
        GuardKind.STORAGES,
        GuardKind.APART,
        GuardKind.SHAPE,
    }
)

ATTRIBUTE, ITEM, OTHER = "attribute", "item", "other"


class Place:
    """A value: its base, how it is reached from there, the guards on it, and what is inside it.

    `way` is ATTRIBUTE (of the instance, `key` its name), ITEM (`key` a str), or OTHER (`key` a
    source of that kind whose base counts for nothing).
    """

    __slots__ = ("base", "guards", "inside", "key", "register", "way")

    def __init__(self, base: Place | None, way: str, key: Any) -> None:
        self.base = base
        self.way = way
        self.key = key
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.inside: dict[Any, Place] = {}
        self.register = -1

    def step(self, way: str, key: Any, source: Any = None) -> Place:
        """The place inside this one that is reached so."""
        found = self.inside.get((way, key))
        if found is None:
            found = Place(self, way, key if source is None else source)
            self.inside[way, key] = found
        return found

    def ordered(self) -> list[Guard]:
        """The guards on this value, cheap and telling ones first."""
        guards = list(self.guards.values())
        if len(guards) > 1:
            guards.sort(key=lambda guard: _RANK[guard.kind])
        return guards


class Places:
    """The places of all sources so far."""

    __slots__ = ("_found", "_root")

    def __init__(self) -> None:
        self._root = Place(None, OTHER, None)
        self._found: dict[Source, Place] = {}

    def of(self, source: Source) -> Place:
        """The place of a source, made if there is none."""
        found = self._found.get(source)
        if found is None:
            base = base_of(source)
            above = self._root if base is None else self.of(base)
            kind = type(source)
            if kind is ModuleMemberSource:
                found = above.step(ATTRIBUTE, source.table).step(ITEM, source.member)  # type: ignore[union-attr]
            elif kind is InstanceAttributeSource:
                found = above.step(ATTRIBUTE, source.attribute)  # type: ignore[union-attr]
            elif kind is ItemSource and type(source.key) is str:  # type: ignore[union-attr]
                found = above.step(ITEM, source.key)  # type: ignore[union-attr]
            else:
                found = above.step(OTHER, _way(source, base), source)
            self._found[source] = found
        return found

    def order(self, guards: Iterable[Guard]) -> tuple[Guard, ...]:
        """State first, then values by path, a value before what is inside it, then relations."""
        first: dict[tuple[Any, ...], Guard] = {}
        last: dict[tuple[Any, ...], Guard] = {}
        for guard in guards:
            kind, source = guard.kind, guard.source
            if kind in _RELATIONS:
                last.setdefault((source, *_meaning(guard)), guard)
            elif source is None:
                first.setdefault(_meaning(guard), guard)
            else:
                self.of(source).guards.setdefault(_meaning(guard), guard)
        ordered = list(first.values())
        # Roots with a tensor or constant of their own are cheapest to tell apart by; modules and
        # globals follow.
        todo = sorted(self._root.inside.values(), key=_weight)[::-1]
        while todo:
            place = todo.pop()
            for guard in place.ordered():
                weak = guard.kind is GuardKind.IDENTITY
                ordered.append(_holding_weakly(guard) if weak else guard)
            if place.inside:
                todo += reversed(place.inside.values())
        ordered += sorted(last.values(), key=lambda guard: _RANK[guard.kind])
        return tuple(ordered)


def _way(source: Source, base: Source | None) -> tuple[Any, ...]:
    """Equal for sources that lead the same way from their bases."""
    if base is None:
        return (source,)
    rest = [getattr(source, name) for name in source.__dataclass_fields__ if name != "base"]
    try:
        hash(tuple(rest))
    except TypeError:  # a slice as a key
        rest = [id(value) for value in rest]
    return (type(source), *rest, *map(type, rest))


def _weight(place: Place) -> int:
    """How many values hang below."""
    count, todo = 0, [place]
    while todo:
        inside = todo.pop().inside
        count += len(inside)
        todo += inside.values()
    return count


def _holding_weakly(guard: Guard) -> Guard:
    return replace(guard, operand=Weakly.if_possible(guard.operand))


def _meaning(guard: Guard) -> tuple[Any, ...]:
    """Equal for guards on one place that say the same."""
    kind, operand = guard.kind, guard.operand
    match kind:
        case GuardKind.TYPE | GuardKind.IDENTITY | GuardKind.CODE | GuardKind.TENSOR:
            return (kind, id(operand))
        case GuardKind.EQUAL:
            return (kind, id(type(operand)), repr(operand))
    try:
        hash(operand)
    except TypeError:
        return (kind, id(operand))
    return (kind, type(operand), operand)
