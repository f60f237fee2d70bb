"""From an outside object and its source to the interpreter's value, with the guards that it needs.

Tensors become fake, containers are copied, constants guarded by value, everything else by type or identity.
The same object reached twice gives the same value and a guard that both paths lead to it.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import pathlib
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from dynamo.errors import BreakReason, GraphBreak, RunsAsItIs
from dynamo.guards import GuardKind
from dynamo.source import (
    OVER_CONTAINERS,
    AttributeSource,
    ConstantSource,
    DictItemSource,
    DictKeySource,
    InstanceAttributeSource,
    ItemSource,
    LocalSource,
)
from dynamo.values.arrays import array_from_outside
from dynamo.values.iterators import iterator_from_outside
from dynamo.values.shadows import Lazy, Unread

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.source import Source
    from dynamo.values.session import Session

__all__ = ["CONSTANTS", "guard_new_object", "is_constant", "open_container", "wrap"]

_HEAP_TYPE = 1 << 9
_IMMUTABLE_TYPE = 1 << 8  # made by C code, on the heap or not: `re.Pattern`
_VIEWS: tuple[type, ...] = tuple(type(make({})) for make in (dict.keys, dict.values, dict.items))
_STORAGES = (torch.UntypedStorage, torch.TypedStorage)
CONSTANTS: frozenset[type] = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(Ellipsis),
        type(NotImplemented),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
_IDENTITY: tuple[type, ...] = (
    types.ModuleType,
    type,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.CodeType,
    enum.Enum,
    np.dtype,
    np.ufunc,
    *((torch.distributed.ProcessGroup,) if torch.distributed.is_available() else ()),
)


def is_constant(value: Any) -> bool:
    """Whether a value is an immutable constant of a kind that guards compare by value."""
    kind = type(value)
    if kind in CONSTANTS:
        return True
    if kind is tuple or kind is frozenset:
        return all(is_constant(item) for item in value)
    return isinstance(value, enum.Enum)


def wrap(session: Session, value: Any, source: Source) -> Any:
    """The interpreter's value for the outside object `value`, found at `source`."""
    kind = type(value)
    if kind in CONSTANTS:
        return _constant(session, value, source)
    known = session.shadows.get(id(value))
    if known is not None:
        _same_object(session, known.source, source)
        return known.copy
    wrapper = _WRAPPERS.get(kind)
    if wrapper is not None:
        return wrapper(session, value, source)
    if isinstance(value, torch.Tensor):
        return _tensor(session, value, source)
    found = session.sources.get(id(value))
    if found is not None:
        _same_object(session, found, source)
        return value
    if isinstance(value, _IDENTITY):
        session.guard(GuardKind.IDENTITY, source, value)
        session.remember(value, source)
        return value
    if isinstance(value, dict | list | set | collections.deque):
        return _container(session, value, source)
    if isinstance(value, tuple):
        return _tuple(session, value, source)
    return guard_new_object(session, value, source)


def guard_new_object(session: Session, value: Any, source: Source) -> Any:
    """An object with attributes: itself, its class guarded.

    Objects that are read as a value (paths, numpy's scalars, subclasses of numbers and text) are guarded by value,
    other objects of C types, whose state capture cannot see, by identity. Memory that anybody may write into
    (`bytearray`, `array.array`, a memoryview) is refused: no guard sees its bytes.
    """
    if isinstance(value, int | float | complex | str | bytes | np.generic | pathlib.PurePath):
        session.guard(GuardKind.EQUAL, source, value)
        session.remember(value, source)
        return value
    if isinstance(value, np.ndarray):
        raise session.refuse(f"{source.name()} is a {type(value).__name__} of numpy")
    if _is_memory(value):
        raise session.refuse(f"{source.name()} is memory, a {type(value).__name__}")
    if type(value).__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) != _HEAP_TYPE:
        if type(value) in (weakref.ProxyType, weakref.CallableProxyType):
            from dynamo.values.references import proxy_from_outside  # it needs this module

            return proxy_from_outside(session, value, source)
        if hasattr(type(value), "__next__"):
            return _opaque_iterator(session, value, source)
        session.guard(GuardKind.IDENTITY, source, value)
        session.remember(value, source)
        return value
    session.guard(GuardKind.TYPE, source, type(value))
    session.remember(value, source)
    return value


