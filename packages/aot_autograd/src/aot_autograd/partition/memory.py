"""What a partition will occupy, told before anything is compiled.

Comes in: a `Partition`. Goes out: bytes kept between forward and backward, and the peak of both runs if every
operator wrote its result to memory of its own and it lived until its last reader. Kernels that fuse stay below that
peak. Invariant: parameters and buffers, which live on anyway, are not counted; memory that several values share is
counted once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot_autograd.partition.classify import kind_of, saved_bytes
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from torch import fx

    from aot_autograd.partition.split import Partition


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """Bytes: kept for the backward, and at most alive at once in the forward and in the backward.

    Inputs of the function that are no parameters are counted; what the caller holds besides is not.
    """

    saved: int
    forward_peak: int
    backward_peak: int

    @property
    def peak(self) -> int:
        """The larger of both peaks."""
        return max(self.forward_peak, self.backward_peak)


def predicted_memory(partition: Partition) -> PredictedMemory:
    """What a partition occupies; symbolic sizes by their hints."""
    backward = _graph_of(partition.backward)
    saved = sum(
        _own_bytes(node) for node in backward.inputs if node.meta["input"]["kind"] == "saved"
    )
    return PredictedMemory(
        saved, _peak(_graph_of(partition.forward), frees=False), _peak(backward, frees=True)
    )


@dataclass(slots=True)
class _Graph:
    inputs: list[fx.Node]
    calls: list[fx.Node]
    outputs: set[fx.Node]


def _graph_of(module: fx.GraphModule) -> _Graph:
    nodes = list(module.graph.nodes)
    results: Any = nodes[-1].args[0]
    return _Graph(
        [node for node in nodes if node.op == "placeholder"],
        [node for node in nodes if node.op == "call_function"],
        {_memory_of(item) for item in results if hasattr(item, "meta")},
    )


def _memory_of(node: fx.Node) -> fx.Node:
    """The node in whose memory a view lies."""
    while node.op == "call_function" and kind_of(node) == "view" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _own_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, FakeTensor) or _memory_of(node) is not node:
        return 0
    if node.op == "placeholder" and node.meta["input"]["static"]:
        return 0
    return int(saved_bytes(value))


def _peak(graph: _Graph, *, frees: bool) -> int:
    """The most bytes alive at once; `frees`: inputs go with their last reader."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.calls:
        for source in node.all_input_nodes:
            last[_memory_of(source)] = node
    dying: dict[fx.Node, list[fx.Node]] = {}
    for node, reader in last.items():
        kept = node in graph.outputs or (node.op == "placeholder" and not frees)
        if not kept:
            dying.setdefault(reader, []).append(node)
    now = peak = sum(_own_bytes(node) for node in graph.inputs)
    for node in graph.calls:
        now += _own_bytes(node)
        peak = max(peak, now)
        now -= sum(_own_bytes(dead) for dead in dying.get(node, ()))
        if node not in last and node not in graph.outputs:
            now -= _own_bytes(node)
    return peak
