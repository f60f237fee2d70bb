"""Subscripts, membership, lengths and searches in the interpreter's containers.

In: a container, made by the program or standing for one from outside (`values.shadows`), and a key or an element.
A special method written in Python is interpreted. Invariant: what is told of a container from outside is guarded, and
no more than that; what the program writes itself tells nothing of the container outside.
"""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo.values import asked, iteration, operators, unread
from dynamo.values.attributes import call_special, special
from dynamo.values.shadows import Lazy
from dynamo.values.unread import NOT_HERE, open_all
from dynamo.values.wrap import open_container, require_no_storage
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = [
    "contains",
    "contains_plain",
    "delete_subscript",
    "dict_item",
    "length",
    "list_search",
    "mapping_items",
    "store_subscript",
    "subscript",
]


def contains(machine: Machine, container: Any, item: Any) -> bool:
    """`item in container`."""
    kind = type(container)
    method = special(kind, "__contains__")
    if method is not None:
        return operators.truth(machine, call_special(machine, method, container, item))
    if isinstance(container, dict):
        item = operators.as_key(machine, item)
        found = dict.__contains__(container, item)
        asked.guard_presence(machine, container, item, found=found)
        return found
    if isinstance(container, set | frozenset | str | bytes | range):
        item = operators.as_key(machine, item)
        if id(container) in machine.session.unread:
            return unread.ask(
                machine.session, container, unread.contains_in_set, operator.contains, item
            )
        return bool(item in container)
    if isinstance(container, torch.Tensor):
        found = iteration.overridden(machine, torch.Tensor.__contains__, container, item)
        if found is NotImplemented:
            found = operator.contains(container, item)
        return operators.truth(machine, found)
    if isinstance(container, list | tuple):
        open_container(machine.session, container)
        return _sequence_contains(machine, container, item)
    if hasattr(kind, "__contains__"):
        open_container(machine.session, container)
        return bool(item in container)
    if isinstance(container, type):
        found_method = special(type(container), "__contains__")
        if found_method is not None:
            return operators.truth(machine, call_special(machine, found_method, container, item))
        return bool(operator.contains(container, item))  # type: ignore[arg-type]
    for value in iteration.iterate(machine, container):
        if value is item or operators.truth(
            machine, operators.compare(machine, operator.eq, value, item)
        ):
            return True
    return False


def _sequence_contains(machine: Machine, container: Any, item: Any) -> bool:
    for value in container:
        if value is item:
            return True
        if type(value) is Lazy:
            value = machine.session.resolve(value)  # noqa: PLW2901 - the element itself
            if value is item:
                return True
        if operators.truth(machine, operators.compare(machine, operator.eq, value, item)):
            return True
    return False


def subscript(machine: Machine, container: Any, key: Any) -> Any:
    """`container[key]`."""
    kind = type(container)
    if kind is list or kind is tuple:
        if type(key) is slice and not _plain_slice(key):
            key = _sized(key)
        if id(container) in machine.session.unread:
            return unread.ask(machine.session, container, unread.element, operator.getitem, key)
        value = container[key]
        return machine.session.resolve(value) if type(value) is Lazy else value
    if kind is FakeTensor and not machine.session.recorder.kinds:
        return container[_prepare_index(machine, key)]
    if kind is dict:
        return dict_item(machine, container, key)
    kind = machine.session.recorder.kinds.get(id(container), kind)
    method = special(kind, "__getitem__")
    if method is not None:
        machine.session.guard_class_attribute(kind, "__getitem__", method)
        return call_special(machine, method, container, key)
    if isinstance(container, torch.Tensor):
        return container[_prepare_index(machine, key)]
    if isinstance(container, dict):
        return dict_item(machine, container, key)
    if isinstance(container, type):
        getter = special(type(container), "__getitem__")
        if getter is not None:
            if type(container).__module__ == "enum":
                return container[key]  # type: ignore[index]
            return call_special(machine, getter, container, key)
        maker = getattr(container, "__class_getitem__", None)
        if getattr(maker, "__module__", None) == "typing":  # an alias, which says nothing of values
            return container[key]  # type: ignore[index]
        if maker is not None and not isinstance(maker, types.BuiltinMethodType):
            from dynamo.values import calls

            return calls.call(machine, maker, (key,), {})
    if id(container) in machine.session.unread:
        return unread.ask(machine.session, container, unread.element, operator.getitem, key)
    require_no_storage(container)
    return machine.session.resolve(container[key])


def _plain_slice(key: slice) -> bool:
    return all(type(part) in (int, type(None)) for part in (key.start, key.stop, key.step))


def _sized(key: slice) -> slice:
    return slice(
        *(
            part if part is None else operator.index(part)
            for part in (key.start, key.stop, key.step)
        )
    )


def _prepare_index(machine: Machine, key: Any) -> Any:
    if type(key) is list:
        asked.force(machine, key)
    elif machine.session.unread:
        open_all(machine.session, key)
    return key


