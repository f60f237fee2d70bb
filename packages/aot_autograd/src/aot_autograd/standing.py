"""Results that gradients depend on, as the caller has them.

A gradient that can be differentiated is computed from the inputs again (`double.py`), and with it every result. Eager
has saved the results themselves, so that its second derivatives arrive at them: at their hooks, at `retain_grad`, at
who asks for them. So the caller's results are inputs of those gradients, each in the place of the one that is computed
again: what would arrive at the latter in a backward is the former's, and goes no further. Comes in: such pairs, as they
are met in a trace; and at run time what a call gave. Goes out: where the gradient of an input arrives; the results that
stand. Invariant: values come from the inputs alone, only derivatives take the other way.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import ending_at
from aot_autograd.graph import Node, each_node
from aot_autograd.tangents import tangent_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aot_autograd.metadata import FunctionMetadata
    from aot_autograd.points import Watched
    from aot_autograd.recording import RecordingContext

__all__ = [
    "Standing",
    "read_results",
    "results_behind",
    "standing_results",
    "with_standing",
    "written_results",
]


@dataclass(frozen=True, slots=True)
class Standing:
    """An input of a trace, and the result that it stands for.

    Attributes:
        argument: The caller's result, as the traced function got it: a copy, of a copy, of a leaf.
        result: The same as it was computed again, with its history.
    """

    argument: torch.Tensor
    result: torch.Tensor


def results_behind(tensor: Any, standing: Iterable[Standing]) -> list[torch.Tensor]:
    """The results that an input stands for: what arrives at them belongs to it."""
    return [one.result for one in standing if _is_copy_of(one.argument, tensor)]


def with_standing(
    wanted: Sequence[Any],
    context: RecordingContext,
    roots: Sequence[torch.Tensor],
    gradients_of: Callable[[Sequence[Any]], Sequence[Any]],
    ends: Sequence[torch.Tensor] = (),
) -> list[Any]:
    """The gradients of what is wanted.

    Args:
        wanted: Inputs' leaves, the edges at which their gradients arrive, and results.
        context: The trace. What inputs stand for in it is where the backward ends.
        roots: Where it begins.
        gradients_of: Autograd's own function, of the tensors whose gradients to give.
        ends: Where it ends too.
    """
    standing = tuple(context.standing)
    behind = [
        (place, result)
        for place, one in enumerate(wanted)
        for result in (results_behind(one, standing) if standing else ())
    ]
    results = [result for _, result in behind]
    with ending_at([*ends, *results], roots, context) if ends or results else nullcontext():
        found = list(gradients_of([*wanted, *results]))
    gradients = found[: len(wanted)]
    for (place, _), arrived in zip(behind, found[len(wanted) :], strict=True):
        if arrived is not None:
            before = gradients[place]
            gradients[place] = arrived if before is None else before + arrived
    return gradients


def _is_copy_of(argument: torch.Tensor, tensor: Any) -> bool:
    if argument is tensor:
        return True
    node = argument.grad_fn
    own = getattr(tensor, "grad_fn", None)
    while node is not None:
        if node is own or getattr(node, "variable", None) is tensor:
            return True
        node = node.next_functions[0][0] if node.name() == "FreshBackward" else None
    return False


def read_results(
    nodes: Sequence[Node],
    results: Sequence[Any],
    gradients: Sequence[Any] | None,
    points: Sequence[int] = (),
) -> tuple[int, ...]:
    """The results, by number, that gradients may be computed of; behind them all points.

    Args:
        nodes: Everything recorded, in order: the forward, then the backward.
        results: The results' nodes.
        gradients: The gradients' nodes; None where there is no backward.
        points: What is made of the results between their nodes.
    """
    if gradients is None:
        return ()
    numbers: dict[Any, int] = {}
    for number, result in enumerate(results):
        node = result
        while isinstance(node, Node):
            numbers[node] = numbers.get(node, 0) | 1 << number
            # Equal results are one node, of which the caller gets copies.
            node = node.args[0] if node.operator is torch.ops.aten.clone.default else None
    made_of: dict[Node, int] = {}
    found = 0

    def read(arguments: Any) -> int:
        behind: list[Node] = []
        each_node(arguments, behind.append)
        together = 0
        for node in behind:
            together |= made_of.get(node, 0)
        return together

    for node in nodes:
        behind = read((node.args, tuple(node.kwargs.values())))
        if node.phase == "forward":
            made_of[node] = numbers.get(node, 0) | behind
        else:
            found |= behind
    found |= read(tuple(gradients))
    read_by = [number for number in range(len(results)) if found >> number & 1]
    return (*read_by, *range(len(results), len(results) + len(points)))


def standing_results(
    metadata: FunctionMetadata,
    results: Sequence[Any],
    nodes: Sequence[Any],
    points: Mapping[int, Watched],
) -> list[torch.Tensor | None]:
    """For each tangent, then for each point, what the caller still has, where gradients depend on it; else None.

    Args:
        metadata: The contract.
        results: Weak references to the results.
        nodes: And to their autograd nodes.
        points: The points, by their numbers.
    """
    count = len(metadata.tangents)
    found: list[torch.Tensor | None] = [None] * (count + len(metadata.points))
    places = tangent_outputs(metadata)
    for number in metadata.read_results:
        if number >= count:
            point = points.get(number)
            found[number] = None if point is None else point.unchanged()
            continue
        tensor, node = results[number](), nodes[number]()
        if tensor is None or node is None or tensor.grad_fn is None:
            continue  # gone, or cut off
        if tensor.grad_fn is node:
            unchanged = tensor._version == metadata.value_versions[places[number]]
        else:  # an argument that the call has written
            unchanged = any(one is node for one, _ in tensor.grad_fn.next_functions)
        found[number] = tensor if unchanged else None
    return found


def written_results(metadata: FunctionMetadata) -> tuple[tuple[int, int], ...]:
    """The results that the caller has as arguments which were written: (tangent, flat input) of each."""
    places = tangent_outputs(metadata)
    return tuple(
        (places.index(one.position), one.input)
        for one in metadata.mutations
        if one.through_autograd
        and one.position in places
        and one.input >= 0
        and -1 - one.input not in metadata.points
        and places.index(one.position) in metadata.read_results
    )
