"""A code object made ready for the interpreter, once per code object.

`program_of(code)` decodes a code object to a tuple of `Op`: the function that executes it, its argument, the
index it jumps to and the exception handler that protects it. Invariant: `program.ops[i].index == i`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.bytecode import decode, frame_slots

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from dynamo.bytecode import Instruction

__all__ = ["OPCODES", "Op", "Program", "opcode", "program_of"]

# Filled when the opcode families are imported; name -> (function, may the instruction be a break).
OPCODES: dict[str, tuple[Callable[..., Any], bool]] = {}


def opcode(*names: str, breaks: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what executes the opcodes `names`; `breaks` says that a graph break may happen there."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in OPCODES:
                raise ValueError(f"two functions for opcode {name}")
            OPCODES[name] = (function, breaks)
        return function

    return register


class Op:
    """One instruction as the interpreter wants it."""

    __slots__ = (
        "arg",
        "breaks",
        "depth",
        "handler",
        "index",
        "instruction",
        "lasti",
        "line",
        "name",
        "run",
        "target",
        "value",
    )

    def __init__(self, index: int, instruction: Instruction) -> None:
        self.index = index
        self.instruction = instruction
        self.name = instruction.opname
        self.arg: int = instruction.arg or 0
        self.value: Any = instruction.argval
        self.target = -1
        self.handler = -1
        self.depth = 0
        self.lasti = False
        self.line: int = instruction.line or 0
        self.run, self.breaks = OPCODES.get(self.name, (_unknown, True))


def _unknown(machine: Any, frame: Any, op: Op) -> None:
    machine.unsupported_opcode(frame, op)


class Program:
    """The decoded code object."""

    __slots__ = ("code", "ops", "slot_index", "slots")

    def __init__(self, code: CodeType) -> None:
        instructions = decode(code)
        index = {id(instruction): i for i, instruction in enumerate(instructions)}
        ops = tuple(Op(i, instruction) for i, instruction in enumerate(instructions))
        line = code.co_firstlineno
        for op, instruction in zip(ops, instructions, strict=True):
            if instruction.target is not None:
                op.target = index[id(instruction.target)]
            handler = instruction.handler
            if handler is not None:
                op.handler = index[id(handler.target)]
                op.depth = handler.depth
                op.lasti = handler.push_lasti
            if op.line:
                line = op.line
            else:
                op.line = line
        self.code = code
        self.ops = ops
        self.slots = frame_slots(code)
        self.slot_index = {name: i for i, name in enumerate(self.slots)}


# A code object compares by content, which is slow and confuses equal functions: the key is its identity.
_PROGRAMS: dict[int, Program] = {}


def program_of(code: CodeType) -> Program:
    """The program of `code`, decoded on first use."""
    program = _PROGRAMS.get(id(code))
    if program is None:
        program = _PROGRAMS[id(code)] = Program(code)  # keeps the code, so the id stays its own
    return program
