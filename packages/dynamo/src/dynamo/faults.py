"""Tells an exception of the captured program from a fault of capture itself.

Both arrive as ordinary Python exceptions in the interpreter's loop, and a handler of the program would take either.
What tells them apart is the instruction that raised, in the innermost frame of the traceback. In code of this package a
`raise` is the program's exception, spelt out, and a call is the program's operation, made natively; but a missing
attribute, name, key or module, a failed `assert`, or a call that doesn't fit one of our own functions is a fault. Where
no operation of the program is made (graph, guards, generated code), everything but a `raise` is.
"""

from __future__ import annotations

import functools
import opcode
import os
import re
import sys
import types
from typing import TYPE_CHECKING

from dynamo.errors import OwnFault

if TYPE_CHECKING:
    from types import CodeType, TracebackType

__all__ = ["require_programs"]

_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - compared with the names in code objects
_WITHOUT_OPERATIONS = tuple(
    _HERE + name
    for name in (
        "graph" + os.sep,
        "guards" + os.sep,
        "emit" + os.sep,
        "bytecode" + os.sep,
        "source.py",
        "values" + os.sep + "session.py",
        "values" + os.sep + "shadows.py",
        "machine" + os.sep + "program.py",
    )
)
_OURS = (
    "LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR", "LOAD_GLOBAL", "LOAD_NAME",
    "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "IMPORT_NAME", "IMPORT_FROM",
)  # fmt: skip
# Functions of `values.subscripts` whose own subscripts are the program's.
_SUBSCRIPTS = frozenset(
    {"subscript", "store_subscript", "delete_subscript", "dict_item", "list_search"}
)
_MISFIT = re.compile(r"^([\w.<>]+)\(\) (missing|takes|got)")


def require_programs(error: BaseException) -> None:
    """Let an exception of the program pass.

    Raises:
        OwnFault: it is a fault of this package, with the place where it was raised.
    """
    last = error.__traceback__
    if last is None:
        return
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code
    if code.co_filename.startswith(_HERE) and _is_fault(error, code, last):
        name = code.co_filename[len(_HERE) :]
        place = f"dynamo/{name.replace(os.sep, '/')}:{last.tb_lineno}, in {code.co_qualname}"
        raise OwnFault(error, place) from error


def _is_fault(error: BaseException, code: CodeType, last: TracebackType) -> bool:
    name = opcode.opname[code.co_code[last.tb_lasti]]
    if name == "RAISE_VARARGS":
        return isinstance(error, AssertionError) and "LOAD_ASSERTION_ERROR" in _names(code)
    if name in _OURS:
        return True
    if "SUBSCR" in name or "SLICE" in name:
        if isinstance(error, IndexError) and "args" in code.co_varnames:
            return False  # a rule for a function that the program gave too few arguments
        return code.co_name not in _SUBSCRIPTS
    if name in ("CALL_FUNCTION_EX", "RERAISE"):  # the program's arguments, for our functions too
        return False
    if isinstance(error, TypeError):
        misfit = _MISFIT.match(str(error))
        if misfit is not None and misfit[1] in _own_functions():
            return True
    return code.co_filename.startswith(_WITHOUT_OPERATIONS)


@functools.cache
def _names(code: CodeType) -> frozenset[str]:
    return frozenset(opcode.opname[byte] for byte in code.co_code[::2])


@functools.cache
def _own_functions() -> frozenset[str]:
    """The qualified names of this package's functions, by which Python tells that a call does not fit."""
    found: set[str] = set()
    for name, module in list(sys.modules.items()):
        if name != "dynamo" and not name.startswith("dynamo."):
            continue
        for value in vars(module).values():
            holders = [value, *vars(value).values()] if isinstance(value, type) else [value]
            found.update(
                item.__qualname__
                for item in holders
                if isinstance(item, types.FunctionType)
                and item.__code__.co_filename.startswith(_HERE)
            )
    return frozenset(found)
