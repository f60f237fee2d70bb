"""Builds a forward and a backward graph from a joint graph and the set of saved values.

Comes in: the joint graph, the number of forward outputs, the nodes to save. Goes out: a
`Partition`. What the backward needs and does not find among saved values and tangents is copied
into it, directly before its first reader. Invariant: the backward reads nothing of the forward but
its saved values; a saved input that the function mutates is saved as a copy of its old value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import fx

from aot_autograd.errors import PartitionError
from aot_autograd.graph import DeferredModule
from primtorch.fake import FakeTensor
from primtorch.symbolic import expression_of, free_symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a saved value comes from: placeholder or output number `index` of the forward."""

    origin: Literal["input", "output"]
    index: int
    is_tensor: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """A joint graph cut in two.

    Attributes:
        forward: Its outputs: the joint graph's forward outputs, then saved values that are not
            forward outputs or inputs anyhow.
        backward: Its placeholders: saved values (numbers first), then tangents.
        saved: In the order of the backward's placeholders.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: tuple[Saved, ...]


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder is a gradient that flows in."""
    tag = node.meta.get("input")
    return bool(tag) and tag["kind"] == "tangent"


def draws_seed(node: fx.Node) -> bool:
    """Whether the node is the seed of a graph's random numbers."""
    return node.op == "call_function" and node.target is torch.ops.primtorch.draw_seed.default


def joint_outputs(joint: fx.GraphModule) -> tuple[object, ...]:
    """The output tuple of a graph."""
    output = next(iter(reversed(joint.graph.nodes)))
    return tuple(output.args[0])


def tangent_dependent(joint: fx.GraphModule) -> set[fx.Node]:
    """The nodes that can be computed only when the tangents are there."""
    late: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            if is_tangent(node):
                late.add(node)
        elif node.op != "output" and any(source in late for source in node.all_input_nodes):
            late.add(node)
    return late


def split(joint: fx.GraphModule, forward_outputs: int, saved: Iterable[fx.Node]) -> Partition:
    """Cut the joint graph so that exactly `saved` (what of it is needed) crosses.

    Raises:
        PartitionError: if a gradient needs a value that is neither saved nor computable.
    """
    outputs = joint_outputs(joint)
    results, gradients = outputs[:forward_outputs], outputs[forward_outputs:]
    mutated = frozenset(joint.meta.get("mutated_inputs", ()))
    late = tangent_dependent(joint)
    wanted = dict.fromkeys(saved)
    needed, order = _backward_order(joint, gradients, wanted, late)
    # Seeds always cross: gradients of gradients run the forward again with the same numbers.
    wanted.update(dict.fromkeys(node for node in joint.graph.nodes if draws_seed(node)))
    sizes = _sizes_of(joint, (*order, *(node for node in wanted if node in needed)))
    wanted.update(dict.fromkeys(sizes))
    needed |= sizes
    crossing = [node for node in wanted if node in needed or draws_seed(node)]
    # Numbers, inputs, values: so the runtime takes them, each kind at once.
    inputs = [n for n in joint.graph.nodes if n.op == "placeholder" and not is_tangent(n)]
    plain = {node for number, node in enumerate(inputs) if number not in mutated}
    crossing.sort(key=lambda node: (isinstance(node.meta["val"], FakeTensor), node not in plain))
    forward, positions = _forward_graph(joint, results, crossing, mutated, late)
    backward = _backward_graph(joint, gradients, crossing, order)
    return Partition(forward, backward, tuple(positions))


def _sizes_of(joint: fx.GraphModule, backward: Iterable[fx.Node]) -> set[fx.Node]:
    """The size placeholders whose symbols are in the shapes of the backward's values.

    No node need read them, but whoever compiles the backward allocates by those shapes.
    """
    holders: dict[object, fx.Node] = {}
    for node in joint.graph.nodes:
        if node.op != "placeholder":
            break
        if isinstance(node.meta["val"], torch.SymInt):
            holders[expression_of(node.meta["val"])] = node
    if not holders:
        return set()
    tangents = [node for node in joint.graph.nodes if node.op == "placeholder" and is_tangent(node)]
    found: set[fx.Node] = set()
    for node in (*backward, *tangents):
        value = node.meta["val"]
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, FakeTensor):
                for size in (*item.meta.shape, *item.meta.stride):
                    found.update(holders[s] for s in free_symbols(size) if s in holders)
    return found


