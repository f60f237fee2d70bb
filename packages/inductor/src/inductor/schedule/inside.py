"""Products that are made in memory of the result they are copied into, so that the two never stand beside each other.

Comes in: steps, with the buffers that a vendor's product makes, the results that leave the graph and kernels' tensors
of their own. Goes out: for each product that may lie in one of those which, and the offset, in bytes. A product with
padded rows lies at the result's end, which nothing has written yet when the kernel reads it; one with the result's own
rows lies where its kernel stores it, element by element; one that fits into neither, in rows of its left operand that
lie before those it reads. Invariant: until its last reader is done nothing else writes or reads where a product lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inductor.analysis.affine import coefficients
from inductor.ir.index import inner_symbols, outer_symbols, storage_length
from inductor.ir.kernel import Kernel
from inductor.ir.nodes import OperatorCall
from inductor.lowering.builder import PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import Buffer, LoopBody
    from inductor.ir.operations import Size

__all__ = ["SMALLEST", "Inside", "made_inside"]

SMALLEST = 1 << 20
"""Bytes of a product from which on it is worth it."""
_ALIGNMENT = 64
_LEAST_ALIGNMENT = 16
"""Kernels load so many bytes at once."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Where a product lies: `offset` bytes into the result `host`, from step `begin` to step `end`."""

    host: str
    offset: int
    size: int
    begin: int
    end: int

    def meets(self, other: Inside) -> bool:
        """Whether both want the same bytes at the same time."""
        same_time = self.begin <= other.end and other.begin <= self.end
        same_place = (
            self.offset < other.offset + other.size and other.offset < self.offset + self.size
        )
        return self.host == other.host and same_time and same_place


def made_inside(
    buffers: Mapping[str, Buffer],
    steps: Sequence[Step],
    hosts: Collection[str],
    first: Mapping[str, int],
    last: Mapping[str, int],
    own: Collection[str] = (),
) -> dict[str, Inside]:
    """The products that lie inside one of the results `hosts`, or inside one of `own`, an operand."""
    found: dict[str, Inside] = {}
    for begin, step in enumerate(steps):
        if not isinstance(step, OperatorCall) or step.operator not in PRODUCTS:
            continue
        (name,) = step.outputs
        if name is None or last.get(name, len(steps)) == len(steps) or first[name] != begin:
            continue
        reader = steps[last[name]]
        size = _bytes(buffers[name])
        if size is None or size < SMALLEST or not isinstance(reader, Kernel):
            continue
        if any(name in other.reads for other in steps[begin + 1 : last[name]]):
            continue
        span = begin, last[name]
        written = sorted(reader.body.writes & set(hosts))
        places = [_place(buffers, steps, (name, host), *span) for host in written]
        if written:
            spent = {view.buffer for view in step.views()} & set(own)
            places += [_spent(buffers, step, steps, (name, host), *span) for host in sorted(spent)]
        for place in places:
            if place is not None and not any(place.meets(other) for other in found.values()):
                found[name] = place
                break
    return found


def _spent(
    buffers: Mapping[str, Buffer],
    maker: OperatorCall,
    steps: Sequence[Step],
    names: tuple[str, str],
    begin: int,
    end: int,
) -> Inside | None:
    """The beginning of an operand, where nobody reads it any more: the product reads what lies behind."""
    guest, host = names
    size = _bytes(buffers[guest])
    reads = [view for view in maker.views() if view.buffer == host]
    dtypes = {view.dtype for view in reads} | {buffers[host].dtype}
    if size is None or len(dtypes) > 1 or buffers[guest].device != buffers[host].device:
        return None
    if any(host in step.reads or host in step.writes for step in steps[begin + 1 :]):
        return None
    strides = [number for view in reads for number in view.stride]
    offsets = [view.offset for view in reads if isinstance(view.offset, int)]
    if len(offsets) < len(reads) or not all(isinstance(n, int) and n >= 0 for n in strides):
        return None
    if min(offsets) * buffers[host].dtype.itemsize < size:
        return None
    return Inside(host, 0, size, begin, end)


def _bytes(buffer: Buffer) -> int | None:
    length = storage_length(buffer.shape, buffer.stride)
    return length * buffer.dtype.itemsize if isinstance(length, int) else None


def _place(
    buffers: Mapping[str, Buffer],
    steps: Sequence[Step],
    names: tuple[str, str],
    begin: int,
    end: int,
) -> Inside | None:
    """Where in a result a product may lie that is read by step `end`, which writes the result."""
    guest, host = names
    size, room = _bytes(buffers[guest]), _bytes(buffers[host])
    width = buffers[host].dtype.itemsize
    reader = steps[end]
    assert isinstance(reader, Kernel)
    if size is None or room is None or buffers[guest].device != buffers[host].device:
        return None
    if any(host in step.reads for step in steps[: end + 1]):
        return None
    written = 0
    for step in steps[:end]:
        if host in step.writes:
            top = _written_until(step, host)
            if top is None:
                return None
            written = max(written, top * width)
    own = _stored_there(reader.body, guest, host)
    if own is not None and buffers[guest].dtype == buffers[host].dtype:
        offset = own * width
        # a result that nothing has written takes over the product's memory, see `memory`
        fits = 0 < written <= offset and offset + size <= room
        if fits and offset % _LEAST_ALIGNMENT == 0:
            return Inside(host, offset, size, begin, end)
        return None
    top = _written_until(reader, host)
    offset = (room - size) // _ALIGNMENT * _ALIGNMENT
    if top is None or max(written, top * width) > offset:
        return None
    return Inside(host, offset, size, begin, end)


def _written_until(step: Step, name: str) -> int | None:
    """The first element behind all that a kernel may write of a buffer; None where that isn't known."""
    if not isinstance(step, Kernel) or step.ending is not None:
        return None
    body = step.body
    symbols = (*outer_symbols(body.ranges), *inner_symbols(body.reduction_ranges))
    extents = dict(zip(symbols, (*body.ranges, *body.reduction_ranges), strict=True))
    top = 0
    for _, operation, _ in body.operations():
        if operation.buffer != name:
            continue
        if operation.name != "store" or operation.attribute != "set" or operation.index is None:
            return None
        factors = coefficients(operation.index, symbols)
        if factors is None:
            return None
        index: Size = operation.index
        for symbol, factor in factors.items():
            extent = extents[symbol]
            if not isinstance(factor, int) or not isinstance(extent, int) or factor < 0:
                return None
            index = index - factor * symbol + factor * (extent - 1)
        if not isinstance(index, int) or index < 0:
            return None
        top = max(top, index + 1)
    return top


def _stored_there(body: LoopBody, guest: str, host: str) -> int | None:
    """How many elements into `host` each of `guest` is stored, all as far, each after it was read; else None."""
    distance: int | None = None
    stored = False
    loads: list[Size] = []
    for _, operation, _ in body.operations():
        if operation.buffer == host:
            if stored or operation.index is None:
                return None
            stored = True
            apart = {_difference(operation.index, index) for index in loads}
            if len(apart) != 1:
                return None
            (distance,) = apart
        elif operation.buffer == guest:
            if operation.name != "load" or operation.index is None or stored:
                return None
            loads.append(operation.index)
    return distance if distance is None or distance >= 0 else None


def _difference(index: Size, other: Size) -> int | None:
    apart = index - other
    return apart if isinstance(apart, int) else None
