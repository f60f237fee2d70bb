"""Loads, stores and indices from data: addresses and what masks them.

Comes in: the accesses of a body. Goes out: lines, and the names of loaded values; a row that an earlier sweep stored is
taken from registers. Invariant: nothing outside of the ranges is touched, whatever an index says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inductor.codegen.triton.counters import Counters
from inductor.codegen.triton.expressions import expression_text
from inductor.codegen.triton.operations import triton_type
from inductor.ir.operations import value_dtype
from primtorch.symbolic import Symbol, bounds, free_symbols

if TYPE_CHECKING:
    from inductor.ir import Indirect, Size
    from inductor.ir.operations import StoreMode

__all__ = ["MemoryAccess"]


class MemoryAccess(Counters):
    """Addresses; see the module."""

    @property
    def _along(self) -> frozenset[Symbol]:
        """The variables that differ along a tile of a row; where it is a piece, the others are the turn's."""
        return frozenset(self._inner[-1:] if self._blocks.piece else self._inner)

    def _access_mask(self, symbols: frozenset[Symbol], extra: str | None) -> str | None:
        """What must hold for an access whose index varies with `symbols`."""
        hidden = bool(symbols & self._indirect_symbols) or extra is not None
        masks = []
        if self._outer_mask and (hidden or symbols & set(self._outer)):
            masks.append(self._outer_mask)
        if self._level == "inner" and self._inner_mask and (hidden or symbols & self._along):
            masks.append(self._inner_mask)
        if extra is not None:
            masks.append(f"({extra} != 0)")
        return " & ".join(masks) if masks else None

    def _spans(self, symbols: frozenset[Symbol]) -> bool:
        """Whether an index that varies with `symbols` has the shape of the whole tile."""
        tile = self._kernel.decisions.tile
        axes = [frozenset(self._outer)]
        if self._level == "inner":
            axes.append(self._along)
        elif not self._sweeps and tile is not None and self._blocks.columns > 1:
            column = frozenset((self._outer[tile.dimensions[1]],))
            axes = [axes[0] - column, column]
        return all(symbols & axis for axis in axes)

    def constant(self, text: str, dtype: torch.dtype) -> str:
        """A constant of this tile."""
        two = self._sweeps or (self._kernel.decisions.tile is not None and self._blocks.columns > 1)
        return f"tl.full({'[1, 1]' if two else '[1]'}, {text}, {triton_type(dtype)})"

    def index_expression(self, index: Size, dtype: torch.dtype) -> str:
        """An index as a value."""
        if isinstance(index, int):
            return self.constant(str(index), dtype)
        text = self._text(index) if self._fits(index) else self._wide_text(index)
        if free_symbols(index) <= set(self._kernel.sizes):
            return f"({self.constant('0', dtype)} + {text}).to({triton_type(dtype)})"
        return f"{text}.to({triton_type(dtype)})"

    def _fits(self, index: Size) -> bool:
        """Whether the type that places are computed in holds all values of an index."""
        if self._kernel.decisions.wide_index or isinstance(index, int):
            return True
        low, high = bounds(index)
        return low is not None and high is not None and low >= -(1 << 31) and high < 1 << 31

    def _wide_text(self, index: Size) -> str:
        """An index whose values outgrow places, as `arange` times a large number does."""
        wide = {symbol: f"{name}.to(tl.int64)" for symbol, name in self._names.items()}
        return expression_text(index, wide)

    def load(self, buffer: str, index: Size, dtype: torch.dtype, mask: str | None) -> str:
        """A loaded value; what was loaded before is not loaded again."""
        if buffer not in self._parameters:
            return self._local(buffer, index)
        known = self._memory.get((buffer, index)) if mask is None else None
        if known is not None:
            return known
        symbols = free_symbols(index)
        place = f"{self._parameters[buffer]} + {self._text(index)}"
        masked = self._access_mask(symbols, mask)
        if masked and not self._spans(symbols):
            # a mask is never wider than the addresses that it masks
            place = f"{self._parameters[buffer]} + ({self._text(index)} + {self._whole_tile()})"
        policy = self._policies.get(self._position)
        advice = f", eviction_policy={policy!r}" if policy else ""
        if buffer in self._left:
            advice = ', cache_modifier=".cg"'  # of the cache that all multiprocessors share
        rest = f", {masked}, other=0{advice}" if masked else advice
        text = f"tl.load({place}{rest})"
        if dtype is torch.bool:
            text += ".to(tl.int1)"
        elif dtype.itemsize < 4 and dtype.is_floating_point:
            text += ".to(tl.float32)"
        if mask is None:
            name = f"v{self._position}"
            if name in self._values.values():
                name = self._name("m")
            self._emit(f"{name} = {text}")
            if buffer not in self._stored:
                self._memory[buffer, index] = name
            return name
        return text

    def _local(self, buffer: str, index: Size) -> str:
        """A row element that an earlier sweep stored: still in registers, or computed again."""
        position, stored_index = self._local_origin[buffer]
        if stored_index != index:
            raise KeyError(f"row {buffer} is read at another place than it was written")
        if position not in self._values:
            saved = self._position
            self._recompute(position)
            self._position = saved
        return self._values[position]

    def store(
        self,
        buffer: str,
        index: Size,
        value: str,
        mode: StoreMode,
        dtype: torch.dtype,
        mask: str | None,
    ) -> str:
        """Write a store; what was loaded of the buffer is forgotten."""
        if buffer not in self._parameters:
            self._local_origin[buffer] = (self._operations[self._position].operands[0], index)
            return ""
        # A value that varies less than the tile is written by all; the address decides the shape.
        symbols = frozenset((*self._outer, *(self._inner if self._level == "inner" else ())))
        masked = self._access_mask(symbols, mask)
        spread = self._whole_tile()
        place = f"{self._parameters[buffer]} + ({self._text(index)} + {spread})"
        narrowed = f"({value}).to({triton_type(dtype)})"
        if dtype is torch.bool:
            arguments = f"{place}, tl.where({spread} == 0, {narrowed}, False)"
        else:
            arguments = f"{place}, tl.where({spread} == 0, {narrowed}, 0).to({triton_type(dtype)})"
        tail = f", {masked}" if masked else ""
        if mode != "set":
            self._emit(f'tl.atomic_{mode}({arguments}{tail}, sem="relaxed")')
        else:
            self._emit(f"tl.store({arguments}{tail})")
        self._stored.add(buffer)
        self._memory = {key: name for key, name in self._memory.items() if key[0] != buffer}
        kept = self._operations[self._operations[self._position].operands[0]].dtype
        if mode == "set" and mask is None and not self._looped and kept == value_dtype(dtype):
            # a later stage takes it from registers: other threads may not have written theirs yet
            self._memory[buffer, index] = value
        return ""

    def indirect(self, value: str, indirect: Indirect, mask: str | None) -> str:
        """A checked index from data, by its name."""
        name = f"at{self._position}"
        size = self._text(indirect.size)
        self._emit(f"{name} = {value}.to(tl.int64)")
        if indirect.wrap:
            self._emit(f"{name} = tl.where({name} < 0, {name} + {size}, {name})")
        if indirect.check is not None:
            conditions = [
                m for m in (self._access_mask(frozenset((*self._outer, *self._inner)), mask),) if m
            ]
            inside = f"(({name} >= 0) & ({name} < {size}))"
            test = f"{inside} | (({conditions[0]}) == 0)" if conditions else inside
            self._emit(f'tl.device_assert({test}, "{indirect.check.error}: index out of range")')
            # Nothing outside is touched even where assertions are compiled away.
            self._emit(f"{name} = tl.where({inside}, {name}, 0)")
            self._checked = True
        elif mask is not None:
            self._emit(f"{name} = tl.where({mask} != 0, {name}, 0)")
        self._names[indirect.symbol] = name
        self._indirect_symbols.add(indirect.symbol)
        return name
