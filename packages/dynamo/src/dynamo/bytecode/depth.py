"""How deep a frame's stack gets, by following every path through the instructions.

Comes in: instructions with targets and handlers. Goes out: the depth before each instruction that
can run, and the greatest depth. `dis.stack_effect` knows what each opcode does; a handler starts
with the depth its table row keeps, plus the exception (plus the raising offset). Invariant: an
instruction has one depth on every path that reaches it, otherwise `BytecodeError`.
"""

from __future__ import annotations

import dis
from functools import cache
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


def _effects() -> dict[str, tuple[int, int] | None]:
    """What each opcode does, without and with a jump; None where that depends on its argument."""
    found: dict[str, tuple[int, int] | None] = {}
    for opname, operand in OPERAND.items():
        several = set()
        for arg in (None,) if operand is Operand.NONE else range(8):
            try:
                several.add((_effect(opname, arg, False), _effect(opname, arg, True)))
            except ValueError:  # no such argument, or no opcode of programs
                several.add((-99, len(several)))
        found[opname] = several.pop() if len(several) == 1 else None
    return found


_EFFECTS = _effects()


def _effect_of(instruction: Instruction) -> tuple[int, int]:
    opname = instruction.opname
    # Pool indices don't matter for the effect, but the flag bits beside them do.
    arg = instruction.arg or 0
    return _effect(opname, arg, False), _effect(opname, arg, True)


def stack_depths(instructions: Sequence[Instruction], start: int = 0) -> dict[Instruction, int]:
    """The stack depth before each instruction that some path reaches.

    `start` is the depth before the first.

    Raises:
        BytecodeError: two paths reach an instruction with different depths, or a path pops too
        much.
    """
    return _walk(instructions, start)[0]


def stack_size(instructions: Sequence[Instruction], start: int = 0) -> int:
    """The greatest stack depth that any path reaches, at least 1."""
    return _walk(instructions, start)[1]


def _walk(instructions: Sequence[Instruction], start: int) -> tuple[dict[Instruction, int], int]:
    """The depth before each instruction, and the greatest depth."""
    depths: dict[Instruction, int] = {}
    size = 1
    position = {instruction: index for index, instruction in enumerate(instructions)}
    todo: list[tuple[int, int]] = [(0, start)] if instructions else []
    while todo:
        index, depth = todo.pop()
        handler = None
        while True:
            if index == len(instructions):
                raise BytecodeError(f"execution falls off the end after {instructions[-1]!r}")
            instruction = instructions[index]
            known = depths.get(instruction)
            if known is not None:
                if known != depth:
                    raise BytecodeError(f"{instruction!r} is reached at depths {known} and {depth}")
                break
            if depth < 0:
                raise BytecodeError(f"the stack is empty before {instruction!r}")
            depths[instruction] = depth
            if instruction.handler is not handler:
                handler = instruction.handler
                if handler is not None:  # the same for all that it protects
                    caught = handler.depth + 1 + handler.push_lasti
                    todo.append((_index(position, handler.target), caught))
                    size = max(size, caught)
            opname = instruction.opname
            effect, jumping = _EFFECTS[opname] or _effect_of(instruction)
            if depth > size or depth + effect > size:
                size = max(depth, depth + effect)
            if instruction.target is not None:
                size = max(size, depth + jumping)
                todo.append((_index(position, instruction.target), depth + jumping))
            if opname in UNCONDITIONAL:
                break
            depth += effect
            index += 1
    return depths, size


def _index(position: dict[Instruction, int], instruction: Instruction) -> int:
    try:
        return position[instruction]
    except KeyError:
        raise BytecodeError(f"{instruction!r} is reached and is not in the list") from None
