"""Values in f-strings and `format`: converted and formatted by Python's protocol.

What is written in Python (`__format__`, `__str__`) is interpreted; numbers that vary become numbers, since text is
made of them; tensors have no text while capturing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import operators
from dynamo.values.attributes import special
from dynamo.values.wrap import CONSTANTS
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["convert", "format_text"]


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
        return str(machine.inline(method, (value, spec), {}))
    if type(value) not in CONSTANTS and not spec:
        from dynamo.values import calls

        return str(calls.call(machine, str, (value,), {}))
    return format(value, spec)
