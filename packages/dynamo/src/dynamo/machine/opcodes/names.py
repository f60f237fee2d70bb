"""Locals, cells, globals, constants, and the opcodes that only move the stack."""

# ruff: noqa: ARG001, D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

import types
from typing import TYPE_CHECKING

from dynamo.machine.interpreter import free_and_cells, unbound
from dynamo.machine.program import opcode
from dynamo.versions import NULL, NULL_FIRST

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "EXTENDED_ARG", "EXIT_INIT_CHECK")
def nothing(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [..]"""


@opcode("POP_TOP")
def pop_top(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]"""
    frame.stack.pop()


@opcode("END_FOR")
def end_for(machine: Machine, frame: Frame, op: Op) -> None:
    """Reached only by jumps that FOR_ITER skips; kept for completeness."""
    frame.stack.pop()


@opcode("END_SEND")
def end_send(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., receiver, value] -> [.., value]"""
    del frame.stack[-2]


@opcode("PUSH_NULL")
def push_null(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., NULL]"""
    frame.stack.append(NULL)


@opcode("COPY")
def copy(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., x, ..] -> [.., x, .., x]"""
    frame.stack.append(frame.stack[-op.arg])


@opcode("SWAP")
def swap(machine: Machine, frame: Frame, op: Op) -> None:
    """Exchange the top with the entry `arg` below."""
    stack = frame.stack
    stack[-1], stack[-op.arg] = stack[-op.arg], stack[-1]


@opcode("LOAD_CONST")
def load_const(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., constant]"""
    frame.stack.append(op.value)


@opcode("LOAD_FAST")
def load_fast(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., local]"""
    value = frame.slots[op.arg]
    if value is NULL:
        raise unbound(frame, op.arg)
    frame.stack.append(value)


opcode("LOAD_FAST_CHECK")(load_fast)


@opcode("LOAD_CLOSURE")
def load_closure(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., cell]"""
    frame.stack.append(frame.slots[op.arg])


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., local or NULL]; the slot becomes unbound"""
    frame.stack.append(frame.slots[op.arg])
    frame.slots[op.arg] = NULL


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., first, second]"""
    for index in (op.arg >> 4, op.arg & 15):
        value = frame.slots[index]
        if value is NULL:
            raise unbound(frame, index)
        frame.stack.append(value)


@opcode("STORE_FAST")
def store_fast(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]"""
    frame.slots[op.arg] = frame.stack.pop()


@opcode("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., other]"""
    frame.slots[op.arg >> 4] = frame.stack.pop()
    frame.stack.append(frame.slots[op.arg & 15])


@opcode("STORE_FAST_STORE_FAST")
def store_fast_store_fast(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., second, first] -> [..]"""
    frame.slots[op.arg >> 4] = frame.stack.pop()
    frame.slots[op.arg & 15] = frame.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(machine: Machine, frame: Frame, op: Op) -> None:
    """Unbind a local."""
    if frame.slots[op.arg] is NULL:
        raise unbound(frame, op.arg)
    frame.slots[op.arg] = NULL


@opcode("MAKE_CELL")
def make_cell(machine: Machine, frame: Frame, op: Op) -> None:
    """The slot's value moves into a new cell."""
    value = frame.slots[op.arg]
    frame.slots[op.arg] = types.CellType() if value is NULL else types.CellType(value)


@opcode("COPY_FREE_VARS")
def copy_free_vars(machine: Machine, frame: Frame, op: Op) -> None:
    """The closure's cells go to the last slots."""
    free_and_cells(frame)


@opcode("LOAD_DEREF", breaks=True)
def load_deref(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., contents of the cell]"""
    cell = frame.slots[op.arg]
    try:
        value = cell.cell_contents
    except ValueError:
        raise unbound(frame, op.arg) from None
    frame.stack.append(machine.session.resolve(value))


@opcode("STORE_DEREF")
def store_deref(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]"""
    frame.slots[op.arg].cell_contents = frame.stack.pop()


@opcode("DELETE_DEREF")
def delete_deref(machine: Machine, frame: Frame, op: Op) -> None:
    """Empty the cell."""
    del frame.slots[op.arg].cell_contents


@opcode("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", breaks=True)
def load_classderef(machine: Machine, frame: Frame, op: Op) -> None:
    """A class body's name, else the cell."""
    if op.name == "LOAD_FROM_DICT_OR_DEREF":
        frame.stack.pop()
    names = frame.names
    name = frame.program.slots[op.arg]
    if names is not None and name in names:
        frame.stack.append(names[name])
        return
    load_deref(machine, frame, op)


@opcode("LOAD_GLOBAL", breaks=True)
def load_global(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., global] or [.., NULL, global]"""
    value = machine.session.load_global(frame, op.value)
    if op.arg & 1:
        push_callable(frame, value)
    else:
        frame.stack.append(value)


def push_callable(frame: Frame, value: object) -> None:
    """The callable and its NULL, in the order of the running version."""
    if NULL_FIRST:
        frame.stack.append(NULL)
        frame.stack.append(value)
    else:
        frame.stack.append(value)
        frame.stack.append(NULL)


@opcode("STORE_GLOBAL", breaks=True)
def store_global(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]"""
    machine.session.store_global(frame, op.value, frame.stack.pop())


@opcode("DELETE_GLOBAL", breaks=True)
def delete_global(machine: Machine, frame: Frame, op: Op) -> None:
    """Remove a global."""
    machine.session.delete_global(frame, op.value)


@opcode("LOAD_NAME", breaks=True)
def load_name(machine: Machine, frame: Frame, op: Op) -> None:
    """A class body's name: its own namespace, then globals."""
    if frame.names is not None and op.value in frame.names:
        frame.stack.append(machine.session.resolve(frame.names[op.value]))
    else:
        frame.stack.append(machine.session.load_global(frame, op.value))


@opcode("LOAD_LOCALS")
def load_locals(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., namespace]"""
    frame.stack.append(frame.names if frame.names is not None else {})


@opcode("LOAD_FROM_DICT_OR_GLOBALS", breaks=True)
def load_from_dict_or_globals(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., namespace] -> [.., value]"""
    names = frame.stack.pop()
    if op.value in names:
        frame.stack.append(machine.session.resolve(names[op.value]))
    else:
        frame.stack.append(machine.session.load_global(frame, op.value))


@opcode("STORE_NAME")
def store_name(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [..]; only class bodies have one"""
    if frame.names is None:
        frame.names = {}
    frame.names[op.value] = frame.stack.pop()


@opcode("DELETE_NAME")
def delete_name(machine: Machine, frame: Frame, op: Op) -> None:
    """Remove a name of a class body."""
    if frame.names is None or op.value not in frame.names:
        raise NameError(f"name '{op.value}' is not defined")
    del frame.names[op.value]


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(machine: Machine, frame: Frame, op: Op) -> None:
    """A class body gets its `__annotations__`."""
    if frame.names is None:
        frame.names = {}
    frame.names.setdefault("__annotations__", {})
