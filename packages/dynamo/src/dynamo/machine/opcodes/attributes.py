"""Attributes, methods, `super()` and imports."""

# ruff: noqa: D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo.machine.program import opcode
from dynamo.values import attributes, imports, writing
from dynamo.versions import NULL, NULL_FIRST, PY312

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op


@opcode("LOAD_ATTR", breaks=True)
def load_attr(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., owner] -> [.., attribute]; on 3.12 also the method form"""
    if PY312 and op.arg & 1:
        load_method(machine, frame, op)
        return
    stack = frame.stack
    stack.append(attributes.load(machine, stack.pop(), op.value))


@opcode("LOAD_METHOD", breaks=True)
def load_method(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., owner] -> [.., method, self] or [.., NULL, callable]"""
    stack = frame.stack
    _push_method(frame, *attributes.load_method(machine, stack.pop(), op.value))


def _push_method(frame: Frame, function: object, receiver: object) -> None:
    if receiver is NULL and NULL_FIRST:
        frame.stack.append(NULL)
        frame.stack.append(function)
    else:
        frame.stack.append(function)
        frame.stack.append(receiver)


@opcode("LOAD_SUPER_ATTR", breaks=True)
def load_super_attr(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., super, class, self] -> [.., attribute] or the method form"""
    stack = frame.stack
    receiver = stack.pop()
    cls = stack.pop()
    stack.pop()
    value = attributes.load(machine, super(cls, receiver), op.value)
    if op.arg & 1:
        _push_method(frame, value, NULL)
    else:
        stack.append(value)


@opcode("STORE_ATTR", breaks=True)
def store_attr(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value, owner] -> [..]"""
    stack = frame.stack
    owner = stack.pop()
    value = stack.pop()
    writing.store(machine, owner, op.value, value)


@opcode("DELETE_ATTR", breaks=True)
def delete_attr(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., owner] -> [..]"""
    writing.delete(machine, frame.stack.pop(), op.value)


@opcode("IMPORT_NAME", breaks=True)
def import_name(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., level, fromlist] -> [.., module]"""
    stack = frame.stack
    fromlist = stack.pop()
    level = stack.pop()
    stack.append(imports.import_module(machine, frame.globals, op.value, fromlist, level))


@opcode("IMPORT_FROM", breaks=True)
def import_from(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., module] -> [.., module, attribute]"""
    frame.stack.append(imports.import_from(machine, frame.stack[-1], op.value))
