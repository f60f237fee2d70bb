"""Jumps, loops, returning, yielding."""

# ruff: noqa: ARG001, D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo.machine import branches
from dynamo.machine.program import opcode
from dynamo.values import iteration, operators
from dynamo.versions import PY312, PY313

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP", "JUMP_NO_INTERRUPT")
def jump(machine: Machine, frame: Frame, op: Op) -> None:
    """Go to the target."""
    frame.pc = op.target


@opcode("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", breaks=True)
def pop_jump_if_false(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]"""
    value = frame.stack.pop()
    if value is False or (value is not True and not branches.truth(machine, frame, op, value)):
        frame.pc = op.target


@opcode("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", breaks=True)
def pop_jump_if_true(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]"""
    value = frame.stack.pop()
    if value is True or (value is not False and branches.truth(machine, frame, op, value)):
        frame.pc = op.target


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE")
def pop_jump_if_none(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]"""
    if frame.stack.pop() is None:
        frame.pc = op.target


@opcode("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE")
def pop_jump_if_not_none(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]"""
    if frame.stack.pop() is not None:
        frame.pc = op.target


@opcode("JUMP_IF_FALSE_OR_POP", breaks=True)
def jump_if_false_or_pop(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., value] when jumping, [..] otherwise"""
    if operators.truth(machine, frame.stack[-1]):
        frame.stack.pop()
    else:
        frame.pc = op.target


@opcode("JUMP_IF_TRUE_OR_POP", breaks=True)
def jump_if_true_or_pop(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., value] when jumping, [..] otherwise"""
    if operators.truth(machine, frame.stack[-1]):
        frame.pc = op.target
    else:
        frame.stack.pop()


@opcode("GET_ITER", breaks=True)
def get_iter(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., iterable] -> [.., iterator]"""
    frame.stack.append(iteration.get_iterator(machine, frame.stack.pop()))


@opcode("GET_YIELD_FROM_ITER", breaks=True)
def get_yield_from_iter(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., iterable] -> [.., iterator]"""
    frame.stack.append(iteration.get_iterator(machine, frame.stack.pop()))


@opcode("FOR_ITER", breaks=True)
def for_iter(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., iterator] -> [.., iterator, value], or past the loop"""
    stack = frame.stack
    try:
        value = iteration.advance(machine, stack[-1])
    except StopIteration:
        stack.pop()
        frame.pc = op.target
        if PY312:
            # The target is END_FOR, which the running interpreter skips (3.13: and a POP_TOP after it).
            frame.pc += 2 if PY313 else 1
        return
    stack.append(value)


@opcode("RETURN_VALUE")
def return_value(machine: Machine, frame: Frame, op: Op) -> bool:
    """[.., value] -> the caller"""
    frame.result = frame.stack.pop()
    return True


@opcode("RETURN_CONST")
def return_const(machine: Machine, frame: Frame, op: Op) -> bool:
    """The constant goes to the caller."""
    frame.result = op.value
    return True


@opcode("RETURN_GENERATOR")
def return_generator(machine: Machine, frame: Frame, op: Op) -> None:
    """A generator starts: the value sent first (None) is on its stack."""
    frame.stack.append(None)


@opcode("YIELD_VALUE")
def yield_value(machine: Machine, frame: Frame, op: Op) -> bool:
    """[.., value] -> the consumer; what is sent comes back on the stack"""
    frame.result = frame.stack.pop()
    frame.generator().suspended = True
    return True


@opcode("SEND", breaks=True)
def send(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., receiver, value] -> [.., receiver, yielded], or past the delegation"""
    stack = frame.stack
    value = stack.pop()
    receiver = stack[-1]
    try:
        result = iteration.send(machine, receiver, value)
    except StopIteration as stop:
        if PY312:
            stack.append(stop.value)
        else:
            stack[-1] = stop.value
        frame.pc = op.target
        return
    stack.append(result)


@opcode("ASYNC_GEN_WRAP", "GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR", breaks=True)
def asynchronous(machine: Machine, frame: Frame, op: Op) -> None:
    """Asynchronous code is not captured."""
    machine.unsupported_opcode(frame, op)


@opcode("BEFORE_ASYNC_WITH", breaks=True)
def before_async_with(machine: Machine, frame: Frame, op: Op) -> None:
    """Asynchronous code is not captured."""
    machine.unsupported_opcode(frame, op)
