"""The plain partition: what the forward computed and the backward reads is saved.

Comes in: a joint graph. Goes out: a `Partition` that recomputes nothing but views. It is the
partition to look at first when a value is wrong, and the yardstick for the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot_autograd.options import AotOptions
from aot_autograd.partition.classify import kind_of, saved_bytes
from aot_autograd.partition.split import (
    Partition,
    joint_outputs,
    split,
    tangent_dependent,
)

if TYPE_CHECKING:
    from torch import fx

_DEFAULT = AotOptions()


def default_partition(
    joint: fx.GraphModule, *, forward_outputs: int, options: AotOptions = _DEFAULT
) -> Partition:
    """Save every forward value that the backward reads; a view is saved as its base.

    Args:
        joint: The joint graph.
        forward_outputs: Number of leading outputs that the forward returns.
        options: Not consulted; the signature is that of every partition function.
    """
    del options
    late = tangent_dependent(joint)
    saved: dict[fx.Node, None] = {}
    pending = [
        source
        for node in joint.graph.nodes
        if node in late
        for source in node.all_input_nodes
        if source not in late
    ]
    pending += [
        item
        for item in joint_outputs(joint)[forward_outputs:]
        if isinstance(item, type(joint.graph._root)) and item not in late
    ]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node.op == "get_attr":
            continue
        repeated = node.op == "call_function" and (
            kind_of(node) in ("view", "size") or saved_bytes(node.meta["val"]) == float("inf")
        )
        if not repeated:
            saved[node] = None
            continue
        for source in node.all_input_nodes:
            if source not in seen:
                seen.add(source)
                pending.append(source)
    position = {node: number for number, node in enumerate(joint.graph.nodes)}
    return split(joint, forward_outputs, sorted(saved, key=position.__getitem__))
