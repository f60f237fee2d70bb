"""What follows from a jump that a tensor decides: a side that only raises is taken for one that is never gone.

In: the instructions of a frame and a jump. Out: the outcome under which the program goes on (`graph.expected` lets
the graph check it).
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from dynamo.graph.expected import expect
from dynamo.values import operators
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op

__all__ = ["compared_with", "is_read_by_jump", "truth"]

_NATIVE = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodType,
    types.FunctionType,
    types.MethodWrapperType,
)
_LONGEST = 200  # instructions of a side that is looked at
_AHEAD = frozenset({"JUMP_FORWARD", "JUMP", "JUMP_NO_INTERRUPT"})


def truth(machine: Machine, frame: Frame, jump: Op, value: Any) -> bool:
    """`bool(value)`, of which the instruction `jump` makes a jump, if it is one."""
    if type(value) is FakeTensor and not machine.session.recorder.kinds:
        outcome = _outcome(frame.ops, jump)
        if outcome is not None and expect(machine.session.recorder, value, outcome=outcome):
            return outcome
    return operators.truth(machine, value)


def is_read_by_jump(frame: Frame, name: str) -> bool:
    """Whether the running call is of the function `name`, and only a jump with a raising side reads what it gives.

    The number that `item()` gives may be compared with a constant before.
    """
    ops = frame.ops
    if not _calls(frame, name):
        return False
    at = frame.pc
    if name == "item" and ops[at].name == "LOAD_CONST" and ops[at + 1].name == "COMPARE_OP":
        if type(ops[at].value) not in (int, float):
            return False
        at += 2
    if ops[at].name == "TO_BOOL":
        at += 1
    return _outcome(ops, ops[at]) is not None


def compared_with(frame: Frame) -> Any:
    """The constant that the result of the running call is compared with; None if with none."""
    following = frame.ops[frame.pc]
    return following.value if following.name == "LOAD_CONST" else None


def _calls(frame: Frame, name: str) -> bool:
    """Whether the running instruction itself calls a function of this name: not one that calls it in turn."""
    op = frame.ops[frame.pc - 1]
    if op.name not in ("CALL", "CALL_KW"):
        return False
    stack = frame.before[:-1] if op.name == "CALL_KW" else frame.before
    first = len(stack) - op.arg
    return any(
        getattr(item, "__name__", "") == name
        for item in stack[max(first - 2, 0) : first]
        if isinstance(item, _NATIVE)
    )


def _outcome(ops: Sequence[Op], jump: Op) -> bool | None:
    """The outcome under which the program does not raise at once; None if that isn't one of two."""
    if not jump.name.startswith("POP_JUMP") or "NONE" in jump.name:
        return None
    if_jumping = jump.name.endswith("TRUE")
    ahead, there = _raises(ops, jump.index + 1), _raises(ops, jump.target)
    if ahead is there:
        return None
    return if_jumping if ahead else not if_jumping


def _raises(ops: Sequence[Op], start: int, depth: int = 0) -> bool:
    """Whether nothing but a raise follows, on every way."""
    at = start
    for _ in range(_LONGEST):
        op = ops[at]
        if op.name == "RAISE_VARARGS":
            return True
        if op.name in _AHEAD and op.target > at:
            at = op.target
            continue
        if op.target >= 0:
            return (
                op.name.startswith("POP_JUMP")
                and op.target > at
                and depth < 3
                and _raises(ops, at + 1, depth + 1)
                and _raises(ops, op.target, depth + 1)
            )
        if op.name.startswith(("RETURN", "YIELD", "SEND", "RERAISE")):
            return False
        at += 1
        if at >= len(ops):
            return False
    return False
