"""Unary, binary and comparison operators, subscripts."""

# ruff: noqa: ARG001, D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from dynamo.machine import branches
from dynamo.machine.program import opcode
from dynamo.values import operators, subscripts
from dynamo.versions import PY313 as TO_BOOL_BIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op

_BINARY: tuple[Callable[..., Any], ...] = (
    operator.add,
    operator.and_,
    operator.floordiv,
    operator.lshift,
    operator.matmul,
    operator.mul,
    operator.mod,
    operator.or_,
    operator.pow,
    operator.rshift,
    operator.sub,
    operator.truediv,
    operator.xor,
    operator.iadd,
    operator.iand,
    operator.ifloordiv,
    operator.ilshift,
    operator.imatmul,
    operator.imul,
    operator.imod,
    operator.ior,
    operator.ipow,
    operator.irshift,
    operator.isub,
    operator.itruediv,
    operator.ixor,
)
_COMPARE: dict[str, Callable[..., Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


@opcode("BINARY_OP", breaks=True)
def binary_op(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., left, right] -> [.., left <op> right]"""
    stack = frame.stack
    right = stack.pop()
    left = stack.pop()
    stack.append(operators.binary(machine, _BINARY[op.arg], left, right))


@opcode("COMPARE_OP", breaks=True)
def compare_op(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., left, right] -> [.., left <comparison> right]"""
    stack = frame.stack
    right = stack.pop()
    left = stack.pop()
    value = operators.compare(machine, _COMPARE[op.value], left, right)
    if op.arg & 16 and TO_BOOL_BIT:
        value = branches.truth(machine, frame, frame.ops[frame.pc], value)
    stack.append(value)


@opcode("IS_OP")
def is_op(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., left, right] -> [.., left is right]"""
    stack = frame.stack
    right = stack.pop()
    left = stack.pop()
    stack.append(operators.identical(machine, left, right) != bool(op.arg))


@opcode("CONTAINS_OP", breaks=True)
def contains_op(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., item, container] -> [.., item in container]"""
    stack = frame.stack
    container = stack.pop()
    item = stack.pop()
    stack.append(subscripts.contains(machine, container, item) != bool(op.arg))


@opcode("UNARY_NOT", breaks=True)
def unary_not(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., not value]"""
    frame.stack.append(not operators.truth(machine, frame.stack.pop()))


@opcode("TO_BOOL", breaks=True)
def to_bool(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., bool(value)]"""
    value = frame.stack.pop()
    frame.stack.append(branches.truth(machine, frame, frame.ops[frame.pc], value))


def _unary(name: str, function: Callable[..., Any]) -> None:
    def run(machine: Machine, frame: Frame, op: Op) -> None:
        frame.stack.append(operators.unary(machine, function, frame.stack.pop()))

    opcode(name, breaks=True)(run)


_unary("UNARY_NEGATIVE", operator.neg)
_unary("UNARY_POSITIVE", operator.pos)
_unary("UNARY_INVERT", operator.invert)


@opcode("BINARY_SUBSCR", breaks=True)
def binary_subscr(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., container, key] -> [.., container[key]]"""
    stack = frame.stack
    key = stack.pop()
    container = stack.pop()
    stack.append(subscripts.subscript(machine, container, key))


@opcode("STORE_SUBSCR", breaks=True)
def store_subscr(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value, container, key] -> [..]"""
    stack = frame.stack
    key = stack.pop()
    container = stack.pop()
    value = stack.pop()
    subscripts.store_subscript(machine, container, key, value)


@opcode("DELETE_SUBSCR", breaks=True)
def delete_subscr(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., container, key] -> [..]"""
    stack = frame.stack
    key = stack.pop()
    container = stack.pop()
    subscripts.delete_subscript(machine, container, key)


@opcode("BINARY_SLICE", breaks=True)
def binary_slice(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., container, start, stop] -> [.., container[start:stop]]"""
    stack = frame.stack
    stop = stack.pop()
    start = stack.pop()
    container = stack.pop()
    stack.append(subscripts.subscript(machine, container, slice(start, stop)))


@opcode("STORE_SLICE", breaks=True)
def store_slice(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value, container, start, stop] -> [..]"""
    stack = frame.stack
    stop = stack.pop()
    start = stack.pop()
    container = stack.pop()
    value = stack.pop()
    subscripts.store_subscript(machine, container, slice(start, stop), value)
