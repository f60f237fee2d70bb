"""Decides which loop nodes share a kernel: the one rule, by bytes that are no longer moved.

Nodes are taken in order. Each joins the group with which it shares the most bytes, if it fits and
no path leads from that group through others back to it: a producer's result that is consumed at
once is neither written nor read again, an operand that both read is read once. A node that saves
nothing worth the joint loop starts a group of its own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inductor.analysis.cost import buffer_bytes
from inductor.analysis.orders import orders_of
from inductor.ir.kernel import FusionNote
from inductor.ir.machine import H200
from inductor.ir.nodes import LoopNode, OperatorCall, View
from inductor.schedule.groups import (
    Fit,
    Group,
    NodeInfo,
    apply,
    inspect,
    joined,
    new_group,
    sums_columns,
)
from inductor.schedule.unite import unite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from inductor.ir.nodes import Graph
    from inductor.ir.operations import Size

MOST_MEMBERS = 64
MOST_CANDIDATES = 64
SMALL_BYTES = 4096
LONGEST_WAIT = 1 << 25
"""Bytes that a piece of a concatenation moves up to which it waits for pieces that are made later."""
SHARED_FRACTION = 4
"""Operands that both only read must make up a fourth of the node's traffic to fuse for them alone.
"""


@dataclass(slots=True)
class Fusion:
    """The state of the decision; `items[k]` is group number k, None once it went into another."""

    items: list[Group | OperatorCall | None] = field(default_factory=list)
    notes: list[FusionNote] = field(default_factory=list)
    ancestors: list[int] = field(default_factory=list)
    latest: dict[str, int] = field(default_factory=dict)
    """The last call of each order that calls keep among themselves (`orders_of`)."""
    after: dict[int, set[int]] = field(default_factory=dict)
    """The calls that such an order puts right before a call."""
    writers: dict[str, list[int]] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    """Buffers that nobody but later loops reads: with them they are neither written nor read again."""
    small: dict[tuple[Size, ...], int] = field(default_factory=dict)
    """The first group that began with a pointwise node, by its loops."""
    for_gpu: bool = False
    units: int = H200.units


def live_nodes(graph: Graph) -> list[LoopNode | OperatorCall]:
    """Nodes whose results somebody needs."""
    needed = {value.buffer for value in graph.outputs if isinstance(value, View)}
    kept: list[LoopNode | OperatorCall] = []
    for node in reversed(graph.nodes):
        if isinstance(node, OperatorCall):
            if needed.isdisjoint(node.writes) and not orders_of(node):
                continue
        elif needed.isdisjoint(node.writes) and not _checks(node):
            continue
        kept.append(node)
        needed |= node.reads
    kept.reverse()
    return kept


def _checks(node: LoopNode) -> bool:
    """A dead node's index check still has to raise as eager would."""
    return any(
        operation.name == "indirect" and getattr(operation.attribute, "check", None) is not None
        for stage in node.body.stages
        for operation in stage.operations
    )


def fuse(
    graph: Graph, *, fusing: bool = True, for_gpu: bool = False, units: int = H200.units
) -> Fusion:
    """Group the live nodes of a graph; `for_gpu` takes all devices for GPUs, of so many multiprocessors."""
    nodes = live_nodes(graph)
    fusion = Fusion(for_gpu=for_gpu, units=units, awaited=_awaited(graph, nodes))
    writer_count: dict[str, int] = {}
    for node in nodes:
        for buffer in node.writes:
            writer_count[buffer] = writer_count.get(buffer, 0) + 1
    sizes = {name: buffer_bytes(buffer) for name, buffer in graph.buffers.items()}
    infos = {node.name: inspect(node) for node in nodes if isinstance(node, LoopNode)}
    for node in _column_sums_last(nodes, infos):
        dependencies = _dependencies(fusion, node)
        if isinstance(node, OperatorCall):
            dependencies |= _in_turn(fusion, node)
            _append(fusion, node, dependencies)
            _register(fusion, len(fusion.items) - 1, node)
            continue
        info = infos[node.name]
        chosen = _choose(fusion, info, dependencies, sizes, writer_count) if fusing else None
        if chosen is None:
            _append(
                fusion,
                new_group(len(fusion.items), info, for_gpu=fusion.for_gpu, units=units),
                dependencies,
            )
            number = len(fusion.items) - 1
            if node.kind == "pointwise":
                fusion.small.setdefault(node.body.ranges, number)
        else:
            group, fit = chosen
            apply(group, fit)
            number = group.number
            _extend(fusion, number, dependencies)
        _register(fusion, number, node)
        if chosen is not None:
            _unite_producers(fusion, node, number, writer_count)
    return fusion


