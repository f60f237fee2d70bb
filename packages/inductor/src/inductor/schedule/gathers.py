"""Computes single elements where they are picked instead of a whole tensor from which few are picked.

In: a graph of loops. Out: the same graph where a node that loads few elements of a pointwise result computes them
itself: the loss at each row's target needs one logarithmic probability of thousands. If nobody else reads the
whole tensor outside of its kernel, it is never written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inductor.analysis import coefficient
from inductor.analysis.cost import operation_weight, smallest
from inductor.ir.index import inner_symbols, outer_symbols, product
from inductor.ir.nodes import LoopNode
from inductor.ir.operations import EFFECTS
from inductor.ir.recorder import Recorder
from primtorch.symbolic import Expression, Symbol, bounds, free_symbols, split_sum, substitute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inductor.ir.nodes import Graph, LoopBody, Node
    from inductor.ir.operations import Operation, Size
    from inductor.ir.recorder import Scalar

__all__ = ["inline_gathers"]

FEWER = 8
"""By how much fewer elements must be picked than there are."""
HEAVIEST = 64
DEEPEST = 4
"""How many producers in a row."""
_UNFIT = frozenset({"indirect", "philox_uniform", "philox_normal", "philox_bits", "argument"})


def inline_gathers(graph: Graph) -> Graph:
    """The graph with producers of few picked elements written into their readers."""
    producers: dict[str, LoopNode] = {}
    barred: set[str] = set()
    nodes: list[Node] = []
    for original in graph.nodes:
        node = original
        for buffer in node.writes:
            if buffer in producers or buffer in barred:
                barred.add(buffer)  # written again: a scatter
        if isinstance(node, LoopNode):
            node = _with_inlined(node, producers, barred)
            if _suits(node):
                producers.update(dict.fromkeys(node.writes, node))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _suits(node: LoopNode) -> bool:
    """Whether a node's result may be computed anew elsewhere."""
    body = node.body
    if node.kind != "pointwise" or body.reduction_ranges or len(body.writes) != 1:
        return False
    weight = stores = 0
    for _, operation, _ in body.operations():
        if operation.name in _UNFIT or operation.masked:
            return False
        if operation.name in EFFECTS:
            stores += 1
            if operation.name != "store" or operation.attribute != "set":
                return False
        weight += operation_weight(operation.name)
    return stores == 1 and weight <= HEAVIEST


def _points(body: LoopBody) -> int:
    return smallest(product(body.ranges)) * smallest(product(body.reduction_ranges))


def _with_inlined(node: LoopNode, producers: Mapping[str, LoopNode], barred: set[str]) -> LoopNode:
    """The node with the loads of what suits replaced, and again what those producers load."""
    for _ in range(DEEPEST):
        places = _places(node, producers, barred)
        if not places:
            break
        node = replace(node, body=_inlined(node.body, places, producers))
    return node


def _places(
    node: LoopNode, producers: Mapping[str, LoopNode], barred: set[str]
) -> dict[tuple[str, Size], dict[Symbol, Size]]:
    """The loads to replace: buffer and index, and where in the producer's loops that is."""
    points = _points(node.body)
    places: dict[tuple[str, Size], dict[Symbol, Size]] = {}
    for _, operation, _ in node.body.operations():
        producer = producers.get(operation.buffer or "")
        if operation.name != "load" or producer is None or operation.buffer in barred:
            continue
        if operation.masked or producer.device != node.device or operation.index is None:
            continue
        if points * FEWER > _points(producer.body):
            continue
        place = _coordinates(operation.index, producer.body)
        if place is not None:
            places[str(operation.buffer), operation.index] = place
    return places


def _inlined(
    body: LoopBody,
    places: Mapping[tuple[str, Size], dict[Symbol, Size]],
    producers: Mapping[str, LoopNode],
) -> LoopBody:
    recorder = Recorder(body.ranges, body.reduction_ranges)
    identity: dict[Symbol, Size] = {
        symbol: symbol
        for symbol in (*outer_symbols(body.ranges), *inner_symbols(body.reduction_ranges))
    }
    values: dict[int, Scalar] = {}
    symbols: dict[Symbol, Size] = {}
    for stage in body.stages:
        recorder.stage(stage.level)
        for offset, operation in enumerate(stage.operations):
            if operation.name == "load" and operation.index is not None:
                place = places.get((str(operation.buffer), operation.index))
                if place is not None:
                    here = {key: substitute(value, symbols) for key, value in place.items()}
                    _compute(recorder, producers[str(operation.buffer)].body, here)
            recorder.replay([(stage.start + offset, operation)], identity, values, symbols)
    return recorder.finish()


def _compute(recorder: Recorder, body: LoopBody, place: dict[Symbol, Size]) -> None:
    """Record the producer at one place, and let loads of its result be the value."""
    values: dict[int, Scalar] = {}
    own: list[tuple[int, Operation]] = [
        (position, operation) for position, operation, _ in body.operations()
    ]
    recorder.replay([pair for pair in own if pair[1].name not in EFFECTS], place, values, {})
    for _, operation in own:
        if operation.name in EFFECTS:
            assert operation.buffer is not None
            assert operation.index is not None
            index = substitute(operation.index, place)
            recorder.hold(operation.buffer, index, values[operation.operands[0]])


def _coordinates(index: Size, body: LoopBody) -> dict[Symbol, Size] | None:
    """The producer's loop variables at an element, if each is one variable of the reader or zero."""
    stored = next(
        operation.index for _, operation, _ in body.operations() if operation.name in EFFECTS
    )
    variables = outer_symbols(body.ranges)
    steps: dict[int, Symbol] = {}
    place: dict[Symbol, Size] = dict.fromkeys(variables, 0)
    rest: Size = stored if stored is not None else 0
    for symbol, extent in zip(variables, body.ranges, strict=True):
        step = coefficient(rest, symbol)
        if isinstance(extent, int) and extent == 1:
            continue
        if not isinstance(step, int) or step == 0 or step in steps:
            return None
        steps[step] = symbol
    if not isinstance(index, Expression):
        return place if index == 0 and _starts_at_zero(rest, variables) else None
    if not _starts_at_zero(rest, variables):
        return None
    constant, terms = split_sum(index)
    if constant != 0:
        return None
    for term, count in terms:
        if count not in steps or not isinstance(term, Symbol):
            return None
        symbol = steps.pop(count)
        high, limit = bounds(term)[1], bounds(symbol)[1]
        if high is None or limit is None or high > limit:
            return None
        place[symbol] = term
    return place


def _starts_at_zero(index: Size, variables: tuple[Symbol, ...]) -> bool:
    first = substitute(index, dict.fromkeys(variables, 0))
    return isinstance(first, int) and first == 0 and free_symbols(index) <= set(variables)
