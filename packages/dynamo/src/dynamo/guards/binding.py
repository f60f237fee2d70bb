"""How the arguments of a call become the argument slots of a frame, and back.

Comes in: a function and a call's arguments, or slots. Goes out: slots, or the call's result. The
slots of a frame are its positional arguments, its keyword-only arguments, then the tuple of `*args`
and the dict of `**kwargs`. Invariant: a call is bound exactly as Python binds it, defaults as they
are at that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FunctionType

__all__ = ["bind", "run_original"]

_VARARGS, _VARKEYWORDS = 0x4, 0x8


def bind(
    function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """The argument slots of a call, or None where Python would raise TypeError."""
    code = function.__code__
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    flags, names = code.co_flags, code.co_varnames
    count = positional + keyword_only
    slots: list[Any] = list(args[:positional])
    missing = object()
    slots += [missing] * (count - len(slots))
    extra = tuple(args[positional:])
    if extra and not flags & _VARARGS:
        return None
    spare: dict[str, Any] = {}
    for name, value in kwargs.items():
        try:
            index = names.index(name, code.co_posonlyargcount, count)
        except ValueError:
            if not flags & _VARKEYWORDS:
                return None
            spare[name] = value
            continue
        if slots[index] is not missing:
            return None
        slots[index] = value
    defaults = function.__defaults__ or ()
    for index in range(positional):
        if slots[index] is missing:
            from_end = index - positional + len(defaults)
            if from_end < 0:
                return None
            slots[index] = defaults[from_end]
    keyword_defaults = function.__kwdefaults__ or {}
    for index in range(positional, count):
        if slots[index] is missing:
            if names[index] not in keyword_defaults:
                return None
            slots[index] = keyword_defaults[names[index]]
    if flags & _VARARGS:
        slots.append(extra)
    if flags & _VARKEYWORDS:
        slots.append(spare)
    return tuple(slots)


def run_original(function: FunctionType, slots: Sequence[Any]) -> Any:
    """Call `function` itself with argument slots."""
    code = function.__code__
    positional, count = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    args = slots[:positional]
    kwargs = dict(zip(code.co_varnames[positional:count], slots[positional:count], strict=True))
    rest = list(slots[count:])
    if code.co_flags & _VARARGS:
        args = (*args, *rest.pop(0))
    if code.co_flags & _VARKEYWORDS:
        kwargs.update(rest.pop(0))
    return function(*args, **kwargs)