def _is_memory(value: Any) -> bool:
    """Whether its bytes can be read, and perhaps written, past its methods."""
    try:
        memoryview(value).release()
    except (TypeError, ValueError, BufferError):
        return False
    return True


def require_no_storage(value: Any) -> None:
    """Raise a break if this is a tensor's storage: nothing guards what it holds, and no graph writes it."""
    if isinstance(value, _STORAGES):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a tensor's storage is read")


def _same_object(session: Session, first: Source, second: Source) -> None:
    if first is second or type(second) is ConstantSource or first == second:
        return
    if type(first) is ConstantSource:
        session.guard(GuardKind.IDENTITY, second, first.value)
    else:
        session.guard(GuardKind.SAME_OBJECT, second, first)


def _constant(session: Session, value: Any, source: Source) -> Any:
    kind = type(value)
    if (kind is int or kind is float) and session.recorder.sizes is not None:
        known = session.numbers.get(source)
        if known is not None:
            return known
        symbolic = session.recorder.sizes.scalar(source, value)
        if symbolic is not None:
            session.guard(GuardKind.TYPE, source, kind)
            session.numbers[source] = symbolic
            return symbolic
    session.guard(GuardKind.EQUAL, source, value)
    return value


def _tensor(session: Session, value: torch.Tensor, source: Source) -> Any:
    known = session.fakes.get(id(value))
    if known is not None:
        _same_object(session, session.sources[id(known)], source)
        return known
    if is_lazy(value):
        raise RunsAsItIs(f"{source.name()} gets its size in this call")
    return session.recorder.tensor_input(session, value, source)


def _container(session: Session, value: Any, source: Source) -> Any:
    kind: Any = type(value)
    session.guard(GuardKind.TYPE, source, kind)
    copy: Any
    if isinstance(value, dict):
        if isinstance(value, collections.defaultdict):
            copy = kind.__new__(kind)
            factory = value.default_factory
            copy.default_factory = (
                None
                if factory is None
                else wrap(session, factory, AttributeSource(source, "default_factory"))
            )
        else:
            copy = kind.__new__(kind)
        own_access = any(
            isinstance(getattr(kind, name, None), types.FunctionType)
            for name in ("__getitem__", "__missing__")
        )
        put = (
            collections.OrderedDict.__setitem__
            if isinstance(value, collections.OrderedDict)
            else dict.__setitem__
        )
        for index, key in enumerate(
            collections.OrderedDict.keys(value)
            if isinstance(value, collections.OrderedDict)
            else dict.keys(value)
        ):
            if own_access:
                put(copy, key, Lazy(dict.__getitem__(value, key), DictItemSource(source, key)))
                continue
            # The program looks a tensor up by the fake that stands for it.
            known_as = (
                wrap(session, key, DictKeySource(source, index))
                if isinstance(key, torch.Tensor)
                else key
            )
            put(copy, known_as, Lazy(dict.__getitem__(value, key), ItemSource(source, key)))
        _copy_attributes(value, copy, source)
        session.shadow_of(value, copy, source)
        return copy
    bound = value.maxlen if isinstance(value, collections.deque) else None
    if isinstance(value, collections.deque):
        copy = kind((), bound) if kind is collections.deque else kind.__new__(kind)
        session.guard(GuardKind.EQUAL, AttributeSource(source, "maxlen"), bound)
    else:
        copy = kind.__new__(kind)
    _copy_attributes(value, copy, source)
    if isinstance(value, set):
        set.add(copy, Unread())
    else:
        extend = list.extend if isinstance(value, list) else collections.deque.extend
        extend(copy, [Unread()])
    session.unread[id(copy)] = session.shadow_of(value, copy, source)
    if not session.lazily or (bound is not None and bound < 2):
        open_container(session, copy)
    return copy


