"""What each CPython opcode's argument means, for the interpreter that runs.

Everything that differs between CPython 3.11, 3.12 and 3.13 and that decoding or assembling must
know is here: how many inline cache words follow an opcode, which pool its argument indexes, how
many low bits of the argument are flags, and which way a jump goes. Most of it is read from the
`dis` module of the running interpreter; only what `dis` does not say is written down. Invariant:
nothing here changes after import.
"""

from __future__ import annotations

import dis
import opcode
import sys
from enum import Enum
from typing import Final

from dynamo.versions import PY312, PY313

__all__ = [
    "CACHE_WORDS",
    "COMPARE_SHIFT",
    "COMPARISONS",
    "EXTENDED_ARG",
    "FLAG_BITS",
    "OPCODES",
    "OPERAND",
    "OPNAMES",
    "SUPPORTED",
    "UNCONDITIONAL",
    "Operand",
    "has_argument",
    "is_backward",
]

SUPPORTED: Final = (3, 11) <= sys.version_info[:2] <= (3, 13)

OPNAMES: Final[tuple[str, ...]] = tuple(dis.opname)
EXTENDED_ARG: Final = dis.opmap["EXTENDED_ARG"]


class Operand(Enum):
    """What an instruction's argument stands for."""

    NONE = "no argument"
    NUMBER = "a plain number"
    CONSTANT = "an index into co_consts"
    NAME = "an index into co_names, above FLAG_BITS flag bits"
    LOCAL = "a slot of the frame, by preference a local"
    CELL = "a slot of the frame, by preference a cell or free variable"
    LOCAL_PAIR = "two slots of the frame, four bits each"
    JUMP = "a distance in code words"
    COMPARE = "a comparison operator above version-specific flag bits"


_LOCAL_PAIRS = frozenset({"LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"})
# 3.12 spells two opcodes whose names `dis` lists but whose numbers it leaves out of `hasfree`.
_CELLS = frozenset(
    {
        "DELETE_DEREF",
        "LOAD_CLASSDEREF",
        "LOAD_CLOSURE",
        "LOAD_DEREF",
        "LOAD_FROM_DICT_OR_DEREF",
        "MAKE_CELL",
        "STORE_DEREF",
    }
)
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def has_argument(number: int) -> bool:
    """Whether the opcode reads its argument byte."""
    if PY312:
        return number in dis.hasarg  # type: ignore[attr-defined]  # the checker reads 3.11's dis
    return number >= dis.HAVE_ARGUMENT


def _operand(number: int) -> Operand:
    name = OPNAMES[number]
    if not has_argument(number):
        return Operand.NONE
    if name in _LOCAL_PAIRS:
        return Operand.LOCAL_PAIR
    if number in _JUMPS:
        return Operand.JUMP
    if number in dis.hasconst:
        return Operand.CONSTANT
    if number in dis.hasname:
        return Operand.NAME
    if name in _CELLS and not (PY313 and name == "LOAD_CLOSURE"):
        return Operand.CELL
    if number in dis.haslocal:
        return Operand.LOCAL
    if number in dis.hascompare:
        return Operand.COMPARE
    return Operand.NUMBER


OPCODES: Final[dict[str, int]] = {
    name: number for name, number in dis.opmap.items() if number < 256
}
OPERAND: Final[dict[str, Operand]] = {name: _operand(number) for name, number in OPCODES.items()}


def _cache_words() -> dict[str, int]:
    entries = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if isinstance(entries, dict):  # by name since 3.13
        return {name: entries.get(name, 0) for name in OPERAND}
    return {name: entries[dis.opmap[name]] for name in OPERAND}


CACHE_WORDS: Final[dict[str, int]] = _cache_words()


def _flag_bits() -> dict[str, int]:
    bits = {"LOAD_GLOBAL": 1}  # push NULL beside the value, for a call
    if PY312:
        bits["LOAD_ATTR"] = 1  # load a method and its receiver
        bits["LOAD_SUPER_ATTR"] = 2  # method; two-argument form
    return bits


FLAG_BITS: Final[dict[str, int]] = _flag_bits()

# COMPARE_OP keeps its operator above flag bits that grew: none, a mask of outcomes, that and "as
# a bool".
COMPARE_SHIFT: Final = 5 if PY313 else 4 if PY312 else 0
COMPARISONS: Final[tuple[str, ...]] = tuple(dis.cmp_op)

# After these, execution never falls through to the next instruction.
UNCONDITIONAL: Final[frozenset[str]] = frozenset(
    {
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
        "INTERPRETER_EXIT",
    }
)


def is_backward(name: str) -> bool:
    """Whether a jump of this name goes to a lower offset."""
    return "JUMP_BACKWARD" in name
