"""What the program asks of dicts from outside, and what it writes into them itself.

A question for one key guards that key; one for all of them (number, order) guards all. A key that the program has set
or deleted is its own: its presence says nothing of the dict outside. `force` is for C code that reads everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.guards import GuardKind
from dynamo.values.shadows import Lazy
from dynamo.values.unread import open_all
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = [
    "force",
    "guard_keys",
    "guard_presence",
    "note_write",
    "prepare",
]


def guard_keys(machine: Machine, value: Any) -> None:
    """The keys of an outside dict matter (their number, order, presence)."""
    shadow = machine.session.shadows_by_copy.get(id(value))
    if shadow is None or shadow.keys_guarded or not isinstance(value, dict):
        return
    machine.session.guard_keys(shadow)


def force(machine: Machine, value: Any) -> None:
    """Resolve the elements of a container that were left for later."""
    resolve = machine.session.resolve
    kind = type(value)
    if machine.session.unread:
        open_all(machine.session, value)
    if kind is list:
        for i, item in enumerate(value):
            if type(item) is Lazy:
                value[i] = resolve(item)
    elif isinstance(value, dict):
        guard_keys(machine, value)
        for key in list(dict.keys(value)):
            item = dict.__getitem__(value, key)
            if type(item) is Lazy:
                made = resolve(item)
                open_all(machine.session, made)
                dict.__setitem__(value, key, made)
                shadow = machine.session.shadows_by_copy.get(id(value))
                if shadow is not None:
                    for i in range(0, len(shadow.snapshot), 2):
                        if shadow.snapshot[i + 1] is item:
                            shadow.snapshot[i + 1] = made


def prepare(machine: Machine, value: Any) -> None:
    """Make a value ready for an operator of Python's own, which reads all of it."""
    if isinstance(value, dict | list):
        force(machine, value)
    elif machine.session.unread:
        open_all(machine.session, value)


def guard_presence(machine: Machine, container: Any, key: Any, *, found: bool) -> None:
    """A key of an outside dict is, or is not, there: guarded, unless the program decided that."""
    shadow = machine.session.shadows_by_copy.get(id(container))
    if shadow is None or shadow.keys_guarded:
        return
    if key in shadow.asked:
        return  # as the program left it
    if shadow.owner is not None and found is not (key in shadow.original):
        return  # an attribute that the program set or deleted
    shadow.asked.add(key)
    key = machine.session.reals.get(id(key), key)
    if type(key) is FakeTensor:
        return  # made in this call: in no dict from outside
    kind = GuardKind.CONTAINS if found else GuardKind.LACKS
    machine.session.guard(kind, shadow.source, key)


def note_write(machine: Machine, container: Any, key: Any) -> None:
    """The program sets a key of a dict: from now on its presence says nothing of the dict outside."""
    shadow = machine.session.shadows_by_copy.get(id(container))
    if shadow is None:
        return
    if shadow.owner is not None:
        guard_keys(machine, container)
    shadow.asked.add(key)
