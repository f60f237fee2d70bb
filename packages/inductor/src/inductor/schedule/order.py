"""The order in which kernels and calls run: the graph's, unless another needs clearly less memory at once.

In: kernels and calls in an order that respects what they read and write. Out: the same ones in an order that does,
too. The other order always takes what frees most, or adds least; draws of random numbers keep their order, and a graph
with effects beside its results keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inductor.analysis.cost import buffer_bytes
from inductor.analysis.orders import acts, orders_of
from inductor.ir.nodes import OperatorCall, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.nodes import Graph
    from inductor.schedule.groups import Group

__all__ = ["order_for_memory"]

SMALLEST = 1 << 20
"""Graphs that never hold more bytes of their own are left alone."""
CLEARLY = 0.9


@dataclass(slots=True)
class _Problem:
    """Bytes that each item makes (its results that others read), who waits for whom, who reads what last."""

    made: list[dict[str, int]] = field(default_factory=list)
    reads: list[set[str]] = field(default_factory=list)
    before: list[set[int]] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)


def order_for_memory(
    items: Sequence[Group | OperatorCall], graph: Graph
) -> list[Group | OperatorCall]:
    """The items in the order that holds fewer bytes at its worst moment."""
    if any(isinstance(item, OperatorCall) and acts(item) for item in items):
        return list(items)
    problem = _problem(items, graph)
    usual = list(range(len(items)))
    highest = _peak(problem, usual)
    if highest < SMALLEST:
        return list(items)
    other = _sparing(problem)
    if _peak(problem, other) > CLEARLY * highest:
        return list(items)
    return [items[number] for number in other]


def _problem(items: Sequence[Group | OperatorCall], graph: Graph) -> _Problem:
    outputs = {value.buffer for value in graph.outputs if isinstance(value, View)}
    problem = _Problem(kept=outputs)
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    draw: int | None = None
    for number, item in enumerate(items):
        reads = set(item.reads) if isinstance(item, OperatorCall) else set(item.loads)
        writes = item.writes if isinstance(item, OperatorCall) else frozenset(item.stores)
        before: set[int] = set()
        for buffer in reads:
            before.update(writers.get(buffer, ()))
            readers.setdefault(buffer, []).append(number)
        for buffer in writes:
            before.update(writers.get(buffer, ()), readers.get(buffer, ()))
            writers.setdefault(buffer, []).append(number)
        if isinstance(item, OperatorCall) and orders_of(item):
            before |= set() if draw is None else {draw}
            draw = number
        before.discard(number)
        problem.before.append(before)
        problem.reads.append(reads)
    problem.made = [{} for _ in items]
    for buffer, (first, *_) in writers.items():
        if buffer in outputs or any(number != first for number in readers.get(buffer, ())):
            problem.made[first][buffer] = buffer_bytes(graph.buffers[buffer])
    return problem


def _peak(problem: _Problem, order: Sequence[int]) -> int:
    last: dict[str, int] = {}
    for number in order:
        last.update(dict.fromkeys(problem.reads[number], number))
    held: dict[str, int] = {}
    live = highest = 0
    for number in order:
        held |= problem.made[number]
        live += sum(problem.made[number].values())
        highest = max(highest, live)
        for buffer in problem.reads[number]:
            if last[buffer] == number and buffer in held and buffer not in problem.kept:
                live -= held.pop(buffer)
    return highest


def _sparing(problem: _Problem) -> list[int]:
    """An order that always takes the ready item that adds least; the graph's order among equals."""
    count = len(problem.made)
    followers: list[list[int]] = [[] for _ in range(count)]
    for number, before in enumerate(problem.before):
        for other in before:
            followers[other].append(number)
    waiting = [len(before) for before in problem.before]
    left: dict[str, int] = {}
    for reads in problem.reads:
        for buffer in reads:
            left[buffer] = left.get(buffer, 0) + 1
    held: dict[str, int] = {}

    def added(number: int) -> int:
        freed = sum(
            held.get(buffer, 0)
            for buffer in problem.reads[number]
            if left[buffer] == 1 and buffer not in problem.kept
        )
        return sum(problem.made[number].values()) - freed

    ready = [number for number in range(count) if not waiting[number]]
    order: list[int] = []
    while ready:
        number = min(ready, key=lambda each: (added(each), each))
        ready.remove(number)
        order.append(number)
        held |= problem.made[number]
        for buffer in problem.reads[number]:
            left[buffer] -= 1
        for follower in followers[number]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    assert len(order) == count, "items wait for each other"
    return order
