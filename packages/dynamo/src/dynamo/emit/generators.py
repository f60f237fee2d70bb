"""Rebuilds a suspended generator: a real one that stands where the interpreted one stopped.

Comes in: a generator as the interpreter left it. Goes out: lines that make a generator from its own code, entered
at the `yield` that it waits at. It is advanced once, to a `yield` that we put before that place, so that whatever
comes next (`next`, `send`, `throw`, `close`) finds it where CPython would have it: the same handlers, the same
receiver of a delegation on top of its stack.
"""

from __future__ import annotations

import types
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo.bytecode import assemble, build, decode, header_of, live_locals
from dynamo.bytecode.instruction import Instruction
from dynamo.versions import NULL

if TYPE_CHECKING:
    from types import CodeType

    from dynamo.emit.reconstruct import Emitter
    from dynamo.values.generators import TracedGenerator

__all__ = ["emit_generator"]

PROLOGUE = ("MAKE_CELL", "COPY_FREE_VARS")
_NESTED = 0x10


def emit_generator(emitter: Emitter, generator: TracedGenerator) -> str:
    """The name of a variable that holds the generator.

    Raises:
        CannotReconstruct: it runs, or waits inside an exception handler.
    """
    from dynamo.emit.reconstruct import CannotReconstruct  # it imports this module

    if generator.running:
        raise CannotReconstruct("a generator that is running")
    if generator.finished:
        return emitter.name(f"{emitter.constant(_finished)}()")
    frame = generator.frame
    if frame.exceptions or any(value is NULL for value in frame.stack):
        raise CannotReconstruct("a generator that waits inside an expression or a handler")
    instructions = decode(frame.code)
    at = frame.pc if generator.started else _start(instructions)
    cells = tuple(dict.fromkeys((*frame.code.co_cellvars, *frame.code.co_freevars)))
    index = frame.program.slot_index
    live = live_locals(instructions, instructions[at])
    names = tuple(
        name
        for name in frame.code.co_varnames
        if name in live and name not in cells and frame.slots[index[name]] is not NULL
    )
    waiting = tuple(f"<stack {i}>" for i in range(len(frame.stack))) if generator.started else ()
    code = _code(frame.code, instructions, at, (*waiting, *names), cells, started=generator.started)
    values = [emitter.value(value) for value in (frame.stack if generator.started else ())]
    values += [emitter.value(frame.slots[index[name]]) for name in names]
    holders = [emitter.value(_cell(frame, index[name], generator.started)) for name in cells]
    closure = f"({', '.join(holders)},)" if holders else "None"
    maker, scope = emitter.constant(types.FunctionType), emitter.constant(frame.globals)
    function = f"{maker}({emitter.constant(code)}, {scope}, {code.co_name!r}, None, {closure})"
    name = emitter.name(f"{function}({', '.join(values)})")
    if generator.started:
        emitter.line(f"next({name})")
    return name


def _start(instructions: list[Instruction]) -> int:
    """Where the body of a generator begins that has not run yet."""
    made = next(i for i, found in enumerate(instructions) if found.opname == "RETURN_GENERATOR")
    return made + 2  # the value that starts it is popped


def _cell(frame: Any, slot: int, started: bool) -> types.CellType:
    """A cell of the frame; before the start its variables are plain slots, and its closure apart."""
    value = frame.slots[slot]
    if isinstance(value, types.CellType):
        return value
    if not started:
        first_free = len(frame.slots) - len(frame.code.co_freevars)
        if slot >= first_free:
            found: types.CellType = frame.closure[slot - first_free]
            return found
    cell = types.CellType()
    if value is not NULL:
        cell.cell_contents = value
    frame.slots[slot] = cell
    return cell


def _code(
    code: CodeType,
    instructions: list[Instruction],
    at: int,
    arguments: tuple[str, ...],
    cells: tuple[str, ...],
    *,
    started: bool,
) -> CodeType:
    stack = [name for name in arguments if name.startswith("<stack ")]
    entry = [
        *build.prologue((), cells),
        Instruction("RETURN_GENERATOR"),
        build.pop_top(),
        *(Instruction("RESUME", 0),),
        *map(build.load_fast, stack),
    ]
    if started:
        waits, goes_on = instructions[at - 1], instructions[at]
        nothing = build.load_const(None)
        nothing.handler = waits.handler
        entry += [nothing, waits.copy(), goes_on.copy()]
        start = instructions[at + 1]
    else:
        start = instructions[at]
    entry.append(build.jump_forward(start))
    for instruction in entry:
        instruction.positions = instructions[at].positions
    body = [found for found in instructions if found.opname not in PROLOGUE]
    others = tuple(n for n in code.co_varnames if n not in arguments and n not in cells)
    header = replace(
        header_of(code),
        argument_count=len(arguments),
        positional_only_count=0,
        keyword_only_count=0,
        flags=(code.co_flags & ~0xC) | (_NESTED if cells else 0),
        local_names=(*arguments, *others),
        cell_names=(),
        free_names=cells,
    )
    return assemble([*entry, *body], header)


def _finished() -> Any:
    """A generator that has ended."""
    generator = (value for value in range(0))
    next(generator, None)
    return generator
