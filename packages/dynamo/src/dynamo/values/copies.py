# ruff: noqa: ARG001 - one signature for all rules
"""`copy.copy` and `copy.deepcopy`, by Python's protocol on the interpreter's values.

Containers and plain objects are copied here; what a class says itself (`__copy__`, `__reduce__`, `__setstate__`) is
interpreted. Views, which share a storage with what is not copied, are graph breaks.
"""

from __future__ import annotations

import collections
import copy
import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import asked, attributes, calls, subscripts, writing
from dynamo.values.arrays import TracedArray
from dynamo.values.rules import rule
from dynamo.values.wrap import is_constant
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["deep_copy", "shallow_copy"]

_SHARED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_CONTAINERS = (list, dict, set, tuple, collections.deque)


@rule(copy.deepcopy)
def _deepcopy(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    memo = args[1] if len(args) > 1 else kwargs.get("memo")
    return deep_copy(machine, args[0], memo if memo is not None else {})


@rule(copy.copy)
def _copy(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return shallow_copy(machine, args[0])


def shallow_copy(machine: Machine, value: Any) -> Any:
    """`copy.copy(value)`."""
    if is_constant(value) or isinstance(value, _SHARED):
        return value
    kind = type(value)
    if kind is TracedArray:
        return calls.call(machine, attributes.load(machine, value, "copy"), (), {})
    own = attributes.special(kind, "__copy__")
    if own is not None:
        return machine.inline(own, (value,), {})
    if isinstance(value, FakeTensor):
        session = machine.session
        real = session.reals.get(id(value))
        attributes_of = session.recorder.tensor_attributes.get(id(value))
        plain = real is None or (type(real) is torch.Tensor and not vars(real))
        if type(real) is torch.nn.Parameter and not vars(real) and not attributes_of:
            maker: Any = torch.nn.Parameter
            return calls.call(machine, maker, (value, bool(value.requires_grad)), {})
        if value.requires_grad or attributes_of or not plain:
            raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a tensor is copied by copy.copy")
        return session.recorder.record(torch.Tensor.detach, (value,), {})  # the same memory
    made = _by_own_protocol(machine, value, None)
    if made is not attributes.MISSING:
        return made
    made = _empty(machine, value)
    return _fill(machine, value, made, lambda item: item)


def deep_copy(machine: Machine, value: Any, memo: dict[Any, Any]) -> Any:
    """`copy.deepcopy(value, memo)`."""
    if is_constant(value) or isinstance(value, _SHARED):
        return value
    known = memo.get(id(value))
    if known is not None:
        return known
    if isinstance(value, FakeTensor):
        made = memo[id(value)] = _tensor(machine, value, memo)
        return made
    if type(value) is TracedArray:
        made = memo[id(value)] = shallow_copy(machine, value)
        return made
    own = attributes.special(type(value), "__deepcopy__")
    if own is not None:
        made = memo[id(value)] = machine.inline(own, (value, memo), {})
        return made
    if type(value) is tuple:
        items = tuple(deep_copy(machine, item, memo) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    made = _by_own_protocol(machine, value, memo)
    if made is not attributes.MISSING:
        memo[id(value)] = made
        return made
    made = memo[id(value)] = _empty(machine, value)
    machine.session.keep(value)
    return _fill(machine, value, made, lambda item: deep_copy(machine, item, memo))


def _tensor(machine: Machine, value: Any, memo: dict[Any, Any]) -> Any:
    """A clone, where that is all that copying the whole storage means."""
    session = machine.session
    real: Any = session.reals.get(id(value))
    if isinstance(real, torch.nn.Parameter) and type(real) is torch.nn.Parameter:
        return _leaf(machine, value, real, memo)
    memory = ("<memory>", id(value.storage))
    if type(real) is torch.Tensor and real.is_leaf and value.requires_grad:
        return _leaf(machine, value, real, memo)
    plain = (real is None or type(real) is torch.Tensor) and not value.requires_grad
    if not plain or memory in memo or not value.is_contiguous() or value.storage_offset() != 0:
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a tensor is copied deeply")
    if session.recorder.tensor_attributes.get(id(value)) or getattr(real, "__dict__", None):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a tensor with attributes is copied deeply")
    memo[memory] = True
    session.keep(value)
    return torch.clone(value)


def _leaf(machine: Machine, value: Any, real: Any, memo: dict[Any, Any]) -> Any:
    """A leaf of its own with the same data; a plain tensor's gradient is copied, too."""
    memory = ("<memory>", id(value.storage))
    whole = value.is_contiguous() and value.storage_offset() == 0
    own = machine.session.recorder.tensor_attributes.get(id(value)) or vars(real)
    parameter = isinstance(real, torch.nn.Parameter)
    if own or (not parameter and (memory in memo or not whole)):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a tensor is copied deeply")
    memo[memory] = True
    data = torch.clone(value.detach())
    if parameter:
        maker: Any = torch.nn.Parameter
        return calls.call(machine, maker, (data, bool(value.requires_grad)), {})
    calls.call(machine, attributes.load(machine, data, "requires_grad_"), (), {})
    gradient = attributes.load(machine, value, "grad")
    if gradient is not None:
        writing.store(machine, data, "grad", deep_copy(machine, gradient, memo))
    return data


def _by_own_protocol(machine: Machine, value: Any, memo: dict[Any, Any] | None) -> Any:
    """A copy of an object whose class says itself how; MISSING for other objects. `memo` of a deep copy."""
    kind: Any = type(value)
    own = {
        name: found
        for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__new__")
        if type(found := attributes.class_attribute(kind, name)) is types.FunctionType
    }
    if not own or isinstance(value, (*_CONTAINERS, FakeTensor)):
        return attributes.MISSING
    session = machine.session
    for name, found in own.items():
        session.guard_class_attribute(kind, name, found)
    for name, args in (("__reduce_ex__", (4,)), ("__reduce__", ())):
        if name in own:
            told = machine.inline(own[name], (value, *args), {})
            if isinstance(told, str):
                return value
            return _made_again(machine, value, memo, *told)
    if hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__") or "__new__" in own:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL, f"{kind.__qualname__} says itself how it is copied"
        )
    made = session.created(object.__new__(kind))
    if memo is not None:
        memo[id(value)] = made
        session.keep(value)
    if "__getstate__" in own:
        state = machine.inline(own["__getstate__"], (value,), {})
        asked.force(machine, state)
    elif _slots(kind):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, f"a {kind.__qualname__} has slots")
    else:
        kept = session.instance_dict(value)
        state = {name: session.resolve(item) for name, item in kept.items()}
    if memo is not None:
        state = deep_copy(machine, state, memo)
    if "__setstate__" in own:
        calls.call(machine, own["__setstate__"], (made, state), {})
    else:
        for name, item in subscripts.mapping_items(machine, state).items():
            made.__dict__[name] = session.resolve(item)
    return made


def _made_again(
    machine: Machine,
    value: Any,
    memo: dict[Any, Any] | None,
    maker: Any,
    args: tuple[Any, ...],
    state: Any = None,
    items: Any = None,
    pairs: Any = None,
) -> Any:
    """By what `__reduce__` says: called, then given its state."""
    if items is not None or pairs is not None or isinstance(state, tuple):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL, f"{type(value).__qualname__} says itself how it is copied"
        )
    if memo is not None:
        args, state = deep_copy(machine, args, memo), deep_copy(machine, state, memo)
    made = calls.call(machine, maker, args, {})
    if memo is not None:
        memo[id(value)] = made
        machine.session.keep(value)
    if state is None:
        return made
    if attributes.special(type(made), "__setstate__") is not None:
        calls.call(machine, attributes.load(machine, made, "__setstate__"), (state,), {})
        return made
    for name, item in subscripts.mapping_items(machine, state).items():
        writing.store(machine, made, name, machine.session.resolve(item))
    return made


