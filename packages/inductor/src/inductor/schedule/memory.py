"""Where each buffer lives: arena offsets by lifetime, in-place reuse, what is released when.

Buffers that leave the graph, and large ones, are tensors of their own, which live no longer than they are needed;
everything else lies in one arena, which lives as long as anything in it, placed largest first at the lowest offset
that is free during its whole life. Where a CPU's arena is much of what is held at the worst moment, and most of it no
longer needed, what is needed then or later is kept out of it. A kernel may write over what it reads last, element by
element: also over what a product, a convolution or attention made. A product may lie inside the result that it is
copied into (`inside`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from inductor.analysis.cost import smallest
from inductor.ir.index import is_expression, storage_length
from inductor.ir.kernel import Kernel, MemoryPlan, Place
from inductor.ir.nodes import OperatorCall, View
from inductor.lowering.linear import LINEAR
from inductor.schedule.inside import made_inside
from primtorch.symbolic import maximum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import Buffer, Graph, LoopBody
    from inductor.ir.operations import Size

ALIGNMENT = 64
LARGE = 1 << 14
"""Bytes from which a buffer on a CPU is a tensor of its own: allocating it costs less than a tenth of writing it."""
LARGE_ON_A_CARD = 1 << 22
"""The same elsewhere, where the host allocates while the card writes."""
LEAST_ARENA = 1 << 12
"""Bytes below which an arena is left alone."""
IDLE_SHARE = 0.04
"""Of what is held at the worst moment: how much of an arena may be idle then."""
MOST_APART = 8
"""Buffers that are kept out of an arena at most: each costs an allocation at every call."""

aten = torch.ops.aten
_FRESH = frozenset(
    {
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten.convolution_backward.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        LINEAR,
    }
)
"""Operators whose results nobody else holds: a later kernel may write over them."""


@dataclass(frozen=True, slots=True)
class _Owners:
    """Who makes the buffers of a program, and which of them may give their memory on.

    Fields:
        arena, own: intermediate results of kernels: small ones, and those that are tensors of their own.
        outputs: results of kernels that leave the graph.
        fresh: results of operators that may be written over, unless they leave the graph.
        fixed: the places of everything that is not in `arena`.
    """

    arena: tuple[str, ...]
    own: frozenset[str]
    outputs: frozenset[str]
    fresh: frozenset[str]
    fixed: Mapping[str, Place]


def _with_guests(
    graph: Graph,
    steps: Sequence[Step],
    owners: _Owners,
    first: dict[str, int],
    last: dict[str, int],
) -> _Owners:
    """The owners where products lie inside results, which are there (`first`) as soon as the products are.

    An operand that a product lies in is kept (`last`) until the product was read.
    """
    inside = made_inside(graph.buffers, steps, owners.outputs, first, last, owners.own)
    hosts = frozenset(place.host for place in inside.values())
    for place in inside.values():
        first[place.host] = min(first[place.host], place.begin)
        last[place.host] = max(last[place.host], place.end)
    fixed = {name: Place("inside", place.offset, of=place.host) for name, place in inside.items()}
    return replace(
        owners,
        outputs=owners.outputs - hosts,
        fresh=owners.fresh - inside.keys(),
        fixed={**owners.fixed, **fixed},
    )


_READS_STORAGE = (aten.as_strided_scatter.default,)
"""Operators that count from the beginning of their operand's storage: it must not lie in the arena."""


def plan_memory(
    graph: Graph, steps: Sequence[Step], in_place: Mapping[str, str] = MappingProxyType({})
) -> MemoryPlan:
    """Places, arena size, allocations and releases by step; `in_place` names what lies in an input's memory."""
    first, last = lifetimes(graph, steps)
    for name, old in in_place.items():  # kept until it is handed on
        last[old] = max(last.get(old, 0), first[name])
    owners = _with_guests(graph, steps, _owners(graph, steps, first, in_place), first, last)
    plan = _plan(graph, steps, owners, first, last)
    late = _needed_late(graph, steps, plan, first, last)
    if not late:
        return plan
    apart = replace(
        owners,
        arena=tuple(name for name in owners.arena if name not in late),
        own=owners.own | late,
        fixed={**owners.fixed, **dict.fromkeys(late, Place("output"))},
    )
    return _plan(graph, steps, apart, first, last)


