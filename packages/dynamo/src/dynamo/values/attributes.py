"""Reading attributes, by Python's protocol; `values.writing` assigns and deletes them.

Class attributes are found along the MRO and guarded on the class, instance attributes in the object's own dict
(or its shadow) and guarded at their source; properties, descriptors and `__getattr__` written in Python are
interpreted. Tensors answer from their fake.
"""

# ruff: noqa: ARG001 - one signature for all loaders
from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.faults import require_programs
from dynamo.graph.sizes import SYMBOLIC
from dynamo.graph.tensor_classes import own_attribute
from dynamo.graph.wrappers import wrapper_attribute
from dynamo.guards import GuardKind
from dynamo.guards.kinds import MISSING as GUARD_MISSING
from dynamo.source import (
    AttributeSource,
    ConstantSource,
    InstanceAttributeSource,
    ItemSource,
    ModuleMemberSource,
)
from dynamo.values.generators import TracedCallable, TracedGenerator
from dynamo.values.iterators import AheadIterator
from dynamo.values.shadows import DELETED, Lazy
from dynamo.values.thread_locals import is_local, read_local
from dynamo.values.wrap import CONSTANTS, wrap
from dynamo.versions import NULL
from primtorch.fake import FakeTensor
from primtorch.serial import is_trusted_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine
    from dynamo.values.session import Session

__all__ = [
    "MISSING",
    "MODULE_TABLES",
    "NATIVE_DESCRIPTORS",
    "class_attribute",
    "generic_load",
    "load",
    "load_method",
    "load_special",
    "object_attribute",
    "read_slot",
    "register_loader",
    "special",
]

MISSING: Any = object()
_FUNCTION = types.FunctionType
NATIVE_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_class_getter = object.__dict__["__class__"]
_module_getattr = torch.nn.Module.__getattr__


def class_attribute(cls: type, name: str) -> Any:
    """What the MRO has under a name, unbound; `MISSING` if nothing."""
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def special(cls: type, name: str) -> types.FunctionType | None:
    """A special method of `cls` if it is written in Python (the others are called natively)."""
    found = class_attribute(cls, name)
    if type(found) is not _FUNCTION or cls in SYMBOLIC:
        return None
    if found.__module__ == "torch._tensor" and cls is not FakeTensor:  # `Tensor`'s own
        return None
    if (found.__module__ or "").partition(".")[0] == "pathlib":  # on values, like a text's
        return None
    return found


def load(machine: Machine, owner: Any, name: str) -> Any:
    """`owner.name`."""
    loader = _LOADERS.get(type(owner))
    if loader is None:
        loader = _choose(owner)
    return loader(machine, owner, name)


def load_method(machine: Machine, owner: Any, name: str) -> tuple[Any, Any]:
    """`owner.name` about to be called: the function and its receiver, or the callable and NULL."""
    value = load(machine, owner, name)
    if (
        type(value) is types.MethodType
        and machine.session.source_of(value) is None
        # their methods belong to another class for the program
        and type(value.__self__) not in (FakeTensor, TracedGenerator, AheadIterator)
        and not isinstance(value.__self__, torch.Tensor)
    ):
        return value.__func__, value.__self__
    return value, NULL


def call_special(machine: Machine, function: types.FunctionType, *args: Any) -> Any:
    """A special method of an operand's class, which is guarded to keep it."""
    for value in args[:2]:
        if guard_special(machine, type(value), function):
            break
    return machine.inline(function, args, {})


def guard_special(machine: Machine, kind: type, function: types.FunctionType) -> bool:
    """Guard that a class keeps a method, if it has it."""
    name = _special_name(kind, function)
    if name is not None:
        machine.session.guard_class_attribute(kind, name, function)
    return name is not None


def _special_name(kind: type, function: types.FunctionType) -> str | None:
    """The name under which a class has a function."""
    if class_attribute(kind, function.__name__) is function:
        return function.__name__
    names = (
        name for base in kind.__mro__ for name, found in vars(base).items() if found is function
    )
    return next(names, None)


