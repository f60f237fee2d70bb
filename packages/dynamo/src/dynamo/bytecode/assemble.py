"""From instructions back to a code object.

Comes in: a list of `Instruction` and a `Header` (everything of a code object that is no
instruction). Goes out: a code object with its jumps, EXTENDED_ARG prefixes, inline caches,
exception table, line table and stack size computed. Constants and names that instructions mention
and the header lacks are appended, so are locals; cells and free variables must be declared,
because the frame's prologue depends on them. Invariant: assembling what `decode` gave, with the
same code's header, gives an equal code object.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import CodeType
from typing import TYPE_CHECKING, Any

from dynamo.bytecode.depth import stack_size
from dynamo.bytecode.instruction import BytecodeError, ExceptionHandler, Instruction
from dynamo.bytecode.location import encode_locations
from dynamo.bytecode.table import (
    CACHE_WORDS,
    COMPARE_SHIFT,
    COMPARISONS,
    FLAG_BITS,
    OPCODES,
    OPERAND,
    Operand,
    is_backward,
)
from dynamo.versions import PY312

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from dynamo.bytecode.instruction import Positions

__all__ = ["INPUTS", "Header", "assemble", "flat_header", "header_of"]


# Of each opcode its number and its caches.
_ENCODED = {name: (number, b"\0\0" * CACHE_WORDS[name]) for name, number in OPCODES.items()}
_EXTENDED_ARG = OPCODES["EXTENDED_ARG"]


@dataclass(frozen=True, slots=True)
class Header:
    """All of a code object besides its instructions.

    `stack_size` None means: compute it. A frame has its arguments first (`argument_count`
    positional, of which `positional_only_count` only so, then `keyword_only_count`, then `*args`
    and `**kwargs` if `flags` says so), all of them the first of `local_names`.
    """

    name: str
    qualified_name: str
    filename: str
    first_line: int
    argument_count: int = 0
    positional_only_count: int = 0
    keyword_only_count: int = 0
    flags: int = 0x3  # CO_OPTIMIZED | CO_NEWLOCALS: a plain function
    local_names: tuple[str, ...] = ()
    cell_names: tuple[str, ...] = ()
    free_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    constants: tuple[Any, ...] = ()
    stack_size: int | None = None


def header_of(code: CodeType) -> Header:
    """The header of an existing code object; its stack size is left to be computed."""
    return Header(
        code.co_name,
        code.co_qualname,
        code.co_filename,
        code.co_firstlineno,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
        code.co_names,
        code.co_consts,
    )


def constant_key(value: object) -> Hashable:
    """Equal exactly for constants that one pool entry may serve.

    1, 1.0 and True differ, and so do 0.0 and -0.0.
    """
    match value:
        case None | bool() | int() | str() | bytes():
            return (type(value), value)
        case float():
            return (float, repr(value))
        case complex():
            return (complex, repr(value))
        case tuple() if type(value) is tuple:
            return (tuple, tuple(constant_key(item) for item in value))
        case _:
            return (object, id(value))  # the pool keeps it alive, so the id stays its own


class _Pool:
    """An append-only tuple with a look-up that is built only when an instruction needs it."""

    __slots__ = ("_by_key", "items")

    def __init__(self, items: tuple[Any, ...]) -> None:
        self.items: list[Any] = list(items)
        self._by_key: dict[Hashable, int] | None = None

    def index(self, value: object, hint: int | None) -> int:
        items = self.items
        if hint is not None and hint < len(items) and items[hint] is value:
            return hint
        by_key = self._by_key
        if by_key is None:
            by_key = self._by_key = {}
            for position, item in enumerate(items):
                by_key.setdefault(constant_key(item), position)
        key = constant_key(value)
        found = by_key.get(key)
        if found is None:
            found = by_key[key] = len(items)
            items.append(value)
        return found


class _Slots:
    """The frame's slots.

    A name may be a local and a free variable at once (an inlined comprehension).
    """

    __slots__ = ("cell_names", "cells", "local_names", "locals", "names")

    def __init__(self, header: Header, instructions: Sequence[Instruction]) -> None:
        local = dict.fromkeys(header.local_names)
        outside = set(header.cell_names) | set(header.free_names)
        for instruction in instructions:
            operand = OPERAND[instruction.opname]
            if operand is Operand.LOCAL:
                name = instruction.argval
                if name not in local and name not in outside:
                    local[name] = None
            elif operand is Operand.LOCAL_PAIR:
                for name in instruction.argval:
                    if name not in local and name not in outside:
                        local[name] = None
        self.local_names = tuple(local)
        cells = tuple(name for name in header.cell_names if name not in local)
        self.names = self.local_names + cells + header.free_names
        self.locals: dict[str, int] = {}
        self.cells: dict[str, int] = {}
        for position, name in enumerate(self.names):
            self.locals.setdefault(name, position)
            self.cells[name] = position

    def index(self, name: str, hint: int | None, *, cell: bool) -> int:
        if hint is not None and hint < len(self.names) and self.names[hint] == name:
            return hint
        found = (self.cells if cell else self.locals).get(name)
        if found is None:
            raise BytecodeError(
                f"{name!r} is neither a cell nor a free variable of the code object"
            )
        return found


def _argument(instruction: Instruction, constants: _Pool, names: _Pool, slots: _Slots) -> int:
    """The encoded argument of anything but a jump."""
    opname, arg, value = instruction.opname, instruction.arg, instruction.argval
    operand = OPERAND[opname]
    if operand is Operand.NONE:
        return 0
    if operand is Operand.LOCAL:
        return slots.index(value, arg, cell=False)
    if operand is Operand.NAME:
        bits = FLAG_BITS.get(opname, 0)
        flags = 0 if arg is None else arg & (1 << bits) - 1
        return names.index(value, None if arg is None else arg >> bits) << bits | flags
    if operand is Operand.CONSTANT:
        return constants.index(value, arg)
    if operand is Operand.NUMBER:
        return _number(instruction)
    if operand is Operand.CELL:
        return slots.index(value, arg, cell=True)
    if operand is Operand.LOCAL_PAIR:
        first, second = (None, None) if arg is None else (arg >> 4, arg & 15)
        left = slots.index(value[0], first, cell=False)
        right = slots.index(value[1], second, cell=False)
        if left > 15 or right > 15:
            raise BytecodeError(f"{instruction!r} reaches slots beyond the sixteenth")
        return left << 4 | right
    assert operand is Operand.COMPARE, "jumps are encoded by distance"
    if arg is not None and (value is None or COMPARISONS[arg >> COMPARE_SHIFT] == value):
        return arg
    raise BytecodeError(f"{instruction!r} needs the encoded comparison, see build.compare_op")


def _number(instruction: Instruction) -> int:
    arg = instruction.argval if instruction.arg is None else instruction.arg
    if not isinstance(arg, int) or arg < 0:
        raise BytecodeError(f"{instruction!r} has no usable argument")
    return arg


def _words(arg: int) -> int:
    """EXTENDED_ARG prefixes that `arg` needs."""
    return 0 if arg < 0x100 else 1 if arg < 0x10000 else 2 if arg < 0x1000000 else 3


def _place(
    instructions: Sequence[Instruction], arguments: list[int | None]
) -> tuple[list[int], list[int], int]:
    """Choose offsets (in words) and prefix counts so that jumps fit, and fill the jumps in."""
    count = len(instructions)
    position = {instruction: index for index, instruction in enumerate(instructions)}
    prefixes = [
        instruction.width if arg is None else _words(arg)
        for instruction, arg in zip(instructions, arguments, strict=True)
    ]
    sizes = [1 + CACHE_WORDS[instruction.opname] for instruction in instructions]
    jumps: list[tuple[int, int]] = []
    for index, arg in enumerate(arguments):
        if arg is None:
            target = instructions[index].target
            if target is None or target not in position:
                raise BytecodeError(f"{instructions[index]!r} jumps out of the code object")
            jumps.append((index, position[target]))
    while True:
        offsets, at = [0] * count, 0
        for index in range(count):
            offsets[index] = at
            at += prefixes[index] + sizes[index]
        stable = True
        for index, goal in jumps:
            distance = offsets[goal] - (offsets[index] + prefixes[index] + sizes[index])
            if is_backward(instructions[index].opname):
                distance = -distance
            if distance < 0:
                raise BytecodeError(
                    f"{instructions[index]!r} cannot reach its target in this direction"
                )
            arguments[index] = distance
            if _words(distance) > prefixes[index]:
                prefixes[index] = _words(distance)
                stable = False
        if stable:
            return offsets, prefixes, at


def _varint(out: bytearray, value: int, mark: int) -> None:
    shift = 0
    while value >> shift > 63:
        shift += 6
    while shift:
        out.append(mark | 64 | value >> shift & 63)
        shift -= 6
        mark = 0
    out.append(mark | value & 63)


def _exception_table(instructions: Sequence[Instruction], offsets: list[int], total: int) -> bytes:
    position = {instruction: index for index, instruction in enumerate(instructions)}
    out = bytearray()
    current: ExceptionHandler | None = None
    start = 0
    for index in range(len(instructions) + 1):
        handler = instructions[index].handler if index < len(instructions) else None
        if handler is current:
            continue
        end = offsets[index] if index < len(instructions) else total
        if current is not None:
            if current.target not in position:
                raise BytecodeError(f"the handler of {instructions[index - 1]!r} is elsewhere")
            _varint(out, start, 128)
            _varint(out, end - start, 0)
            _varint(out, offsets[position[current.target]], 0)
            _varint(out, current.depth << 1 | current.push_lasti, 0)
        current, start = handler, end
    return bytes(out)


def _runs(
    instructions: Sequence[Instruction], offsets: list[int], total: int
) -> list[tuple[int, Positions | None]]:
    """Code words per location; since 3.12 neighbours with the same location share an entry."""
    runs: list[tuple[int, Positions | None]] = []
    for index, instruction in enumerate(instructions):
        end = offsets[index + 1] if index + 1 < len(offsets) else total
        words, positions = end - offsets[index], instruction.positions
        if PY312 and runs and runs[-1][1] == positions:
            runs[-1] = (runs[-1][0] + words, positions)
        else:
            runs.append((words, positions))
    return runs


def assemble(instructions: Sequence[Instruction], template: Header | CodeType) -> CodeType:
    """The code object of `instructions`; everything else is `template`'s.

    Raises:
        BytecodeError: a target is not in the list, a jump cannot go that way, an undeclared cell,
        stack
            depths that disagree, or execution that falls off the end.
    """
    header = header_of(template) if isinstance(template, CodeType) else template
    for instruction in instructions:
        if instruction.opname not in OPERAND:
            raise BytecodeError(f"{instruction.opname} is no opcode of this interpreter")
    slots = _Slots(header, instructions)
    constants, names = _Pool(header.constants), _Pool(header.names)
    arguments: list[int | None] = []
    for instruction in instructions:
        is_jump = OPERAND[instruction.opname] is Operand.JUMP
        arguments.append(None if is_jump else _argument(instruction, constants, names, slots))
    offsets, prefixes, total = _place(instructions, arguments)
    raw = _encode(instructions, arguments, prefixes)
    table = _exception_table(instructions, offsets, total)
    depth = header.stack_size
    if depth is None:
        depth = stack_size(instructions)
        if isinstance(template, CodeType) and template.co_code == raw:
            depth = template.co_stacksize  # the compiler counted code that it removed later
    return CodeType(
        header.argument_count,
        header.positional_only_count,
        header.keyword_only_count,
        len(slots.local_names),
        depth,
        header.flags,
        raw,
        tuple(constants.items),
        tuple(names.items),
        slots.local_names,
        header.filename,
        header.name,
        header.qualified_name,
        header.first_line,
        encode_locations(_runs(instructions, offsets, total), header.first_line),
        table,
        header.free_names,
        header.cell_names,
    )


def _encode(
    instructions: Sequence[Instruction], arguments: list[int | None], prefixes: list[int]
) -> bytes:
    raw = bytearray()
    for instruction, arg, count in zip(instructions, arguments, prefixes, strict=True):
        assert arg is not None
        for shift in range(8 * count, 0, -8):
            raw += bytes((_EXTENDED_ARG, arg >> shift & 0xFF))
        number, caches = _ENCODED[instruction.opname]
        raw.append(number)
        raw.append(arg & 0xFF)
        if caches:
            raw += caches
    return bytes(raw)


INPUTS = "<inputs>"
"""The local in which replacement code finds what its guard program loaded; no user's name can
clash.
"""


def flat_header(code: CodeType) -> Header:
    """The header of code that replaces `code`: the same argument slots, positional, and `INPUTS`.

    Names, constants and locals beyond the arguments start empty; cells and free variables are kept,
    since the closure is the original function's.
    """
    header = header_of(code)
    slots = header.argument_count + header.keyword_only_count
    slots += bool(header.flags & 0x4) + bool(header.flags & 0x8)
    arguments = (*header.local_names[:slots], INPUTS)
    return replace(
        header,
        argument_count=len(arguments),
        positional_only_count=0,
        keyword_only_count=0,
        flags=header.flags & ~(0x4 | 0x8),
        local_names=arguments,
        names=(),
        constants=(),
    )
