"""The line table of a code object (PEP 626 and 657): from positions per instruction to bytes.

Comes in: for each run of code words, its positions. Goes out: the bytes of `co_linetable`. The
format is the same in CPython 3.11, 3.12 and 3.13. Invariant: reading the bytes with `co_positions`
gives back what came in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynamo.bytecode.instruction import Positions

__all__ = ["encode_locations"]

_LONGEST_RUN = 8  # code words that one entry can cover
_ONE_LINE, _NO_COLUMNS, _LONG, _NOTHING = 10, 13, 14, 15


def encode_locations(runs: list[tuple[int, Positions | None]], first_line: int) -> bytes:
    """The table for `runs`, each a number of code words and the positions they share."""
    out = bytearray()
    line = first_line
    for words, positions in runs:
        left = words
        while left > 0:
            length = min(left, _LONGEST_RUN)
            line = _entry(out, length, positions, line)
            left -= length
    return bytes(out)


def _entry(out: bytearray, length: int, positions: Positions | None, previous: int) -> int:
    """Append one entry; returns the line that the next one is relative to."""
    if positions is None or positions[0] is None:
        out.append(0x80 | _NOTHING << 3 | length - 1)
        return previous
    line, end_line, column, end_column = positions
    assert line is not None
    delta = line - previous
    if column is None or end_column is None:
        if end_line is None or end_line == line:
            out.append(0x80 | _NO_COLUMNS << 3 | length - 1)
            _signed(out, delta)
            return line
    elif end_line == line:
        if delta == 0 and column < 80 and 0 <= end_column - column < 16:
            out.append(0x80 | column >> 3 << 3 | length - 1)
            out.append((column & 7) << 4 | end_column - column)
            return line
        if 0 <= delta < 3 and column < 128 and end_column < 128:
            out.append(0x80 | _ONE_LINE + delta << 3 | length - 1)
            out.append(column)
            out.append(end_column)
            return line
    out.append(0x80 | _LONG << 3 | length - 1)
    _signed(out, delta)
    _unsigned(out, (line if end_line is None else end_line) - line)
    _unsigned(out, 0 if column is None else column + 1)
    _unsigned(out, 0 if end_column is None else end_column + 1)
    return line


def _unsigned(out: bytearray, value: int) -> None:
    while value >= 64:
        out.append(0x40 | value & 63)
        value >>= 6
    out.append(value)


def _signed(out: bytearray, value: int) -> None:
    _unsigned(out, (-value << 1 | 1) if value < 0 else value << 1)
