"""Saved tensors that were changed since, where nobody reads them.

One autograd node keeps what the backward of all results of a call reads, and autograd refuses all of it as soon as one
tensor was changed. In eager each result has nodes of its own: a change of what only an undifferentiated result saved
disturbs nobody. Comes in: the backward graph, and at run time the context of a call and the saved values that the
backward of the results with a gradient takes. Goes out: these, if they are what they were. Invariant: what is handed
out has the version that it was saved with, and nothing here runs unless autograd refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot_autograd._torch import saved_without_check, unchecked
from aot_autograd.absent import tangents_of_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from aot_autograd.partition import Partition
    from aot_autograd.training import Keeping

__all__ = ["Spared", "outside_tensors", "watched"]


def watched(cut: Partition, forward_outputs: int) -> bool:
    """Whether versions of saved tensors are kept: the caller can change one that not every result's backward reads."""
    masks, tangents = tangents_of_nodes(cut.backward)
    everything = (1 << tangents) - 1
    if tangents < 2:
        return False
    readers = _tangents_read_with(cut.backward, masks, everything)
    placeholders = [node for node in cut.backward.graph.nodes if node.op == "placeholder"]
    return any(
        readers.get(node, 0) != everything
        for item, node in zip(cut.saved, placeholders, strict=False)
        if item.is_tensor and (item.origin == "input" or item.index < forward_outputs)
    )


def _tangents_read_with(
    backward: fx.GraphModule, masks: dict[fx.Node, int], everything: int
) -> dict[fx.Node, int]:
    """For each node that no tangent reaches, the tangents that it is put together with, as bits."""
    found: dict[fx.Node, int] = {}
    for node in reversed(backward.graph.nodes):
        if masks.get(node, 0):
            continue
        read = 0
        for user in node.users:
            read |= everything if user.op == "output" else masks[user] or found[user]
        found[node] = read
    return found


def outside_tensors(keeping: Keeping, forward_outputs: int) -> tuple[int, ...]:
    """Places among a call's saved tensors of those that the caller can change: inputs and results."""
    inputs = len(keeping.inputs)
    results = (
        inputs + place for place, index in enumerate(keeping.outputs) if index < forward_outputs
    )
    return (*range(inputs), *results)


class Spared:
    """What a call's backward reads, when autograd refused to hand out all saved tensors.

    Args:
        keeping: Where each saved value is.
        places: Of the saved tensors whose versions a call keeps.
    """

    __slots__ = ("_first", "_order", "_places")

    def __init__(self, keeping: Keeping, places: Sequence[int]) -> None:
        self._first = len(keeping.numbers)
        self._order = keeping.order
        self._places = tuple(places)

    def __call__(
        self, context: Any, versions: Sequence[int] | None, slots: Sequence[int] | None
    ) -> tuple[Any, ...] | None:
        """The saved tensors of the slots, None in the place of others.

        Returns:
            None where one of them was changed or freed, is the affair of a hook, or all are taken.
        """
        if versions is None or slots is None:
            return None
        saved = saved_without_check(context)
        if saved is None:
            return None
        known = dict(zip(self._places, versions, strict=True))
        found: list[Any] = [None] * len(saved)
        for slot in slots:
            place = (self._order[slot] if self._order else slot) - self._first
            if place < 0:
                continue
            tensor = unchecked(saved[place])
            if tensor is None or tensor._version != known.get(place, tensor._version):
                return None
            found[place] = tensor
        return tuple(found)
