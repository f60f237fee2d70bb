"""Values in f-strings and `format`: converted and formatted by Python's protocol.

What is written in Python (`__format__`, `__str__`) is interpreted; numbers that vary become numbers, since text is
made of them; tensors have no text while capturing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import asked, operators
from dynamo.values.attributes import call_special, special
from dynamo.values.wrap import CONSTANTS
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["BRACKETS", "contents", "convert", "format_text", "is_told"]

BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    dict: ("{", "}"),
    set: ("{", "}"),
}


def is_told(machine: Machine, value: Any) -> bool:
    """Whether something in a container has a `__repr__` that is written in Python."""
    asked.force(machine, value)
    for item in (*value, *value.values()) if type(value) is dict else value:
        kind = type(item)
        if kind in BRACKETS:
            if (0, id(item)) in machine.shown:
                continue
            machine.shown.add((0, id(item)))
            try:
                if is_told(machine, item):
                    return True
            finally:
                machine.shown.discard((0, id(item)))
        elif kind.__module__ != "enum" and special(kind, "__repr__") is not None:
            return True
    return False


def contents(machine: Machine, value: Any) -> str:
    """`repr` of a list, tuple, dict or set, what is in it by the program's own methods."""
    from dynamo.values import calls

    def told(item: Any) -> str:
        return str(calls.call(machine, repr, (item,), {}))

    begin, end = BRACKETS[type(value)]
    key = 1, id(value)
    if key in machine.shown:
        return f"{begin}...{end}"
    machine.shown.add(key)
    try:
        if type(value) is dict:
            items = [f"{told(name)}: {told(item)}" for name, item in value.items()]
        else:
            items = list(map(told, value))
    finally:
        machine.shown.discard(key)
    comma = "," if type(value) is tuple and len(items) == 1 else ""
    return f"{begin}{', '.join(items)}{comma}{end}"


def convert(machine: Machine, conversion: str, value: Any) -> Any:
    """`!s`, `!r` and `!a` of an f-string."""
    from dynamo.values import calls

    match conversion:
        case "s":
            return calls.call(machine, str, (value,), {})
        case "r":
            return calls.call(machine, repr, (value,), {})
        case "a":
            return calls.call(machine, ascii, (value,), {})
    return value


def format_text(machine: Machine, value: Any, spec: str) -> str:
    """`format(value, spec)`."""
    if type(value) is FakeTensor:
        raise GraphBreak(BreakReason.DATA_DEPENDENT_VALUE, "a tensor is turned into text")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        value = operators.plain_numbers(value)
    method = special(type(value), "__format__")
    if method is not None and type(value).__module__ != "enum":
        return str(call_special(machine, method, value, spec))
    if type(value) not in CONSTANTS and not spec:
        from dynamo.values import calls

        return str(calls.call(machine, str, (value,), {}))
    return format(value, spec)
