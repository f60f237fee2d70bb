"""Replays what the captured program changed outside: containers, attributes, globals, cells.

All new values are rebuilt first, then all changes are made, so that no path is read after it changed. A changed
container is changed in place and keeps its identity.
"""

# ruff: noqa: PERF401 - making an expression appends lines: the order of evaluation is the point
from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING, Any

from dynamo.values.iterators import advance_original
from dynamo.values.shadows import DELETED, Unread, same, snapshot
from dynamo.values.warned import emit_warnings

if TYPE_CHECKING:
    from dynamo.emit.reconstruct import Emitter
    from dynamo.values.shadows import Shadow

__all__ = ["emit_effects"]


def emit_effects(emitter: Emitter) -> None:
    """Append the statements to the entry."""
    session = emitter.session
    pending: list[str] = []
    for shadow in list(session.shadows.values()):
        if shadow.contents_changed:
            _container(emitter, shadow, pending)
        if shadow.attributes_changed:
            _attributes(emitter, shadow, pending)
    for names, value, name in [(n, v, key[1]) for key, (n, v) in session.global_writes.items()]:
        target = emitter.constant(names)
        if value is DELETED:
            pending.append(f"del {target}[{name!r}]")
        else:
            pending.append(f"{target}[{name!r}] = {emitter.value(value)}")
    for owner, member, value in session.slot_writes.values():
        slot = emitter.constant(member)
        if value is DELETED:
            pending.append(f"{emitter.constant(_empty)}({slot}, {emitter.value(owner)})")
        else:
            pending.append(f"{slot}.__set__({emitter.value(owner)}, {emitter.value(value)})")
    for iterator in session.ahead.values():
        if iterator.taken or iterator.exhausted:
            taken = f"{emitter.source(iterator.source)}, {iterator.taken}, {iterator.exhausted}"
            pending.append(f"{emitter.constant(advance_original)}({taken})")
    for tensor in session.recorder.required:
        pending.append(f"{emitter.value(tensor)}.requires_grad_()")
    for tensor in session.recorder.assigned.values():
        gradient = session.recorder.tensor_attributes[id(tensor)]["grad"]
        pending.append(f"{emitter.value(tensor)}.grad = {emitter.value(gradient)}")
    for tensor, data in session.recorder.replaced.values():
        pending.append(f"{emitter.value(tensor)}.data = {emitter.value(data)}")
    for source, contents in session.changed_cells():
        target = emitter.source(source)
        if contents is DELETED:
            pending.append(f"del {target}.cell_contents")
        else:
            pending.append(f"{target}.cell_contents = {emitter.value(contents)}")
    for variable, value in session.state_writes.values():
        pending.append(f"{emitter.constant(variable)}.set({emitter.value(value)})")
    emit_warnings(emitter, pending)
    emitter.lines.extend(pending)


def _empty(member: Any, owner: Any) -> None:
    """Delete a slot that may have been empty all along."""
    with contextlib.suppress(AttributeError):
        member.__delete__(owner)


def _container(emitter: Emitter, shadow: Shadow, pending: list[str]) -> None:
    copy = shadow.copy
    if shadow.owner is not None:
        _instance(emitter, shadow, pending)
        return
    target = emitter.source(shadow.source)
    if id(copy) in emitter.session.unread and not isinstance(copy, set):
        _unread(emitter, shadow, target, pending)
    elif isinstance(copy, dict):
        _mapping(emitter, shadow, target, pending)
    elif isinstance(copy, set):
        before, now = set(shadow.snapshot), set(set.__iter__(copy))
        for item in before - now:
            pending.append(f"set.discard({target}, {emitter.value(item)})")
        for item in now - before:
            pending.append(f"set.add({target}, {emitter.value(item)})")
    elif isinstance(copy, collections.deque):
        items = emitter.value(tuple(copy))
        pending.append(f"{target}.clear(); {target}.extend({items})")
    else:
        items = emitter.value(tuple(list.__iter__(copy)))
        pending.append(f"list.__setitem__({target}, slice(None), {items})")


def _unread(emitter: Emitter, shadow: Shadow, target: str, pending: list[str]) -> None:
    """What was added goes behind whatever the live list holds by then; what was taken was its front."""
    kind = "list" if isinstance(shadow.copy, list) else emitter.constant(collections.deque)
    if shadow.taken and kind == "list":
        pending.append(f"list.__delitem__({target}, slice({shadow.taken}))")
    else:
        pending.extend([f"{kind}.popleft({target})"] * shadow.taken)
    added = tuple(item for item in snapshot(shadow.copy) if type(item) is not Unread)
    if added:
        pending.append(f"{kind}.extend({target}, {emitter.value(added)})")


def _mapping(emitter: Emitter, shadow: Shadow, target: str, pending: list[str]) -> None:
    before = dict(zip(shadow.snapshot[::2], shadow.snapshot[1::2], strict=True))
    flat = snapshot(shadow.copy)
    now = dict(zip(flat[::2], flat[1::2], strict=True))
    ordered = isinstance(shadow.copy, collections.OrderedDict)
    cls = emitter.constant(collections.OrderedDict) if ordered else "dict"
    kept = [key for key in before if key in now]
    added = [key for key in now if key not in before]
    if kept + added == list(now):
        for key in before:
            if key not in now:
                pending.append(f"{cls}.__delitem__({target}, {emitter.value(key)})")
        for key, value in now.items():
            if key not in before or not same(before[key], value):
                pending.append(
                    f"{cls}.__setitem__({target}, {emitter.value(key)}, {emitter.value(value)})"
                )
        return
    if not shadow.keys_guarded:
        emitter.session.guard_keys(shadow)
    pairs = [(emitter.value(key), emitter.value(value)) for key, value in now.items()]
    pending.append(f"{cls}.clear({target})")
    pending.extend(f"{cls}.__setitem__({target}, {key}, {value})" for key, value in pairs)


def _instance(emitter: Emitter, shadow: Shadow, pending: list[str]) -> None:
    before: dict[Any, Any] = dict(zip(shadow.snapshot[::2], shadow.snapshot[1::2], strict=True))
    owner = emitter.value(shadow.owner)
    for name, value in shadow.copy.items():
        if name not in before or not same(before[name], value):
            pending.append(f"{owner}.__dict__[{name!r}] = {emitter.value(value)}")
    for name in before:
        if name not in shadow.copy:
            pending.append(f"del {owner}.__dict__[{name!r}]")


def _attributes(emitter: Emitter, shadow: Shadow, pending: list[str]) -> None:
    assert shadow.attributes is not None
    target = emitter.source(shadow.source)
    now = vars(shadow.copy)
    for name, value in now.items():
        if name not in shadow.attributes or not same(shadow.attributes[name], value):
            pending.append(f"{target}.__dict__[{name!r}] = {emitter.value(value)}")
    for name in shadow.attributes:
        if name not in now:
            pending.append(f"del {target}.__dict__[{name!r}]")
