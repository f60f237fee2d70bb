"""Calls."""

# ruff: noqa: ARG001, D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.machine.program import opcode
from dynamo.values import calls, groups, iteration, operators
from dynamo.versions import NULL, NULL_FIRST

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op


@opcode("KW_NAMES")
def kw_names(machine: Machine, frame: Frame, op: Op) -> None:
    """The names of the last arguments of the next CALL."""
    frame.keywords = op.value if isinstance(op.value, tuple) else frame.code.co_consts[op.arg]


@opcode("CALL", breaks=True)
def call(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., NULL, callable, arguments] or [.., method, self, arguments] -> [.., result]"""
    keywords = frame.keywords
    frame.keywords = ()
    frame.called_with = keywords
    _call(machine, frame, op.arg, keywords)


@opcode("CALL_KW", breaks=True)
def call_kw(machine: Machine, frame: Frame, op: Op) -> None:
    """The same with the names of the keywords on the stack"""
    keywords = frame.stack.pop()
    _call(machine, frame, op.arg, keywords)


def _call(machine: Machine, frame: Frame, count: int, keywords: tuple[str, ...]) -> None:
    stack = frame.stack
    first = len(stack) - count
    args = stack[first:]
    kwargs: dict[str, Any] = {}
    if keywords:
        split = count - len(keywords)
        kwargs = dict(zip(keywords, args[split:], strict=True))
        args = args[:split]
    below = stack[first - 2]
    above = stack[first - 1]
    del stack[first - 2 :]
    if NULL_FIRST:
        if below is NULL:
            function = above
        else:
            function = below
            args.insert(0, above)
    else:
        function = below
        if above is not NULL:
            args.insert(0, above)
    stack.append(calls.call(machine, function, tuple(args), kwargs, resumable=True))


@opcode("CALL_FUNCTION_EX", breaks=True)
def call_function_ex(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., NULL, callable, args, kwargs?] -> [.., result]"""
    stack = frame.stack
    kwargs = stack.pop() if op.arg & 1 else {}
    args = stack.pop()
    if NULL_FIRST:
        function = stack.pop()
        stack.pop()
    else:
        stack.pop()
        function = stack.pop()
    if type(args) is not tuple:
        args = tuple(iteration.iterate(machine, args))
    session = machine.session
    values = tuple(session.resolve(value) for value in args)
    names = calls.keyword_arguments(machine, kwargs)
    stack.append(calls.call(machine, function, values, names, resumable=True))


@opcode("CALL_INTRINSIC_1", breaks=True)
def call_intrinsic_1(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., result]"""
    value = frame.stack.pop()
    match op.arg:
        case 3:
            if not frame.exceptions and type(value) is StopIteration:
                raise RuntimeError("generator raised StopIteration") from value
            frame.stack.append(
                RuntimeError("generator raised StopIteration")
                if isinstance(value, StopIteration)
                else value
            )
        case 5:
            frame.stack.append(operators.unary(machine, _positive, value))
        case 6:
            frame.stack.append(tuple(value))
        case _:
            machine.unsupported_opcode(frame, op)


@opcode("CALL_INTRINSIC_2", breaks=True)
def call_intrinsic_2(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., exception, what its handlers left] -> [.., what is raised]; type parameters are not captured"""
    if op.arg != 1:
        machine.unsupported_opcode(frame, op)
    left = frame.stack.pop()
    error = frame.stack.pop()
    frame.stack.append(groups.remaining(error, left))


def _positive(value: Any) -> Any:
    return +value
