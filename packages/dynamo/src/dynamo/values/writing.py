"""Assigning and deleting attributes, by Python's protocol.

What belongs to an object from outside is written to its shadow (`Session.instance_dict`) or noted (`slot_writes`,
`global_writes`): the emitter replays it. Setters written in Python are interpreted.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.tensor_classes import is_traced
from dynamo.values.arrays import TracedArray
from dynamo.values.attributes import (
    MISSING,
    MODULE_TABLES,
    NATIVE_DESCRIPTORS,
    class_attribute,
    load,
    read_slot,
    special,
)
from dynamo.values.shadows import DELETED
from dynamo.values.thread_locals import is_local, read_local, write_local

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine
    from dynamo.values.session import Session

__all__ = ["delete", "generic_delete", "generic_store", "store", "store_own"]

_FUNCTION = types.FunctionType
_module_setattr = torch.nn.Module.__setattr__


def store(machine: Machine, owner: Any, name: str, value: Any) -> None:
    """`owner.name = value`."""
    from dynamo.values import calls

    session = machine.session
    if session.proxies and id(owner) in session.proxies:
        from dynamo.values.references import behind_proxy

        owner = behind_proxy(machine, owner)
    if is_traced(owner):
        session.recorder.store_tensor_attribute(session, owner, name, value)
        return
    if isinstance(owner, types.ModuleType):
        session.global_writes[(id(owner.__dict__), name)] = (owner.__dict__, value)
        return
    if isinstance(owner, type) and not session.is_created(owner):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_MUTATION, f"the class {owner.__qualname__} is changed"
        )
    if isinstance(owner, _FUNCTION | types.MethodType):
        if session.is_created(owner):
            setattr(owner, name, value)
            return
        raise GraphBreak(
            BreakReason.UNSUPPORTED_MUTATION, f"the function {owner.__qualname__} is changed"
        )
    if isinstance(owner, type):
        session.recipes[id(owner)].written[name] = value
        type.__setattr__(owner, name, value)
        return
    cls = type(owner)
    if cls is TracedArray:
        raise GraphBreak(BreakReason.UNSUPPORTED_MUTATION, f"the array's {name} is assigned")
    setter = class_attribute(cls, "__setattr__")
    if type(setter) is _FUNCTION:
        if setter is _module_setattr and _plain_module_store(owner, name, value):
            store_own(session, owner, name, value)
            return
        calls.call(machine, setter, (owner, name, value), {})
        return
    generic_store(machine, owner, name, value)


def _plain_module_store(owner: Any, name: str, value: Any) -> bool:
    """Whether `nn.Module.__setattr__` would only write the instance dict."""
    if isinstance(value, torch.Tensor | torch.nn.Module) or name in MODULE_TABLES:
        return False
    if class_attribute(type(owner), name) is not MISSING:
        return False
    own = object.__getattribute__(owner, "__dict__")
    return all(name not in own.get(table, ()) for table in MODULE_TABLES)


def generic_store(machine: Machine, owner: Any, name: str, value: Any) -> None:
    """`object.__setattr__`: data descriptors, then the instance dict or slot."""
    from dynamo.values import calls

    session = machine.session
    cls = type(owner)
    found = class_attribute(cls, name)
    if found is not MISSING:
        kind = type(found)
        if kind is property:
            if found.fset is None:
                raise AttributeError(f"property '{name}' of '{cls.__name__}' object has no setter")
            calls.call(machine, found.fset, (owner, value), {})
            return
        if kind in NATIVE_DESCRIPTORS:
            if session.source_of(owner) is None or session.is_created(owner):
                object.__setattr__(owner, name, value)
                return
            if kind is not types.MemberDescriptorType:
                raise GraphBreak(
                    BreakReason.UNSUPPORTED_MUTATION, f"{cls.__qualname__}.{name} is changed"
                )
            session.slot_writes[id(owner), name] = (owner, found, value)
            return
        setter = class_attribute(kind, "__set__")
        if type(setter) is _FUNCTION:
            calls.call(machine, setter, (found, owner, value), {})
            return
    store_own(session, owner, name, value)


def store_own(session: Session, owner: Any, name: str, value: Any) -> None:
    """Write the instance dict; into its shadow for an object from outside."""
    if is_local(owner):
        write_local(session, owner, name, value)
        return
    try:
        own = session.instance_dict(owner)
    except AttributeError:
        own = None
    if own is None:
        object.__setattr__(owner, name, value)  # raises what eager raises
        return
    own[name] = value


def delete(machine: Machine, owner: Any, name: str) -> None:
    """`del owner.name`."""
    from dynamo.values import calls

    session = machine.session
    if session.proxies and id(owner) in session.proxies:
        from dynamo.values.references import behind_proxy

        owner = behind_proxy(machine, owner)
    if isinstance(owner, types.ModuleType):
        load(machine, owner, name)
        session.global_writes[(id(owner.__dict__), name)] = (owner.__dict__, DELETED)
        return
    if is_traced(owner) or isinstance(owner, type | _FUNCTION):
        raise GraphBreak(BreakReason.UNSUPPORTED_MUTATION, f"the attribute {name} is deleted")
    cls = type(owner)
    deleter = special(cls, "__delattr__")
    if deleter is not None:
        calls.call(machine, deleter, (owner, name), {})
        return
    generic_delete(machine, owner, name)


def generic_delete(machine: Machine, owner: Any, name: str) -> None:
    """`object.__delattr__`."""
    from dynamo.values import calls

    session = machine.session
    found = class_attribute(type(owner), name)
    if type(found) is property:
        if found.fdel is None:
            raise AttributeError(f"property '{name}' of object has no deleter")
        calls.call(machine, found.fdel, (owner,), {})
        return
    if type(found) in NATIVE_DESCRIPTORS:
        if session.source_of(owner) is None or session.is_created(owner):
            object.__delattr__(owner, name)
            return
        if type(found) is not types.MemberDescriptorType:
            raise GraphBreak(BreakReason.UNSUPPORTED_MUTATION, f"the attribute {name} is deleted")
        if read_slot(session, owner, name) is MISSING:
            raise AttributeError(name)
        session.slot_writes[id(owner), name] = (owner, found, DELETED)
        return
    deleter = MISSING if found is MISSING else class_attribute(type(found), "__delete__")
    if type(deleter) is _FUNCTION:
        calls.call(machine, deleter, (found, owner), {})
        return
    if is_local(owner):
        if read_local(session, owner, name, MISSING) is MISSING:
            raise AttributeError(name)
        write_local(session, owner, name, DELETED)
        return
    own = session.instance_dict(owner)
    if name not in own:
        raise AttributeError(f"'{type(owner).__name__}' object has no attribute '{name}'")
    del own[name]
