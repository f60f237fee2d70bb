"""Which results of a function lead to which of its inputs, as autograd has it.

Comes in: the traced results and the leaves in the place of the inputs, whose graph C++ autograd made as in eager. Goes
out: for each result the inputs that its history reaches, and the results that can't be differentiated one after the
other, because a node with saved tensors is behind both. Invariant: where every result reaches every input there is
nothing to tell, and one autograd node for the call is what eager's graph amounts to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["Connections", "connections", "nodes_of_inputs", "selected"]


@dataclass(frozen=True, slots=True)
class Connections:
    """What is behind each result of a function.

    Attributes:
        reached: For each result with a gradient its inputs, as bits.
        clashes: For each the results, perhaps itself, that share a node with saved tensors with it, as bits.
        order: The results in the order in which their nodes were made.
    """

    reached: tuple[int, ...]
    clashes: tuple[int, ...]
    order: tuple[int, ...]


def connections(targets: Sequence[torch.Tensor], leaves: Sequence[Any]) -> Connections | None:
    """What is behind each of the targets; None where there are not two.

    Args:
        targets: The results with a gradient.
        leaves: In the place of each input a leaf, or the edge at which its gradient arrives.
    """
    if len(targets) < 2 or not leaves:
        return None
    numbers: dict[Any, int] = {}
    for number, leaf in enumerate(leaves):
        node = getattr(leaf, "node", None)
        numbers[id(leaf) if node is None else node] = 1 << number
    behind: dict[Any, tuple[int, int]] = {None: (0, 0)}
    fields: dict[type, tuple[str, ...]] = {}
    keeping = 0
    roots: list[Any] = [target.grad_fn for target in targets]
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in behind:
                stack.pop()
                continue
            following = [one for one, _ in node.next_functions]
            missing = [one for one in following if one not in behind]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            variable = getattr(node, "variable", None)
            inputs = numbers.get(node, 0) | (
                0 if variable is None else numbers.get(id(variable), 0)
            )
            kept = 0
            if variable is None and _keeps_tensors(node, fields):
                kept = 1 << keeping
                keeping += 1
            for one in following:
                also = behind[one]
                inputs |= also[0]
                kept |= also[1]
            behind[node] = inputs, kept
    kept_by = [behind[root][1] for root in roots]
    return Connections(
        tuple([behind[root][0] for root in roots]),
        tuple(
            [
                sum(1 << number for number, other in enumerate(kept_by) if one & other)
                for one in kept_by
            ]
        ),
        tuple(sorted(range(len(roots)), key=lambda number: _age(roots[number]))),
    )


def selected(found: Connections | None, inputs: Sequence[int]) -> Connections | None:
    """The same for these of the inputs alone.

    Returns:
        None where each result leads to each of them and no two can be differentiated one after the other, or where
        what is known can't be all: an input that has a gradient and no result leads to gets it from a backward
        inside of the backward.
    """
    if found is None:
        return None
    reached = tuple(
        [sum((mask >> old & 1) << new for new, old in enumerate(inputs)) for mask in found.reached]
    )
    everything = (1 << len(inputs)) - 1
    together = 0
    for mask in reached:
        together |= mask
    if together != everything or not all(reached):
        return None
    others = (1 << len(reached)) - 1
    alone = all(not others & ~(mask | 1 << number) for number, mask in enumerate(found.clashes))
    if alone and all(mask == everything for mask in reached):
        return None
    return Connections(reached, found.clashes, found.order)


def nodes_of_inputs(
    reached: Sequence[int], inputs: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """The nodes that inputs get where each result has a node of its own.

    Returns:
        The inputs of each node: those that the same results lead to; and for each result the nodes that it leads to.
    """
    groups: dict[int, list[int]] = {}
    for place in range(inputs):
        leading = sum(1 << number for number, mask in enumerate(reached) if mask >> place & 1)
        groups.setdefault(leading, []).append(place)
    edges = tuple(
        [
            tuple([at for at, leading in enumerate(groups) if leading >> number & 1])
            for number in range(len(reached))
        ]
    )
    return tuple(map(tuple, groups.values())), edges


def _age(node: Any) -> int:
    return 0 if node is None else int(node._sequence_nr())


def _keeps_tensors(node: Any, fields: dict[type, tuple[str, ...]]) -> bool:
    """Whether a node of autograd can run only once, unless its graph is retained."""
    kind = type(node)
    names = fields.get(kind)
    if names is None:
        names = fields[kind] = tuple(
            [
                name.removeprefix("_raw")
                for name in dir(kind)
                if name.startswith("_raw_saved_") and name != "_raw_saved_tensors"
            ]
            + (["saved_tensors"] if hasattr(kind, "saved_tensors") else [])
        )
    try:
        return any(_is_there(getattr(node, name)) for name in names)
    except RuntimeError:  # changed since, or freed by a backward inside
        return True


def _is_there(kept: Any) -> bool:
    return any(map(_is_there, kept)) if isinstance(kept, (tuple, list)) else kept is not None