def contains_plain(machine: Machine, container: Any, key: Any) -> bool:
    """Whether a dict has a key, by `dict`'s own method."""
    key = operators.as_key(machine, key)
    found = dict.__contains__(container, key)
    asked.guard_presence(machine, container, key, found=found)
    return found


def list_search(machine: Machine, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
    """`list.index`, `remove` and `count`, comparing as the program would."""
    wanted = args[0]
    open_container(machine.session, owner)
    start, stop = 0, len(owner)
    if name == "index" and len(args) > 1:
        start, stop, _ = (
            slice(*args[1:]).indices(len(owner))
            if len(args) > 2
            else slice(args[1], None).indices(len(owner))
        )
    count = 0
    for i in range(start, stop):
        item = machine.session.resolve(owner[i])
        if item is wanted or operators.truth(
            machine, operators.compare(machine, operator.eq, item, wanted)
        ):
            if name == "index":
                return i
            if name == "remove":
                del owner[i]
                return None
            count += 1
    if name == "index":
        raise ValueError(f"{wanted!r} is not in list")
    if name == "remove":
        raise ValueError("list.remove(x): x not in list")
    return count


def dict_item(machine: Machine, container: Any, key: Any) -> Any:
    """`dict.__getitem__`, with `__missing__` and default factories."""
    key = operators.as_key(machine, key)
    session = machine.session
    shadow = session.shadows_by_copy.get(id(container))
    if shadow is not None and not dict.__contains__(container, key):
        missing = special(type(container), "__missing__")
        asked.guard_presence(machine, container, key, found=False)
        if missing is not None:
            return call_special(machine, missing, container, key)
        factory = getattr(container, "default_factory", None)
        if factory is not None:
            from dynamo.values import calls

            value = calls.call(machine, factory, (), {})
            dict.__setitem__(container, key, value)
            return value
    value = dict.__getitem__(container, key) if shadow is not None else container[key]
    if type(value) is Lazy:
        return session.resolve(value)
    if shadow is not None:
        asked.guard_presence(machine, container, key, found=True)
    return value


def store_subscript(machine: Machine, container: Any, key: Any, value: Any) -> None:
    """`container[key] = value`."""
    kind = machine.session.recorder.kinds.get(id(container), type(container))
    method = special(kind, "__setitem__")
    if method is not None:
        call_special(machine, method, container, key, value)
        return
    if isinstance(container, torch.Tensor):
        container[_prepare_index(machine, key)] = value
        return
    if isinstance(container, dict):
        key = operators.as_key(machine, key)
        asked.note_write(machine, container, key)
    elif isinstance(container, list) and type(key) is slice:
        value = list(iteration.iterate(machine, value))
        if key == slice(None) and type(container) is list:
            _cleared(machine, container)
    require_no_storage(container)
    open_container(machine.session, container)
    container[key] = value


def _cleared(machine: Machine, container: Any) -> None:
    shadow = machine.session.unread.get(id(container))
    if shadow is not None:
        unread.method(machine.session, shadow, "clear", ())


def delete_subscript(machine: Machine, container: Any, key: Any) -> None:
    """`del container[key]`."""
    method = special(type(container), "__delitem__")
    if method is not None:
        call_special(machine, method, container, key)
        return
    if isinstance(container, dict):
        key = operators.as_key(machine, key)
        asked.guard_keys(machine, container)
    shadow = machine.session.unread.get(id(container))
    if shadow is not None:
        if key == 0 and unread.take_first(machine.session, shadow, dropped=True) is not NOT_HERE:
            return
        open_container(machine.session, container)
    del container[key]


def length(machine: Machine, value: Any) -> Any:
    """`len(value)`."""
    if type(value) is FakeTensor:
        found = iteration.overridden(machine, torch.Tensor.__len__, value)
        if found is not NotImplemented:
            return found
        return value.shape[0] if value.dim() else len(value)
    method = special(type(value), "__len__")
    if method is not None:
        machine.session.guard_class_attribute(type(value), "__len__", method)
        return call_special(machine, method, value)
    if isinstance(value, dict):
        asked.guard_keys(machine, value)
    elif id(value) in machine.session.unread:
        return unread.ask(machine.session, value, unread.length, len)
    return len(value)


def mapping_items(machine: Machine, value: Any) -> dict[Any, Any]:
    """The items of a mapping, as `**value` sees them."""
    if isinstance(value, dict):
        asked.guard_keys(machine, value)
        if special(type(value), "keys") is None and special(type(value), "__getitem__") is None:
            return {key: dict.__getitem__(value, key) for key in list(value)}
    from dynamo.values import attributes, calls

    keys = attributes.load(machine, value, "keys")
    return {
        key: subscript(machine, value, key)
        for key in iteration.iterate(machine, calls.call(machine, keys, (), {}))
    }
