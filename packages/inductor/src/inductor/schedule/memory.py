"""Where each buffer lives: arena offsets by lifetime, in-place reuse, what is released when.

Buffers that leave the graph are tensors of their own; everything else lies in one arena, placed
largest first at the lowest offset that is free during its whole life. A kernel may write over what
it reads last, element by element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from inductor.analysis.cost import smallest
from inductor.ir.index import is_expression, storage_length
from inductor.ir.kernel import Kernel, MemoryPlan, Place
from inductor.ir.nodes import OperatorCall, View
from primtorch.symbolic import maximum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import Buffer, Graph, LoopBody
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
    heir_of = _heirs(set(arena), graph.buffers, steps, first, last)
    owners = [name for name in arena if name not in heir_of]
    end = dict(last)
    for name in sorted(heir_of, key=first.__getitem__, reverse=True):
        end[heir_of[name]] = max(end[heir_of[name]], end[name])
    offsets, total = _pack(owners, graph.buffers, first, end)
    for name in arena:
        owner = name
        while owner in heir_of:
            owner = heir_of[owner]
        places[name] = Place("arena", offsets[owner])
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


def _heirs(
    arena: AbstractSet[str],
    buffers: Mapping[str, Buffer],
    steps: Sequence[Step],
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> dict[str, str]:
    """Buffers that take over the memory of another one, which their kernel reads for the last time."""
    heirs: dict[str, str] = {}
    for number, step in enumerate(steps):
        if not isinstance(step, Kernel):
            continue
        dying = [
            name
            for name in sorted(step.body.reads & arena)
            if last[name] == number and first[name] != number
        ]
        born = [name for name in sorted(step.body.writes & arena) if first[name] == number]
        for name in born:
            for old in dying:
                if buffer_size(buffers[name]) != buffer_size(buffers[old]):
                    continue
                if may_overwrite(step.body, old, name, buffers):
                    heirs[name] = old
                    dying.remove(old)
                    break
    return heirs


def may_overwrite(body: LoopBody, old: str, new: str, buffers: Mapping[str, Buffer]) -> bool:
    """Whether `new` may lie where `old` lies: each element is read, by its own point, before."""
    if buffers[old].dtype.itemsize != buffers[new].dtype.itemsize:
        return False
    stored: Size | None = None
    indices: set[Size] = set()
    for _, operation, _ in body.operations():
        if operation.buffer == new:
            if operation.name != "store" or operation.attribute != "set" or stored is not None:
                return False
            stored = operation.index
        elif operation.buffer == old:
            if operation.name != "load" or operation.index is None or stored is not None:
                return False  # read after it was overwritten
            indices.add(operation.index)
    return stored is not None and indices == {stored}


def with_reuses(step: Step, plan: MemoryPlan) -> Step:
    """A kernel that knows which of its arguments share memory."""
    if not isinstance(step, Kernel):
        return step
    placed = {
        argument.buffer: plan.places[argument.buffer].offset
        for argument in step.arguments
        if plan.places[argument.buffer].kind == "arena"
    }
    reads = {
        placed[a.buffer]: a.buffer
        for a in step.arguments
        if a.access == "read" and a.buffer in placed
    }
    pairs = tuple(
        (argument.buffer, reads[placed[argument.buffer]])
        for argument in step.arguments
        if argument.access == "write" and placed.get(argument.buffer) in reads
    )
    return replace(step, reuses=pairs) if pairs else step


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