def _column_sums_last(
    nodes: list[LoopNode | OperatorCall], infos: Mapping[str, NodeInfo]
) -> list[LoopNode | OperatorCall]:
    """The nodes with sums over columns, and what is made of them alone, behind all that doesn't wait for them.

    Whichever reduction comes first decides in which direction a kernel walks. Sums over columns can be accumulated
    along rows, not the other way round, and what follows a reduction of rows can share its kernel.
    """
    made: set[str] = set()
    candidates: set[str] = set()
    for node in nodes:
        if not isinstance(node, LoopNode):
            continue
        from_columns = node.kind == "pointwise" and not made.isdisjoint(node.reads)
        if from_columns or sums_columns(infos[node.name]):
            made |= node.writes
            candidates.add(node.name)
    early: set[str] = set()
    late: set[str] = set()
    for node in reversed(nodes):
        if node.name in candidates and early.isdisjoint(node.writes):
            late.add(node.name)
        else:
            early |= node.reads
            early |= node.writes  # other writers of a buffer keep their order
    return [node for node in nodes if node.name not in late] + [
        node for node in nodes if node.name in late
    ]


def _awaited(graph: Graph, nodes: Sequence[LoopNode | OperatorCall]) -> set[str]:
    """What only loops read that walk over it, and nobody outside."""
    found = {buffer for node in nodes if isinstance(node, LoopNode) for buffer in node.reads}
    found.difference_update(value.buffer for value in graph.outputs if isinstance(value, View))
    for node in nodes:
        if isinstance(node, OperatorCall) or node.kind == "scatter":
            found -= node.reads
    return found


def _waits(fusion: Fusion, node: LoopNode) -> bool:
    """Whether a node had better join what reads it than a reduction that happens to read the same operands."""
    return node.kind == "pointwise" and fusion.awaited.issuperset(node.writes)


def _unite_producers(
    fusion: Fusion, node: LoopNode, number: int, writer_count: dict[str, int]
) -> None:
    """Bring in the other groups whose results a node that just joined consumes."""
    for buffer in sorted(node.reads):
        for other in tuple(fusion.writers.get(buffer, ())):
            if other != number and writer_count[buffer] == 1:
                unite(fusion, other, number, MOST_MEMBERS)


def _in_turn(fusion: Fusion, call: OperatorCall) -> set[int]:
    """The calls before the next item, `call`, that it keeps an order with."""
    number, orders = len(fusion.items), orders_of(call)
    before = {fusion.latest[order] for order in orders if order in fusion.latest}
    fusion.latest.update(dict.fromkeys(orders, number))
    if before:
        fusion.after[number] = before
    return before


def _dependencies(fusion: Fusion, node: LoopNode | OperatorCall) -> set[int]:
    found: set[int] = set()
    for buffer in node.reads:
        found.update(fusion.writers.get(buffer, ()))
    if isinstance(node, LoopNode) and node.kind == "scatter":
        for buffer in node.writes:
            found.update(fusion.writers.get(buffer, ()))
    return found


def _append(fusion: Fusion, item: Group | OperatorCall, dependencies: set[int]) -> None:
    mask = 0
    for number in dependencies:
        mask |= fusion.ancestors[number] | (1 << number)
    fusion.items.append(item)
    fusion.ancestors.append(mask)


def _extend(fusion: Fusion, number: int, dependencies: set[int]) -> None:
    mask = fusion.ancestors[number]
    before = mask
    for other in dependencies:
        if other != number:
            mask |= fusion.ancestors[other] | (1 << other)
    if mask == before:
        return
    fusion.ancestors[number] = mask
    bit = 1 << number
    for other, theirs in enumerate(fusion.ancestors):
        if theirs & bit:
            fusion.ancestors[other] = theirs | mask


def _register(fusion: Fusion, number: int, node: LoopNode | OperatorCall) -> None:
    for buffer in node.writes:
        numbers = fusion.writers.setdefault(buffer, [])
        if number not in numbers:
            numbers.append(number)
    for buffer in node.reads:
        numbers = fusion.readers.setdefault(buffer, [])
        if not numbers or numbers[-1] != number:
            numbers.append(number)