def load_special(machine: Machine, owner: Any, name: str) -> Any:
    """A special method looked up on the class and bound; None if there is none."""
    found = class_attribute(type(owner), name)
    if found is MISSING:
        return None
    if type(found) is _FUNCTION:
        machine.session.guard_class_attribute(type(owner), name, found)
        return types.MethodType(found, owner)
    return found.__get__(owner, type(owner))


# -- by kind of owner ---------------------------------------------------------------------------------


def _native(machine: Machine, owner: Any, name: str) -> Any:
    return getattr(owner, name)


def _container(machine: Machine, owner: Any, name: str) -> Any:
    return getattr(owner, name)


def _tensor(machine: Machine, owner: Any, name: str) -> Any:
    session = machine.session
    if name == "grad_fn" and type(owner) is FakeTensor and _is_leaf(session, owner):
        return None
    if name in _TENSOR_REFUSED:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_VALUE, f"Tensor.{name} is not known while capturing"
        )
    own = session.recorder.tensor_attributes.get(id(owner))
    if own is not None and name in own:
        return own[name]
    real = session.reals.get(id(owner))
    if session.recorder.overrides.subclasses:
        found = _subclass_attribute(machine, owner, real, name)
        if found is not MISSING:
            return found
    if real is not None:
        source = session.known_source(owner)
        if name == "grad":
            with torch._C.DisableTorchFunction():  # the recorder's mode refuses to read it
                gradient = real.grad
            return wrap(session, gradient, AttributeSource(source, "grad"))
        if name == "is_leaf":
            return wrap(session, real.is_leaf, AttributeSource(source, "is_leaf"))
        if name == "__class__":
            return type(real)
        extra = getattr(real, "__dict__", None)
        if extra and name in extra:
            return wrap(session, extra[name], AttributeSource(source, name))
    elif name == "__class__":
        return torch.Tensor
    elif name == "grad" and (owner.is_leaf or owner.retains_grad):
        return None
    if class_attribute(torch.Tensor, name) is MISSING:
        _guard_absence(session, owner, name)
        raise AttributeError(f"'Tensor' object has no attribute '{name}'")
    return getattr(owner, name)


def _is_leaf(session: Session, owner: Any) -> bool:
    """Whether autograd has no history of a tensor; guarded for one from outside."""
    real = session.reals.get(id(owner))
    with torch._C.DisableTorchFunction():
        if real is None:
            return bool(owner.is_leaf)
        leaf = bool(real.is_leaf)
    if leaf:
        source = session.known_source(owner)
        wrap(session, leaf, AttributeSource(source, "is_leaf"))
    return leaf


def _subclass_attribute(machine: Machine, owner: Any, real: Any, name: str) -> Any:
    """What a tensor's class has beyond `Tensor`, what its overrides answer, what a wrapper is made of."""
    session = machine.session
    recorder = session.recorder
    kind = type(owner)
    if kind is FakeTensor:
        kind = recorder.kinds.get(id(owner)) or (torch.Tensor if real is None else type(real))
    if kind is torch.Tensor:
        return MISSING
    if name == "__class__":
        return kind
    found, present = own_attribute(kind, name)
    data_descriptor = present and type(found) is property
    if present and data_descriptor:
        session.guard_class_attribute(kind, name, found)
        return _property(machine, owner, found, name)
    if present and type(found) is types.MemberDescriptorType:
        if real is None:
            return wrapper_attribute(recorder, owner, name)
        return wrap(
            session, getattr(real, name), AttributeSource(session.known_source(owner), name)
        )
    if real is None and type(owner) is not FakeTensor and name in vars(owner):
        return wrapper_attribute(recorder, owner, name)
    if present and not (real is not None and name in vars(real)):
        session.guard_class_attribute(kind, name, found)
        if type(found) is _FUNCTION:
            return types.MethodType(found, owner)
        if type(found) in (staticmethod, classmethod):
            return found.__get__(owner, kind)
        if hasattr(type(found), "__get__"):
            return _descriptor(machine, owner, kind, found, name)
        return _class_value(session, kind, name, found)
    getter = class_attribute(torch.Tensor, name)
    if type(getter) is types.GetSetDescriptorType or type(getter) is property:
        dispatched = recorder.overrides.dispatch(machine, getter.__get__, (owner,), {})
        if dispatched is not NotImplemented:
            return dispatched
    elif getter is MISSING and real is None:
        fallback, present = own_attribute(kind, "__getattr__")
        if present:
            from dynamo.values import calls

            session.guard_class_attribute(kind, "__getattr__", fallback)
            return calls.call(machine, fallback, (owner, name), {})
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
    return MISSING


