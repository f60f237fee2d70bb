"""Nested regions of a graph: nodes that were recorded in a row are cut out into a graph of their own.

Comes in: the recorder, and the nodes since a mark. Goes out: a `Region` whose body is a GraphModule that takes
what its nodes read from outside, and one node that calls it. A value of the body that somebody asks for later
becomes an output of the region then (`expose`). Invariant: a node reads only nodes of its own graph.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from torch import fx

from dynamo.errors import BreakReason, GraphBreak, Restart
from dynamo.graph.stages import runs_between

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo.graph.recorder import Recorder

__all__ = [
    "Region",
    "called",
    "carve",
    "close",
    "drop",
    "expose",
    "nodes_since",
    "record_call",
    "stand_in",
]


_HOOK = (
    "a tensor hook is registered inside a function that is checkpointed, differentiated or mapped"
)


@dataclass(slots=True)
class Region:
    """A graph that was cut out.

    Attributes:
        graph: The body, whose output is set by `close`.
        inputs: Nodes of the outer graph, one per placeholder behind the leading ones.
        copies: For each node of the outer graph that was cut out or read, its node in the body.
        module: The body as a module, once it is closed.
        call: The node that calls it; None if the values inside may not be asked for.
        outputs: What the body returns, and for each the node that takes it from the call.
        tick: The instruction that made the call.
    """

    graph: fx.Graph
    inputs: list[fx.Node]
    copies: dict[fx.Node, fx.Node]
    module: fx.GraphModule | None = None
    call: fx.Node | None = None
    outputs: dict[fx.Node, fx.Node] = field(default_factory=dict)
    tick: int = 0


def nodes_since(recorder: Recorder, mark: fx.Node) -> list[fx.Node]:
    """What was recorded after the node `mark`, without placeholders; the mark goes."""
    if any(late.after is mark for late in recorder.late):
        _refuse(recorder, BreakReason.UNSUPPORTED_CALL, _HOOK)
    found: list[fx.Node] = []
    for node in reversed(recorder.graph.nodes):
        if node is mark:
            break
        if node.op != "placeholder":
            found.append(node)
    found.reverse()
    recorder.erase(mark)
    return found


def stand_in(recorder: Recorder, value: Any) -> fx.Node:
    """A node for a value that a region is called with; it disappears when the region is cut out."""
    node = recorder.graph.call_function(_argument, ())
    recorder.describe(node)
    node.meta["val"] = value
    recorder.nodes[id(value)] = node
    return node


def _argument() -> Any:
    raise AssertionError("an argument of a region was left in the graph")


def carve(
    recorder: Recorder,
    nodes: Sequence[fx.Node],
    leading: Sequence[fx.Node] = (),
    *,
    also: Sequence[fx.Node] = (),
    leading_last: bool = False,
) -> Region:
    """Move `nodes`, the last of the graph, to a graph of their own.

    Args:
        recorder: the recorder of the graph.
        nodes: what is moved.
        leading: nodes that the first placeholders stand for, wanted or not.
        also: nodes that the body is to know, beside those that it reads.
        leading_last: put the placeholders of `leading` behind the others.
    """
    if any(map(runs_between, nodes)):
        _refuse(
            recorder,
            BreakReason.UNSUPPORTED_CALL,
            "a module with backward hooks is called, or a seed set, inside a function that is "
            "checkpointed, differentiated or mapped",
        )
    if recorder.late and not {late.after for late in recorder.late}.isdisjoint(nodes):
        _refuse(recorder, BreakReason.UNSUPPORTED_CALL, _HOOK)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def argument(node: fx.Node) -> None:
        copy = graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        copies[node] = copy

    inside = set(nodes)
    known = {*inside, *leading}
    reads = [read for node in nodes for read in node.all_input_nodes]
    inputs = [node for node in dict.fromkeys([*reads, *also]) if node not in known]
    for node in (*inputs, *leading) if leading_last else (*leading, *inputs):
        argument(node)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for key, node in recorder.nodes.items():
        if node in inside:
            recorder.nodes[key] = copies[node]
    if recorder.sizes is not None:
        recorder.sizes.forget(inside)
    for region in recorder.regions.values():
        if region.call in inside:
            region.call = copies[region.call]
            region.outputs = {n: copies.get(item, item) for n, item in region.outputs.items()}
    for node in reversed(nodes):
        recorder.erase(node)
    machine = recorder.machine
    tick = machine.frames[-1].tick if machine is not None and machine.frames else 0
    return Region(graph, inputs, copies, tick=tick)


def drop(recorder: Recorder, region: Region, stand_ins: Sequence[fx.Node]) -> None:
    """Remove the nodes that stood for the arguments of a region that was cut out."""
    gone = set(stand_ins)
    for key, node in recorder.nodes.items():
        if node in gone:
            recorder.nodes[key] = region.copies[node]
    for node in stand_ins:
        recorder.erase(node)


def close(recorder: Recorder, region: Region, output: Any) -> fx.Node:
    """Make the body a module that returns `output` (nodes of the body); the node that holds it."""
    region.graph.output(output)
    module = fx.GraphModule(recorder.root, region.graph)
    region.module = module
    recorder.regions[region.graph] = region
    return recorder.attribute(module, "region")


def called(
    recorder: Recorder,
    region: Region,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> fx.Node:
    """Record the call of a region."""
    node = region.call = record_call(recorder, function, args, kwargs)
    return node


def record_call(
    recorder: Recorder, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> fx.Node:
    """Record a call whose arguments are nodes."""
    node = recorder.graph.call_function(function, args, kwargs)
    recorder.describe(node)
    node.meta["val"] = ()
    return node


def expose(recorder: Recorder, node: fx.Node) -> fx.Node:
    """The node of the recorder's graph that has the value of a node inside a region."""
    while node.graph is not recorder.graph:
        region = recorder.regions.get(node.graph)
        if region is None or region.call is None or region.module is None:
            _leak(recorder, region)
        taken = region.outputs.get(node)
        if taken is None:
            call = region.call
            with call.graph.inserting_after(call):
                taken = call.graph.call_function(operator.getitem, (call, len(region.outputs)))
            taken.meta = dict(node.meta)
            region.outputs[node] = taken
            _end(region.graph).args = (tuple(region.outputs),)
            call.meta["val"] = tuple(n.meta["val"] for n in region.outputs)
            region.module.recompile()
        node = taken
    return node


def _leak(recorder: Recorder, region: Region | None) -> NoReturn:
    """A value of a closed region is wanted outside: the call that made it runs for real instead."""
    why = (
        "a tensor made inside a function that is differentiated or mapped leaves it other than "
        "as its result"
    )
    if region is None or recorder.machine is None:
        raise GraphBreak(BreakReason.UNSUPPORTED_VALUE, why)
    recorder.machine.break_ticks[region.tick] = (BreakReason.UNSUPPORTED_VALUE, why)
    raise Restart


def _refuse(recorder: Recorder, reason: BreakReason, why: str) -> NoReturn:
    """The call that the region belongs to runs for real."""
    machine = recorder.machine
    if machine is None or not machine.frames:
        raise GraphBreak(reason, why)
    machine.break_ticks[machine.frames[-1].tick] = (reason, why)
    raise Restart


def _end(graph: fx.Graph) -> fx.Node:
    return next(iter(reversed(graph.nodes)))
