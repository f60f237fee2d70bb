"""Making functions and classes."""

# ruff: noqa: ARG001, D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

from dynamo.machine.program import opcode
from dynamo.versions import PY313

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op


@opcode("MAKE_FUNCTION")
def make_function(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., defaults?, keyword defaults?, annotations?, closure?, code] -> [.., function]"""
    stack = frame.stack
    code = stack.pop()
    flags = 0 if PY313 else op.arg
    closure = stack.pop() if flags & 8 else None
    if PY313 and code.co_freevars:
        closure = tuple(types.CellType() for _ in code.co_freevars)
    annotations = stack.pop() if flags & 4 else None
    keyword_defaults = stack.pop() if flags & 2 else None
    defaults = stack.pop() if flags & 1 else None
    function = types.FunctionType(code, frame.globals, code.co_name, defaults, closure)
    function.__qualname__ = code.co_qualname
    function.__module__ = frame.globals.get("__name__", "")
    if keyword_defaults:
        function.__kwdefaults__ = keyword_defaults
    if annotations:
        function.__annotations__ = _annotations(annotations)
    machine.session.created(function)
    stack.append(function)


def _annotations(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return dict(zip(value[::2], value[1::2], strict=True))
    return dict(value)


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value, function] -> [.., function]"""
    stack = frame.stack
    function = stack.pop()
    value = stack.pop()
    match op.arg:
        case 1:
            function.__defaults__ = value
        case 2:
            function.__kwdefaults__ = value
        case 4:
            function.__annotations__ = _annotations(value)
        case 8:
            made = types.FunctionType(
                function.__code__,
                function.__globals__,
                function.__name__,
                function.__defaults__,
                value,
            )
            made.__qualname__ = function.__qualname__
            made.__module__ = function.__module__
            made.__kwdefaults__ = function.__kwdefaults__
            made.__annotations__ = function.__annotations__
            machine.session.created(made)
            function = made
        case _:
            machine.unsupported_opcode(frame, op)
    stack.append(function)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(machine: Machine, frame: Frame, op: Op) -> None:
    """[..] -> [.., __build_class__]"""
    frame.stack.append(builtins.__build_class__)


@opcode("IMPORT_STAR", "PRINT_EXPR", "INTERPRETER_EXIT", "RESERVED", "ENTER_EXECUTOR", breaks=True)
def module_level(machine: Machine, frame: Frame, op: Op) -> None:
    """Not in functions."""
    machine.unsupported_opcode(frame, op)
