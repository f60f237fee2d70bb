"""Operators, comparisons, truth, subscripts and iteration on the interpreter's values.

A special method written in Python is interpreted; everything else is Python's own operator on the values,
which for tensors records into the graph (`dynamo.graph.recorder`).
"""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import Guard, GuardKind
from dynamo.source import ConstantSource
from dynamo.values import unread
from dynamo.values.attributes import special
from dynamo.values.generators import TracedGenerator
from dynamo.values.iterators import AheadIterator
from dynamo.values.shadows import Lazy
from dynamo.values.unread import NOT_HERE, open_all
from dynamo.values.wrap import CONSTANTS, open_container
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynamo.machine.interpreter import Machine

__all__ = [
    "advance",
    "as_key",
    "binary",
    "check_hashable",
    "compare",
    "contains",
    "contains_plain",
    "delete_subscript",
    "dict_item",
    "force",
    "get_iterator",
    "guard_keys",
    "identical",
    "iterate",
    "length",
    "list_search",
    "mapping_items",
    "note_write",
    "plain_numbers",
    "send",
    "store_subscript",
    "subscript",
    "take",
    "truth",
    "unary",
]

_METHODS: dict[Callable[..., Any], tuple[str | None, str, str]] = {}
for _name in (
    "add", "and", "floordiv", "lshift", "matmul", "mul", "mod", "or", "pow", "rshift", "sub",
    "truediv", "xor",
):  # fmt: skip
    _METHODS[getattr(operator, {"and": "and_", "or": "or_"}.get(_name, _name))] = (
        None, f"__{_name}__", f"__r{_name}__",
    )  # fmt: skip
    _METHODS[getattr(operator, f"i{_name}")] = (f"__i{_name}__", f"__{_name}__", f"__r{_name}__")
_REFLECTED = {
    operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.eq: ("__eq__", "__eq__"),
    operator.ne: ("__ne__", "__ne__"),
    operator.gt: ("__gt__", "__lt__"),
    operator.ge: ("__ge__", "__le__"),
}
_PLAIN: frozenset[type] = CONSTANTS | {
    FakeTensor,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
}
_CONTAINERS = (list, tuple, dict, set, frozenset)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _call(machine: Machine, function: Any, *args: Any) -> Any:
    return machine.inline(function, args, {})


def _class_of(kinds: dict[int, type], value: Any) -> type:
    """The class whose special methods decide, where tensors of other classes take part."""
    kind = type(value)
    if kind is not FakeTensor or not kinds:
        return kind
    return kinds.get(id(value), torch.Tensor)


def _simple(value: Any) -> bool:
    return type(value) in _PLAIN


# -- arithmetic ----------------------------------------------------------------------------------------


def binary(machine: Machine, function: Callable[..., Any], left: Any, right: Any) -> Any:
    """`left <op> right`, in place for the in-place operators."""
    kinds = machine.session.recorder.kinds
    if type(left) in _PLAIN and type(right) in _PLAIN and not kinds:
        if type(left) is str:
            right = plain_numbers(right)
        if type(left) is torch.SymFloat or type(right) is torch.SymFloat:
            from dynamo.values import real_numbers

            result = real_numbers.binary(function, left, right)
            if result is not NotImplemented:
                return result
        return function(left, right)
    in_place, forward, backward = _METHODS[function]
    kind_left, kind_right = _class_of(kinds, left), _class_of(kinds, right)
    if in_place is not None:
        method = special(kind_left, in_place)
        if method is not None:
            result = _call(machine, method, left, right)
            if result is not NotImplemented:
                return result
    first = special(kind_left, forward)
    second = special(kind_right, backward)
    if function is operator.iadd and id(left) in machine.session.unread:
        return _extended(machine, left, right)
    if first is None and second is None:
        _prepare(machine, left)
        _prepare(machine, right)
        return function(left, plain_numbers(right) if kind_left is str else right)
    if second is not None and kind_left is not kind_right and issubclass(kind_right, kind_left):
        result = _call(machine, second, right, left)
        if result is not NotImplemented:
            return result
        second = None
    if first is not None:
        result = _call(machine, first, left, right)
        if result is not NotImplemented:
            return result
    elif hasattr(kind_left, forward) and not isinstance(left, torch.Tensor):
        result = getattr(kind_left, forward)(left, right)
        if result is not NotImplemented:
            return result
    if second is not None and kind_left is not kind_right:
        result = _call(machine, second, right, left)
        if result is not NotImplemented:
            return result
    symbol = forward.strip("_")
    raise TypeError(
        f"unsupported operand type(s) for {symbol}: '{kind_left.__name__}' and "
        f"'{kind_right.__name__}'"
    )


