"""Graph in, `Program` out: fusion, one body per group, decisions, order, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.errors import VerificationError
from inductor.ir.kernel import Kernel, KernelArgument, Program, Schedule
from inductor.ir.nodes import Buffer, OperatorCall
from inductor.ir.operations import EFFECTS, Indirect
from inductor.ir.verify import verify_body
from inductor.schedule.decide import decide
from inductor.schedule.fusion import fuse, ordered
from inductor.schedule.memory import plan_memory
from inductor.schedule.merge import merge
from inductor.schedule.simplify import simplify_loops
from primtorch.symbolic import Symbol, free_symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import Graph, LoopBody
    from inductor.ir.operations import Size
    from inductor.schedule.groups import Group


def build(graph: Graph, *, fusing: bool = True) -> Program:
    """Choose kernels, their order and their memory; without `fusing` each node is a kernel."""
    fusion = fuse(graph, fusing=fusing)
    items = ordered(fusion)
    readers: dict[str, set[int]] = {}
    for position, item in enumerate(items):
        for buffer in item.reads if isinstance(item, OperatorCall) else item.loads:
            readers.setdefault(buffer, set()).add(position)
    outputs = {value.buffer for value in graph.outputs if hasattr(value, "buffer")}
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
    schedule = Schedule(tuple(steps), tuple(fusion.notes))
    return Program(graph, schedule, plan_memory(graph, steps))


def _kernel(name: str, group: Group, graph: Graph, escaping: set[str]) -> Kernel:
    merged = merge(group, graph.buffers, escaping)
    body = simplify_loops(merged.body)
    local = {row.name for row in merged.locals}
    device = group.members[0].info.node.device
    known = dict(graph.buffers)
    for row in merged.locals:
        known[row.name] = Buffer(row.name, (row.length,), (1,), row.dtype, device)
    return Kernel(
        name=name,
        body=body,
        arguments=_arguments(body, graph, local),
        sizes=_sizes(body),
        scalars=_scalars(body),
        locals=merged.locals,
        reuses=(),
        decisions=decide(body, known),
        device=device,
        nodes=tuple(member.info.node.name for member in group.members),
    )


def _arguments(body: LoopBody, graph: Graph, local: set[str]) -> tuple[KernelArgument, ...]:
    loaded: set[str] = set()
    order: dict[str, None] = {}
    written: set[str] = set()
    for _, operation, _ in body.operations():
        buffer = operation.buffer
        if buffer is None or buffer in local:
            continue
        order[buffer] = None
        if operation.name in EFFECTS:
            written.add(buffer)
            if operation.attribute == "add":
                loaded.add(buffer)
        else:
            loaded.add(buffer)
    return tuple(
        KernelArgument(
            buffer,
            graph.buffers[buffer].dtype,
            "update"
            if buffer in loaded and buffer in written
            else "write"
            if buffer in written
            else "read",
        )
        for buffer in order
    )


def _sizes(body: LoopBody) -> tuple[Size, ...]:
    """Size symbols: all symbols that are neither loop variables nor indirect indices."""
    found: dict[Symbol, None] = {}
    bound: set[Symbol] = set()
    values: list[Size] = [*body.ranges, *body.reduction_ranges]
    for _, operation, _ in body.operations():
        if operation.index is not None:
            values.append(operation.index)
        if isinstance(operation.attribute, Indirect):
            bound.add(operation.attribute.symbol)
            values.append(operation.attribute.size)
    for value in values:
        for symbol in sorted(free_symbols(value), key=lambda s: s.name):
            if symbol not in bound and not _is_loop_variable(symbol):
                found[symbol] = None
    return tuple(found)


def _is_loop_variable(symbol: Symbol) -> bool:
    return symbol.name[0] in "ir" and symbol.name[1:].isdigit()


def _scalars(body: LoopBody) -> tuple[tuple[str, torch.dtype], ...]:
    found: dict[tuple[str, torch.dtype], None] = {}
    for _, operation, _ in body.operations():
        if operation.name == "argument":
            found[str(operation.attribute), operation.dtype] = None
    return tuple(found)


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
            local = {row.name for row in step.locals}
            writes = step.body.writes - local
            reads = sorted(step.body.reads - local - writes)
        else:
            writes, reads = step.writes, sorted(step.reads)
        for name in reads:
            if name not in written:
                raise VerificationError("scheduling", step.name, f"reads {name} too early")
        written |= writes
    for value in graph.outputs:
        name = getattr(value, "buffer", None)
        if name is not None and name not in written:
            raise VerificationError("scheduling", "output", f"{name} is never written")
