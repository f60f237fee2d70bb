"""What recomputing or saving a node of a joint graph costs.

Comes in: fx nodes with `val`. Goes out: the kind of each operator and two numbers in bytes: what
saving its value occupies, and what computing it again in the backward costs, measured as the bytes
that memory could move in that time. Invariant: views cost nothing to repeat and are never saved;
operators that nobody classified count as expensive.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from aot_autograd._torch import OpOverload
from aot_autograd.functional import INVERSES
from primtorch.fake import FakeTensor
from primtorch.symbolic import hint_of

if TYPE_CHECKING:
    from torch import fx

aten = torch.ops.aten

Kind = Literal[
    "view", "pointwise", "gather", "reduction", "random", "size", "collective", "expensive"
]

POINTWISE_SHARE = 0.04
"""Cost of repeating a pointwise operator: it fuses into its reader, so only arithmetic counts."""
REDUCTION_SHARE = 0.5
"""Cost of repeating a reduction, as a share of the bytes it reads: it seldom fuses fully."""
FLOATING_OPERATIONS_PER_BYTE = 60.0
"""How many floating-point operations take as long as moving one byte; between CPU and GPU."""

_REDUCTIONS = frozenset(
    [
        "sum",
        "mean",
        "amax",
        "amin",
        "var",
        "var_mean",
        "std",
        "prod",
        "any",
        "all",
        "argmax",
        "argmin",
        "_softmax",
        "_log_softmax",
        "native_layer_norm",
        "logsumexp",
        "norm",
        "linalg_vector_norm",
        "native_group_norm",
        "max",
        "min",
    ]
)
_CHEAP = frozenset(
    [
        "cat",
        "stack",
        "constant_pad_nd",
        "where",
        "full",
        "full_like",
        "zeros_like",
        "ones_like",
        "empty_like",
        "arange",
        "copy",
        "clone",
        "_to_copy",
        "slice_scatter",
        "select_scatter",
        "diagonal_scatter",
        "as_strided_scatter",
        "flip",
        "roll",
        "masked_fill",
        "triu",
        "tril",
        "iota",
        "empty",
        "empty_strided",
        "new_empty",
        "new_zeros",
        "new_full",
        "zeros",
        "ones",
        "fill",
        "scalar_tensor",
        "repeat",
        "eye",
        "expand_copy",
        "gelu_backward",
        "tanh_backward",
        "convert_element_type",
        "threshold_backward",
        "_unsafe_view",
        "reshape",
        "lift_fresh_copy",
        "broadcast_in_dim",
    ]
)
_GATHERS = frozenset(
    ["embedding", "gather", "index", "index_select", "_unsafe_index", "take_along_dim"]
)


@cache
def _kind_of_operator(target: Any) -> Kind:
    if not isinstance(target, OpOverload):
        return "size"
    if target in INVERSES or target.is_view:
        return "view"
    namespace, _, name = target._schema.name.partition("::")
    if namespace == "primtorch" and name.startswith("philox"):
        return "random"
    if torch.Tag.nondeterministic_seeded in target.tags:
        return "expensive"
    if "c10d" in namespace:
        return "collective"
    if name in _GATHERS:
        return "gather"
    if name in _REDUCTIONS:
        return "reduction"
    if torch.Tag.pointwise in target.tags or name in _CHEAP:
        return "pointwise"
    return "expensive"


def kind_of(node: fx.Node) -> Kind:
    """The kind of a `call_function` node; a getitem has the kind of what it takes from."""
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        source = node.args[0]
        return kind_of(source) if source.op == "call_function" else "size"
    return _kind_of_operator(node.target)


def elements(tensor: FakeTensor) -> int:
    """Number of elements; symbolic sizes by their hints."""
    count = 1
    for size in tensor.shape:
        count *= size if type(size) is int else hint_of(size)
    return count


def saved_bytes(value: Any) -> float:
    """Bytes that keeping `value` for the backward occupies; infinite where it can't be kept."""
    if isinstance(value, FakeTensor):
        return float(elements(value) * value.dtype.itemsize)
    if isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat)):
        return 0.0
    return float("inf")


def repeat_cost(node: fx.Node) -> float:
    """Bytes that memory could move while the node is computed again."""
    match kind_of(node):
        case "view" | "size":
            return 0.0
        case "random":
            return 4 * POINTWISE_SHARE * saved_bytes(node.meta["val"])
        case "pointwise":
            own = node.meta["val"]
            return POINTWISE_SHARE * saved_bytes(own) if isinstance(own, FakeTensor) else 0.0
        case "gather":
            own = node.meta["val"]
            return 0.5 * saved_bytes(own) if isinstance(own, FakeTensor) else 0.0
        case "reduction":
            if node.target is operator.getitem:
                return 0.0
            return REDUCTION_SHARE * _bytes_read(node)
        case "collective":  # other processes take part: never once more
            return float("inf")
        case "expensive":
            if node.target is operator.getitem:
                return 0.0
            return _bytes_read(node) + _floating_operations(node) / FLOATING_OPERATIONS_PER_BYTE


def _bytes_read(node: fx.Node) -> float:
    return sum(
        saved_bytes(source.meta["val"])
        for source in node.all_input_nodes
        if isinstance(source.meta["val"], FakeTensor)
    )


def _floating_operations(node: fx.Node) -> float:
    values = [
        source.meta["val"]
        for source in node.all_input_nodes
        if isinstance(source.meta["val"], FakeTensor)
    ]
    result = node.meta["val"]
    if not isinstance(result, FakeTensor):
        result = result[0] if isinstance(result, tuple) and result else None
    name = node.target._schema.name if isinstance(node.target, OpOverload) else ""
    if not isinstance(result, FakeTensor):
        return 0.0
    if name in ("aten::mm", "aten::bmm"):
        return 2.0 * elements(result) * hint_of(values[0].shape[-1])
    if name in ("aten::addmm", "aten::baddbmm"):
        return 2.0 * elements(result) * hint_of(values[1].shape[-1])
    if name == "aten::convolution":
        weight = values[1]
        return 2.0 * elements(result) * elements(weight) / max(1, hint_of(weight.shape[0]))
    if "attention" in name:
        return 4.0 * elements(result) * hint_of(values[1].shape[-2])
    return 10.0 * elements(result)


def memory_of(node: fx.Node) -> fx.Node:
    """The node in whose memory a view lies; anything else itself."""
    while node.op == "call_function" and kind_of(node) == "view" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node
