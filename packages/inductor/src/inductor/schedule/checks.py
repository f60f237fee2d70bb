"""Bounds of indices are checked before anything else runs, in backwards, where inputs are written, and before effects.

In: the steps of a program. Out: the same steps, and before them kernels that only check the indices that graph inputs
hold, or that kernels of integers compute from inputs, which move along. A kernel that refuses its data makes torch's
operators run the whole call, from the graph's inputs; until the last such kernel has run, no input can be let go of, or
written, and what was done for its effect is done again. In a backward these are the saved tensors, and the gradient of
an embedding, whose indices were saved, is the last that it computes. Invariant: a check that moves is made if and only
if the loops around it run at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inductor.analysis.orders import acts
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.kernel import Kernel
from inductor.ir.operations import DIVISIONS, EFFECTS, Indirect
from inductor.ir.recorder import Recorder
from inductor.schedule.kernels import make_kernel
from inductor.schedule.simplify import simplify_loops
from primtorch.symbolic import free_symbols

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    import torch

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import Graph, LoopBody
    from inductor.ir.operations import Operation, Size
    from primtorch.symbolic import Symbol

__all__ = ["check_first", "may_refuse"]

_OF_SWEEPS = frozenset({"reduce", "part", "scan"})


def check_first(graph: Graph, steps: Sequence[Step]) -> list[Step]:
    """The steps, the checks of indices that inputs hold before them; a graph that needs none of it keeps its own."""
    effects = any(not isinstance(step, Kernel) and acts(step) for step in steps)
    if graph.role != "backward" and not graph.written and not effects:
        return list(steps)
    given = {entry.name for entry in graph.inputs if entry.kind == "tensor"} | set(graph.constants)
    sources = _index_kernels(steps, given)
    checks: dict[LoopBody, Kernel] = {}
    first: dict[str, Kernel] = {}
    rest: list[Step] = []
    for step in steps:
        if not isinstance(step, Kernel) or step.device.type != "cpu":
            rest.append(step)
            continue
        needs = _movable(step.body, given | sources.keys())
        for positions in needs.values():
            body = _check_alone(step.body, positions)
            if body not in checks:
                _with_sources(body, sources, first)
                checks[body] = make_kernel(
                    f"c{len(checks)}",
                    body,
                    graph.buffers,
                    locals_=(),
                    device=step.device,
                    nodes=step.nodes,
                )
        rest.append(replace(step, body=_unchecked(step.body, needs)) if needs else step)
    moved = {kernel.name for kernel in first.values()}
    rest = [step for step in rest if step.name not in moved]
    return [*first.values(), *checks.values(), *rest]


def _index_kernels(steps: Sequence[Step], given: set[str]) -> dict[str, Kernel]:
    """The kernels that compute integers from inputs and each other and check nothing, by what they write."""
    writers: dict[str, int] = {}
    for step in steps:
        for name in step.writes:
            writers[name] = writers.get(name, 0) + 1
    found: dict[str, Kernel] = {}
    for step in steps:
        if not isinstance(step, Kernel) or step.device.type != "cpu" or step.locals:
            continue
        written = [argument for argument in step.arguments if argument.access != "read"]
        alone = all(writers[argument.buffer] == 1 for argument in written)
        integers = all(
            argument.access == "write" and not _has_fractions(argument.dtype)
            for argument in written
        )
        sure = not any(may_refuse(operation) for _, operation, _ in step.body.operations())
        if alone and integers and sure and step.body.reads <= given | found.keys():
            found.update((argument.buffer, step) for argument in written)
    return found


def _has_fractions(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def may_refuse(operation: Operation) -> bool:
    """Whether a kernel of the CPU that has this operation may hand its call to torch's operators."""
    return _is_checked(operation) or (
        operation.name in DIVISIONS and not _has_fractions(operation.dtype)
    )


def _with_sources(body: LoopBody, sources: Mapping[str, Kernel], first: dict[str, Kernel]) -> None:
    """Add the kernels that `body` reads from, those that they read from before them."""
    for name in sorted(body.reads & sources.keys()):
        source = sources[name]
        if source.name not in first:
            _with_sources(source.body, sources, first)
            first[source.name] = source


def _movable(body: LoopBody, given: Container[str]) -> dict[int, list[int]]:
    """The checked indices that hang on nothing but graph inputs, each with all operations that it needs."""
    operations = {position: operation for position, operation, _ in body.operations()}
    found: dict[int, list[int]] = {}
    for position, operation in operations.items():
        if not _is_checked(operation):
            continue
        needed, waiting = set(), [position]
        while waiting:
            current = waiting.pop()
            if current not in needed:
                needed.add(current)
                waiting += operations[current].operands
        if all(_may_come_first(operations[each], given) for each in needed):
            found[position] = sorted(needed)
    return found


def _is_checked(operation: Operation) -> bool:
    attribute = operation.attribute
    return isinstance(attribute, Indirect) and attribute.check is not None


def _may_come_first(operation: Operation, given: Container[str]) -> bool:
    if operation.name in EFFECTS or operation.name in _OF_SWEEPS:
        return False
    return operation.buffer is None or operation.buffer in given


def _check_alone(body: LoopBody, positions: Sequence[int]) -> LoopBody:
    """A body of these operations only, in the loops that they vary in or that may have no iterations."""
    operations = {position: operation for position, operation, _ in body.operations()}
    kept = [(position, operations[position]) for position in positions]
    used: set[Symbol] = set()
    for _, operation in kept:
        if operation.index is not None:
            used |= free_symbols(operation.index)
    loops = [
        *zip(outer_symbols(body.ranges), body.ranges, strict=True),
        *zip(inner_symbols(body.reduction_ranges), body.reduction_ranges, strict=True),
    ]
    around = [
        (symbol, extent)
        for symbol, extent in loops
        if symbol in used or not isinstance(extent, int) or extent < 1
    ]
    recorder = Recorder([extent for _, extent in around])
    recorder.stage("outer")
    mapping: dict[Symbol, Size] = dict.fromkeys((symbol for symbol, _ in loops), 0)
    mapping |= {symbol: mine for (symbol, _), mine in zip(around, recorder.outer, strict=True)}
    recorder.replay(kept, mapping, {}, {})
    return simplify_loops(recorder.finish())


def _unchecked(body: LoopBody, positions: Container[int]) -> LoopBody:
    """The body, the indices at these positions promised to be inside."""
    stages = tuple(
        replace(
            stage,
            operations=tuple(
                _promised(operation) if stage.start + number in positions else operation
                for number, operation in enumerate(stage.operations)
            ),
        )
        for stage in body.stages
    )
    return replace(body, stages=stages)


def _promised(operation: Operation) -> Operation:
    assert isinstance(operation.attribute, Indirect)
    return replace(operation, attribute=replace(operation.attribute, check=None))
