# ruff: noqa: ARG001, PYI024 - one signature for all rules
"""Classes that the captured program makes: `class` statements, `type(...)`, `namedtuple`, `dataclass`.

The body is interpreted in the namespace that the metaclass prepares, the class itself is made by its metaclass, now
and for this capture only. How it was made is written down (`Recipe`), so that code behind the capture can make it
again, as eager makes a new class in each call. Invariant: no hook of the program (`__init_subclass__`,
`__set_name__`, a metaclass's methods) runs other than interpreted.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import functools
import types
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import attributes, iteration, subscripts
from dynamo.values.rules import attributes_trusted, rule, type_of

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine
    from dynamo.values.session import Session

__all__ = ["Recipe"]

_DESCRIPTORS = (property, classmethod, staticmethod, functools.cached_property)
_data_class: Any = dataclasses.dataclass


@dataclass(slots=True)
class Recipe:
    """How a class was made, in the program's own values."""

    maker: Any  # a metaclass, or a function that makes classes
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    namespace: dict[str, Any] | None  # what the metaclass got as third argument
    native: bool = True  # its own `__new__` is the library's
    decorated: list[dict[str, Any]] = field(default_factory=list)  # `dataclass` and its options
    written: dict[str, Any] = field(default_factory=dict)  # attributes assigned later


def _refuse(why: str) -> GraphBreak:
    return GraphBreak(BreakReason.UNSUPPORTED_CALL, why)


def _plain(code: Any) -> bool:
    """Whether code that the class protocol would call is no Python code of the program."""
    found = getattr(code, "__func__", code)
    return type(found) is not types.FunctionType or attributes_trusted(found.__module__)


