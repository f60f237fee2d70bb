"""Which kernels of a processor read their inputs on at several places in turn.

Comes in: all steps in order, with their memory. Goes out: the same steps; kernels know at how many places of their
only loop they read on. Invariant: each point is still done once, by the same thread.

A processor fetches ahead by itself along each run of memory that it sees, but not far enough for what comes from memory
itself: four runs at once hide more of the wait. What is in the caches already it only slows, by a twentieth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inductor.analysis.cost import buffer_bytes
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.kernel import Kernel
from inductor.schedule.stores import LARGE
from primtorch.symbolic import substitute

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import Graph

__all__ = ["FAR", "RUNS", "with_places"]

FAR = 32 << 20
"""Bytes of inputs that a graph reads from which on they come from memory: a third cache of 32 MB was measured."""
RUNS = 8
"""Runs of memory that are read at once: two operands at four places, three at two (four are a tenth slower)."""
_MOST = 4
"""Large operands, and places."""
_SMALL = 1 << 16
"""Bytes of an operand that is in the caches wherever it was made."""


def with_places(graph: Graph, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps; each kernel that reads nothing but a large graph's inputs says at how many places."""
    given = {entry.name for entry in graph.inputs if entry.kind == "tensor"} | set(graph.constants)
    read = {name for step in steps for name in step.reads if name in given}
    if sum(buffer_bytes(graph.buffers[name]) for name in read) < FAR:
        return tuple(steps)
    found: list[Step] = []
    for step in steps:
        known = step
        if isinstance(step, Kernel):
            sizes = {name: buffer_bytes(graph.buffers[name]) for name in step.reads}
            large = {name for name, size in sizes.items() if size >= _SMALL}
            if large <= given and sum(sizes.values()) >= LARGE and _runs_straight(step, large):
                places = min(_MOST, max(2, RUNS // len(large)))
                known = replace(step, decisions=replace(step.decisions, places=places))
        found.append(known)
        given -= step.reads
    return tuple(found)


def _runs_straight(kernel: Kernel, large: Collection[str]) -> bool:
    """Whether the kernel is one loop on a processor whose accesses all move on by one element."""
    body, decisions = kernel.body, kernel.decisions
    if kernel.device.type != "cpu" or kernel.locals or len(large) > _MOST:
        return False
    if decisions.vector is None or decisions.tile is not None or decisions.streamed:
        return False
    if decisions.reduction_split:
        loops = inner_symbols(body.reduction_ranges)
    else:
        loops = () if body.reduction_ranges else outer_symbols(body.ranges)
    if len(loops) != 1:
        return False
    (loop,) = loops
    for _, operation, stage in body.operations():
        if operation.name in {"indirect", "scan", "accumulate"}:
            return False
        if operation.index is None or stage.level != decisions.vector.level:
            continue
        if substitute(operation.index, {loop: loop + 1}) - operation.index not in (0, 1):
            return False
    return True