def _extended(machine: Machine, left: Any, right: Any) -> Any:
    """`left += right` of a list that the program has not read."""
    session = machine.session
    items = list(iterate(machine, right))
    shadow = session.unread.get(id(left))  # `right` may have been the same list
    if shadow is None or unread.method(session, shadow, "extend", (items,)) is NOT_HERE:
        open_container(session, left)
        left.extend(items)
    return left


def unary(machine: Machine, function: Callable[..., Any], value: Any) -> Any:
    """`-value`, `+value`, `~value`."""
    method = special(
        machine.session.recorder.kinds.get(id(value), type(value)),
        {"neg": "__neg__", "pos": "__pos__"}.get(getattr(function, "__name__", ""), "__invert__"),
    )
    return function(value) if method is None else _call(machine, method, value)


def compare(machine: Machine, function: Callable[..., Any], left: Any, right: Any) -> Any:
    """`left <comparison> right`."""
    kinds = machine.session.recorder.kinds
    kind_left, kind_right = _class_of(kinds, left), _class_of(kinds, right)
    if kind_left in _PLAIN and kind_right in _PLAIN:
        return function(left, right)
    forward, backward = _REFLECTED[function]
    first = special(kind_left, forward)
    second = special(kind_right, backward)
    if first is None and second is None:
        if function is operator.ne and special(kind_left, "__eq__") is not None:
            result = compare(machine, operator.eq, left, right)
            return result if result is NotImplemented else not truth(machine, result)
        _prepare(machine, left)
        _prepare(machine, right)
        if isinstance(left, _CONTAINERS) and isinstance(right, _CONTAINERS):
            check_plain_contents(machine, left)
            check_plain_contents(machine, right)
        return function(left, right)
    if first is not None:
        result = _call(machine, first, left, right)
        if result is not NotImplemented:
            return result
    elif kind_left in CONSTANTS or isinstance(left, _CONTAINERS):
        result = getattr(kind_left, forward)(left, right)
        if result is not NotImplemented:
            return result
    if second is not None:
        result = _call(machine, second, right, left)
        if result is not NotImplemented:
            return result
    if function is operator.eq:
        return left is right
    if function is operator.ne:
        return left is not right
    raise TypeError(
        f"'{forward}' not supported between instances of '{kind_left.__name__}' and "
        f"'{kind_right.__name__}'"
    )


def identical(machine: Machine, left: Any, right: Any) -> bool:
    """`left is right`; that two objects from outside are two is guarded."""
    if left is right:
        return True
    session = machine.session
    if type(left) in CONSTANTS or type(right) in CONSTANTS:
        return False
    first, second = session.source_of(left), session.source_of(right)
    if first is None or second is None or session.is_created(left) or session.is_created(right):
        return False
    if type(first) is not ConstantSource and type(second) is not ConstantSource:
        key = (GuardKind.DISTINCT, first, second)
        if key not in session.guards:
            session.guards[key] = Guard(first, GuardKind.DISTINCT, (second,), session.source_line)
    return False


