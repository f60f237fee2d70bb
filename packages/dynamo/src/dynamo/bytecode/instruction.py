"""Instructions as objects: jump targets and exception handlers are references, not offsets.

`decode` turns a code object into a list of `Instruction`; `dynamo.bytecode.assemble` turns a list
back into a code object. Inline caches and EXTENDED_ARG prefixes exist only in the encoded form. An
instruction's `argval` is what its argument stands for (a constant, a name, a pair of names); the
assembler finds the index again, so instructions of one code object may be moved into another.
Invariant: every `target` and every handler's target is an element of the list it was decoded with.
This module imports nothing of torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo.bytecode.table import (
    CACHE_WORDS,
    COMPARE_SHIFT,
    COMPARISONS,
    EXTENDED_ARG,
    FLAG_BITS,
    OPCODES,
    OPERAND,
    Operand,
    is_backward,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = [
    "BytecodeError",
    "ExceptionHandler",
    "Instruction",
    "Positions",
    "decode",
    "frame_slots",
    "without_pairs",
]

# Of each opcode number its name, its operand, and its length in bytes with its caches.
_OPCODES = {
    number: (name, OPERAND[name], 2 + 2 * CACHE_WORDS[name]) for name, number in OPCODES.items()
}
_NONE = Operand.NONE

# (first line, last line, first column, last column), each None where unknown: the order of
# `co_positions`.
Positions = tuple[int | None, int | None, int | None, int | None]


class BytecodeError(ValueError):
    """Instructions that cannot be one code object: a fault of whoever made them."""


@dataclass(slots=True, eq=False)
class ExceptionHandler:
    """One row of the exception table, shared by all instructions that it protects.

    `target` is the first instruction of the handler, `depth` how many stack entries are kept,
    `push_lasti` whether the offset of the raising instruction is pushed below the exception.
    """

    target: Instruction
    depth: int
    push_lasti: bool


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction; equality is identity, since a jump target is an instruction.

    `arg` is the encoded argument and may be None where `argval` or `target` says it; where both
    are given and disagree, `argval` (for names, constants and slots) or `target` (for jumps) wins,
    and only the flag bits of `arg` count. `offset` is where the instruction was decoded from, -1
    if it was made.
    """

    opname: str
    arg: int | None = None
    argval: Any = None
    target: Instruction | None = None
    handler: ExceptionHandler | None = None
    positions: Positions | None = None
    offset: int = -1
    # Words the argument took when decoded: CPython does not always use the shortest form of a jump.
    width: int = field(default=0, repr=False)

    @property
    def line(self) -> int | None:
        """The user's line, None where the compiler gave none."""
        return None if self.positions is None else self.positions[0]

    def copy(self) -> Instruction:
        """The same instruction as a new object; target and handler stay in the old list."""
        return Instruction(
            self.opname,
            self.arg,
            self.argval,
            self.target,
            self.handler,
            self.positions,
            self.offset,
            self.width,
        )

    def __repr__(self) -> str:
        where = f"{self.offset}: " if self.offset >= 0 else ""
        if self.target is not None:
            return f"<{where}{self.opname} -> {self.target.opname}@{self.target.offset}>"
        if OPERAND.get(self.opname, Operand.NUMBER) is Operand.NONE:
            return f"<{where}{self.opname}>"
        value = self.arg if self.argval is None else repr(self.argval)
        return f"<{where}{self.opname} {value}>"


def frame_slots(code: CodeType) -> tuple[str, ...]:
    """The names of a frame's slots in order: locals, cells that are no locals, free variables."""
    local = code.co_varnames
    known = set(local)
    cells = tuple(name for name in code.co_cellvars if name not in known)
    return local + cells + code.co_freevars


def decode(code: CodeType) -> list[Instruction]:
    """The instructions of `code`, in order, with targets, handlers and positions resolved.

    `code` may be any code object of the running interpreter (functions, generators, modules,
    classes).
    """
    raw = code.co_code
    names, constants, slots = code.co_names, code.co_consts, frame_slots(code)
    positions = list(code.co_positions())
    instructions: list[Instruction] = []
    by_offset: dict[int, Instruction] = {}
    jumps: list[tuple[Instruction, int]] = []
    offset, size = 0, len(raw)
    while offset < size:
        start, arg = offset, 0
        while raw[offset] == EXTENDED_ARG:
            arg = (arg | raw[offset + 1]) << 8
            offset += 2
        opname, operand, length = _OPCODES[raw[offset]]
        arg |= raw[offset + 1]
        width = (offset - start) >> 1
        offset += length
        value: Any = None
        if operand is _NONE:
            instruction = Instruction(
                opname, None, None, None, None, positions[start >> 1], start, width
            )
            instructions.append(instruction)
            by_offset[start] = instruction
            continue
        # identity tests in the order of how often they hold: this loop sees every instruction
        if operand is Operand.LOCAL or operand is Operand.CELL:
            value = slots[arg]
        elif operand is Operand.NAME:
            value = names[arg >> FLAG_BITS.get(opname, 0)]
        elif operand is Operand.CONSTANT:
            value = constants[arg]
        elif operand is Operand.NUMBER:
            value = arg
        elif operand is Operand.LOCAL_PAIR:
            value = (slots[arg >> 4], slots[arg & 15])
        elif operand is Operand.COMPARE:
            value = COMPARISONS[arg >> COMPARE_SHIFT]
        instruction = Instruction(
            opname, arg, value, None, None, positions[start >> 1], start, width
        )
        if operand is Operand.JUMP:
            jumps.append((instruction, offset + 2 * (-arg if is_backward(opname) else arg)))
        instructions.append(instruction)
        by_offset[start] = instruction
    for instruction, where in jumps:
        instruction.target = by_offset[where]
    if code.co_exceptiontable:
        _attach_handlers(code.co_exceptiontable, instructions, by_offset)
    return instructions


_HALVES = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


def without_pairs(instructions: list[Instruction]) -> list[Instruction]:
    """The instructions, each that names two slots (since 3.13) as two that name one.

    A pair reaches only the first sixteen slots, and in another code object its names may lie
    beyond. Changed in place: what jumped to a pair jumps to its first half.
    """
    found: list[Instruction] = []
    for instruction in instructions:
        found.append(instruction)
        halves = _HALVES.get(instruction.opname)
        if halves is not None:
            first, second = instruction.argval
            instruction.opname, instruction.arg, instruction.argval = halves[0], None, first
            found.append(
                Instruction(
                    halves[1], None, second, None, instruction.handler, instruction.positions
                )
            )
    return found


def _varint(data: Iterator[int]) -> int:
    byte = next(data)
    value = byte & 63
    while byte & 64:
        byte = next(data)
        value = value << 6 | byte & 63
    return value


def _attach_handlers(
    table: bytes, instructions: list[Instruction], by_offset: dict[int, Instruction]
) -> None:
    data = iter(table)
    position = 0
    while True:
        try:
            start = _varint(data) * 2
        except StopIteration:
            return
        end = start + _varint(data) * 2
        target = by_offset[_varint(data) * 2]
        depth_and_lasti = _varint(data)
        handler = ExceptionHandler(target, depth_and_lasti >> 1, bool(depth_and_lasti & 1))
        while instructions[position].offset < start:
            position += 1
        while position < len(instructions) and instructions[position].offset < end:
            instructions[position].handler = handler
            position += 1
