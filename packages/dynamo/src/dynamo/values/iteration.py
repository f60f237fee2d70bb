"""Iteration of the interpreter's values: `for`, unpacking, `next`, `yield from`.

In: what the program iterates over; out: iterators that `advance` and C code can drive. Iterators written in Python are
interpreted. Invariant: whoever gets an element gets it guarded, or made by the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.values import asked
from dynamo.values.attributes import call_special, special
from dynamo.values.generators import TracedGenerator
from dynamo.values.iterators import AheadIterator
from dynamo.values.shadows import Lazy
from dynamo.values.wrap import open_container

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo.machine.interpreter import Machine

__all__ = [
    "SequenceIterator",
    "UserIterator",
    "advance",
    "get_iterator",
    "iterate",
    "overridden",
    "send",
    "take",
]


class UserIterator:
    """A user's iterator (`__next__` written in Python), driven by the interpreter."""

    __slots__ = ("inner", "machine")

    def __init__(self, machine: Machine, inner: Any) -> None:
        self.machine = machine
        self.inner = inner

    def __iter__(self) -> UserIterator:
        return self

    def __next__(self) -> Any:
        method = special(type(self.inner), "__next__")
        assert method is not None, "made only for such"
        return call_special(self.machine, method, self.inner)


class SequenceIterator:
    """Iteration of an object that has only `__getitem__`."""

    __slots__ = ("index", "inner", "machine")

    def __init__(self, machine: Machine, inner: Any) -> None:
        self.machine = machine
        self.inner = inner
        self.index = 0

    def __iter__(self) -> SequenceIterator:
        return self

    def __next__(self) -> Any:
        kind = type(self.inner)
        method = special(kind, "__getitem__")
        assert method is not None, "made only for such"
        self.machine.session.guard_class_attribute(kind, "__getitem__", method)
        try:
            value = call_special(self.machine, method, self.inner, self.index)
        except IndexError:
            raise StopIteration from None
        self.index += 1
        return value


def overridden(machine: Machine, function: Any, *args: Any) -> Any:
    """What the overrides of a tensor's class make of one of its special methods; NotImplemented without."""
    overrides = machine.session.recorder.overrides
    if not overrides.met:
        return NotImplemented
    return overrides.dispatch(machine, function, args, {})


def get_iterator(machine: Machine, value: Any) -> Any:
    """`iter(value)`; always an object that `advance` and C code can drive."""
    kind = type(value)
    if machine.session.unread:
        open_container(machine.session, value)
    if kind is list or kind is tuple or kind is TracedGenerator or kind is AheadIterator:
        return iter(value)
    if isinstance(value, torch.Tensor):
        found = overridden(machine, torch.Tensor.__iter__, value)
        if found is not NotImplemented:
            return found
        return iter(machine.session.recorder.unbind(value))
    method = special(kind, "__iter__")
    if method is not None:
        machine.session.guard_class_attribute(kind, "__iter__", method)
        iterator = call_special(machine, method, value)
        if special(type(iterator), "__next__") is not None and not isinstance(
            iterator, UserIterator | SequenceIterator | TracedGenerator | AheadIterator
        ):
            return UserIterator(machine, iterator)
        return iterator
    if isinstance(value, dict):
        asked.guard_keys(machine, value)
        return iter(value)
    if isinstance(value, type):
        meta = special(type(value), "__iter__")
        if meta is not None:
            if type(value).__module__ == "enum":
                return iter(value)  # type: ignore[call-overload]
            return call_special(machine, meta, value)
    if not hasattr(kind, "__iter__") and special(kind, "__getitem__") is not None:
        return SequenceIterator(machine, value)
    return iter(value)


def advance(machine: Machine, iterator: Any) -> Any:
    """`next(iterator)`."""
    machine.session.check_iterator(iterator)
    if special(type(iterator), "__next__") is not None and not isinstance(
        iterator, UserIterator | SequenceIterator | TracedGenerator | AheadIterator
    ):
        return UserIterator(machine, iterator).__next__()
    value = iterator.__next__()
    if type(value) is Lazy:
        return machine.session.resolve(value)
    if type(value) is tuple:
        for item in value:
            if type(item) is Lazy:
                return tuple(map(machine.session.resolve, value))
    return value


def iterate(machine: Machine, value: Any) -> Iterator[Any]:
    """The elements of an iterable."""
    iterator = get_iterator(machine, value)
    while True:
        try:
            item = advance(machine, iterator)
        except StopIteration:
            return
        yield item


def take(machine: Machine, value: Any, count: int) -> list[Any]:
    """The first `count` elements, fewer if there are fewer."""
    if type(value) is tuple or type(value) is list:
        open_container(machine.session, value)
        return [machine.session.resolve(item) for item in value[:count]]
    items: list[Any] = []
    iterator = get_iterator(machine, value)
    while len(items) < count:
        try:
            items.append(advance(machine, iterator))
        except StopIteration:
            break
    return items


def send(machine: Machine, receiver: Any, value: Any) -> Any:
    """One step of `yield from`."""
    if isinstance(receiver, TracedGenerator):
        return receiver.send(value)
    if value is None:
        return advance(machine, receiver)
    from dynamo.values import attributes, calls

    return calls.call(machine, attributes.load(machine, receiver, "send"), (value,), {})
