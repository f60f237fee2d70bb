"""Which results are computed in the memory of the input whose new value they are.

In: a graph that says which outputs are new values of inputs (`Graph.written`), and its steps. Out: the input in which
each such buffer may lie, and the steps without those that would then copy an input onto itself. Invariant: what reads
an input's old value runs before the step that writes over it, or reads each element just before it is written; and
behind the first such step nothing can refuse its data, for then torch's operators would begin again with inputs that
are no longer what they were.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from inductor.ir.kernel import Kernel
from inductor.ir.nodes import View
from inductor.schedule.checks import may_refuse
from inductor.schedule.memory import lifetimes, may_overwrite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.nodes import Graph

__all__ = ["candidates", "write_in_place"]


def candidates(graph: Graph) -> dict[str, str]:
    """The buffers that are new values of inputs and have their geometry, with these inputs."""
    views = [value for value in graph.outputs if isinstance(value, View)]
    shown = Counter(view.buffer for view in views)
    found: dict[str, str] = {}
    for output, position in graph.written:
        value, given = graph.outputs[output], graph.inputs[position]
        if not isinstance(value, View) or given.kind != "tensor" or shown[value.buffer] > 1:
            continue
        old = graph.buffers.get(given.name)
        whole = value == graph.buffers[value.buffer].view
        if old is None or not whole or shown[given.name] or given.name == value.buffer:
            continue
        alike = graph.buffers[value.buffer].device == old.device
        if alike and replace(value, buffer=given.name) == old.view:
            found[value.buffer] = given.name
    return found if len({*found.values()}) == len(found) else {}


def write_in_place(graph: Graph, steps: Sequence[Step]) -> tuple[dict[str, str], list[Step]]:
    """The input whose memory each buffer takes over, and the steps that are left to do."""
    wanted = candidates(graph)
    if not wanted:
        return {}, list(steps)
    first, last = lifetimes(graph, steps)
    refusing = max((n for n, step in enumerate(steps) if _may_refuse(step)), default=-1)
    found = {
        new: old
        for new, old in wanted.items()
        if refusing < first.get(new, -1) and _may_replace(graph, steps, new, old, first, last)
    }
    kept = [
        step for number, step in enumerate(steps) if not _copies(step, found, steps[number + 1 :])
    ]
    return found, kept


def _may_replace(
    graph: Graph,
    steps: Sequence[Step],
    new: str,
    old: str,
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> bool:
    """Whether `new`, made by kernels alone, may lie in `old`: nobody needs what was there."""
    begin = first[new]
    step = steps[begin]
    if not isinstance(step, Kernel) or last.get(old, -1) > begin:
        return False
    if any(not isinstance(each, Kernel) and new in each.writes for each in steps):
        return False
    return old not in step.body.reads or may_overwrite(step.body, old, new, graph.buffers)


def _may_refuse(step: Step) -> bool:
    """Whether torch's operators may take the call over from this step; a kernel of a card asserts, as eager's do."""
    if not isinstance(step, Kernel):
        return step.is_untried
    if step.device.type != "cpu":
        return False
    return any(may_refuse(operation) for _, operation, _ in step.body.operations())


def _copies(step: Step, inside: Mapping[str, str], later: Sequence[Step]) -> bool:
    """Whether a kernel does nothing but write inputs onto themselves, and later ones begin by writing to them."""
    writes = step.body.writes if isinstance(step, Kernel) else frozenset()
    if not isinstance(step, Kernel) or not writes or not writes <= inside.keys():
        return False
    operations = {position: operation for position, operation, _ in step.body.operations()}
    for operation in operations.values():
        if operation.name == "load":
            continue
        if operation.name != "store":
            return False
        value = operations[operation.operands[0]]
        same = value.name == "load" and value.buffer == inside[operation.buffer or ""]
        if (
            not same
            or value.index != operation.index
            or value.masked
            or operation.attribute != "set"
        ):
            return False
    return all(_written_next(name, later) for name in writes)


def _written_next(name: str, steps: Sequence[Step]) -> bool:
    """Whether the next step that has to do with a buffer is a kernel that writes to it: there its memory is named."""
    for step in steps:
        if isinstance(step, Kernel):
            if name in step.body.writes:
                return True
            if name in step.body.reads:
                return False
        elif name in step.reads:
            return False
    return False
