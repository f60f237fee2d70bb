"""Code objects as instruction data, and the constants that only this package makes.

Step and resume functions are code that capture assembled; they are written as their instructions and assembled
again. Invariant: the code that is read equals the code that was written.
"""

from __future__ import annotations

import dataclasses
import types
from typing import TYPE_CHECKING, Any

from dynamo.bytecode import Header, Instruction, assemble, decode, header_of
from dynamo.bytecode.instruction import ExceptionHandler

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

__all__ = ["in_one_form", "read_code", "write_code"]

_FIELDS = tuple(field.name for field in dataclasses.fields(Header))


def write_code(code: CodeType, value: Callable[[Any], Any]) -> Any:
    """JSON of a code object; `value` writes a constant, which may be a code object in its turn."""
    instructions = decode(code)
    numbers = {id(instruction): n for n, instruction in enumerate(instructions)}
    handlers: dict[int, int] = {}
    rows: list[Any] = []
    table: list[Any] = []
    for one in instructions:
        handler = -1
        if one.handler is not None:
            handler = handlers.setdefault(id(one.handler), len(handlers))
            if handler == len(table):
                target = numbers[id(one.handler.target)]
                table.append([target, one.handler.depth, one.handler.push_lasti])
        rows.append(
            [
                one.opname,
                one.arg,
                value(one.argval),
                -1 if one.target is None else numbers[id(one.target)],
                handler,
                None if one.positions is None else list(one.positions),
                one.width,
            ]
        )
    header = header_of(code)
    return [[value(getattr(header, name)) for name in _FIELDS], rows, table]


def read_code(data: Any, value: Callable[[Any], Any]) -> CodeType:
    """The code object of JSON."""
    fields, rows, table = data
    instructions = [
        Instruction(
            opname,
            arg,
            value(argval),
            positions=None if positions is None else tuple(positions),
            width=width,
        )
        for opname, arg, argval, _, _, positions, width in rows
    ]
    handlers = [
        ExceptionHandler(instructions[target], depth, lasti) for target, depth, lasti in table
    ]
    for instruction, (_, _, _, target, handler, _, _) in zip(instructions, rows, strict=True):
        if target >= 0:
            instruction.target = instructions[target]
        if handler >= 0:
            instruction.handler = handlers[handler]
    return assemble(instructions, Header(*map(value, fields)))


def in_one_form(code: CodeType) -> CodeType:
    """The same for code as Python compiled it and as it comes back from disk: to compare, not to run."""
    instructions = decode(code)
    for instruction in instructions:
        if isinstance(instruction.argval, types.CodeType):
            instruction.argval = in_one_form(instruction.argval)
    header = dataclasses.replace(header_of(code), constants=(), names=())
    return assemble(instructions, header)
