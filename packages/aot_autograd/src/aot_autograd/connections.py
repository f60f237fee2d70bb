"""Which results of a function lead to which of its inputs and to which other results, as autograd has it.

Comes in: the traced results and the leaves in the place of the inputs, whose graph C++ autograd made as in eager. Goes
out: for each result the inputs that its history reaches, the results that it is made of, and what its history keeps
until it is differentiated. Invariant: of one result there is nothing to tell: one autograd node for the call is what
eager's graph amounts to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "Connections",
    "bits_of",
    "connections",
    "edge_of",
    "first_of",
    "is_view_by_autograd",
    "nodes_of_inputs",
    "on_a_way",
    "runs_once",
    "selected",
    "with_the_first",
]


@dataclass(frozen=True, slots=True)
class Connections:
    """What is behind each result of a function.

    A point is what the caller gets that is no value of the graph, but a view of one or of an argument, or an argument
    that is written: real autograd makes it between the nodes of results. Points are numbered behind the results.

    Attributes:
        reached: For each result with a gradient its inputs, as bits.
        made_of: For each result, then for each point, the results and points that its history meets first on some
            way, as bits: the direct ones.
        own: For each of both what a backward frees between it and these (or the inputs), as bits; things that the same
            results share and that lead to the same are one.
        kept: For each result the same for all that is behind it.
        leading: For each of these things the inputs, and the results and points, that it leads to, as bits.
        order: Results and points in the order in which their nodes were made.
        beside: For each result the tensors on eager's ways from it that are made after a call and are no points, as
            bits.
    """

    reached: tuple[int, ...]
    made_of: tuple[int, ...]
    own: tuple[int, ...]
    kept: tuple[int, ...]
    leading: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    beside: tuple[int, ...]

    @property
    def interior(self) -> tuple[int, ...]:
        """The results and points that others are made of."""
        return tuple(bits_of(_union(self.made_of)))


@dataclass(frozen=True, slots=True)
class _Behind:
    """What is behind a node, as bits.

    Attributes:
        inputs: Inputs.
        kept: Nodes with saved tensors.
        own: Those of them that no result is before.
        direct: Results that no other is before.
        results: All results.
        beside: What the caller gets that is made of results, or of arguments, after a call.
    """

    inputs: int = 0
    kept: int = 0
    own: int = 0
    direct: int = 0
    results: int = 0
    beside: int = 0


def edge_of(tensor: torch.Tensor) -> tuple[Any, int]:
    """Where what arrives at a tensor that is no leaf is summed up."""
    return tensor.grad_fn, tensor.output_nr


def is_view_by_autograd(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether nothing but torch's own nodes, each of one tensor, is between a view and what it is a view of."""
    node, goal = view.grad_fn, edge_of(base)
    while node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction):
        following = [edge for edge in node.next_functions if edge[0] is not None]
        if len(following) != 1:
            return False
        if following[0] == goal or getattr(following[0][0], "variable", None) is base:
            return True
        node = following[0][0]
    return False


def connections(
    targets: Sequence[torch.Tensor],
    leaves: Sequence[Any],
    points: Sequence[torch.Tensor] = (),
    beside: Sequence[torch.Tensor] = (),
    standing: Mapping[int, Sequence[torch.Tensor]] | None = None,
) -> Connections:
    """What is behind each of the targets.

    Args:
        targets: The results with a gradient.
        leaves: In the place of each input a leaf, or the edge at which its gradient arrives.
        points: What the caller gets that is made of the results, or of arguments, between their nodes.
        beside: The same for what is made after a call.
        standing: What leaves stand for, by their number: what leads there leads to the leaf, and no further.
    """
    numbers = {getattr(leaf, "node", None) or id(leaf): 1 << n for n, leaf in enumerate(leaves)}
    roots: list[Any] = [one.grad_fn for one in (*targets, *points)]
    edges = {
        edge_of(target): 1 << number
        for number, target in enumerate(targets)
        if target.grad_fn is not None
    }
    leaves_standing = {
        edge_of(one): 1 << number for number, ones in (standing or {}).items() for one in ones
    }
    # An argument that is written is made of the result that is its new value: both are one edge here.
    twins = {edge_of(one): edges[edge_of(one)] for one in points if edge_of(one) in edges}
    edges.update({edge_of(one): 1 << len(targets) + n for n, one in enumerate(points)})
    edges_beside = {edge_of(one): 1 << number for number, one in enumerate(beside)}
    behind: dict[Any, _Behind] = {None: _Behind()}
    fields: dict[type, tuple[str, ...]] = {}
    leading: list[tuple[int, int]] = []
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in behind:
                stack.pop()
                continue
            following = node.next_functions
            missing = [
                edge[0]
                for edge in following
                if edge[0] not in behind and edge not in leaves_standing
            ]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            variable = getattr(node, "variable", None)
            inputs = numbers.get(node, 0) | (
                0 if variable is None else numbers.get(id(variable), 0)
            )
            kept = own = direct = results = also_beside = 0
            for edge in following:
                stands_for = leaves_standing.get(edge)
                if stands_for is not None:
                    inputs |= stands_for
                    continue
                also = behind[edge[0]]
                inputs |= also.inputs
                kept |= also.kept
                also_beside |= also.beside | edges_beside.get(edge, 0)
                result = edges.get(edge, 0)
                results |= also.results | result | twins.get(edge, 0)
                if result:
                    direct |= result
                else:
                    own |= also.own
                    direct |= also.direct
            if variable is None and _keeps_tensors(node, fields):
                bit = 1 << len(leading)
                leading.append((inputs, results))
                kept, own = kept | bit, own | bit
            behind[node] = _Behind(inputs, kept, own, direct, results, also_beside)
    found = []
    for one in (*targets, *points):
        stands_for = leaves_standing.get(edge_of(one))
        found.append(behind[one.grad_fn] if stands_for is None else _Behind(inputs=stands_for))
    for number, point in enumerate(points, len(targets)):
        twin = twins.get(edge_of(point), 0)
        if twin:
            found[number] = replace(found[number], own=0, direct=twin)
    count = len(targets)
    own_classes, kept_classes, leading_classes = _classes(found, leading)
    return Connections(
        tuple([one.inputs for one in found[:count]]),
        tuple([one.direct for one in found]),
        own_classes,
        kept_classes[:count],
        leading_classes,
        _in_order(list(map(_age, roots)), [one.direct for one in found]),
        tuple([one.beside for one in found[:count]]),
    )


