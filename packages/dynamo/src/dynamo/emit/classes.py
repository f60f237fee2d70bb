"""Makes again, in each call, a class that the captured program made, and the descriptors in it.

Comes in: a class and how it was made (`dynamo.values.classes.Recipe`). Goes out: lines that give the metaclass the
same name, bases and namespace. A cell that leads back to the class (of `super()`, of a method that names its class)
is filled when the class is there. Invariant: one class, one variable.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import enum

    from dynamo.emit.reconstruct import Emitter

__all__ = ["emit_class", "emit_descriptor", "emit_member"]


def emit_class(emitter: Emitter, cls: type) -> str:
    """The variable that holds a class made in the capture; None if it can't be made again."""
    recipe = emitter.session.recipes.get(id(cls))
    if recipe is None:
        raise emitter.impossible("a class made in the captured code")
    waiting = emitter.unfinished.get(id(cls))
    if waiting is not None:
        raise emitter.impossible("a class that its own namespace leads back to")
    emitter.unfinished[id(cls)] = waiting = []
    if recipe.namespace is None:
        maker = emitter.constant(recipe.maker)
        args = "".join(f"{emitter.value(value)}, " for value in recipe.args)
        name = emitter.name(f"{maker}({args}{_named(emitter, recipe.kwargs)})")
    else:
        name = _by_metaclass(emitter, recipe)
    for options in recipe.decorated:
        decorate = emitter.constant(dataclasses.dataclass)
        name = emitter.name(f"{decorate}({name}, {_named(emitter, options)})")
    del emitter.unfinished[id(cls)]
    emitter.remember(cls, name)
    for cell in waiting:
        emitter.line(f"{cell}.cell_contents = {name}")
    for attribute, value in recipe.written.items():
        emitter.line(f"type.__setattr__({name}, {attribute!r}, {emitter.value(value)})")
    return name


def _by_metaclass(emitter: Emitter, recipe: Any) -> str:
    title, bases = recipe.args
    hooked = isinstance(recipe.maker, functools.partial)
    meta = emitter.value(recipe.maker.args[0] if hooked else recipe.maker)
    over = emitter.name("(" + "".join(f"{emitter.value(base)}, " for base in bases) + ")")
    options = _named(emitter, recipe.kwargs)
    names = emitter.name(f"{meta}.__prepare__({title!r}, {over}, {options})")
    cell = recipe.namespace.get("__classcell__")
    if isinstance(cell, types.CellType):  # the metaclass fills it
        emitter.remember(cell, emitter.name(f"{emitter.constant(types.CellType)}()"))
    for key, value in recipe.namespace.items():
        emitter.line(f"{names}[{key!r}] = {emitter.value(value)}")
    if hooked:  # what the bases were told has happened already
        maker = emitter.constant(recipe.maker.func)
        return emitter.name(f"{maker}({meta}, {title!r}, {over}, {names})")
    if type(recipe.maker.__new__) is types.FunctionType and recipe.native:
        return emitter.name(f"{meta}({title!r}, {over}, {names}, {options})")
    return emitter.name(f"type.__new__({meta}, {title!r}, {over}, {names}, {options})")


def _named(emitter: Emitter, values: dict[str, Any]) -> str:
    return "".join(f"{name}={emitter.value(value)}, " for name, value in values.items())


def emit_descriptor(emitter: Emitter, value: Any) -> str:
    """A property, class method, static method or cached property that the capture made."""
    maker = emitter.constant(type(value))
    if isinstance(value, property):
        parts = (value.fget, value.fset, value.fdel, value.__doc__)
        made = f"{maker}({', '.join(map(emitter.value, parts))})"
    elif isinstance(value, functools.cached_property):
        made = f"{maker}({emitter.value(value.func)})"
    else:
        made = f"{maker}({emitter.value(value.__func__)})"
    name = emitter.name(made)
    emitter.remember(value, name)
    return name


def emit_member(emitter: Emitter, value: enum.Enum) -> str:
    """A member of an enumeration that the capture made."""
    name = emitter.name(f"{emitter.value(type(value))}[{value.name!r}]")
    emitter.remember(value, name)
    return name