def _empty(machine: Machine, value: Any) -> Any:
    kind: Any = type(value)
    for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__new__"):
        found = attributes.class_attribute(kind, name)
        if isinstance(found, types.FunctionType | staticmethod) and not isinstance(value, tuple):
            raise GraphBreak(
                BreakReason.UNSUPPORTED_CALL, f"{kind.__qualname__} says itself how it is copied"
            )
    if isinstance(value, tuple):
        items = [machine.session.resolve(item) for item in value]
        made = kind(items) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, items)
    elif isinstance(value, collections.deque):
        made = kind((), value.maxlen) if kind is collections.deque else kind.__new__(kind)
    elif isinstance(value, _CONTAINERS):
        made = kind.__new__(kind)
        if isinstance(value, collections.defaultdict):
            made.default_factory = value.default_factory
    elif kind.__flags__ & (1 << 9):
        made = object.__new__(kind)
    else:
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, f"a {kind.__qualname__} is copied")
    return machine.session.created(made)


def _fill(machine: Machine, value: Any, made: Any, copied: Any) -> Any:
    session = machine.session
    if isinstance(value, dict):
        asked.force(machine, value)
        put = (
            collections.OrderedDict.__setitem__
            if isinstance(value, collections.OrderedDict)
            else dict.__setitem__
        )
        for key in list(value.keys()) if type(value) is dict else list(dict.keys(value)):
            put(made, copied(key), copied(dict.__getitem__(value, key)))
    elif isinstance(value, list):
        asked.force(machine, value)
        list.extend(made, [copied(item) for item in list.__iter__(value)])
    elif isinstance(value, set):
        set.update(made, {copied(item) for item in set.__iter__(value)})
    elif isinstance(value, collections.deque):
        collections.deque.extend(made, [copied(item) for item in value])
    if hasattr(value, "__dict__"):
        own = session.instance_dict(value)
        for name, item in own.items():
            made.__dict__[name] = copied(session.resolve(item))
    for name, member in _slots(type(value)):
        item = attributes.read_slot(session, value, name)
        if item is not attributes.MISSING:
            member.__set__(made, copied(item))
    return made


def _slots(kind: type) -> list[tuple[str, Any]]:
    """The slots that the classes of the program gave an object."""
    return [
        (name, member)
        for base in kind.__mro__
        if base.__flags__ & (1 << 9)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    ]