def truth(machine: Machine, value: Any) -> bool:
    """`bool(value)`."""
    kind = type(value)
    if kind is bool:
        return bool(value)
    if isinstance(value, torch.Tensor) and (
        kind is FakeTensor or special(kind, "__bool__") is None
    ):
        return bool(machine.session.recorder.data_dependent_truth(value))
    method = special(kind, "__bool__")
    if method is not None:
        result = _call(machine, method, value)
        if not isinstance(result, bool):
            raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
        return result
    if not isinstance(value, type):
        method = special(kind, "__len__")
        if method is not None and not hasattr(kind, "__bool__"):
            return bool(_call(machine, method, value))
    if isinstance(value, dict):
        guard_keys(machine, value)
    elif id(value) in machine.session.unread:
        return bool(unread.ask(machine.session, value, unread.truth, bool))
    return bool(value)


# -- containers ----------------------------------------------------------------------------------------


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


def _prepare(machine: Machine, value: Any) -> None:
    if isinstance(value, dict | list):
        force(machine, value)
    elif machine.session.unread:
        open_all(machine.session, value)


def check_plain_contents(machine: Machine, value: Any, depth: int = 0) -> None:
    """Refuse a native comparison of containers that would run the user's `__eq__` unseen."""
    if depth > 8:
        raise GraphBreak(BreakReason.UNSUPPORTED_OPERATION, "a container is nested too deeply")
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    for item in items:
        if isinstance(item, _CONTAINERS):
            _prepare(machine, item)
            check_plain_contents(machine, item, depth + 1)
        elif special(type(item), "__eq__") is not None and not _known_equality(type(item)):
            raise GraphBreak(
                BreakReason.UNSUPPORTED_OPERATION,
                f"{type(item).__qualname__} objects are compared inside a container",
            )


def _known_equality(kind: type) -> bool:
    module = kind.__module__.partition(".")[0]
    return module in ("torch", "enum", "pathlib")


def as_key(machine: Machine, value: Any) -> Any:
    """A key of a dict or set: symbolic numbers in it become numbers, a user's own hash is refused."""
    if type(value) in _SYMBOLIC or type(value) is tuple:
        value = plain_numbers(value)
    check_hashable(machine, value)
    return value


def check_hashable(machine: Machine, value: Any) -> None:
    """Refuse to run a user's `__hash__` or `__eq__` natively, if that could differ from interpreting it."""
    kind = type(value)
    if kind in CONSTANTS or kind is FakeTensor:  # a tensor's hash is its identity
        return
    if isinstance(value, tuple | frozenset):
        for item in value:
            check_hashable(machine, item)
        return
    method = special(kind, "__hash__")
    if method is not None and method.__module__ != "enum":
        if method.__code__.co_filename == "<string>":
            return  # generated by dataclass: a hash of the fields
        _check_own_hash(machine, value, method)


def _check_own_hash(machine: Machine, value: Any, method: Any) -> None:
    """Interpret `__hash__` and `__eq__`, which guards what they read; natively they must say the same."""
    session = machine.session
    kind = type(value)
    graph = session.recorder.graph
    count = len(graph.nodes)
    told = _call(machine, method, value)
    equal = special(kind, "__eq__")
    same = True if equal is None else truth(machine, _call(machine, equal, value, value))
    plain = id(value) not in session.instance_dicts or session.is_created(value)
    if len(graph.nodes) != count or not plain or same is not True or told != hash(value):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_OPERATION, f"{kind.__qualname__} objects are used as keys"
        )