def _choose(
    fusion: Fusion,
    info: NodeInfo,
    dependencies: set[int],
    sizes: dict[str, int],
    writer_count: dict[str, int],
) -> tuple[Group, Fit] | None:
    """The group that a node joins, with how it fits."""
    node = info.node
    if node.kind == "scatter":
        return None
    candidates: dict[int, int] = {}
    vertical: set[int] = set()
    for buffer in node.reads:
        size = sizes[buffer]
        for number in fusion.writers.get(buffer, ()):
            if writer_count[buffer] == 1:
                candidates[number] = candidates.get(number, 0) + 2 * size
                vertical.add(number)
        for number in fusion.readers.get(buffer, ())[-MOST_CANDIDATES:]:
            candidates[number] = candidates.get(number, 0) + size
    traffic = sum(sizes[buffer] for buffer in node.reads | node.writes)
    beside = _beside(fusion, node, traffic, dependencies)
    order = sorted(candidates.items(), key=lambda pair: (-pair[1], -pair[0]))
    for number, saved in order:
        item = fusion.items[number]
        if not isinstance(item, Group):
            continue
        last = item.members[-1].info.node.name
        reason = _refusal(fusion, item, number, dependencies, writer_count, node)
        if reason is None and number not in vertical:
            if saved * SHARED_FRACTION < traffic:
                reason = f"shares only {saved} of {traffic} bytes"
            elif item.inner and _waits(fusion, node):
                reason = "waits for its readers"
        fit: Fit | str = reason or joined(item, info)
        if isinstance(fit, str):
            fusion.notes.append(FusionNote(last, node.name, False, fit, 0))
            continue
        how = "consumes its result" if number in vertical else "reads the same"
        if fit.member.role == "accumulate":
            how += ", columns summed along the rows"
        fusion.notes.append(FusionNote(last, node.name, True, how, saved))
        return item, fit
    if beside is not None:
        item = fusion.items[beside]
        assert isinstance(item, Group)
        last = item.members[-1].info.node.name
        reason = _refusal(fusion, item, beside, dependencies, writer_count, node)
        beside_fit: Fit | str = reason or joined(item, info)
        if not isinstance(beside_fit, str):
            fusion.notes.append(FusionNote(last, node.name, True, "too small for a kernel", 0))
            return item, beside_fit
    return None


def _beside(fusion: Fusion, node: LoopNode, traffic: int, dependencies: set[int]) -> int | None:
    """A kernel to run along with, sharing nothing, where one of our own costs more than its work.

    Pieces of one concatenation count as such too, unless much would be held until the last of them is made.
    """
    for buffer in node.writes:
        for number in fusion.writers.get(buffer, ()):
            if traffic > LONGEST_WAIT and any(other > number for other in dependencies):
                return None
            return number if isinstance(fusion.items[number], Group) else None
    if node.body.reduction_ranges or traffic > SMALL_BYTES:
        return None
    return fusion.small.get(node.body.ranges)


def _refusal(
    fusion: Fusion,
    group: Group,
    number: int,
    dependencies: set[int],
    writer_count: dict[str, int],
    node: LoopNode,
) -> str | None:
    if len(group.members) >= MOST_MEMBERS:
        return "the kernel is full"
    for buffer in node.reads:
        if buffer in group.stores and writer_count[buffer] > 1:
            return f"{buffer} has other writers too"
    bit = 1 << number
    for other in dependencies:
        if other != number and fusion.ancestors[other] & bit:
            return "a step between them needs the first and feeds the second"
    return None


def _nodes(item: Group | OperatorCall | None) -> list[LoopNode | OperatorCall]:
    match item:
        case None:
            return []
        case Group():
            return [member.info.node for member in item.members]
        case _:
            return [item]


def ordered(fusion: Fusion) -> list[Group | OperatorCall]:
    """Groups and calls in an order of execution, as near to the graph's as dependencies allow."""
    direct: list[set[int]] = [set() for _ in fusion.items]
    for number, item in enumerate(fusion.items):
        for node in _nodes(item):
            direct[number] |= _dependencies_within(fusion, node, number)
        direct[number] |= fusion.after.get(number, set())
    waiting = [len(before) for before in direct]
    followers: list[list[int]] = [[] for _ in fusion.items]
    for number, before in enumerate(direct):
        for other in before:
            followers[other].append(number)
    ready = [(_position(fusion.items[n]), n) for n, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    result: list[Group | OperatorCall] = []
    while ready:
        _, number = heapq.heappop(ready)
        item = fusion.items[number]
        if item is not None:
            result.append(item)
        for follower in followers[number]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (_position(fusion.items[follower]), follower))
    left = sum(item is not None for item in fusion.items)
    assert len(result) == left, "fusion made a cycle"
    return result


def _dependencies_within(fusion: Fusion, node: LoopNode | OperatorCall, number: int) -> set[int]:
    found: set[int] = set()
    for buffer in node.reads:
        found.update(fusion.writers.get(buffer, ()))
    if isinstance(node, LoopNode) and node.kind == "scatter":
        found.update(
            other
            for buffer in node.writes
            for other in fusion.writers.get(buffer, ())
            if other < number
        )
    # Readers of a scattered buffer wait for the scatter too: it is among the writers.
    found.discard(number)
    return found


def _position(item: Group | OperatorCall | None) -> int:
    nodes = _nodes(item)
    return int(nodes[-1].name[1:]) if nodes else 0