_TENSOR_REFUSED = frozenset({"grad_fn", "_grad_fn", "_backward_hooks", "__dict__", "_base"})


def _module(machine: Machine, owner: types.ModuleType, name: str) -> Any:
    names = owner.__dict__
    session = machine.session
    if name in names:
        return session.load_from_namespace(names, name)
    if (id(names), name) in session.global_writes:
        return session.load_from_namespace(names, name)
    try:
        value = getattr(owner, name)
    except AttributeError:
        if not is_trusted_module(owner.__name__):
            _guard_absence(session, owner, name)
        raise
    return session.wrap(value, AttributeSource(session.known_source(owner), name))


def _guard_absence(session: Session, owner: Any, name: str) -> None:
    """An object from outside, of no class of the program's, has no such attribute of its own."""
    source = session.source_of(owner)
    if source is not None and not session.is_created(owner):
        session.guard(GuardKind.LACKS_OWN_ATTRIBUTE, source, name)


def _class(machine: Machine, owner: type, name: str) -> Any:
    session = machine.session
    if session.is_created(owner) and session.is_created(session.class_outside(owner, name)):
        found = class_attribute(owner, name)
        value = found if type(found) in (*CONSTANTS, FakeTensor) else getattr(owner, name)
        return session.resolve(value)
    meta = class_attribute(type(owner), name)
    if meta is not MISSING and type(meta) is property:
        from dynamo.values import calls

        session.guard_class_attribute(type(owner), name, meta)
        return calls.call(machine, meta.fget, (owner,), {})
    found = class_attribute(owner, name)
    if found is MISSING:
        return _beyond_class(machine, owner, name, meta)
    kind = type(found)
    if kind is _FUNCTION:
        session.guard_class_attribute(owner, name, found)
        return found
    if kind is staticmethod or kind is classmethod:
        session.guard_class_attribute(owner, name, found)
        return found.__get__(None, owner)
    if name == "__dict__":
        raise GraphBreak(BreakReason.UNSUPPORTED_VALUE, "the dict of a class is read")
    if hasattr(kind, "__get__"):
        if type(class_attribute(kind, "__get__")) is _FUNCTION:
            from dynamo.values import calls

            return calls.call(machine, class_attribute(kind, "__get__"), (found, None, owner), {})
        return found.__get__(None, owner)
    value = getattr(owner, name)
    return _class_value(session, owner, name, value)


def _beyond_class(machine: Machine, owner: type, name: str, meta: Any) -> Any:
    """What the metaclass has under a name that no base has: `meta`, or what its `__getattr__` gives."""
    session = machine.session
    if type(meta) is _FUNCTION:
        session.guard_class_attribute(type(owner), name, meta)
        return types.MethodType(meta, owner)
    if meta is MISSING:
        session.guard_class_attribute(owner, name, GUARD_MISSING)
        session.guard_class_attribute(type(owner), name, GUARD_MISSING)
        fallback = special(type(owner), "__getattr__")
        if fallback is not None:
            from dynamo.values import calls

            session.guard_class_attribute(type(owner), "__getattr__", fallback)
            return calls.call(machine, fallback, (owner, name), {})
    elif not hasattr(type(meta), "__get__"):
        return _class_value(session, type(owner), name, meta)
    return getattr(owner, name)


def _class_value(session: Session, owner: type, name: str, value: Any) -> Any:
    if session.recipes:
        owner = session.class_outside(owner, name)
        if session.is_created(owner):
            return session.resolve(value)
    if type(value) in CONSTANTS:
        session.guard_class_attribute(owner, name, value)
        return value
    return session.wrap(value, AttributeSource(ConstantSource(owner, owner.__qualname__), name))


