"""The backward of a call in which nobody differentiates some of the outputs, or that ends at some of them.

Comes in: a backward graph, which of its tangents are absent, and at which results, whose gradients somebody wants to
see, it ends. Goes out: a graph that takes the other tangents and computes only what they send on; a gradient that is
made of absent ones alone is None, as in eager. What arrives at a result where it ends is handed out, and absent behind
it. An absent value is a zero that nobody wrote: operators that are linear in it yield another one, sums pass their
other terms on, and whatever no rule knows gets zeros that are made inside the graph. Invariant: what is not absent has
the value that zeros for the absent tangents would give it, where those are finite products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from aot_autograd.graph import DeferredModule
from aot_autograd.partition.classify import kind_of
from primtorch.fake import FakeTensor, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

__all__ = ["Ends", "Specialised", "none_of", "tangents_of_nodes", "without_tangents"]

_LINEAR = {
    **dict.fromkeys(
        (
            *(
                "neg",
                "sum",
                "mean",
                "clone",
                "_to_copy",
                "convert_element_type",
                "alias",
                "flip",
                "roll",
            ),
            *(
                "cumsum",
                "repeat",
                "triu",
                "tril",
                "real",
                "imag",
                "_conj_physical",
                "conj_physical",
            ),
            *("contiguous", "lift_fresh_copy", "expand_copy", "view_copy", "constant_pad_nd"),
            *("gather", "index", "index_select", "_unsafe_index", "take_along_dim", "cat", "stack"),
        ),
        (0,),
    ),
    **dict.fromkeys(
        (
            *("add", "sub", "slice_scatter", "select_scatter", "diagonal_scatter"),
            *("as_strided_scatter", "copy"),
        ),
        (0, 1),
    ),
    "where": (1, 2),
    "index_put": (0, 2),
    "_unsafe_index_put": (0, 2),
    "scatter_add": (0, 3),
    "index_add": (0, 3),
}
"""By name, the arguments in which together an operator is linear: absent if all of these are."""
_FACTORS = {
    **dict.fromkeys(("mul", "mm", "bmm", "mv", "dot", "vdot", "outer"), (0, 1)),
    "div": (0,),
}
"""By name, the arguments in each of which an operator is linear: absent if one of these is."""


@dataclass(frozen=True, slots=True)
class Specialised:
    """A backward for some of the tangents.

    Attributes:
        module: Its placeholders: those of the saved values that it reads, then the tangents that are there.
        kept: Which of all saved values it takes.
    """

    module: fx.GraphModule
    kept: tuple[int, ...]


class _NoZerosError(Exception):
    """Zeros are needed whose shape or layout no graph of constants can make."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a backward ends.

    Attributes:
        gradients: Number of leading outputs that are gradients of inputs; the others are those of results that other
            results are made of.
        places: Of the others, by their places among them, those at which the backward ends.
    """

    gradients: int
    places: tuple[int, ...] = ()

    def nodes(self, backward: fx.GraphModule) -> tuple[fx.Node | None, ...]:
        """What arrives at these results; None where only a tangent does."""
        others = _results(backward)[self.gradients :]
        found = [others[place] for place in self.places]
        return tuple(
            one if isinstance(one, fx.Node) and one.op != "placeholder" else None for one in found
        )


def tangents_of_nodes(
    backward: fx.GraphModule, absent: int = 0, ends: frozenset[fx.Node] = frozenset()
) -> tuple[dict[fx.Node, int], int]:
    """For each node but the output the tangents that it is computed from, as bits, and how many tangents there are.

    Args:
        backward: The graph.
        absent: Tangents that don't count, as bits.
        ends: Nodes behind which nothing counts.
    """
    masks: dict[fx.Node, int] = {}
    tangents = 0
    for node in backward.graph.nodes:
        mask = 0
        if node.op == "placeholder":
            if _is_tangent(node):
                mask = 1 << tangents & ~absent
                tangents += 1
        elif node.op == "output":
            continue
        for source in node.all_input_nodes:
            if source not in ends:
                mask |= masks[source]
        masks[node] = mask
    return masks, tangents


def none_of(backward: fx.GraphModule, absent: int, ends: Ends) -> frozenset[int]:
    """The outputs that are None: gradients that no tangent reaches, then those of the results where it ends."""
    stopped = ends.nodes(backward)
    every, _ = tangents_of_nodes(backward)
    ends_at = frozenset(filter(None, stopped))
    some, _ = tangents_of_nodes(backward, absent, ends_at)
    gradients = _results(backward)[: ends.gradients]
    found = {
        number
        for number, item in enumerate(gradients)
        if isinstance(item, fx.Node) and every[item] and (item in ends_at or not some[item])
    }
    found.update(
        ends.gradients + place
        for place, item in zip(ends.places, stopped, strict=True)
        if item is None or not some[item]
    )
    return frozenset(found)


def without_tangents(
    backward: fx.GraphModule, absent: int, ends: Ends | None = None
) -> Specialised | None:
    """The graph for calls in which some tangents are None.

    Args:
        backward: The graph for all tangents.
        absent: The tangents that are None, as bits.
        ends: Its outputs; without, the gradients of inputs. A backward that ends at results has
            outputs for all of these behind the gradients, None for those where it doesn't end.

    Returns:
        None where that can't be told without zeros that only run time could make.
    """
    outputs = _results(backward)
    if ends is None:
        ends = Ends(len(outputs) - backward.meta.get("gradients_of_results", 0))
    gone = none_of(backward, absent, ends)
    results = [None if number in gone else item for number, item in enumerate(outputs)]
    del results[ends.gradients :]
    stopped = ends.nodes(backward)
    if stopped:
        at = dict(zip(ends.places, stopped, strict=True))
        results += [
            None if ends.gradients + place in gone else at.get(place)
            for place in range(len(outputs) - ends.gradients)
        ]
    try:
        return _Specialising(backward, absent, frozenset(filter(None, stopped))).run(results)
    except _NoZerosError:
        return None


class _Specialising:
    """Copies what remains of a graph; `of` holds each node's copy, None for an absent value.

    The values of `ends` are absent for those who read them; `arrived` holds their copies.
    """

    def __init__(self, backward: fx.GraphModule, absent: int, ends: frozenset[fx.Node]) -> None:
        self.backward = backward
        self.absent = absent
        self.ends = ends
        self.arrived: dict[fx.Node, fx.Node | None] = {}
        self.graph = fx.Graph()
        self.of: dict[fx.Node, fx.Node | None] = {}
        self.zeros: dict[fx.Node, fx.Node] = {}

    def run(self, results: Sequence[Any]) -> Specialised:
        live = {item for item in results if isinstance(item, fx.Node)}
        nodes = list(self.backward.graph.nodes)
        for node in reversed(nodes):
            if node in live or node.meta.get("impure"):
                live.add(node)
                live.update(node.all_input_nodes)
        tangents = 0
        saved: list[fx.Node] = []
        for node in nodes:
            if node.op == "output":
                continue
            if node.op == "placeholder":
                if _is_tangent(node):
                    gone = self.absent >> tangents & 1
                    tangents += 1
                    self.of[node] = None if gone else self._copied(node)
                else:
                    saved.append(node)
                    self.of[node] = self._copied(node)
            elif node in live:
                self.of[node] = self._specialised(node)
                if node in self.ends:
                    self.arrived[node], self.of[node] = self.of[node], None
        self.graph.output(
            tuple(self._result(item) if isinstance(item, fx.Node) else item for item in results)
        )
        kept = self._without_dead_code(saved)
        module = DeferredModule(self.backward, self.graph)
        module.meta.update(self.backward.meta)
        return Specialised(module, kept)

    def _result(self, node: fx.Node) -> fx.Node:
        return self.arrived.get(node) or self._given(node)

    def _specialised(self, node: fx.Node) -> fx.Node | None:
        """The copy of a node, what stands for it, or None where it is absent."""
        if not any(self.of[source] is None for source in node.all_input_nodes):
            return self._copied(node)
        if node.op != "call_function" or node.meta.get("impure"):
            return self._copied(node)
        name = _name(node)
        if _is_absent(node, name, self.of):
            return None
        if name in ("add", "sub"):
            term = self._one_term(node, name)
            if term is not None:
                return term
        elif name in ("addmm", "baddbmm"):
            term = self._one_of_sum(node, name)
            if term is not None:
                return term
        return self._copied(node)

    def _one_term(self, node: fx.Node, name: str) -> fx.Node | None:
        """What remains of a sum of two where one is absent."""
        first, second = node.args[:2]
        if not (isinstance(first, fx.Node) and isinstance(second, fx.Node)):
            return None
        left, right = self.of[first], self.of[second]
        plain = not node.kwargs and len(node.args) == 2
        if right is None and left is not None and _same(first, node):
            return left
        if left is None and right is not None and plain and _same(second, node):
            if name == "add":
                return right
            made = self.graph.call_function(aten.neg.default, (right,))
            made.meta = node.meta.copy()
            return made
        return None

    def _one_of_sum(self, node: fx.Node, name: str) -> fx.Node | None:
        """What remains of `self + a @ b` where one of these is absent."""
        if node.kwargs or len(node.args) != 3:
            return None
        first, *factors = node.args
        if not all(isinstance(item, fx.Node) for item in node.args):
            return None
        left = self.of[first]
        copies = [self.of[factor] for factor in factors]
        if left is not None and None in copies:
            return left if _same(first, node) else None
        if left is None and None not in copies:
            operator = aten.mm.default if name == "addmm" else aten.bmm.default
            made = self.graph.call_function(operator, tuple(copies))
            made.meta = node.meta.copy()
            return made
        return None

    def _copied(self, node: fx.Node) -> fx.Node:
        made = self.graph.node_copy(node, self._given)
        made.meta = node.meta.copy()
        return made

    def _given(self, node: fx.Node) -> fx.Node:
        """The copy of a node, zeros for an absent one."""
        found = self.of[node]
        if found is None:
            found = self.zeros.get(node)
        if found is None:
            found = self.zeros[node] = self._zeros(node)
        return found

    def _zeros(self, node: fx.Node) -> fx.Node:
        value = node.meta["val"]
        meta = value.meta if isinstance(value, FakeTensor) else None
        if meta is None or any(type(size) is not int for size in (*meta.shape, *meta.stride)):
            raise _NoZerosError
        # Of a dimension that repeats what it holds one is made.
        repeats = [
            stride == 0 and size != 1 for size, stride in zip(meta.shape, meta.stride, strict=True)
        ]
        sizes: list[Any] = [
            1 if again else size for size, again in zip(meta.shape, repeats, strict=True)
        ]
        order = sorted(range(len(sizes)), key=lambda one: (-meta.stride[one], one))
        expected: Any = 1
        for one in reversed(order):
            if sizes[one] != 1 and meta.stride[one] != expected:
                raise _NoZerosError
            expected *= sizes[one]
        shape = [sizes[one] for one in order]
        keywords = {"dtype": meta.dtype, "device": meta.device}
        made = self.graph.call_function(aten.full.default, (shape, 0), keywords)
        made.meta = {"val": value, "phase": "backward"}
        strides = [meta.stride[one] for one in order]
        if order != sorted(order):
            made.meta["val"] = _fake(value, shape, strides)
            back = [order.index(one) for one in range(len(order))]
            made = self.graph.call_function(aten.permute.default, (made, back))
            made.meta = {"val": value, "phase": "backward"}
        if any(repeats):
            made.meta["val"] = _fake(value, sizes, meta.stride)
            made = self.graph.call_function(aten.expand.default, (made, list(meta.shape)))
            made.meta = {"val": value, "phase": "backward"}
        return made

    def _without_dead_code(self, saved: Sequence[fx.Node]) -> tuple[int, ...]:
        """Remove what nobody reads; which of the saved values remain (sizes always do)."""
        kept = []
        for node in reversed(list(self.graph.nodes)):
            stays = node.op in ("placeholder", "output") or node.meta.get("impure")
            if not stays and not node.users:
                self.graph.erase_node(node)
        for slot, node in enumerate(saved):
            copy = self.of[node]
            assert copy is not None, "saved values are never absent"
            if copy.users or not isinstance(node.meta["val"], FakeTensor):
                kept.append(slot)
            else:
                self.graph.erase_node(copy)
        return tuple(kept)


def _fake(like: FakeTensor, shape: Sequence[Any], strides: Sequence[Any]) -> FakeTensor:
    meta = TensorMeta(tuple(shape), tuple(strides), like.meta.dtype, like.meta.device)
    return FakeTensor.create(meta, like.context, environment=like.context.environment)


def _is_tangent(node: fx.Node) -> bool:
    return bool(node.meta.get("input", {}).get("kind") == "tangent")


def _results(module: fx.GraphModule) -> tuple[Any, ...]:
    output = next(iter(reversed(module.graph.nodes)))
    return tuple(output.args[0])


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name.partition("::")[2])


def _same(one: fx.Node, other: fx.Node) -> bool:
    """Whether one value can stand for another: dtype, shape and strides."""
    left, right = one.meta["val"], other.meta["val"]
    if not (isinstance(left, FakeTensor) and isinstance(right, FakeTensor)):
        return False
    return bool(
        left.dtype is right.dtype
        and left.meta.shape == right.meta.shape
        and left.meta.stride == right.meta.stride
    )


def _all_zero(operands: Sequence[Any], of: dict[fx.Node, fx.Node | None]) -> bool:
    """Whether operands are absent, or zeros that the graph itself makes, but not all of these."""
    flat: list[Any] = []
    for operand in operands:
        flat += operand if isinstance(operand, (tuple, list)) else [operand]
    if not all(isinstance(one, fx.Node) and (of[one] is None or _is_zeros(one)) for one in flat):
        return False
    return any(of[one] is None for one in flat)


def _is_zeros(node: fx.Node) -> bool:
    """Whether a graph fills a tensor with zeros here, as the backwards of views and writes do."""
    name = _name(node)
    if name in ("full", "full_like", "new_full"):
        value = node.args[2 if name == "new_full" else 1] if len(node.args) > 1 else None
        return type(value) in (int, float) and value == 0
    if name == "scalar_tensor":
        return type(node.args[0]) in (int, float) and node.args[0] == 0
    return name in ("zeros", "zeros_like", "new_zeros")


def _is_absent(node: fx.Node, name: str, of: dict[fx.Node, fx.Node | None]) -> bool:
    """Whether the value of a node with absent operands is absent too."""

    def gone(argument: Any) -> bool:
        if isinstance(argument, (tuple, list)):
            return bool(argument) and all(map(gone, argument))
        return isinstance(argument, fx.Node) and of[argument] is None

    args = node.args
    if name in _FACTORS:
        return any(gone(args[number]) for number in _FACTORS[name] if number < len(args))
    if name == "constant_pad_nd" and (len(args) > 2 and args[2]):
        return False
    if name in _LINEAR:
        operands = [args[number] for number in _LINEAR[name] if number < len(args)]
        return len(operands) == len(_LINEAR[name]) and _all_zero(operands, of)
    if name in ("addmm", "baddbmm"):
        return gone(args[0]) and any(map(gone, args[1:3]))
    if name == "convolution":
        return gone(args[0]) or gone(args[1]) if args[2] is None else False
    if kind_of(node) == "view":
        return gone(args[0])
    if not name:  # an item of a tuple of gradients
        return gone(args[0])
    if name.endswith("_backward"):
        gradients = [
            argument
            for argument, declared in zip(args, node.target._schema.arguments, strict=False)
            if declared.name.startswith("grad")
        ]
        return bool(gradients) and all(map(gone, (g for g in gradients if isinstance(g, fx.Node))))
    return False
