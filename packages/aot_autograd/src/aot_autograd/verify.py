"""Checks between the stages: what each graph must be before the next stage sees it.

Comes in: a graph. Goes out: nothing, or an error that names the node and the user's line. The cheap
checks always run; the ones that walk every node run when `AotOptions.verify` is set.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from aot_autograd._torch import OpOverload
from aot_autograd.errors import PartitionError, TraceError, WireError
from primtorch.symbolic import REAL_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot_autograd.partition import Partition

_SIZE_FUNCTIONS = frozenset(
    (
        operator.getitem,
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.neg,
        operator.truediv,
        torch.sym_max,
        torch.sym_min,
        torch.sym_float,
        torch.sym_sqrt,
        operator.pow,
        operator.abs,
        *REAL_FUNCTIONS.values(),
    )
)


def wire_inputs(example_inputs: Sequence[Any], decompositions: Mapping[Any, Any]) -> None:
    """What wire 2 promises.

    Raises:
        WireError: for an input that is neither a tensor nor a number, or a bad table.
    """
    allowed = (torch.Tensor, int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
    for position, example in enumerate(example_inputs):
        if example is not None and not isinstance(example, allowed):
            raise WireError(
                f"input {position} is a {type(example).__name__}",
                "a graph takes tensors, numbers and symbolic sizes",
                "flatten containers before the call (aot_function does)",
            )
    for key, function in decompositions.items():
        if not isinstance(key, OpOverload) or not callable(function):
            raise WireError(
                f"decomposition table entry {key!r}",
                "a table maps operator overloads to callables",
                "name the overload: torch.ops.aten.gelu.default, not torch.ops.aten.gelu",
            )
        break


def functional_graph(module: fx.GraphModule) -> None:
    """What wire 3 promises of a graph: functional, known kinds of nodes, `val` everywhere.

    Raises:
        TraceError: naming the first node that breaks it.
    """
    nodes = list(module.graph.nodes)
    for position, node in enumerate(nodes):
        reason = _fault_of(node)
        if reason:
            window = "\n".join(
                str(one.format_node()) for one in nodes[max(0, position - 5) : position + 5]
            )
            raise TraceError(
                f"verifying the {module.meta.get('role')} graph at {node.name}",
                reason,
                f"this is a fault of aot_autograd; the graph around it:\n{window}",
                node.meta.get("source_line"),
            )


def _fault_of(node: fx.Node) -> str:
    if node.op == "output":
        return "" if isinstance(node.args[0], tuple) else "the output is not one tuple"
    if "val" not in node.meta:
        return "the node has no val"
    if node.op == "placeholder":
        return "" if node.meta.get("input") else "the placeholder has no input tag"
    if node.op == "get_attr":
        return ""
    if node.op != "call_function":
        return f"{node.op} nodes are not functional"
    target = node.target
    if isinstance(target, OpOverload):
        return f"{target} mutates its arguments" if target._schema.is_mutable else ""
    return "" if target in _SIZE_FUNCTIONS else f"{target} is no operator overload"


def partition(joint: fx.GraphModule, forward_outputs: int, cut: Partition) -> None:
    """What a partition must keep: every output, and a source for every backward input.

    Raises:
        PartitionError: naming what was lost.
    """
    joint_outputs = _outputs(joint)
    forward, backward = _outputs(cut.forward), _outputs(cut.backward)
    if len(forward) < forward_outputs:
        raise PartitionError(
            f"the forward returns {len(forward)} values",
            f"the function has {forward_outputs}",
            "keep the joint graph's forward outputs first",
        )
    gradients = len(joint_outputs) - forward_outputs
    if len(backward) != gradients:
        raise PartitionError(
            f"the backward returns {len(backward)} gradients",
            f"the joint graph has {gradients}",
            "keep every gradient, None where it is None",
        )
    placeholders = [node for node in cut.backward.graph.nodes if node.op == "placeholder"]
    tangents = [node for node in placeholders if node.meta["input"]["kind"] == "tangent"]
    if len(placeholders) - len(tangents) != len(cut.saved):
        raise PartitionError(
            f"{len(cut.saved)} values are saved",
            f"the backward takes {len(placeholders) - len(tangents)} besides its tangents",
            "list in Partition.saved one origin per saved placeholder",
        )
    for item in cut.saved:
        limit = len(forward) if item.origin == "output" else None
        if limit is not None and not 0 <= item.index < limit:
            raise PartitionError(
                f"a saved value is output {item.index} of the forward",
                f"the forward has {limit} outputs",
            )


def _outputs(module: fx.GraphModule) -> tuple[Any, ...]:
    return tuple(next(iter(reversed(module.graph.nodes))).args[0])