@rule(builtins.__build_class__)
def _build_class(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from dynamo.values import calls

    body, name, *given = args
    if not machine.session.is_created(body):
        raise _refuse("__build_class__ is called with a function from outside")
    bases = tuple(types.resolve_bases(given))
    meta, namespace, rest = types.prepare_class(name, bases, _prepared(machine, bases, kwargs))
    if not isinstance(namespace, dict):
        raise _refuse(f"a class body runs in a {type(namespace).__qualname__}")
    if bases != tuple(given):
        namespace["__orig_bases__"] = tuple(given)
    machine.inline(body, (), {}, namespace=namespace)
    hooks = (attributes.class_attribute(meta, name) for name in ("__new__", "__init__"))
    if _plain(attributes.class_attribute(type(meta), "__call__")) and all(map(_plain, hooks)):
        return make(machine, meta, name, bases, namespace, rest)
    return calls.call(machine, meta, (name, bases, namespace), rest)


def _prepared(machine: Machine, bases: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    meta = kwargs.get("metaclass") or (type(bases[0]) if bases else type)
    for kind in {type(base) for base in bases} | ({meta} if isinstance(meta, type) else set()):
        if not _plain(attributes.class_attribute(kind, "__prepare__")):
            raise _refuse(f"{kind.__qualname__}.__prepare__ is called for a class")
    if not isinstance(meta, type):
        raise _refuse("a class has a metaclass that is no class")
    return kwargs


@rule(type.__new__)
def _new(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    meta, name, bases, namespace = args
    return make(machine, meta, name, bases, namespace, kwargs)


@rule(type.__init__)
def _init(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return None


@rule(type)
def _type(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs:
        return type_of(machine, args[0])
    if len(args) != 3:
        raise TypeError("type() takes 1 or 3 arguments")
    name, bases, namespace = args
    given = subscripts.mapping_items(machine, namespace)
    return make(machine, type, name, tuple(iteration.iterate(machine, bases)), given, kwargs)


def make(
    machine: Machine,
    meta: type,
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, Any],
    kwargs: dict[str, Any],
) -> Any:
    """A class by its metaclass's own `__new__`, written in C or the library's."""
    session = machine.session
    hooked = not all(
        _plain(attributes.class_attribute(base, "__init_subclass__")) for base in bases
    )
    for key in list(dict.keys(namespace)):
        value = session.resolve(dict.__getitem__(namespace, key))
        dict.__setitem__(namespace, key, value)
    told = {
        key: value
        for key, value in dict.items(namespace)
        if not _plain(attributes.class_attribute(type(value), "__set_name__"))
    }
    module = machine.frames[-1].globals.get("__name__")
    if "__module__" not in namespace and module is not None:
        dict.__setitem__(namespace, "__module__", module)
    native = _plain(attributes.class_attribute(meta, "__new__"))
    given, kwargs = kwargs, {} if hooked else kwargs
    maker: Any = functools.partial(without_hooks, meta) if hooked else meta
    recipe = Recipe(maker, (name, bases), dict(kwargs), dict(namespace), native)
    for key in told:
        dict.__setitem__(namespace, key, None)
    if native:
        made: Any = maker(name, bases, namespace, **kwargs)
    elif hooked:
        raise _refuse(f"{name} has a metaclass of the program's and a base with __init_subclass__")
    else:
        made = type.__new__(meta, name, bases, namespace, **kwargs)
    register(session, made, recipe)
    for key, value in told.items():
        type.__setattr__(made, key, value)
    for key, value in told.items():
        from dynamo.values import calls

        hook = attributes.class_attribute(type(value), "__set_name__")
        calls.call(machine, hook, (value, made, key), {})
    if hooked:
        _tell_bases(machine, made, given)
    return made


def without_hooks(meta: Any, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
    """The class, with no base's `__init_subclass__` called: one of a base that is then taken out is."""
    hook = classmethod(lambda *_: None)
    for layout in ({}, {"__slots__": ()}):
        quiet = type("Quiet", (), {"__init_subclass__": hook, **layout})
        with contextlib.suppress(TypeError):  # its instances are laid out differently
            made = meta(name, (quiet, *bases), namespace)
            made.__bases__ = bases
            return made
    raise TypeError(f"{name} can't be made without telling its bases")


def _tell_bases(machine: Machine, made: type, given: dict[str, Any]) -> None:
    from dynamo.values import calls

    hook = attributes.load(machine, super(made, made), "__init_subclass__")
    calls.call(machine, hook, (), given)


def register(session: Session, made: Any, recipe: Recipe) -> None:
    """Note a new class, and what its making made, as the program's."""
    if not isinstance(made, type):
        session.created(made)
        return
    session.created(made)
    session.recipes[id(made)] = recipe
    for value in list(vars(made).values()):
        inner: list[Any] = [value]
        if isinstance(value, property):
            inner += [value.fget, value.fset, value.fdel]
        inner.append(getattr(value, "__func__", None))
        for one in inner:
            if isinstance(one, (types.FunctionType, *_DESCRIPTORS, made)):  # members, in an `Enum`
                session.created(one)


def _library_class(maker: Any) -> None:
    @rule(maker)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = tuple(_known(machine, value) for value in args)
        named = {name: _known(machine, value) for name, value in kwargs.items()}
        if "module" not in named and maker is collections.namedtuple:
            named["module"] = machine.frames[-1].globals.get("__name__", "__main__")
        made = maker(*values, **named)
        register(machine.session, made, Recipe(maker, values, named, None))
        return made


def _known(machine: Machine, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_known(machine, item) for item in iteration.iterate(machine, value))
    return value


_library_class(collections.namedtuple)
_library_class(dataclasses.make_dataclass)


@rule(_data_class)
def _decorate(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not args or args[0] is None:
        return machine.session.created(functools.partial(_data_class, **kwargs))
    (cls,) = args
    session = machine.session
    recipe = session.recipes.get(id(cls))
    if recipe is None:
        raise _refuse("dataclass changes a class from outside")
    made = _data_class(cls, **kwargs)
    recipe.decorated.append(dict(kwargs))
    register(session, made, recipe)
    return made


def _descriptor(kind: Any) -> None:
    @rule(kind)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return machine.session.created(kind(*args, **kwargs))


for _kind in _DESCRIPTORS:
    _descriptor(_kind)


@rule(typing.TypeVar)
def _type_variable(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return typing.TypeVar(*args, **kwargs)


def _changed_property(name: str) -> None:
    @rule(vars(property)[name])
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return machine.session.created(getattr(args[0], name)(*args[1:]))


@rule(property.__init__)
def _init_property(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    made, *rest = args
    if not machine.session.is_created(made):
        raise _refuse("a property from outside is made anew")
    property.__init__(made, *rest, **kwargs)  # its class is the program's


for _name in ("getter", "setter", "deleter"):
    _changed_property(_name)
