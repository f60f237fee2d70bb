"""Which locals may still be read: what a resumed function must be given.

Comes in: the instructions of one code object. Goes out: for one instruction, the names of the
slots that some path from it reads before writing. Cells and free variables are live throughout (a
closure may read them). Invariant: conservative; a name that is reported dead is never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo.bytecode.table import OPERAND, UNCONDITIONAL, Operand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo.bytecode.instruction import Instruction

__all__ = ["live_locals"]


def _reads_and_writes(instruction: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    opname, value = instruction.opname, instruction.argval
    match OPERAND[opname]:
        case Operand.LOCAL_PAIR:
            first, second = value
            match opname:
                case "LOAD_FAST_LOAD_FAST":
                    return (first, second), ()
                case "STORE_FAST_LOAD_FAST":
                    return (() if first == second else (second,)), (first,)
                case _:
                    return (), (first, second)
        case Operand.LOCAL:
            match opname:
                case "STORE_FAST" | "STORE_FAST_MAYBE_NULL":
                    return (), (value,)
                case "LOAD_FAST_AND_CLEAR":
                    return (value,), (value,)
                case _:  # loads, and DELETE_FAST, which needs the value to be there
                    return (value,), ()
        case Operand.CELL:
            return (value,), ()
        case _:
            return (), ()


def live_locals(
    instructions: Sequence[Instruction], at: Instruction, cells: Sequence[str] = ()
) -> frozenset[str]:
    """The slots that may be read from `at` on, `at` itself included.

    `cells` are added as always live.
    """
    live: dict[Instruction, frozenset[str]] = {}
    empty: frozenset[str] = frozenset()
    changed = True
    while changed:
        changed = False
        after = empty
        for index in range(len(instructions) - 1, -1, -1):
            instruction = instructions[index]
            flow = empty if instruction.opname in UNCONDITIONAL else after
            if instruction.target is not None:
                flow |= live.get(instruction.target, empty)
            reads, writes = _reads_and_writes(instruction)
            now = flow.difference(writes).union(reads) if reads or writes else flow
            if instruction.handler is not None:  # it may raise before it writes
                now |= live.get(instruction.handler.target, empty)
            if live.get(instruction) != now:
                live[instruction] = now
                changed = True
            after = now
    return live[at].union(cells)
