# ruff: noqa: ARG001 - one signature for all rules
"""Library code that computes plain data from plain data: `json`, paths, generators of `random` with a known seed.

What it gives follows from its arguments, so it runs while capturing: texts, numbers and paths are constants of the
graph. A `random.Random` made in the call is a plain object that C code changes; it is made again, with the state that
it has reached, where it leaves the call. Invariant: nothing that only run time knows takes part, and no code of the
program runs but interpreted.
"""

from __future__ import annotations

import _random
import json
import pathlib
import random
import sys
import types
from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import asked, operators
from dynamo.values.rules import RULES, UNRULED, rule
from dynamo.values.wrap import is_constant

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine


def _is_data(machine: Machine, value: Any) -> bool:
    """Whether a value is made of constants, and of the builtin containers alone."""
    if is_constant(value) and type(value).__module__ == "builtins":
        return True
    if type(value) in (list, tuple):
        return all(_is_data(machine, item) for item in value)
    if type(value) is dict:
        return all(_is_data(machine, item) for pair in value.items() for item in pair)
    return False


def _json(function: Callable[..., Any]) -> None:
    """The whole of it natively, if it is given data and calls nothing of the program."""

    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            asked.force(machine, value)
        given = operators.plain_numbers(args), operators.plain_numbers(kwargs)
        if not _is_data(machine, given[0]) or not _is_data(machine, given[1]):
            return machine.inline(function, args, kwargs)  # type: ignore[arg-type]
        return function(*given[0], **given[1])


_json(json.loads)
_json(json.dumps)


# -- paths ---------------------------------------------------------------------------------------------

_NAMES = (str, pathlib.PurePath)


def _on_paths(function: Any) -> None:
    """A function of text and paths alone, which asks no file system."""

    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = (*args, *kwargs.values())
        if not all(isinstance(value, _NAMES) or is_constant(value) for value in given):
            return machine.inline(function, args, kwargs)
        return function(*args, **kwargs)


def _path_class(cls: Any) -> None:
    @rule(cls)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not all(isinstance(value, _NAMES) for value in args):
            raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a path is made of another object")
        return cls(*args, **kwargs)


for _class in (
    pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.Path, pathlib.PosixPath,
):  # fmt: skip
    _path_class(_class)
for _attribute in vars(pathlib.PurePath).values():
    _function = _attribute.fget if isinstance(_attribute, property) else _attribute
    _function = _function.__func__ if isinstance(_function, classmethod) else _function
    if type(_function) is types.FunctionType and _function not in RULES:
        _on_paths(_function)


@rule(sys.intern)
def _intern(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return sys.intern(*args)


# -- random generators ---------------------------------------------------------------------------------


def _on_generator(name: str) -> None:
    method: Any = getattr(_random.Random, name)

    @rule(method)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator, *rest = args
        if not machine.session.is_created(generator) or type(generator) is not random.Random:
            raise GraphBreak(
                BreakReason.OUTSIDE_EFFECT, "numbers are drawn from a generator of the program"
            )
        given = operators.plain_numbers(tuple(rest))
        if (name == "seed" and given in ((), (None,))) or not all(map(is_constant, given)):
            raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a generator is seeded by the system")
        return method(generator, *given)


@rule(random.Random.seed)
def _seed(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    generator, *given = operators.plain_numbers(args)
    made_here = machine.session.is_created(generator) and type(generator) is random.Random
    if not made_here or not given or given[0] is None or kwargs or not all(map(is_constant, given)):
        return UNRULED
    return random.Random.seed(generator, *given)  # of a text it imports a hash


for _name in ("seed", "getstate", "setstate"):  # for draws see `values.drawn`
    _on_generator(_name)