def open_container(session: Session, container: Any) -> None:
    """Move the elements of an unread container in, each guarded, and the length with them."""
    shadow = session.unread.get(id(container))
    if shadow is None:
        return
    original, source = shadow.original, shadow.source
    if isinstance(container, set):
        session.guard(GuardKind.EQUAL, source, set(original))
        added = [item for item in set.__iter__(container) if type(item) is not Unread]
        for item in original:
            if not is_constant(item) and not isinstance(item, _IDENTITY):
                raise session.refuse(f"the set {source.name()} holds {type(item).__name__}")
        del session.unread[id(container)]
        set.clear(container)
        set.update(container, [i for i in original if i not in shadow.asked or i in added], added)
        shadow.snapshot = sorted(original, key=id)
        return
    session.guard(GuardKind.LENGTH, source, len(original))
    items = [wrap(session, item, ItemSource(source, i)) for i, item in enumerate(original)]
    kind: Any = list if isinstance(container, list) else collections.deque
    added = [item for item in kind.__iter__(container) if type(item) is not Unread]
    session.unread.pop(id(container), None)  # an element that holds it may have opened it
    kind.clear(container)
    kind.extend(container, items[shadow.taken :])
    kind.extend(container, added)
    shadow.snapshot = items
    shadow.taken = 0


def _copy_attributes(value: Any, copy: Any, source: Source) -> None:
    own = getattr(value, "__dict__", None)
    if own:
        for name, item in own.items():
            copy.__dict__[name] = Lazy(item, AttributeSource(source, name))


def _tuple(session: Session, value: tuple[Any, ...], source: Source) -> Any:
    found = session.sources.get(id(value))
    if found is not None:
        _same_object(session, found, source)
        return session.attribute_memo[(id(value), "<tuple>")]
    kind = type(value)
    session.guard(GuardKind.TYPE, source, kind)
    session.guard(GuardKind.LENGTH, source, len(value))
    items = [wrap(session, item, ItemSource(source, i)) for i, item in enumerate(value)]
    same = all(a is b for a, b in zip(items, value, strict=True))
    copy: Any
    if same and hasattr(kind, "n_sequence_fields"):
        copy = value  # some have one instance only: `sys.version_info`
    elif kind is torch.Size or hasattr(kind, "n_sequence_fields"):
        copy = kind(items)  # a struct sequence is made by its own type only
    else:
        copy = tuple.__new__(kind, items)
        _copy_attributes(value, copy, source)
    if not same or kind is not tuple:
        session.remember(copy, source)
        session.remember(value, source)
        session.attribute_memo[(id(value), "<tuple>")] = copy
        return copy
    session.remember(value, source)
    session.attribute_memo[(id(value), "<tuple>")] = value
    return value


def _function(session: Session, value: Any, source: Source) -> Any:
    found = session.sources.get(id(value))
    if found is not None:
        _same_object(session, found, source)
        return value
    session.remember(value, source)
    if isinstance(source, LocalSource | ItemSource | AttributeSource):
        # A function made anew for each call has the same code, not the same identity.
        session.guard(GuardKind.TYPE, source, types.FunctionType)
        session.guard(GuardKind.CODE, source, value.__code__)
    else:
        session.guard(GuardKind.IDENTITY, source, value)
    return value


def _method(session: Session, value: Any, source: Source) -> Any:
    session.guard(GuardKind.TYPE, source, type(value))
    function = wrap(session, value.__func__, AttributeSource(source, "__func__"))
    receiver = wrap(session, value.__self__, AttributeSource(source, "__self__"))
    method = types.MethodType(function, receiver)
    session.remember(method, source)
    return method


def _bound_builtin(session: Session, value: Any, source: Source) -> Any:
    receiver = value.__self__
    if (
        receiver is None
        or isinstance(receiver, types.ModuleType | type)
        or not hasattr(type(receiver), value.__name__)  # pybind11's functions hold their own record
    ):
        session.guard(GuardKind.IDENTITY, source, value)
        session.remember(value, source)
        return value
    session.guard(GuardKind.TYPE, source, type(value))
    session.guard(GuardKind.EQUAL, AttributeSource(source, "__name__"), value.__name__)
    owner = wrap(session, receiver, AttributeSource(source, "__self__"))
    return getattr(owner, value.__name__)


