"""Where each buffer lives: arena offsets by lifetime, in-place reuse, what is released when.

Buffers that leave the graph are tensors of their own; everything else lies in one arena, placed
largest first at the lowest offset that is free during its whole life. A kernel may write over what
it reads last, element by element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inductor.analysis.cost import smallest
from inductor.ir.index import is_expression, storage_length
from inductor.ir.kernel import Kernel, MemoryPlan, Place
from inductor.ir.nodes import OperatorCall, View
from primtorch.symbolic import maximum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import Buffer, Graph
    from inductor.ir.operations import Size

ALIGNMENT = 64


def plan_memory(graph: Graph, steps: Sequence[Step]) -> MemoryPlan:
    """Places, arena size, allocations and releases by step."""
    first, last = _lifetimes(graph, steps)
    outputs = {value.buffer for value in graph.outputs if isinstance(value, View)}
    inputs = {entry.name for entry in graph.inputs if entry.kind == "tensor"}
    operator_results = {
        name for step in steps if isinstance(step, OperatorCall) for name in step.writes
    }
    places: dict[str, Place] = {}
    arena: list[str] = []
    main = _main_device(graph, steps)
    for name in graph.buffers:
        if name in inputs:
            places[name] = Place("input")
        elif name in graph.constants:
            places[name] = Place("constant")
        elif name not in first:
            continue
        elif name in operator_results:
            places[name] = Place("operator")
        elif name in outputs or graph.buffers[name].device != main:
            places[name] = Place("output")
        else:
            arena.append(name)
    offsets, total = _pack(arena, graph.buffers, first, last)
    for name in arena:
        places[name] = Place("arena", offsets[name])
    allocate: list[list[str]] = [[] for _ in steps]
    release: list[list[str]] = [[] for _ in steps]
    for name, place in places.items():
        if place.kind == "output":
            allocate[first[name]].append(name)
        if place.kind in ("input", "operator") and name not in outputs and name in last:
            release[last[name]].append(name)
    return MemoryPlan(places, total, tuple(map(tuple, allocate)), tuple(map(tuple, release)))


def _main_device(graph: Graph, steps: Sequence[Step]) -> torch.device:
    """Where the arena lies: the first device that is not the CPU, else the CPU."""
    devices = [step.device for step in steps if isinstance(step, Kernel)]
    devices += [buffer.device for buffer in graph.buffers.values()]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _lifetimes(graph: Graph, steps: Sequence[Step]) -> tuple[dict[str, int], dict[str, int]]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Kernel):
            local = {row.name for row in step.locals}
            writes = step.body.writes - local
            reads = step.body.reads - local
        else:
            writes, reads = step.writes, step.reads
        for name in writes:
            first.setdefault(name, number)
            last[name] = number
        for name in reads:
            last[name] = number
    for value in graph.outputs:
        if isinstance(value, View):
            last[value.buffer] = len(steps)
    return first, last


def buffer_size(buffer: Buffer) -> Size:
    """Bytes a buffer takes in the arena, a multiple of the alignment."""
    length = storage_length(buffer.shape, buffer.stride) * buffer.dtype.itemsize
    return (length + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def _pack(
    names: Sequence[str],
    buffers: Mapping[str, Buffer],
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> tuple[dict[str, Size], Size]:
    """Offsets by best fit over lifetimes; symbolic sizes share slots of equal size only."""
    offsets: dict[str, Size] = {}
    placed: list[tuple[int, int, int, int]] = []
    total = 0
    symbolic: list[str] = []
    sizes = {name: buffer_size(buffers[name]) for name in names}
    for name in sorted(names, key=lambda n: (-smallest(sizes[n]), first[n])):
        size = sizes[name]
        if is_expression(size):
            symbolic.append(name)
            continue
        assert isinstance(size, int)
        begin, end = first[name], last[name]
        offset = 0
        overlapping = sorted(
            (start, start + length)
            for start, length, born, died in placed
            if born <= end and begin <= died
        )
        for low, high in overlapping:
            if offset + size <= low:
                break
            offset = max(offset, high)
        offsets[name] = offset
        placed.append((offset, size, begin, end))
        total = max(total, offset + size)
    return _pack_symbolic(symbolic, sizes, first, last, offsets, total)


def _pack_symbolic(
    names: Sequence[str],
    sizes: Mapping[str, Size],
    first: Mapping[str, int],
    last: Mapping[str, int],
    offsets: dict[str, Size],
    base: int,
) -> tuple[dict[str, Size], Size]:
    slots: list[tuple[Size, list[tuple[int, int]], Size]] = []
    end: Size = base
    for name in sorted(names, key=lambda n: first[n]):
        size = sizes[name]
        life = (first[name], last[name])
        for known, lives, offset in slots:
            free = all(born > life[1] or died < life[0] for born, died in lives)
            if known == size and free:
                lives.append(life)
                offsets[name] = offset
                break
        else:
            slots.append((size, [life], end))
            offsets[name] = end
            end = end + size
    return offsets, maximum(end, base) if is_expression(end) else end