def _super(machine: Machine, owner: Any, name: str) -> Any:
    start, receiver, kind = owner.__thisclass__, owner.__self__, owner.__self_class__
    mro = kind.__mro__
    for base in mro[mro.index(start) + 1 :]:
        found = base.__dict__.get(name, MISSING)
        if found is MISSING:
            continue
        machine.session.guard_class_attribute(base, name, found)
        if receiver is kind:
            return found.__get__(None, kind) if hasattr(type(found), "__get__") else found
        if type(found) is _FUNCTION:
            return types.MethodType(found, receiver)
        if type(found) is property and type(found.fget) is _FUNCTION:
            from dynamo.values import calls

            return calls.call(machine, found.fget, (receiver,), {})
        if hasattr(type(found), "__get__"):
            return found.__get__(receiver, kind)
        return _class_value(machine.session, base, name, found)
    return getattr(owner, name)


def _function(machine: Machine, owner: Any, name: str) -> Any:
    session = machine.session
    if session.is_created(owner):
        return getattr(owner, name)
    if name in ("__name__", "__qualname__", "__module__", "__code__", "__doc__", "__globals__"):
        return getattr(owner, name)
    if not hasattr(owner, name):
        _guard_absence(session, owner, name)
        return getattr(owner, name)
    if type(class_attribute(type(owner), name)) in (
        types.WrapperDescriptorType,
        types.MethodDescriptorType,
    ):
        return getattr(owner, name)
    return session.wrap(getattr(owner, name), AttributeSource(session.known_source(owner), name))


def _method(machine: Machine, owner: types.MethodType, name: str) -> Any:
    if name in ("__self__", "__func__"):
        return getattr(owner, name)
    return load(machine, owner.__func__, name)


def _object(machine: Machine, owner: Any, name: str) -> Any:
    cls = type(owner)
    getter = class_attribute(cls, "__getattribute__")
    if type(getter) is _FUNCTION:
        from dynamo.values import calls

        try:
            return calls.call(machine, getter, (owner, name), {})
        except AttributeError as error:
            require_programs(error)
            fallback = special(cls, "__getattr__")
            if fallback is None:
                raise
            return calls.call(machine, fallback, (owner, name), {})
    value = generic_load(machine, owner, cls, name)
    if value is not MISSING:
        return value
    getter = class_attribute(cls, "__getattr__")
    if getter is _module_getattr:
        return module_member(machine, owner, name)
    if type(getter) is _FUNCTION:
        from dynamo.values import calls

        session = machine.session
        if session.source_of(owner) is not None and class_attribute(cls, name) is MISSING:
            session.guard_class_attribute(cls, name, GUARD_MISSING)
            _guard_absence(session, owner, name)
        session.guard_class_attribute(cls, "__getattr__", getter)
        return calls.call(machine, getter, (owner, name), {})
    raise _no_attribute(machine.session, owner, cls, name)


def _no_attribute(session: Session, owner: Any, cls: type, name: str) -> AttributeError:
    source = session.source_of(owner)
    if source is not None:
        if special(cls, "__getattr__") is None:
            session.guard(GuardKind.LACKS_ATTRIBUTE, source, name)
        else:  # asking would run the program's own `__getattr__`
            session.guard(GuardKind.LACKS_OWN_ATTRIBUTE, source, name)
            session.guard_class_attribute(cls, name, GUARD_MISSING)
            own = getattr(owner, "__dict__", {})
            for table in MODULE_TABLES if isinstance(owner, torch.nn.Module) else ():
                if table in own:
                    session.guard(GuardKind.LACKS, InstanceAttributeSource(source, table), name)
    return AttributeError(f"'{cls.__name__}' object has no attribute '{name}'", name=name)