def _in_order(ages: Sequence[int], direct: Sequence[int]) -> tuple[int, ...]:
    """By age, but each behind what it is made of: a view of what was written gets its node when somebody asks."""
    order: dict[int, None] = {}

    def add(number: int) -> None:
        for one in sorted(bits_of(direct[number]), key=ages.__getitem__):
            if one not in order:
                add(one)
        order[number] = None

    for number in sorted(range(len(ages)), key=ages.__getitem__):
        if number not in order:
            add(number)
    return tuple(order)


def on_a_way(found: Connections) -> tuple[int, ...]:
    """The points, numbered from the first one, that some result leads to."""
    count, seen = len(found.reached), 0
    for number in reversed(found.order):
        if number < count or seen >> number & 1:
            seen |= found.made_of[number]
    return tuple(bits_of(seen >> count))


def runs_once(root: torch.Tensor) -> bool:
    """Whether eager's backward from here frees something, so that another one raises."""
    fields: dict[type, tuple[str, ...]] = {}
    pending = [root.grad_fn]
    seen = set(pending)
    while pending:
        node: Any = pending.pop()
        if node is None or hasattr(node, "variable"):
            continue
        if _keeps_tensors(node, fields):
            return True
        for one, _ in node.next_functions:
            if one not in seen:
                seen.add(one)
                pending.append(one)
    return False


def _classes(
    found: Sequence[_Behind], leading: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """`own`, `kept` and `leading`, with one bit for all nodes that are behind the same results and lead to the same."""
    classes: dict[Any, int] = {}
    own, kept = [0] * len(found), [0] * len(found)
    for node, further in enumerate(leading):
        sides = tuple([(one.kept >> node & 1) + (one.own >> node & 1) for one in found])
        if not any(sides):
            continue
        bit = 1 << classes.setdefault((sides, further), len(classes))
        for number, side in enumerate(sides):
            if side:
                kept[number] |= bit
            if side == 2:
                own[number] |= bit
    return tuple(own), tuple(kept), tuple([further for _, further in classes])


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    number = 0
    while mask:
        if mask & 1:
            yield number
        mask >>= 1
        number += 1


def _union(masks: Sequence[int]) -> int:
    together = 0
    for mask in masks:
        together |= mask
    return together


def selected(found: Connections, inputs: Sequence[int]) -> Connections | None:
    """The same for these of the inputs alone.

    Returns:
        None where one autograd node is what it amounts to: there is one result, which leads to all of these; and where
        what is known can't be all: an input that has a gradient and no result leads to gets it from a backward inside
        of the backward.
    """

    def renumbered(mask: int) -> int:
        return sum((mask >> old & 1) << new for new, old in enumerate(inputs))

    reached = tuple(map(renumbered, found.reached))
    everything = (1 << len(inputs)) - 1
    if _union(reached) != everything:
        return None
    if len(found.made_of) == 1 and reached[0] and not found.beside[0]:
        return None
    leading = tuple([(renumbered(mask), results) for mask, results in found.leading])
    return replace(found, reached=reached, leading=leading)


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


def with_the_first(
    found: Connections,
    inputs: Sequence[tuple[int, ...]],
    edges: Sequence[tuple[int, ...]],
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[int, ...], int]:
    """Let the node of the first result, which runs last, be the inputs' nodes that never run without it.

    Args:
        found: What is behind each result.
        inputs: Of each inputs' node.
        edges: Of each result the inputs' nodes.

    Returns:
        The inputs of the others, their numbers for each result, the inputs of the first result's own node, and the
        results that lead to the first, as bits.
    """
    first = first_of(found)
    leading, alone = 0, 1 << first
    for number in found.order:  # what a result is made of is before it
        if found.made_of[number] & (leading | alone):
            leading |= 1 << number
    left: list[int] = []
    own: list[int] = []
    for at, places in enumerate(inputs):
        reaching = sum(1 << number for number, some in enumerate(edges) if at in some)
        if reaching >> first & 1 and not reaching & ~(leading | alone):
            own.extend(places)
        else:
            left.append(at)
    return (
        tuple([inputs[at] for at in left]),
        tuple([tuple([left.index(at) for at in some if at in left]) for some in edges]),
        tuple(own),
        leading if own else 0,
    )


def first_of(found: Connections) -> int:
    """The result whose node was made before those of the others."""
    return next(number for number in found.order if number < len(found.reached))


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
