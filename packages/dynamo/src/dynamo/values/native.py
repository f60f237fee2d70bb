"""Calling functions written in C.

Allowed are functions that neither have effects outside their arguments nor run Python code that capture would
not see: builtins, `math`, `operator`, `itertools`, container and text methods, torch's functions. Python
callables among the arguments are wrapped so that the call comes back to the interpreter; iterables written in
Python likewise. Everything else is a graph break.
"""

from __future__ import annotations

import collections
import datetime as dt
import functools
import re
import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.tensor_classes import is_traced
from dynamo.values import asked, iteration, operators, subscripts, unread
from dynamo.values.attributes import class_attribute, special
from dynamo.values.generators import TracedCallable, TracedGenerator
from dynamo.values.iterators import AheadIterator
from dynamo.values.shadows import Lazy
from dynamo.values.wrap import CONSTANTS, is_constant, open_container, require_no_storage
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["call_native", "native_arguments"]

_PURE_MODULES = frozenset(
    {
        "builtins", "math", "cmath", "_operator", "operator", "itertools", "_functools", "functools",
        "_collections", "collections", "_struct", "re", "_sre", "string", "_string", "unicodedata",
        "numbers", "fractions", "decimal", "_decimal", "typing", "types", "abc", "_abc", "enum",
        "textwrap", "_bisect", "bisect", "_heapq", "heapq", "statistics", "zlib",
        "binascii", "hashlib", "_hashlib", "datetime",
    }
)  # fmt: skip
_IMPURE_BUILTINS: frozenset[Any] = frozenset(
    {print, input, open, exec, eval, compile, globals, locals, breakpoint, __import__, vars, id,
     __build_class__, dir, dt.datetime.now, dt.datetime.today, dt.datetime.utcnow,
     dt.date.today}
)  # fmt: skip
# Methods that only move elements about; they never compare or hash them.
_STRUCTURAL: dict[Any, frozenset[str]] = {
    list: frozenset({"append", "extend", "insert", "pop", "reverse", "clear", "copy", "__len__",
                     "__iter__", "__getitem__", "__setitem__", "__delitem__", "__init__",
                     "__reversed__"}),
    collections.deque: frozenset({"append", "appendleft", "extend", "extendleft", "pop", "popleft",
                                  "reverse", "rotate", "clear", "copy", "insert", "__len__",
                                  "__iter__", "__init__"}),
    dict: frozenset({"get", "pop", "popitem", "setdefault", "update", "clear", "copy", "keys",
                     "values", "items", "move_to_end", "__getitem__", "__setitem__", "__delitem__",
                     "__contains__", "__len__", "__iter__", "__init__", "fromkeys", "__or__",
                     "__ior__"}),
    set: frozenset({"add", "discard", "remove", "pop", "clear", "copy", "update", "__len__",
                    "__iter__", "__contains__", "__init__"}),
}  # fmt: skip
_KEYED = frozenset({"pop", "setdefault", "__setitem__", "__delitem__", "get", "move_to_end"})
_KEYLESS = frozenset({"get", "__getitem__", "__contains__"})
_TEXTS = (str, bytes, int, float, complex, bool, bytearray, range, slice)
_ITERATOR_TYPES: tuple[type, ...] = (
    zip, map, filter, enumerate, reversed, type(iter([])), type(iter(())), type(iter({})),
    AheadIterator, type(iter({}.values())), type(iter({}.items())), type(iter(range(0))), type(iter(set())),
    type({}.keys()), type({}.values()), type({}.items()), TracedGenerator, iteration.UserIterator,
    iteration.SequenceIterator, type(iter("")), type(reversed([])),
    type(collections.OrderedDict().keys()), type(collections.OrderedDict().values()),
    type(collections.OrderedDict().items()), type(iter(collections.OrderedDict())),
)  # fmt: skip
_CALLABLE_KINDS = (types.FunctionType, types.MethodType, functools.partial, torch.nn.Module)


