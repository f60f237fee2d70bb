"""Functions behind `functools.lru_cache`: the cache is asked while capturing, and answers for later calls.

Comes in: a memoised function and arguments that exist outside of the capture. Goes out: what it gives, as in eager:
by a real call, whose tensors are real and stay in the cache. Where an argument is made by the program, the function
is interpreted instead. Invariant: an entry holds only where the cache gives the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo._torch import function_mode_stack, without_function_modes
from dynamo.guards import Guard, GuardKind, same_constant
from dynamo.source import ConstantSource
from dynamo.values.wrap import is_constant

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine

__all__ = ["ask_cache", "is_known_outside"]


def is_known_outside(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether a memoised function and all its arguments exist outside of the capture, and nothing overrides torch."""
    session = machine.session
    if session.is_created(function) or session.is_created(function.__wrapped__):
        return False
    stack = function_mode_stack()
    if session.recorder.overrides.modes or not stack or stack[-1] is not session.recorder.mode:
        return False
    return all(
        is_constant(value)
        or (
            session.source_of(value) is not None
            and not session.is_created(value)
            and id(value) not in session.shadows_by_copy
            and not isinstance(value, torch.Tensor | tuple)
            and id(value) not in session.instance_dicts
        )
        for value in (*args, *kwargs.values())
    )


def ask_cache(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The memoised function's answer, guarded."""
    session = machine.session
    with without_function_modes(1):  # capture's own: tensors made inside are real
        result = function(*args, **kwargs)
    origin = session.source_of
    given = [*args, *kwargs.values()]
    for value in given:
        if not is_constant(value) and not _varies(value):
            session.guard(GuardKind.IDENTITY, session.known_source(value), value)
    if any(_varies(value) for value in given) or not is_constant(result):
        _guard(machine, function, args, kwargs, result)
    session.assumptions.answer(
        function,
        [(value, origin(value)) for value in args],
        {name: (value, origin(value)) for name, value in kwargs.items()},
        result,
    )
    return session.wrap(result, ConstantSource(result))


def _varies(value: Any) -> bool:
    """Whether an equal object is the same to a cache; of others the identity is guarded, which entries can store."""
    hashed: Any = type(value).__hash__
    return not is_constant(value) and hashed is not object.__hash__


def _guard(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """The cache gives the same for what the sources of the arguments load then."""
    session = machine.session
    places: list[int | str] = [number for number, v in enumerate(args) if _varies(v)]
    places += [name for name, value in kwargs.items() if _varies(value)]
    source: Any = ConstantSource(function)
    place = places[0] if len(places) == 1 else None
    if place is not None:
        source = session.source_of(_at(args, kwargs, place))
    else:
        for other in places:
            value = _at(args, kwargs, other)
            session.guard(GuardKind.IDENTITY, session.known_source(value), value)
    name = getattr(function, "__qualname__", "a memoised function")
    check = _same_answer(function, args, kwargs, place, result)
    session.guards[(GuardKind.PREDICATE, source, (id(function), *map(id, args)))] = Guard(
        source,
        GuardKind.PREDICATE,
        (check, f"{name} gives from its cache what it gave"),
        session.source_line,
    )
    session.keep(function)


def _at(args: tuple[Any, ...], kwargs: dict[str, Any], place: int | str) -> Any:
    return args[place] if isinstance(place, int) else kwargs[place]


def _same_answer(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    place: int | str | None,
    result: Any,
) -> Callable[[Any], bool]:
    """Asks the cache again, with the guarded value at its place among the arguments."""
    before = args[:place] if isinstance(place, int) else args
    behind = args[place + 1 :] if isinstance(place, int) else ()
    named = {name: value for name, value in kwargs.items() if name != place}
    constant = is_constant(result)

    def check(value: Any) -> bool:
        try:
            if place is None:
                found = function(*args, **kwargs)
            elif isinstance(place, int):
                found = function(*before, value, *behind, **named)
            else:
                found = function(*args, **named, **{place: value})
        except Exception:  # noqa: BLE001 - the call itself raises it
            return False
        if constant:
            return same_constant(found, result)
        return found is result

    return check
