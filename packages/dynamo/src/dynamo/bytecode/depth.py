"""How deep a frame's stack gets, by following every path through the instructions.

Comes in: instructions with targets and handlers. Goes out: the depth before each instruction that
can run, and the greatest depth. `dis.stack_effect` knows what each opcode does; a handler starts
with the depth its table row keeps, plus the exception (plus the raising offset). Invariant: an
instruction has one depth on every path that reaches it, otherwise `BytecodeError`.
"""

from __future__ import annotations

import dis
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from dynamo.bytecode.instruction import BytecodeError
from dynamo.bytecode.table import OPERAND, UNCONDITIONAL, Operand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo.bytecode.instruction import Instruction

__all__ = ["stack_depths", "stack_size"]


@cache
def _effect(opname: str, arg: int | None, jump: bool) -> int:
    if opname == "RETURN_GENERATOR":
        return 1  # what is first sent in; `dis` before 3.13 does not count it
    return dis.stack_effect(dis.opmap[opname], arg, jump=jump)


def _argument(instruction: Instruction) -> int | None:
    operand = OPERAND[instruction.opname]
    if operand is Operand.NONE:
        return None
    # Pool indices don't matter for the effect, but the flag bits beside them do.
    return instruction.arg or 0


def stack_depths(instructions: Sequence[Instruction], start: int = 0) -> dict[Instruction, int]:
    """The stack depth before each instruction that some path reaches.

    `start` is the depth before the first.

    Raises:
        BytecodeError: two paths reach an instruction with different depths, or a path pops too
        much.
    """
    if not instructions:
        return {}
    following = dict(pairwise(instructions))
    depths: dict[Instruction, int] = {}
    todo: list[tuple[Instruction, int]] = [(instructions[0], start)]
    while todo:
        instruction, depth = todo.pop()
        while True:
            known = depths.get(instruction)
            if known is not None:
                if known != depth:
                    raise BytecodeError(f"{instruction!r} is reached at depths {known} and {depth}")
                break
            if depth < 0:
                raise BytecodeError(f"the stack is empty before {instruction!r}")
            depths[instruction] = depth
            handler = instruction.handler
            if handler is not None:
                todo.append((handler.target, handler.depth + 1 + handler.push_lasti))
            opname, arg = instruction.opname, _argument(instruction)
            if instruction.target is not None:
                todo.append((instruction.target, depth + _effect(opname, arg, True)))
            if opname in UNCONDITIONAL:
                break
            after = following.get(instruction)
            if after is None:
                raise BytecodeError(f"execution falls off the end after {instruction!r}")
            depth += _effect(opname, arg, False)
            instruction = after
    return depths


def stack_size(instructions: Sequence[Instruction], start: int = 0) -> int:
    """The greatest stack depth that any path reaches, at least 1."""
    depths = stack_depths(instructions, start)
    size = 1
    for instruction, depth in depths.items():
        opname, arg = instruction.opname, _argument(instruction)
        size = max(size, depth, depth + _effect(opname, arg, False))
        if instruction.target is not None:
            size = max(size, depth + _effect(opname, arg, True))
    return size
