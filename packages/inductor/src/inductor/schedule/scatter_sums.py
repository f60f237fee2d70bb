"""Adds scattered rows right into what they are added to.

In: a graph of loops. Out: the same graph where `sum = other + (zeros with rows scattered into them)` scatters into
`other` itself: no zeros are written, no two tables read and a third written. The gradient of an embedding whose
weight is also the last layer's (BERT, GPT-2, T5) is such a sum, over the largest tensor of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inductor.ir.index import outer_symbols
from inductor.ir.nodes import LoopBody, LoopNode, OperatorCall, Stage, View
from inductor.ir.operations import EFFECTS
from inductor.ir.recorder import Recorder, constant_value

if TYPE_CHECKING:
    from inductor.ir.nodes import Graph, Node
    from inductor.ir.operations import Operation, Size

__all__ = ["is_zeros", "scatter_into_sums"]


@dataclass(frozen=True, slots=True)
class _Sum:
    """A node that stores the sum of whole tensors: what it loads, at which index, and the result."""

    terms: tuple[str, ...]
    index: Size
    result: str


def scatter_into_sums(graph: Graph) -> Graph:
    """The graph with scatters moved behind the sums that they were terms of."""
    if not any(isinstance(node, LoopNode) and node.kind == "scatter" for node in graph.nodes):
        return graph
    nodes = list(graph.nodes)
    for node in graph.nodes:
        found = _sum_of(node) if isinstance(node, LoopNode) else None
        if found is not None and len(set(found.terms)) == len(found.terms) > 1:
            _rewrite(graph, nodes, nodes.index(node), found)
    return replace(graph, nodes=tuple(nodes))


def _sum_of(node: LoopNode) -> _Sum | None:
    """What a node adds up, if it does nothing else."""
    body = node.body
    if node.kind != "pointwise" or body.reduction_ranges or len(body.stages) != 1:
        return None
    operations = body.stages[0].operations
    *work, store = operations
    if store.name != "store" or store.attribute != "set" or store.index is None:
        return None
    terms: list[str] = []
    used: list[int] = []
    for operation in work:
        if operation.name == "load" and not operation.operands and operation.index == store.index:
            terms.append(str(operation.buffer))
        elif operation.name != "add":
            return None
        if not operation.dtype.is_floating_point or operation.dtype != store.dtype:
            return None
        used += operation.operands
    if sorted(used) != list(range(len(work) - 1)) or store.operands != (len(work) - 1,):
        return None
    return _Sum(tuple(terms), store.index, str(store.buffer))


def is_zeros(node: Node) -> bool:
    """Whether a node does nothing but fill a buffer with zeros."""
    if not isinstance(node, LoopNode) or node.kind != "pointwise" or len(node.body.stages) != 1:
        return False
    operations = node.body.stages[0].operations
    if [operation.name for operation in operations] != ["constant", "store"]:
        return False
    return constant_value(str(operations[0].attribute)) == 0


def _is_addition(node: Node, buffer: str) -> bool:
    """Whether a node does nothing but add scattered elements to a buffer."""
    if not isinstance(node, LoopNode) or node.kind != "scatter" or buffer in node.reads:
        return False
    effects = [op for _, op, _ in node.body.operations() if op.name in EFFECTS]
    return all(op.attribute == "add" and op.buffer == buffer for op in effects)


def _rewrite(graph: Graph, nodes: list[Node], position: int, found: _Sum) -> None:
    """Do it for the sum at `position`, if it is one with scattered terms."""
    outputs = {value.buffer for value in graph.outputs if isinstance(value, View)}
    scattered: dict[str, list[Node]] = {}
    for term in found.terms:
        writers = [node for node in nodes[:position] if term in node.writes]
        readers = [node for node in nodes if term in node.reads]
        alone = len(readers) == 1 and term not in outputs and _alike(graph, term, found.result)
        if not alone or len(writers) < 2 or not is_zeros(writers[0]):
            continue
        if all(_is_addition(node, term) for node in writers[1:]):
            scattered[term] = writers
    rest = [term for term in found.terms if term not in scattered]
    if not scattered or not rest:
        return
    total = nodes[position]
    assert isinstance(total, LoopNode)
    moved: list[Node] = []
    for term, (zeros, *additions) in scattered.items():
        nodes.remove(zeros)
        for addition in additions:
            nodes.remove(addition)
            moved.append(_renamed(addition, term, found.result))
    base = rest[0]
    position = nodes.index(total)
    if len(rest) == 1 and _takes_over(graph, nodes, base, found, outputs):
        nodes[position : position + 1] = moved
        for place, node in enumerate(nodes[:position]):
            if base in node.writes:
                nodes[place] = _renamed(node, base, found.result)
    else:
        nodes[position : position + 1] = [_shortened(total, rest, found), *moved]


def _takes_over(graph: Graph, nodes: list[Node], base: str, found: _Sum, outputs: set[str]) -> bool:
    """Whether what computes the other term may write the sum's memory."""
    writers = [node for node in nodes if base in node.writes]
    readers = [node for node in nodes if base in node.reads]
    if not writers or len(readers) != 1 or base in outputs or not _alike(graph, base, found.result):
        return False
    first, *others = writers
    if isinstance(first, OperatorCall) and first.kind != "vendor":
        return False  # may hand out its operand's memory
    return all(_is_addition(node, base) for node in others)


def _alike(graph: Graph, one: str, other: str) -> bool:
    left, right = graph.buffers[one], graph.buffers[other]
    return (left.shape, left.stride, left.dtype, left.device) == (
        right.shape,
        right.stride,
        right.dtype,
        right.device,
    )


def _renamed(node: Node, old: str, new: str) -> Node:
    """The node writing another buffer."""
    if isinstance(node, OperatorCall):
        return replace(node, outputs=tuple(new if name == old else name for name in node.outputs))

    def moved(operation: Operation) -> Operation:
        return replace(operation, buffer=new) if operation.buffer == old else operation

    stages = tuple(
        Stage(stage.level, stage.start, tuple(map(moved, stage.operations)))
        for stage in node.body.stages
    )
    return replace(node, body=LoopBody(node.body.ranges, node.body.reduction_ranges, stages))


def _shortened(node: LoopNode, terms: list[str], found: _Sum) -> LoopNode:
    """The sum of the terms that are left."""
    recorder = Recorder(node.body.ranges)
    dtype = node.body.stages[0].operations[-1].dtype
    recorder.stage("outer")
    assert recorder.outer == outer_symbols(node.body.ranges)
    value = recorder.load(terms[0], found.index, dtype)
    for term in terms[1:]:
        value = recorder.op("add", value, recorder.load(term, found.index, dtype))
    recorder.store(found.result, found.index, value, dtype)
    return replace(node, body=recorder.finish())