def _backward_order(
    joint: fx.GraphModule,
    gradients: Sequence[object],
    saved: dict[fx.Node, None],
    late: set[fx.Node],
) -> tuple[set[fx.Node], list[fx.Node]]:
    """Which nodes the backward contains, and in which order its calls run."""
    live: set[fx.Node] = {item for item in gradients if isinstance(item, fx.Node)}
    live |= {node for node in late if node.meta.get("impure")}
    for node in reversed(joint.graph.nodes):
        if node in live and node not in saved and node.op != "placeholder":
            live.update(node.all_input_nodes)
    order: list[fx.Node] = []
    placed: set[fx.Node] = set()

    def place(root: fx.Node) -> None:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in placed or node in saved:
                stack.pop()
                continue
            if node.op == "placeholder" and not is_tangent(node):
                raise PartitionError(
                    f"the backward needs input {node.name!r}",
                    "the partition saves neither it nor a value computed from it",
                    "add the node to the saved values",
                )
            missing = [
                source
                for source in node.all_input_nodes
                if source not in placed and source not in saved
            ]
            if missing:
                stack.extend(reversed(missing))
                continue
            placed.add(node)
            stack.pop()
            if node.op != "placeholder":
                order.append(node)

    for node in joint.graph.nodes:
        if node in live and node in late:
            place(node)
    for item in gradients:
        if isinstance(item, fx.Node):
            place(item)
    return live, order


def _forward_graph(
    joint: fx.GraphModule,
    results: Sequence[object],
    crossing: Sequence[fx.Node],
    mutated: frozenset[int],
    late: set[fx.Node],
) -> tuple[fx.GraphModule, list[Saved]]:
    live = {item for item in (*results, *crossing) if isinstance(item, fx.Node)}
    # Draws that nobody reads still move the generator on; what they draw from is needed too.
    live |= {node for node in joint.graph.nodes if node.meta.get("impure") and node not in late}
    for node in reversed(joint.graph.nodes):
        if node in live:
            live.update(node.all_input_nodes)
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    inputs: dict[fx.Node, int] = {}
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            if not is_tangent(node):
                inputs[node] = len(inputs)
                copied[node] = _copy(graph, node, copied)
        elif node in live and node.op != "output":
            copied[node] = _copy(graph, node, copied)
    final: list[object] = [copied[item] if isinstance(item, fx.Node) else item for item in results]
    numbers = {item: number for number, item in enumerate(results) if isinstance(item, fx.Node)}
    positions: list[Saved] = []
    for node in crossing:
        is_tensor = isinstance(node.meta["val"], FakeTensor)
        if node in inputs and inputs[node] not in mutated:
            positions.append(Saved("input", inputs[node], is_tensor))
            continue
        number = numbers.get(node)
        if number is None or node in inputs:
            number = len(final)
            kept = copied[node]
            if node in inputs:
                kept = graph.call_function(aten.clone.default, (kept,))
                kept.meta = {key: node.meta[key] for key in ("val",)}
            final.append(kept)
        positions.append(Saved("output", number, is_tensor))
    graph.output(tuple(final))
    return _module(joint, graph, "forward"), positions


def _backward_graph(
    joint: fx.GraphModule,
    gradients: Sequence[object],
    crossing: Sequence[fx.Node],
    order: Sequence[fx.Node],
) -> fx.GraphModule:
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in crossing:
        made = graph.placeholder(node.name)
        tag = node.meta.get("input")
        made.meta = {
            "val": node.meta["val"],
            "input": {
                "kind": "saved",
                "name": tag["name"] if tag else node.name,
                "static": bool(tag and tag["static"]),
            },
        }
        if draws_seed(node):
            made.meta["draws_seed"] = True
        copied[node] = made
    for node in joint.graph.nodes:
        if node.op == "placeholder" and is_tangent(node):
            copied[node] = _copy(graph, node, copied)
    for node in order:
        copied[node] = _copy(graph, node, copied)
    graph.output(tuple(copied[item] if isinstance(item, fx.Node) else item for item in gradients))
    module = _module(joint, graph, "backward")
    module.meta["gradients_of_results"] = joint.meta.get("gradients_of_results", 0)
    return module


def _copy(graph: fx.Graph, node: fx.Node, copied: dict[fx.Node, fx.Node]) -> fx.Node:
    made = graph.node_copy(node, copied.__getitem__)
    made.meta = node.meta.copy()
    return made


def _module(joint: fx.GraphModule, graph: fx.Graph, role: str) -> fx.GraphModule:
    module = DeferredModule(joint, graph)
    module.meta["wire"] = joint.meta.get("wire", 1)
    module.meta["role"] = role
    return module
