"""Rough costs: scalar work of a body, bytes of a buffer.

Numbers only rank alternatives and set thread thresholds; a symbolic size counts by its hint-free
lower bound where a plain number is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.analysis.lists import listed
from inductor.ir.index import product
from inductor.ir.operations import TRANSCENDENTAL
from primtorch.symbolic import Expression, bounds

if TYPE_CHECKING:
    from inductor.ir.nodes import Buffer, LoopBody
    from inductor.ir.operations import Size

_WEIGHTS = {
    "constant": 0,
    "part": 0,
    "argument": 0,
    "indirect": 2,
    "div": 4,
    "sqrt": 4,
    "rsqrt": 4,
    "reciprocal": 4,
    "floor_div": 8,
    "trunc_div": 8,
    "remainder": 8,
    "fmod": 8,
    "pow": 16,
    "philox_uniform": 24,
    "philox_bits": 24,
    "philox_normal": 48,
    "lgamma": 32,
    "digamma": 32,
    "erfinv": 16,
}
_EIGHT = frozenset({*TRANSCENDENTAL, "atan2", "hypot"})


def operation_weight(name: str) -> int:
    """Work of one scalar operation in units of an addition."""
    return _WEIGHTS.get(name, 8 if name in _EIGHT else 1)


def body_work(body: LoopBody) -> Size:
    """Work of a whole body."""
    outer = product(body.ranges)
    inner = product(body.reduction_ranges)
    if listed(body) is not None:  # each term belongs to one row
        inner, outer_sweeps = 1, product((*body.reduction_ranges, *body.ranges[1:]))
    else:
        outer_sweeps = outer
    total: Size = 0
    for stage in body.stages:
        weight = sum(operation_weight(operation.name) for operation in stage.operations)
        total = total + (outer_sweeps * inner if stage.level == "inner" else outer) * weight
    return total


def smallest(size: Size) -> int:
    """A number for a size: itself, or the lower bound of an expression (at least 2)."""
    if isinstance(size, Expression):
        low = bounds(size)[0]
        return max(low or 0, 64)
    return size


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of all elements."""
    total = buffer.dtype.itemsize
    for extent in buffer.shape:
        total *= smallest(extent)
    return total