def call_native(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call C code, or refuse."""
    session = machine.session
    receiver = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    owner: Any = None
    if receiver is not None and not isinstance(receiver, types.ModuleType):
        owner = receiver
    elif isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType) and args:
        owner = args[0]
    if owner is not None:
        require_no_storage(owner)
        session.check_iterator(owner)
    if session.unread and not (owner is not None and name in unread.STORING):
        unread.open_all(session, args if owner is None or owner is receiver else args[1:])
        unread.open_all(session, kwargs)
    if isinstance(owner, dict | list | set | collections.deque):
        return _container_method(machine, function, owner, name, args, kwargs)
    if _is_torch(function):
        overridden = _override(machine, function, args, kwargs)
        if overridden is not None:
            return overridden()
    if is_traced(owner) or _is_torch(function):
        return session.recorder.call(
            function, _tensor_arguments(machine, args), _tensor_keywords(machine, kwargs)
        )
    if not _allowed(function, owner):
        raise GraphBreak(
            BreakReason.OUTSIDE_EFFECT
            if function in _IMPURE_BUILTINS
            else BreakReason.UNSUPPORTED_CALL,
            f"{_spelling(function)} is not captured",
        )
    values, named = native_arguments(machine, function, args, kwargs)
    if isinstance(owner, str):
        values, named = operators.plain_numbers(values), operators.plain_numbers(named)
    result = function(*values, **named)
    if type(result) not in CONSTANTS and not is_traced(result):
        if isinstance(function, type) and type(result) is function:
            session.created(result)
        result = session.resolve(result)
    return result


def _override(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The call of `__torch_function__` of an argument whose class, no tensor's, is the program's."""
    owners: list[Any] = []
    for value in (*args, *kwargs.values()):
        for item in value if type(value) in (list, tuple) else (value,):
            kind = type(item)
            if kind in CONSTANTS or isinstance(item, torch.Tensor) or kind in map(type, owners):
                continue
            if isinstance(class_attribute(kind, "__torch_function__"), classmethod):
                owners.append(item)
    if not owners:
        return None
    from dynamo.values import attributes, calls

    kinds = tuple(type(owner) for owner in owners)

    def run() -> Any:
        for owner in owners:
            method = attributes.load(machine, owner, "__torch_function__")
            result = calls.call(machine, method, (function, kinds, args, dict(kwargs)), {})
            if result is not NotImplemented:
                return result
        raise TypeError(f"no implementation found for '{_spelling(function)}'")

    return run


def _spelling(function: Any) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def _is_torch(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    if module is None:
        owner = getattr(function, "__objclass__", None)
        if owner is None:
            owner = getattr(function, "__self__", None)
            owner = owner if isinstance(owner, type | types.ModuleType) else type(owner)
        module = getattr(owner, "__module__", None) or getattr(owner, "__name__", "")
    if not isinstance(module, str):
        return False
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return True
    return module.partition(".")[0] == "torch"


def _allowed(function: Any, owner: Any) -> bool:
    if function in _IMPURE_BUILTINS if _hashable(function) else False:
        return False
    if owner is not None:
        if isinstance(owner, _TEXTS) or is_constant(owner):
            return True
        if isinstance(owner, (tuple, frozenset, BaseException, *_ITERATOR_TYPES)):
            return True
        if isinstance(owner, torch.autograd.graph.Node):
            return False  # hooks and gradients of a run that is not this one
        if isinstance(owner, type):
            return (owner.__module__ or "").partition(".")[0] in _PURE_MODULES
        kind = type(owner).__module__ or ""
        return kind.partition(".")[0] in _PURE_MODULES
    module = getattr(function, "__module__", None)
    if module is None and isinstance(function, types.BuiltinFunctionType):
        return False
    return isinstance(module, str) and module.partition(".")[0] in _PURE_MODULES


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def _container_method(
    machine: Machine,
    function: Any,
    owner: Any,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    session = machine.session
    base: type = next(kind for kind in _STRUCTURAL if isinstance(owner, kind))
    bound = getattr(function, "__self__", None) is owner
    rest = args if bound else args[1:]
    if isinstance(owner, dict):
        if name in _KEYLESS and rest:
            found = subscripts.contains_plain(machine, owner, rest[0])
            if name == "__getitem__":
                return subscripts.dict_item(machine, owner, rest[0])
            if name == "__contains__":
                return found
        elif name == "setdefault" and rest:
            subscripts.contains_plain(machine, owner, rest[0])
        elif name == "__setitem__" and rest:
            asked.note_write(machine, owner, operators.as_key(machine, rest[0]))
        else:
            asked.guard_keys(machine, owner)
        if name in _KEYED and rest:
            rest = (operators.as_key(machine, rest[0]), *rest[1:])
        if name == "__init__" and rest and isinstance(owner, collections.defaultdict):
            rest = (rest[0], *(_mapping_argument(machine, item) for item in rest[1:]))
        elif name in ("update", "__init__") and rest:
            rest = (_mapping_argument(machine, rest[0]), *rest[1:])
    elif name in ("extend", "__init__", "extendleft", "update") and rest:
        rest = tuple(_iterable_argument(machine, item) for item in rest)
        if base is set:
            rest = tuple([operators.as_key(machine, part) for part in item] for item in rest)
    elif base is set and rest:
        rest = tuple(
            item if isinstance(item, set | list) else operators.as_key(machine, item)
            for item in rest
        )
    shadow = session.unread.get(id(owner))
    if shadow is not None:
        if name in ("extend", "extendleft", "update"):
            rest = tuple(list(iteration.iterate(machine, item)) for item in rest)
            shadow = session.unread.get(id(owner))  # the arguments may have been the same container
        if shadow is not None:
            frame = machine.frames[-1]
            dropped = session.lazily and frame.ops[frame.pc].name == "POP_TOP"
            found = unread.method(session, shadow, name, rest, dropped=dropped)
            if found is not unread.NOT_HERE:
                return found
        open_container(session, owner)
    if name not in _STRUCTURAL[base]:
        if base is list and name == "sort" and not rest:
            from dynamo.values.sorting import own_order  # it calls this module

            asked.force(machine, owner)
            ordered = own_order(machine, list(list.__iter__(owner)), kwargs)
            if ordered is not None:
                return list.__setitem__(owner, slice(None), ordered)
        if base is list and name in ("index", "remove", "count"):
            return subscripts.list_search(machine, owner, name, rest)
        asked.force(machine, owner)
        if base is not set:
            operators.check_plain_contents(machine, owner)
        rest, kwargs = native_arguments(machine, function, rest, kwargs)
    result = function(*rest, **kwargs) if bound else function(owner, *rest, **kwargs)
    return _resolved(session, result)


def _resolved(session: Any, result: Any) -> Any:
    if type(result) is Lazy:
        return session.resolve(result)
    if type(result) is tuple and any(type(item) is Lazy for item in result):
        return tuple(map(session.resolve, result))
    return result


def _mapping_argument(machine: Machine, value: Any) -> Any:
    if isinstance(value, dict) or hasattr(value, "keys"):
        return subscripts.mapping_items(machine, value)
    return _iterable_argument(machine, value)


def _iterable_argument(machine: Machine, value: Any) -> Any:
    kind = type(value)
    machine.session.check_iterator(value)
    if kind in (list, tuple, str, range, set, frozenset) or isinstance(value, _ITERATOR_TYPES):
        return value
    return iteration.iterate(machine, value)


def native_arguments(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments made safe for C code: lazies forced, callables and iterables driven by us."""
    if isinstance(getattr(function, "__self__", None), str | re.Pattern):
        # These read a text's characters: what its class makes of comparisons is not asked.
        args = tuple(str.__str__(value) if isinstance(value, str) else value for value in args)
    values = tuple(_argument(machine, value) for value in args)
    return values, {name: _argument(machine, value) for name, value in kwargs.items()}


def _argument(machine: Machine, value: Any) -> Any:
    kind = type(value)
    machine.session.check_iterator(value)
    if kind in CONSTANTS or kind is FakeTensor or kind is range:
        return value
    if kind is list or kind is tuple:
        if kind is list:
            asked.force(machine, value)
        for item in value:
            _check_item(machine, item)
        return value
    if isinstance(value, dict):
        asked.force(machine, value)
        return value
    if isinstance(value, (set, frozenset, slice, BaseException, *_ITERATOR_TYPES)):
        return value
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | TracedCallable):
        open_container(machine.session, getattr(value, "__self__", None))
        return value
    if isinstance(value, _CALLABLE_KINDS) and not (
        isinstance(value, torch.nn.Module) and special(type(value), "__iter__") is not None
    ):
        return TracedCallable(machine, value)
    if special(kind, "__iter__") is not None:
        return iteration.get_iterator(machine, value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    if kind.__module__.partition(".")[0] in _PURE_MODULES or is_constant(value):
        return value
    if isinstance(value, tuple):
        return value
    if special(kind, "__call__") is not None:
        return TracedCallable(machine, value)
    for method in ("__index__", "__float__", "__int__", "__len__", "__lt__", "__eq__"):
        if special(kind, method) is not None:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_CALL,
                f"a {kind.__qualname__} object is passed to a function written in C",
            )
    return value


def _check_item(machine: Machine, item: Any) -> None:
    kind = type(item)
    if kind in CONSTANTS or kind is FakeTensor:
        return
    if kind is list or kind is tuple:
        if kind is list:
            asked.force(machine, item)
        for inner in item:
            _check_item(machine, inner)
        return
    if special(kind, "__lt__") is not None and kind.__module__ != "enum":
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"{kind.__qualname__} objects are compared by a function written in C",
        )


def _tensor_arguments(machine: Machine, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_tensor_argument(machine, value) for value in args)


def _tensor_keywords(machine: Machine, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: _tensor_argument(machine, value) for name, value in kwargs.items()}


def _tensor_argument(machine: Machine, value: Any) -> Any:
    kind = type(value)
    if kind in CONSTANTS or kind is FakeTensor:
        return value
    if kind is tuple:
        return tuple(_tensor_argument(machine, item) for item in value)
    if kind is list:
        asked.force(machine, value)
        return [_tensor_argument(machine, item) for item in value]
    if isinstance(value, dict):
        asked.force(machine, value)
        return value
    if isinstance(value, _ITERATOR_TYPES):
        return value
    return value
