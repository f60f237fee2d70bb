"""Graph in, `Program` out: shortcuts, fusion, one body per group, decisions, order, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.errors import VerificationError
from inductor.ir.kernel import Kernel, Program, Schedule
from inductor.ir.machine import H200
from inductor.ir.nodes import Buffer, OperatorCall, View
from inductor.ir.verify import verify_body
from inductor.schedule.checks import check_first
from inductor.schedule.decide import tiled
from inductor.schedule.fusion import fuse, ordered
from inductor.schedule.gathers import inline_gathers
from inductor.schedule.hoist import hoist_invariants
from inductor.schedule.in_place import write_in_place
from inductor.schedule.kernels import make_kernel
from inductor.schedule.memory import plan_memory, with_reuses
from inductor.schedule.merge import merge
from inductor.schedule.one_hot import shorten_one_hot_sums
from inductor.schedule.order import order_for_memory
from inductor.schedule.places import with_places
from inductor.schedule.row_lists import sum_scattered_rows
from inductor.schedule.scatter_sums import scatter_into_sums
from inductor.schedule.simplify import simplify_loops
from inductor.schedule.split import split_kernels
from inductor.schedule.stores import with_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.machine import DeviceProperties
    from inductor.ir.nodes import Graph
    from inductor.schedule.groups import Group


def build(
    graph: Graph, *, fusing: bool = True, for_gpu: bool = False, card: DeviceProperties = H200
) -> Program:
    """Choose kernels, their order and their memory; without `fusing` each node is a kernel.

    `for_gpu` makes kernels of the CPU as a GPU would get them; `card` is what a GPU's kernels run on.
    """
    if fusing:
        graph = scatter_into_sums(inline_gathers(graph))
        if not for_gpu:
            graph = sum_scattered_rows(graph)
    fusion = fuse(graph, fusing=fusing, for_gpu=for_gpu, units=card.units)
    items = order_for_memory(ordered(fusion), graph)
    readers: dict[str, set[int]] = {}
    for position, item in enumerate(items):
        for buffer in item.reads if isinstance(item, OperatorCall) else item.loads:
            readers.setdefault(buffer, set()).add(position)
    outputs = {value.buffer for value in graph.outputs if isinstance(value, View)}
    steps: list[Step] = []
    for position, item in enumerate(items):
        if isinstance(item, OperatorCall):
            steps.append(item)
            continue
        escaping = {
            buffer
            for buffer in item.stores
            if buffer in outputs or readers.get(buffer, set()) - {position}
        }
        escaping |= {b for b in item.stores if len(fusion.writers[b]) > 1}
        steps.append(_kernel(f"k{len(steps)}", item, graph, escaping))
    graph, steps = split_kernels(graph, steps, card=card, everywhere=for_gpu)
    if not for_gpu:
        steps = check_first(graph, steps)
    in_place, steps = write_in_place(graph, steps)
    memory = plan_memory(graph, steps, in_place)
    final = tuple(with_reuses(step, memory) for step in steps)
    if not for_gpu:
        final = with_places(graph, with_streams(final))
    return Program(graph, Schedule(final, tuple(fusion.notes)), memory, card)


def _kernel(name: str, group: Group, graph: Graph, escaping: set[str]) -> Kernel:
    merged = merge(group, graph.buffers, escaping)
    node = group.members[0].info.node
    body = shorten_one_hot_sums(simplify_loops(merged.body))
    if node.device.type == "cpu" and tiled(body, graph.buffers) is None:
        body = hoist_invariants(body)
    return make_kernel(
        name,
        body,
        graph.buffers,
        locals_=merged.locals,
        device=node.device,
        nodes=tuple(member.info.node.name for member in group.members),
    )


def verify_program(program: Program) -> None:
    """Every kernel's body is legal, every buffer is written before it is read."""
    graph = program.graph
    written = {entry.name for entry in graph.inputs if entry.kind == "tensor"}
    written |= set(graph.constants)
    for step in program.schedule.steps:
        reads: Sequence[str]
        if isinstance(step, Kernel):
            known = dict(graph.buffers)
            for row in step.locals:
                known[row.name] = Buffer(row.name, (row.length,), (1,), row.dtype, step.device)
            verify_body(step.name, step.body, known, "scheduling")
            if step.ending is not None:
                verify_body(step.name, step.ending.kernel.body, known, "scheduling")
            writes = step.writes
            reads = sorted(step.reads - writes)
        else:
            writes, reads = step.writes, sorted(step.reads)
        for name in reads:
            if name not in written:
                raise VerificationError("scheduling", step.name, f"reads {name} too early")
        written |= writes
    for value in graph.outputs:
        if isinstance(value, View) and value.buffer not in written:
            raise VerificationError("scheduling", "output", f"{value.buffer} is never written")