def generic_load(machine: Machine, owner: Any, cls: type, name: str) -> Any:
    """`object.__getattribute__` on an object from outside or made here; MISSING if nothing is there."""
    session = machine.session
    if name == "__class__" and class_attribute(cls, name) is _class_getter:
        return cls
    local = is_local(owner)
    if name == "__dict__":
        if local:
            raise GraphBreak(BreakReason.UNSUPPORTED_VALUE, "the dict of a threading.local is read")
        return session.instance_dict(owner)
    found = class_attribute(cls, name)
    kind = type(found)
    if kind is property:
        session.guard_class_attribute(cls, name, found)
        return _property(machine, owner, found, name)
    if found is not MISSING and kind in NATIVE_DESCRIPTORS:
        return read_slot(session, owner, name)
    if found is not MISSING and kind is not _FUNCTION and _has_data_descriptor(kind):
        return _descriptor(machine, owner, cls, found, name)
    value = read_local(session, owner, name, MISSING) if local else _own(session, owner, name)
    if value is not MISSING:
        return value
    if found is MISSING:
        return MISSING
    source = session.source_of(owner)
    if source is not None and not session.is_created(owner):
        if local and not hasattr(kind, "__get__"):
            return wrap(session, found, AttributeSource(source, name))
        session.guard(GuardKind.LACKS_OWN_ATTRIBUTE, source, name)
    session.guard_class_attribute(cls, name, found)
    if kind is _FUNCTION:
        return types.MethodType(found, owner)
    if kind is staticmethod or kind is classmethod:
        return found.__get__(owner, cls)
    if hasattr(kind, "__get__"):
        return _descriptor(machine, owner, cls, found, name)
    return _class_value(session, cls, name, found)


def _property(machine: Machine, owner: Any, found: property, name: str) -> Any:
    if found.fget is None:
        raise AttributeError(f"property '{name}' of '{type(owner).__name__}' object has no getter")
    return _asked(machine, owner, found.fget, (owner,))


def _asked(machine: Machine, owner: Any, getter: Any, args: tuple[Any, ...]) -> Any:
    """What a property or descriptor gives; MISSING if it raised AttributeError and `__getattr__` is asked next."""
    from dynamo.values import calls

    try:
        return calls.call(machine, getter, args, {})
    except AttributeError as error:
        require_programs(error)
        if class_attribute(type(owner), "__getattr__") is MISSING:
            raise
        return MISSING


def read_slot(session: Session, owner: Any, name: str) -> Any:
    """An attribute that C code keeps: in a slot, or computed; MISSING if the slot is empty."""
    source = session.source_of(owner)
    if source is None or session.is_created(owner):
        try:
            return session.resolve(getattr(owner, name))
        except AttributeError:
            return MISSING
    if session.slot_writes and (id(owner), name) in session.slot_writes:
        value = session.slot_writes[id(owner), name][2]
        return MISSING if value is DELETED else value
    written = session.instance_dicts.get(id(owner))
    if written is not None and name in written.copy:
        return session.resolve(written.copy[name])
    key = (id(owner), name)
    if key not in session.attribute_memo:
        try:
            value = getattr(owner, name)
        except AttributeError:
            return MISSING
        session.attribute_memo[key] = wrap(session, value, AttributeSource(source, name))
    return session.attribute_memo[key]


def _has_data_descriptor(kind: type) -> bool:
    return hasattr(kind, "__get__") and (hasattr(kind, "__set__") or hasattr(kind, "__delete__"))


def _descriptor(machine: Machine, owner: Any, cls: type, found: Any, name: str) -> Any:
    from dynamo.values import calls

    if isinstance(found, functools.cached_property):
        from dynamo.values import writing  # it reads by this module

        value = calls.call(machine, found.func, (owner,), {})
        writing.store_own(machine.session, owner, found.attrname or name, value)
        return value
    getter = class_attribute(type(found), "__get__")
    if type(getter) is _FUNCTION:
        descriptor = machine.session.wrap(
            found, ItemSource(AttributeSource(ConstantSource(_owner(cls, name)), "__dict__"), name)
        )
        return _asked(machine, owner, getter, (descriptor, owner, cls))
    return found.__get__(owner, cls)


def _owner(cls: type, name: str) -> type:
    return next(base for base in cls.__mro__ if name in base.__dict__)


