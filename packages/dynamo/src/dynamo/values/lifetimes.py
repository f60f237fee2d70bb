"""Whether an object that the captured program made would still be alive.

Capture keeps every such object for its identity, so the interpreter's own reference counts say nothing. What the
program holds is reachable from its frames and from what it changed outside. Invariant: `is_held` never says yes of an
object that nothing of the program holds; of one that only an object of C code holds it may say no.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo.machine.interpreter import Machine

__all__ = ["is_held"]


def is_held(machine: Machine, target: Any) -> bool:
    """Whether the program holds an object that it made."""
    session = machine.session
    pending: list[Any] = [item for frame in machine.frames for item in (*frame.slots, *frame.stack)]
    pending += (shadow.copy for shadow in session.shadows.values())
    pending += (shadow.copy for shadow in session.instance_dicts.values())
    pending += (value for _, value in session.global_writes.values())
    pending += (value for _, value in session.state_writes.values())
    pending += (value for _, _, value in session.slot_writes.values())
    pending += (value for _, value in session.changed_cells())
    seen: set[int] = set()
    while pending:
        item = pending.pop()
        if item is target:
            return True
        if id(item) not in seen:
            seen.add(id(item))
            pending.extend(_parts(item))
    return False


def _parts(item: Any) -> Iterator[Any]:
    match item:
        case torch.Tensor() | type() | types.ModuleType() | str() | int() | float():
            return
        case dict():
            yield from dict.keys(item)
            yield from dict.values(item)
        case list():
            yield from list.__iter__(item)
        case tuple():
            yield from tuple.__iter__(item)
        case set() | frozenset() | collections.deque():
            holder: Any = next(
                b for b in (set, frozenset, collections.deque) if isinstance(item, b)
            )
            yield from holder.__iter__(item)
        case types.FunctionType():
            yield from (*(item.__closure__ or ()), *(item.__defaults__ or ()))
            yield from (item.__kwdefaults__ or {}).values()
        case types.CellType():
            if item != types.CellType():
                yield item.cell_contents
        case types.MethodType():
            yield item.__self__
            yield item.__func__
        case functools.partial():
            yield from (item.func, *item.args, *item.keywords.values())
        case BaseException():
            yield from item.args
    yield from getattr(item, "__dict__", {}).values()
    for base in type(item).__mro__:
        for member in vars(base).values():
            if type(member) is types.MemberDescriptorType and base.__flags__ & (1 << 9):
                with contextlib.suppress(AttributeError):  # an empty slot
                    yield member.__get__(item)