def contains(machine: Machine, container: Any, item: Any) -> bool:
    """`item in container`."""
    kind = type(container)
    method = special(kind, "__contains__")
    if method is not None:
        return truth(machine, _call(machine, method, container, item))
    if isinstance(container, dict):
        item = as_key(machine, item)
        found = dict.__contains__(container, item)
        _guard_presence(machine, container, item, found=found)
        return found
    if isinstance(container, set | frozenset | str | bytes | range):
        item = as_key(machine, item)
        if id(container) in machine.session.unread:
            return unread.ask(
                machine.session, container, unread.contains_in_set, operator.contains, item
            )
        return bool(item in container)
    if isinstance(container, torch.Tensor):
        found = _overridden(machine, torch.Tensor.__contains__, container, item)
        if found is NotImplemented:
            found = operator.contains(container, item)
        return truth(machine, found)
    if isinstance(container, list | tuple):
        open_container(machine.session, container)
        return _sequence_contains(machine, container, item)
    if hasattr(kind, "__contains__"):
        open_container(machine.session, container)
        return bool(item in container)
    if isinstance(container, type):
        found_method = special(type(container), "__contains__")
        if found_method is not None:
            return truth(machine, _call(machine, found_method, container, item))
        return bool(operator.contains(container, item))  # type: ignore[arg-type]
    for value in iterate(machine, container):
        if value is item or truth(machine, compare(machine, operator.eq, value, item)):
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
        if truth(machine, compare(machine, operator.eq, value, item)):
            return True
    return False


def _guard_presence(machine: Machine, container: Any, key: Any, *, found: bool) -> None:
    shadow = machine.session.shadows_by_copy.get(id(container))
    if shadow is None or shadow.keys_guarded:
        return
    if key in shadow.asked:
        return  # as the program left it
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
        return _dict_item(machine, container, key)
    kind = machine.session.recorder.kinds.get(id(container), kind)
    method = special(kind, "__getitem__")
    if method is not None:
        machine.session.guard_class_attribute(kind, "__getitem__", method)
        return _call(machine, method, container, key)
    if isinstance(container, torch.Tensor):
        return container[_prepare_index(machine, key)]
    if isinstance(container, dict):
        return _dict_item(machine, container, key)
    if isinstance(container, type):
        getter = special(type(container), "__getitem__")
        if getter is not None:
            if type(container).__module__ == "enum":
                return container[key]  # type: ignore[index]
            return _call(machine, getter, container, key)
        maker = getattr(container, "__class_getitem__", None)
        if getattr(maker, "__module__", None) == "typing":  # an alias, which says nothing of values
            return container[key]  # type: ignore[index]
        if maker is not None and not isinstance(maker, types.BuiltinMethodType):
            from dynamo.values import calls

            return calls.call(machine, maker, (key,), {})
    if id(container) in machine.session.unread:
        return unread.ask(machine.session, container, unread.element, operator.getitem, key)
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
        force(machine, key)
    elif machine.session.unread:
        open_all(machine.session, key)
    return key


def contains_plain(machine: Machine, container: Any, key: Any) -> bool:
    """Whether a dict has a key, by `dict`'s own method."""
    key = as_key(machine, key)
    found = dict.__contains__(container, key)
    _guard_presence(machine, container, key, found=found)
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
        if item is wanted or truth(machine, compare(machine, operator.eq, item, wanted)):
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
    return _dict_item(machine, container, key)


def _dict_item(machine: Machine, container: Any, key: Any) -> Any:
    key = as_key(machine, key)
    session = machine.session
    shadow = session.shadows_by_copy.get(id(container))
    if shadow is not None and not dict.__contains__(container, key):
        missing = special(type(container), "__missing__")
        _guard_presence(machine, container, key, found=False)
        if missing is not None:
            return _call(machine, missing, container, key)
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
        _guard_presence(machine, container, key, found=True)
    return value


def store_subscript(machine: Machine, container: Any, key: Any, value: Any) -> None:
    """`container[key] = value`."""
    kind = machine.session.recorder.kinds.get(id(container), type(container))
    method = special(kind, "__setitem__")
    if method is not None:
        _call(machine, method, container, key, value)
        return
    if isinstance(container, torch.Tensor):
        container[_prepare_index(machine, key)] = value
        return
    if isinstance(container, dict):
        key = as_key(machine, key)
        note_write(machine, container, key)
    elif isinstance(container, list) and type(key) is slice:
        value = list(iterate(machine, value))
        if key == slice(None) and type(container) is list:
            _cleared(machine, container)
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
        _call(machine, method, container, key)
        return
    if isinstance(container, dict):
        key = as_key(machine, key)
        guard_keys(machine, container)
    shadow = machine.session.unread.get(id(container))
    if shadow is not None:
        if key == 0 and unread.take_first(machine.session, shadow, dropped=True) is not NOT_HERE:
            return
        open_container(machine.session, container)
    del container[key]


