"""What a partition will occupy, told before anything is compiled.

Comes in: a `Partition`. Goes out: bytes kept between forward and backward, and the peak of both runs if what no kernel
boundary separates from its readers stays inside a kernel, and everything else lives until the last kernel that reads
it. Invariant: parameters and buffers, which live on anyway, are not counted; memory that several values share is
counted once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from aot_autograd._torch import OpOverload
from aot_autograd.absent import without_tangents
from aot_autograd.partition.classify import kind_of, memory_of, saved_bytes
from aot_autograd.partition.written import written_values
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
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
    """What a partition occupies; symbolic sizes by their hints.

    The backward is the one that runs when the losses among the outputs are differentiated, if some are single numbers.
    """
    whole = _graph_of(partition.backward)
    backward = _graph_of(_of_losses(partition.backward))
    saved = sum(_own_bytes(node) for node in whole.inputs if node.meta["input"]["kind"] == "saved")
    return PredictedMemory(
        saved, _peak(_graph_of(partition.forward), frees=False), _peak(backward, frees=True)
    )


@dataclass(slots=True)
class _Graph:
    inputs: list[fx.Node]
    calls: list[fx.Node]
    outputs: set[fx.Node]
    written: set[fx.Node]


def _graph_of(module: fx.GraphModule) -> _Graph:
    nodes = list(module.graph.nodes)
    results: Any = nodes[-1].args[0]
    return _Graph(
        [node for node in nodes if node.op == "placeholder"],
        [node for node in nodes if node.op == "call_function"],
        {memory_of(item) for item in results if hasattr(item, "meta")},
        _written(module, results),
    )


def _of_losses(backward: fx.GraphModule) -> fx.GraphModule:
    tangents = [
        node.meta["val"].dim()
        for node in backward.graph.nodes
        if node.op == "placeholder" and node.meta["input"]["kind"] == "tangent"
    ]
    absent = sum(1 << number for number, dimensions in enumerate(tangents) if dimensions)
    if all(tangents):
        absent = 0
    found = without_tangents(backward, absent)
    return backward if found is None else found.module


def _written(module: fx.GraphModule, results: Any) -> set[fx.Node]:
    """Values that are in memory; not those that are made of less than they are where they are read."""
    written = written_values(module, results)
    kept = {item for item in results if isinstance(item, fx.Node)}
    for node in reversed(module.graph.nodes):
        if node in kept or node not in written or node.op != "call_function":
            continue
        if kind_of(node) not in ("pointwise", "random", "gather") or _is_operand(node):
            continue
        if sum(map(_own_bytes, map(memory_of, node.all_input_nodes))) < _own_bytes(node):
            written.discard(node)
    return written - _tables_of_sums(module, kept)


def _tables_of_sums(module: fx.GraphModule, kept: set[fx.Node]) -> set[fx.Node]:
    """Tables without memory of their own.

    What rows are added to is written where the result is, and rows that are added to zeros are added right into what
    those are a term of: the gradient of an embedding whose weight is also the last layer's.
    """
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function" or not _adds_rows(node):
            continue
        base = node.args[0]
        if len(base.users) > 1 or base.op != "call_function" or kind_of(base) != "pointwise":
            continue
        found.add(base)
        if node not in kept and _is_zeros(base) and _is_term(node):
            found.add(node)
    return found


def _operator_of(node: fx.Node) -> str:
    return str(node.target._schema.name) if isinstance(node.target, OpOverload) else ""


def _adds_rows(node: fx.Node) -> bool:
    match _operator_of(node):
        case "aten::index_put" | "aten::_unsafe_index_put":
            return bool(node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate"))
        case name:
            return name in ("aten::scatter_add", "aten::index_add")


def _is_zeros(node: fx.Node) -> bool:
    name = _operator_of(node)
    return name in ("aten::zeros", "aten::new_zeros", "aten::zeros_like") or (
        name in ("aten::full", "aten::full_like", "aten::new_full") and 0 in node.args[1:]
    )


def _is_term(node: fx.Node) -> bool:
    """Whether a table is read by nothing but one sum of tables like it."""
    if len(node.users) != 1:
        return False
    (total,) = node.users
    if _operator_of(total) != "aten::add" or len(total.all_input_nodes) != 2:
        return False
    own = node.meta["val"]
    return own.dtype.is_floating_point and all(
        isinstance(value := one.meta.get("val"), FakeTensor)
        and (value.shape, value.dtype) == (own.shape, own.dtype)
        for one in (*total.all_input_nodes, total)
    )


def _is_operand(node: fx.Node) -> bool:
    """Whether an expensive operator reads a value."""
    return any(
        _is_operand(user)
        if kind_of(user) == "view"
        else kind_of(user) in ("expensive", "collective")
        for user in node.users
        if user.op == "call_function"
    )


def _own_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, FakeTensor) or memory_of(node) is not node:
        return 0
    if node.op == "placeholder" and node.meta["input"]["static"]:
        return 0
    return int(saved_bytes(value))


def _peak(graph: _Graph, *, frees: bool) -> int:
    """The most bytes alive at once; `frees`: inputs go with their last reader."""
    order = {node: index for index, node in enumerate(graph.calls)}
    # When the last kernel that reads a value runs; a value inside of a kernel is read when that runs.
    ends: dict[fx.Node, int] = {}
    for node in (*reversed(graph.calls), *graph.inputs):
        ends[node] = max(
            (
                order[user] if user in graph.written and kind_of(user) != "view" else ends[user]
                for user in node.users
                if user in order
            ),
            default=order.get(node, -1),
        )
    dying: dict[int, int] = {}
    own: set[tuple[int, int]] = set()
    for node, end in ends.items():
        root = memory_of(node)
        if node is root and root not in graph.outputs and (frees or node.op != "placeholder"):
            size = _bytes_in(graph, node)
            dying[end] = dying.get(end, 0) + size
            if node.op != "placeholder":
                own.add((end, size))
    now = peak = sum(_own_bytes(node) for node in graph.inputs) - dying.get(-1, 0)
    for index, node in enumerate(graph.calls):
        size = _bytes_in(graph, node)
        now += size
        # A pointwise kernel writes over an intermediate result that it is the last to read.
        over = size if (index, size) in own and kind_of(node) == "pointwise" else 0
        peak = max(peak, now - over)
        now -= dying.get(index, 0)
    return peak


def _bytes_in(graph: _Graph, node: fx.Node) -> int:
    """Bytes of a value in memory: none of one that stays inside a kernel."""
    inside = node.op == "call_function" and node not in graph.written and node not in graph.outputs
    return 0 if inside else _own_bytes(node)
