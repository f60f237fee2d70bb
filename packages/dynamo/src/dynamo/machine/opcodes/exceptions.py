"""Raising, handling, and `with` blocks."""

# ruff: noqa: ARG001, D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo.errors import BreakReason, GraphBreak
from dynamo.machine.program import opcode
from dynamo.values import attributes, calls, groups

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., AssertionError]"""
    frame.stack.append(AssertionError)


@opcode("RAISE_VARARGS", breaks=True)
def raise_varargs(machine: Machine, frame: Frame, op: Op) -> None:
    """raise; raise exception; raise exception from cause"""
    stack = frame.stack
    if op.arg == 0:
        current = machine.handled()
        if current is None:
            raise RuntimeError("No active exception to reraise")
        raise current
    cause = stack.pop() if op.arg == 2 else None
    error = stack.pop()
    if isinstance(error, type):
        error = calls.call(machine, error, (), {})
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if not isinstance(
        error, Exception
    ):  # as an interrupt of capture itself looks: Python raises it
        name = type(error).__name__
        raise GraphBreak(
            BreakReason.UNSUPPORTED_OPERATION, f"{name} is raised, which is no Exception"
        )
    if op.arg == 2:
        if isinstance(cause, type):
            cause = calls.call(machine, cause, (), {})
        raise error from cause
    raise error


@opcode("PUSH_EXC_INFO")
def push_exc_info(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., exception] -> [.., previous exception, exception]"""
    stack = frame.stack
    error = stack.pop()
    stack.append(machine.handled())
    stack.append(error)
    frame.exceptions.append(error)
    frame.raised_at.append(frame.last_raise)


@opcode("POP_EXCEPT")
def pop_except(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., previous exception] -> [..]"""
    frame.stack.pop()
    frame.exceptions.pop()
    frame.raised_at.pop()


@opcode("CHECK_EXC_MATCH", breaks=True)
def check_exc_match(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., exception, class] -> [.., exception, matches]"""
    cls = frame.stack.pop()
    error = frame.stack[-1]
    members = cls if isinstance(cls, tuple) else (cls,)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed"
            )
    frame.stack.append(isinstance(error, members))


@opcode("RERAISE")
def reraise(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., exception] -> the next handler"""
    error = frame.stack.pop()
    assert isinstance(error, BaseException), "what PUSH_EXC_INFO pushed"
    raise error


@opcode("BEFORE_WITH", breaks=True)
def before_with(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., manager] -> [.., exit, entered]"""
    stack = frame.stack
    manager = stack.pop()
    enter = attributes.load_special(machine, manager, "__enter__")
    leave = attributes.load_special(machine, manager, "__exit__")
    if enter is None or leave is None:
        raise TypeError(
            f"'{type(manager).__name__}' object does not support the context manager protocol"
        )
    stack.append(leave)
    stack.append(calls.call(machine, enter, (), {}))


@opcode("WITH_EXCEPT_START", breaks=True)
def with_except_start(machine: Machine, frame: Frame, op: Op) -> None:
    """[exit, lasti, previous, exception] -> [.., exit(type, exception, traceback)]"""
    stack = frame.stack
    error = stack[-1]
    leave = stack[-4]
    stack.append(calls.call(machine, leave, (type(error), error, error.__traceback__), {}))


@opcode("CHECK_EG_MATCH", breaks=True)
def check_eg_match(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., exception, class] -> [.., the rest, what `except*` takes], each a group or None"""
    cls = frame.stack.pop()
    error = frame.stack.pop()
    members = cls if isinstance(cls, tuple) else (cls,)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed"
            )
        if issubclass(member, BaseExceptionGroup):
            raise TypeError(
                "catching ExceptionGroup with except* is not allowed. Use except instead."
            )
    rest, match = groups.split(machine, error, members)
    frame.stack.extend((rest, match))
    if match is not None:
        frame.exceptions[-1] = match


@opcode("PREP_RERAISE_STAR", breaks=True)
def prep_reraise_star(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., exception, what its handlers left] -> [.., what is raised behind `except*`, or None]"""
    left = frame.stack.pop()
    error = frame.stack.pop()
    frame.stack.append(groups.remaining(error, left))


@opcode("CLEANUP_THROW", breaks=True)
def cleanup_throw(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., receiver, last sent, exception] -> [.., None, value] for StopIteration"""
    error = frame.stack[-1]
    if isinstance(error, StopIteration):
        del frame.stack[-3:]
        frame.stack.extend((None, error.value))
        return
    raise error