def _own(session: Session, owner: Any, name: str) -> Any:
    """An attribute in the instance's own dict."""
    written = session.instance_dicts.get(id(owner))
    if written is not None:
        value = written.copy.get(name, MISSING)
        if type(value) is not Lazy:
            return value
        key = (id(owner), name)
        if key not in session.attribute_memo:
            session.attribute_memo[key] = session.resolve(value)
        return session.attribute_memo[key]
    own = getattr(owner, "__dict__", None) if type(owner) is not FakeTensor else None
    if own is None or name not in own:
        return MISSING
    source = session.sources.get(id(owner))
    value = own[name]
    own_copy = (
        id(owner) in session.shadows_by_copy
    )  # of a container: it has what the program put there
    if source is None or own_copy or session.is_created(owner) or type(value) is Lazy:
        return session.resolve(value)
    key = (id(owner), name)
    memo = session.attribute_memo
    if key in memo:
        return memo[key]
    memo[key] = value = wrap(session, value, InstanceAttributeSource(source, name))
    return value


def module_member(machine: Machine, owner: Any, name: str) -> Any:
    """`nn.Module.__getattr__`: a parameter, buffer or submodule."""
    session = machine.session
    source = session.sources.get(id(owner))
    created = source is None or session.is_created(owner)
    own = session.instance_dict(owner) if created else None
    for table in MODULE_TABLES:
        if own is not None:
            members = own.get(table, {})
        else:
            members = owner.__dict__.get(table)
            if members is None:
                continue
            shadow = session.shadows.get(id(members))
            written = session.instance_dicts.get(id(owner))
            if written is not None:
                members = session.resolve(written.copy.get(table, {}))
            elif shadow is not None:
                members = shadow.copy
            elif name in members:
                key = (id(owner), name)
                memo = session.attribute_memo
                if key not in memo:
                    assert source is not None, "not created"
                    memo[key] = wrap(
                        session, members[name], ModuleMemberSource(source, table, name)
                    )
                return memo[key]
        if name in members:
            return session.resolve(members[name])
    raise _no_attribute(session, owner, type(owner), name)


def _traceback(machine: Machine, owner: Any, name: str) -> Any:
    """The traceback of an exception that was raised while capturing is the interpreter's."""
    raise GraphBreak(
        BreakReason.UNSUPPORTED_VALUE, f"{name} of a traceback is not known while capturing"
    )


_NATIVE_TYPES: tuple[type, ...] = (
    *CONSTANTS,
    tuple,
    frozenset,
    range,
    slice,
    property,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.CellType,
    types.CodeType,
    TracedGenerator,
    TracedCallable,
    AheadIterator,
)
_LOADERS: dict[type, Callable[[Any, Any, str], Any]] = {
    **dict.fromkeys(_NATIVE_TYPES, _native),
    list: _container,
    dict: _container,
    set: _container,
    FakeTensor: _tensor,
    types.ModuleType: _module,
    type: _class,
    super: _super,
    types.TracebackType: _traceback,
    types.FunctionType: _function,
    types.MethodType: _method,
}


def register_loader(kind: type, loader: Callable[[Any, Any, str], Any]) -> None:
    """How attributes of a stand-in of capture's own are read."""
    _LOADERS[kind] = loader


def object_attribute(machine: Machine, owner: Any, name: str) -> Any:
    """`owner.name` of an object of no kind of its own."""
    return _object(machine, owner, name)


def _choose(owner: Any) -> Callable[[Any, Any, str], Any]:
    kind = type(owner)
    if isinstance(owner, torch.Tensor):
        loader = _tensor
    elif isinstance(owner, type):
        loader = _class
    elif isinstance(owner, types.ModuleType):
        loader = _module
    elif isinstance(owner, torch.SymInt | torch.SymFloat | torch.SymBool | BaseException):
        loader = _native if not isinstance(owner, BaseException) else _object
    else:
        loader = _object
    if "<locals>" not in kind.__qualname__:  # what a call made should not be kept for good
        _LOADERS[kind] = loader
    return loader