def _overridden(machine: Machine, function: Any, *args: Any) -> Any:
    """What the overrides of a tensor's class make of one of its special methods; NotImplemented without."""
    overrides = machine.session.recorder.overrides
    if not overrides.met:
        return NotImplemented
    return overrides.dispatch(machine, function, args, {})


def length(machine: Machine, value: Any) -> Any:
    """`len(value)`."""
    if type(value) is FakeTensor:
        found = _overridden(machine, torch.Tensor.__len__, value)
        if found is not NotImplemented:
            return found
        return value.shape[0] if value.dim() else len(value)
    method = special(type(value), "__len__")
    if method is not None:
        machine.session.guard_class_attribute(type(value), "__len__", method)
        return _call(machine, method, value)
    if isinstance(value, dict):
        guard_keys(machine, value)
    elif id(value) in machine.session.unread:
        return unread.ask(machine.session, value, unread.length, len)
    return len(value)


# -- iteration -----------------------------------------------------------------------------------------


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
        return _call(self.machine, method, self.inner)


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
        try:
            value = subscript(self.machine, self.inner, self.index)
        except IndexError:
            raise StopIteration from None
        self.index += 1
        return value


def get_iterator(machine: Machine, value: Any) -> Any:
    """`iter(value)`; always an object that `advance` and C code can drive."""
    kind = type(value)
    if machine.session.unread:
        open_container(machine.session, value)
    if kind is list or kind is tuple or kind is TracedGenerator or kind is AheadIterator:
        return iter(value)
    if isinstance(value, torch.Tensor):
        found = _overridden(machine, torch.Tensor.__iter__, value)
        if found is not NotImplemented:
            return found
        return iter(machine.session.recorder.unbind(value))
    method = special(kind, "__iter__")
    if method is not None:
        machine.session.guard_class_attribute(kind, "__iter__", method)
        iterator = _call(machine, method, value)
        if special(type(iterator), "__next__") is not None and not isinstance(
            iterator, UserIterator | SequenceIterator | TracedGenerator | AheadIterator
        ):
            return UserIterator(machine, iterator)
        return iterator
    if isinstance(value, dict):
        guard_keys(machine, value)
        return iter(value)
    if isinstance(value, type):
        meta = special(type(value), "__iter__")
        if meta is not None:
            if type(value).__module__ == "enum":
                return iter(value)  # type: ignore[call-overload]
            return _call(machine, meta, value)
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


def mapping_items(machine: Machine, value: Any) -> dict[Any, Any]:
    """The items of a mapping, as `**value` sees them."""
    if isinstance(value, dict):
        guard_keys(machine, value)
        if special(type(value), "keys") is None and special(type(value), "__getitem__") is None:
            return {key: dict.__getitem__(value, key) for key in list(value)}
    from dynamo.values import attributes, calls

    keys = attributes.load(machine, value, "keys")
    return {
        key: subscript(machine, value, key)
        for key in iterate(machine, calls.call(machine, keys, (), {}))
    }


def send(machine: Machine, receiver: Any, value: Any) -> Any:
    """One step of `yield from`."""
    if isinstance(receiver, TracedGenerator):
        return receiver.send(value)
    if value is None:
        return advance(machine, receiver)
    from dynamo.values import attributes, calls

    return calls.call(machine, attributes.load(machine, receiver, "send"), (value,), {})


def plain_numbers(value: Any) -> Any:
    """`value` with symbolic numbers specialised: what text is made of."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(map(plain_numbers, value))
    if kind is torch.Size:
        return torch.Size(map(plain_numbers, value))
    if kind is dict:
        return {plain_numbers(key): plain_numbers(item) for key, item in value.items()}
    return value
