"""f-strings."""

# ruff: noqa: ARG001, D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo.machine.program import opcode
from dynamo.values import text

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op

_CONVERSIONS = {0: "", 1: "s", 2: "r", 3: "a"}


@opcode("FORMAT_VALUE", breaks=True)
def format_value(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value, spec?] -> [.., text]"""
    stack = frame.stack
    spec = stack.pop() if op.arg & 4 else ""
    value = text.convert(machine, _CONVERSIONS[op.arg & 3], stack.pop())
    stack.append(text.format_text(machine, value, spec))


@opcode("CONVERT_VALUE", breaks=True)
def convert_value(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., text]"""
    frame.stack.append(text.convert(machine, _CONVERSIONS[op.arg], frame.stack.pop()))


@opcode("FORMAT_SIMPLE", breaks=True)
def format_simple(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., text]"""
    frame.stack.append(text.format_text(machine, frame.stack.pop(), ""))


@opcode("FORMAT_WITH_SPEC", breaks=True)
def format_with_spec(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value, spec] -> [.., text]"""
    spec = frame.stack.pop()
    frame.stack.append(text.format_text(machine, frame.stack.pop(), spec))


@opcode("BUILD_STRING")
def build_string(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., pieces] -> [.., text]"""
    stack = frame.stack
    pieces = stack[-op.arg :]
    del stack[-op.arg :]
    stack.append("".join(pieces))
