"""Loop variables and index arithmetic over `primtorch.symbolic` expressions.

Loop variable k of a body's outer ranges prints as `ik`, of its reduction ranges as `rk`; each
carries its range, so that the expressions simplify themselves. All functions take and give `Size`
(int or Expression).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from primtorch.symbolic import Expression, Symbol, bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from inductor.ir.operations import Size


@lru_cache(maxsize=4096)
def _loop_symbol(name: str, upper: int | None) -> Symbol:
    return Symbol(name, 0, upper)


def _upper(extent: Size) -> int | None:
    if isinstance(extent, int):
        return max(extent - 1, 0)
    high = bounds(extent)[1]
    return None if high is None else high - 1


def outer_symbol(position: int, extent: Size) -> Symbol:
    """The variable of outer loop `position`, in `[0, extent)`."""
    return _loop_symbol(f"i{position}", _upper(extent))


def inner_symbol(position: int, extent: Size) -> Symbol:
    """The variable of reduction loop `position`, in `[0, extent)`."""
    return _loop_symbol(f"r{position}", _upper(extent))


def indirect_symbol(position: int, size: Size) -> Symbol:
    """The variable that stands for the `position`-th indirect index of a body."""
    return _loop_symbol(f"j{position}", _upper(size))


def outer_symbols(ranges: Sequence[Size]) -> tuple[Symbol, ...]:
    """One variable for each outer loop."""
    return tuple(outer_symbol(position, extent) for position, extent in enumerate(ranges))


def inner_symbols(ranges: Sequence[Size]) -> tuple[Symbol, ...]:
    """One variable for each reduction loop."""
    return tuple(inner_symbol(position, extent) for position, extent in enumerate(ranges))


def product(sizes: Iterable[Size]) -> Size:
    """The product, 1 when empty."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def contiguous_stride(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides; a dimension of size 0 or 1 counts as 1, as ATen has it."""
    strides: list[Size] = []
    running: Size = 1
    for extent in reversed(shape):
        strides.append(running)
        running = running * (extent if not isinstance(extent, int) else max(extent, 1))
    return tuple(reversed(strides))


def linear_index(coordinates: Sequence[Size], stride: Sequence[Size], offset: Size = 0) -> Size:
    """`offset + sum(coordinate * stride)`."""
    total = offset
    for coordinate, step in zip(coordinates, stride, strict=True):
        if isinstance(coordinate, int) and coordinate == 0:
            continue
        if isinstance(step, int) and step == 0:
            continue
        total = total + coordinate * step
    return total


def delinearize(index: Size, shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major coordinates of element number `index`."""
    coordinates: list[Size] = []
    for position, extent in enumerate(reversed(shape)):
        if isinstance(extent, int) and extent == 1:
            coordinates.append(0)
            continue
        last = position == len(shape) - 1
        coordinates.append(index if last else index % extent)
        if not last:
            index = index // extent
    return tuple(reversed(coordinates))


def storage_length(shape: Sequence[Size], stride: Sequence[Size]) -> Size:
    """Elements from the first to the last one addressed, 0 when the tensor is empty."""
    if any(isinstance(extent, int) and extent == 0 for extent in shape):
        return 0
    length: Size = 1
    for extent, step in zip(shape, stride, strict=True):
        length = length + (extent - 1) * step
    return length


def is_expression(value: Size) -> bool:
    """Whether the value is not known at compile time."""
    return isinstance(value, Expression)