def _partial(session: Session, value: Any, source: Source) -> Any:
    session.guard(GuardKind.TYPE, source, type(value))
    function = wrap(session, value.func, AttributeSource(source, "func"))
    args = wrap(session, value.args, AttributeSource(source, "args"))
    keywords = AttributeSource(source, "keywords")
    session.guard(GuardKind.KEYS, keywords, tuple(value.keywords))
    named = {
        name: wrap(session, item, ItemSource(keywords, name))
        for name, item in value.keywords.items()
    }
    copy = functools.partial(function, *args, **named)
    for name, item in value.__dict__.items():
        copy.__dict__[name] = Lazy(item, InstanceAttributeSource(source, name))
    session.remember(copy, source)
    return copy


def _slice(session: Session, value: slice, source: Source) -> Any:
    session.guard(GuardKind.TYPE, source, slice)
    return slice(
        *(
            wrap(session, getattr(value, name), AttributeSource(source, name))
            for name in ("start", "stop", "step")
        )
    )


def _range(session: Session, value: range, source: Source) -> Any:
    session.guard(GuardKind.EQUAL, source, value)
    return value


def _frozenset(session: Session, value: frozenset[Any], source: Source) -> Any:
    by_identity = (*_IDENTITY, types.FunctionType)
    if not all(is_constant(item) or isinstance(item, by_identity) for item in value):
        raise session.refuse(f"the frozenset {source.name()} holds objects")
    session.guard(GuardKind.EQUAL, source, value)
    return value


def _dictionary_shown(
    session: Session, value: types.MappingProxyType[Any, Any], source: Source
) -> Any:
    """What somebody shows of a dictionary that he may change: guarded by what it holds.

    A read-only copy of it stands for it, so that two reads of one call see the same.
    """
    known = session.attribute_memo.get((id(value), "<shown>"))
    if known is not None:
        _same_object(session, session.sources[id(value)], source)
        return known
    by_identity = (*_IDENTITY, types.FunctionType, inspect.Parameter)
    if not all(
        is_constant(x) or isinstance(x, by_identity) for item in value.items() for x in item
    ):
        raise session.refuse(f"{source.name()} shows a dictionary of objects")
    shown = types.MappingProxyType(dict(value))
    session.guard(GuardKind.EQUAL, source, shown)
    session.remember(value, source)
    session.remember(shown, source)
    session.attribute_memo[id(value), "<shown>"] = shown
    return shown


def _view_of_dictionary(session: Session, value: Any, source: Source) -> Any:
    """Keys, values or items of a dictionary that capture did not see."""
    raise session.refuse(
        f"{source.name()} is a {type(value).__name__}: no guard sees its dictionary"
    )


def _opaque_iterator(session: Session, value: Any, source: Source) -> Any:
    """An iterator from outside is used up by looking at it: only real code may do that."""
    found = session.sources.get(id(value))
    if found is not None:
        _same_object(session, found, source)
        return value
    known = session.ahead.get(id(value))
    if known is not None:
        _same_object(session, known.source, source)
        return known
    if (made := iterator_from_outside(session, value, source)) is not None:
        return made
    session.guard(GuardKind.TYPE, source, type(value))
    session.remember(value, source)
    session.outside_iterators.add(id(value))
    return value


def _array(session: Session, value: Any, source: Source) -> Any:
    known = session.fakes.get(id(value))
    if known is not None:
        _same_object(session, session.sources[id(known)], source)
        return known
    return array_from_outside(session, value, source)


_WRAPPERS: dict[type, Callable[[Any, Any, Any], Any]] = {
    np.ndarray: _array,
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    list: _container,
    dict: _container,
    set: _container,
    collections.OrderedDict: _container,
    collections.defaultdict: _container,
    collections.deque: _container,
    collections.Counter: _container,
    tuple: _tuple,
    torch.Size: _tuple,
    types.FunctionType: _function,
    types.MethodType: _method,
    types.BuiltinFunctionType: _bound_builtin,
    functools.partial: _partial,
    slice: _slice,
    range: _range,
    frozenset: _frozenset,
    types.MappingProxyType: _dictionary_shown,
    **dict.fromkeys(_VIEWS, _view_of_dictionary),
    types.GeneratorType: _opaque_iterator,
    types.CoroutineType: _opaque_iterator,
    zip: _opaque_iterator,
    map: _opaque_iterator,
    filter: _opaque_iterator,
    enumerate: _opaque_iterator,
    **dict.fromkeys(OVER_CONTAINERS, _opaque_iterator),
}