def _needed_late(
    graph: Graph,
    steps: Sequence[Step],
    plan: MemoryPlan,
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> frozenset[str]:
    """What lies in the arena and is needed when most memory is held or later, if the arena is then mostly idle."""
    total = plan.arena_bytes
    if (
        not isinstance(total, int)
        or total < LEAST_ARENA
        or _main_device(graph, steps).type != "cpu"
    ):
        return frozenset()
    static = {entry.name for entry in graph.inputs if entry.static}
    change = [0] * (len(steps) + 2)
    for name, place in plan.places.items():
        if place.kind in {"arena", "constant"} or name in static or name not in last:
            continue
        size = smallest(buffer_size(graph.buffers[name]))
        change[first.get(name, 0) if place.kind != "input" else 0] += size
        change[last[name] + 1] -= size
    held = list(accumulate(change[: len(steps)]))
    worst = max(range(len(steps)), key=held.__getitem__)
    inside = [name for name, place in plan.places.items() if place.kind == "arena"]
    late = frozenset(name for name in inside if last[name] >= worst)
    idle = total - sum(smallest(buffer_size(graph.buffers[name])) for name in late)
    much = idle > IDLE_SHARE * (held[worst] + total)
    return late if much and len(late) <= MOST_APART else frozenset()


def _plan(
    graph: Graph,
    steps: Sequence[Step],
    owners: _Owners,
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> MemoryPlan:
    heir_of = _heirs(owners, graph.buffers, steps, first, last)
    places = dict(owners.fixed)
    roots = {name: _root(name, heir_of) for name in (*owners.arena, *heir_of)}
    for name, old in heir_of.items():
        if roots[name] not in owners.arena:
            places[name] = Place("reuse", of=old)
    inside = [name for name in owners.arena if roots[name] in owners.arena]
    end = dict(last)
    for name in inside:
        end[roots[name]] = max(end[roots[name]], last[name])
    alone = [name for name in inside if name not in heir_of]
    offsets, total = _pack(alone, graph.buffers, first, end)
    for name in inside:
        places[name] = Place("arena", offsets[roots[name]])
    leaving = {value.buffer for value in graph.outputs if isinstance(value, View)}
    allocate: list[list[str]] = [[] for _ in steps]
    release: list[list[str]] = [[] for _ in steps]
    for name, place in places.items():
        if place.kind == "output":
            allocate[first[name]].append(name)
        if place.kind not in {"arena", "constant"} and name not in leaving and name in last:
            release[last[name]].append(name)
    until = max((end[roots[name]] for name in inside), default=None)
    return MemoryPlan(places, total, tuple(map(tuple, allocate)), tuple(map(tuple, release)), until)


def _owners(
    graph: Graph,
    steps: Sequence[Step],
    first: Mapping[str, int],
    in_place: Mapping[str, str],
) -> _Owners:
    leaving = {value.buffer for value in graph.outputs if isinstance(value, View)}
    inputs = {entry.name for entry in graph.inputs if entry.kind == "tensor"}
    made_by = {
        name: step.operator
        for step in steps
        if isinstance(step, OperatorCall)
        for name in step.writes
    }
    main = _main_device(graph, steps)
    apart = {
        name
        for step in steps
        if isinstance(step, OperatorCall) and step.operator in _READS_STORAGE
        for name in step.reads
    }
    places: dict[str, Place] = {}
    arena: list[str] = []
    own: set[str] = set()
    for name, buffer in graph.buffers.items():
        if name in inputs:
            places[name] = Place("input")
        elif name in graph.constants:
            places[name] = Place("constant")
        elif name not in first:
            continue
        elif name in in_place:
            places[name] = Place("reuse", of=in_place[name])
        elif name in made_by:
            places[name] = Place("operator")
        elif name in leaving or name in apart or buffer.device != main:
            places[name] = Place("output")
        elif _is_large(buffer, LARGE if main.type == "cpu" else LARGE_ON_A_CARD):
            places[name] = Place("output")
            own.add(name)
        else:
            arena.append(name)
    return _Owners(
        tuple(arena),
        frozenset(own),
        frozenset(name for name in leaving if name in places and places[name].kind == "output"),
        frozenset(name for name, op in made_by.items() if op in _FRESH and name not in leaving),
        places,
    )


def _is_large(buffer: Buffer, limit: int) -> bool:
    """Whether a buffer takes `limit` bytes, or as many as only the call tells."""
    size = buffer_size(buffer)
    return is_expression(size) or smallest(size) >= limit


def _root(name: str, heir_of: Mapping[str, str]) -> str:
    while name in heir_of:
        name = heir_of[name]
    return name


def _main_device(graph: Graph, steps: Sequence[Step]) -> torch.device:
    """Where the arena lies: the first device that is not the CPU, else the CPU."""
    devices = [step.device for step in steps if isinstance(step, Kernel)]
    devices += [buffer.device for buffer in graph.buffers.values()]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _heirs(
    owners: _Owners,
    buffers: Mapping[str, Buffer],
    steps: Sequence[Step],
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> dict[str, str]:
    """Buffers that take over the memory of another one, which their kernel reads for the last time."""
    heirs: dict[str, str] = {}
    givers = owners.own | owners.fresh | {*owners.arena}
    takers = owners.own | owners.outputs | {*owners.arena}
    for number, step in enumerate(steps):
        if not isinstance(step, Kernel):
            continue
        after = frozenset() if step.ending is None else step.ending.kernel.reads
        dying = [
            name
            for name in sorted((step.body.reads & givers) - after)
            if last[name] == number and first[name] != number
        ]
        born = [name for name in sorted(step.body.writes & takers) if first[name] == number]
        for name in born:
            for old in dying:
                root = _root(old, heirs)
                fits = _fits(name, root, owners, buffers) and _fits(name, old, owners, buffers)
                if fits and may_overwrite(step.body, old, name, buffers):
                    heirs[name] = old
                    dying.remove(old)
                    break
    return heirs


def _fits(name: str, old: str, owners: _Owners, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the memory of `old` is right for `name`: a tensor of its own has no byte to spare, and one type."""
    ours, theirs = buffers[name], buffers[old]
    if name in owners.outputs:
        geometry = (ours.shape, ours.stride, ours.dtype, ours.device)
        return old not in owners.arena and geometry == (
            theirs.shape, theirs.stride, theirs.dtype, theirs.device,
        )  # fmt: skip
    if old in owners.arena:
        return buffer_size(ours) == buffer_size(theirs)
    lengths = [storage_length(buffer.shape, buffer.stride) for buffer in (ours, theirs)]
    return lengths[0] == lengths[1] and ours.dtype == theirs.dtype and ours.device == theirs.device


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
    read = [argument.buffer for argument in step.arguments if argument.access == "read"]
    inside = {plan.places[n].offset: n for n in read if plan.places[n].kind == "arena"}
    guests = {plan.places[n].of: n for n in read if plan.places[n].kind == "inside"}
    pairs: list[tuple[str, str]] = []
    for argument in step.arguments:
        place = plan.places[argument.buffer]
        old = inside.get(place.offset) if place.kind == "arena" else place.of
        old = guests.get(argument.buffer, old)
        if argument.access == "write" and old in read and old is not None:
            pairs.append((argument.buffer, old))
    return replace(step, reuses=tuple(pairs)) if pairs else step


def lifetimes(graph: Graph, steps: Sequence[Step]) -> tuple[dict[str, int], dict[str, int]]:
    """The first and the last step that has to do with each buffer; what leaves the graph lives on."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        for name in step.writes:
            first.setdefault(name, number)
            last[name] = number
        for name in step.reads:
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
