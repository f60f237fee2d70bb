"""Where one call of the random generator serves four neighbours: the counters of a tile, a quarter as wide.

Comes in: the index of the elements that random numbers are drawn for. Goes out: source of their counters. Invariant:
quadruples begin where a tile does, so that no tile's numbers depend on how the elements are divided into tiles.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from inductor.analysis import coefficient
from inductor.codegen.triton.function import Function
from inductor.ir.index import contiguous_stride, linear_index
from inductor.ir.recorder import constant_value
from primtorch.symbolic import Symbol, free_symbols, substitute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir import Size

__all__ = ["Counters"]

_WORDS = 4


class Counters(Function):
    """Counters; see the module."""

    def words(self, seed: str, offset: str) -> str | None:
        """Name of a tile with the random word of each element of the operation being written.

        None: its elements do not lie in aligned quadruples along the tile's last axis.
        """
        element = self._operations[self._operations[self._position].operands[2]]
        axis = self._last_axis()
        if element.name != "index_expression" or element.index is None or axis is None:
            return None
        symbols, extents, width, start, shape = axis
        rest = substitute(element.index, dict.fromkeys(symbols, 0))
        quarter = _quarter(rest)
        line = linear_index(symbols, contiguous_stride(extents))
        if width % _WORDS or quarter is None or element.index - rest != line:
            return None
        along = f"tl.arange(0, {width // _WORDS})"
        parts = [f"{along}[None, :]" if "," in shape else along]
        if start is not None:
            parts.insert(0, f"{start} // {_WORDS}")
        if quarter != 0:
            parts.insert(0, self._text(quarter))
        counter, words = self._name("counter"), self._name("words")
        self._emit(f"{counter} = ({' + '.join(parts)}).to(tl.int64)")
        drawn = f"prelude.philox_four_words({seed}, {offset}, {counter})"
        self._emit(f"{words} = tl.reshape({drawn}, {shape})")
        self._words[self._position] = words
        return words

    def words_below(self) -> str | None:
        """Source of the comparison being written, by whole numbers, if a random number must be below a constant."""
        number, limit = self._operations[self._position].operands
        words, constant = self._words.get(number), self._operations[limit]
        if words is None or constant.name != "constant":
            return None
        bound = constant_value(str(constant.attribute))
        if not isinstance(bound, float) or not 0 < bound < 1:
            return None
        # numbers are multiples of 2**-24, the constant is as float32 holds it
        steps = math.ceil(float(torch.tensor(bound, dtype=torch.float32)) * (1 << 24))
        return f"({words} < tl.full([1], {steps << 8}, tl.uint32))" if steps < 1 << 24 else None

    def _last_axis(self) -> tuple[Sequence[Symbol], Sequence[Size], int, str | None, str] | None:
        """Loop variables along the tile's last axis, their extents, its width, where it begins, the tile's shape."""
        blocks, ranges = self._blocks, self._body.ranges
        if self._sweeps:
            if self._level != "inner" or blocks.piece:
                return None
            start = "r_start" if self._looped else None
            inner = self._body.reduction_ranges
            return self._inner, inner, blocks.inner, start, self._tile_shape()
        tile = self._kernel.decisions.tile
        if tile is not None and blocks.columns > 1:
            column = tile.dimensions[1]
            start = f"(program % across) * {blocks.columns}"
            shape = f"[{blocks.outer}, {blocks.columns}]"
            return (self._outer[column],), (ranges[column],), blocks.columns, start, shape
        start = f"tl.program_id(0).to({self._index_type}) * {blocks.outer}"
        return self._outer, ranges, blocks.outer, start, f"[{blocks.outer}]"


def _quarter(rest: Size) -> Size | None:
    """A linear expression divided by four, where every term can be."""
    if isinstance(rest, int):
        return rest // _WORDS if rest % _WORDS == 0 else None
    symbols = sorted(free_symbols(rest), key=str)
    constant = substitute(rest, dict.fromkeys(symbols, 0))
    if not isinstance(constant, int) or constant % _WORDS:
        return None
    quarter: Size = constant // _WORDS
    linear: Size = constant
    for symbol in symbols:
        factor = coefficient(rest, symbol)
        if not isinstance(factor, int) or factor % _WORDS:
            return None
        quarter = quarter + symbol * (factor // _WORDS)
        linear = linear + symbol * factor
    return quarter if linear == rest else None
