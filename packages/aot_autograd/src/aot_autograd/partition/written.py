"""Which values of a graph are written to memory, and which stay inside the kernel that computes them.

Comes in: a graph whose operators are classified. Goes out: the values that some kernel writes whatever is done about
them. Invariant: a value that is not among them is read by kernels only that can compute it themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from aot_autograd.partition.classify import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet


def written_values(
    module: fx.GraphModule, outputs: Sequence[Any], without: AbstractSet[fx.Node] = frozenset()
) -> set[fx.Node]:
    """Inputs, results of expensive operators, outputs, and what is still read after an expensive operator.

    Args:
        module: The graph.
        outputs: Those of its outputs that matter.
        without: Nodes that are not looked at: a joint graph's backward.
    """
    found = {item for item in outputs if isinstance(item, fx.Node)}
    depth: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        if node in without or node.op == "output":
            continue
        depth[node] = max((depth[source] for source in node.all_input_nodes), default=0)
        if node.op != "call_function":
            found.add(node)
        elif kind_of(node) in ("expensive", "collective"):
            depth[node] += 1
            found.add(node)
    for node, own in depth.items():
        if any(depth.get(user, own) > own for user in node.users):
            found.add(node)
    for node in reversed(depth):
        if node in found and node.op == "call_function" and kind_of(node) == "view":
            found.update(node.all_input_nodes)
    return found
