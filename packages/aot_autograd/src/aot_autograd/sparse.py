"""Sparse gradients, as embeddings give them: the graph returns their indices and values.

Compiled graphs know strided tensors only. Comes in: a recorded gradient that ends in the making of a sparse tensor, or
in a sum of such. Goes out: nodes for its indices and its values, and what makes the sparse tensor of them after the
backward has run. Invariant: what else a graph does with a sparse tensor is refused, for eager to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.errors import UnsupportedOperator
from aot_autograd.graph import Node, each_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot_autograd.recording import RecordingContext
    from primtorch.fake import FakeTensor, TensorMeta

aten = torch.ops.aten

_MADE = aten._sparse_coo_tensor_with_dims_and_tensors.default
_ADDED = aten.add.Tensor


@dataclass(frozen=True, slots=True)
class SparseOf:
    """How a sparse gradient is made of its indices and values, the two results of a graph."""

    size: tuple[int, ...]
    metas: tuple[TensorMeta, ...]

    def __call__(self, parts: Sequence[Any], sizes: Any) -> Any:
        """The gradient; None where the graph returned none."""
        del sizes
        indices, values = parts
        if indices is None or values is None:
            return None
        return torch.sparse_coo_tensor(indices, values, self.size, check_invariants=False)


def is_sparse(context: RecordingContext, gradient: FakeTensor) -> bool:
    """Whether a recorded gradient is a sparse tensor, or a sum of such."""
    return bool(_parts(context.node_of(gradient)))


def sparse_nodes(
    context: RecordingContext, gradient: FakeTensor
) -> tuple[SparseOf, list[Any]] | None:
    """What a gradient is made of, if it is sparse.

    Raises:
        UnsupportedOperator: the graph does more with sparse tensors than to add them up.
    """
    if not any(node.operator is _MADE for node in context.nodes):
        return None
    node = context.node_of(gradient)
    parts = _parts(node)
    _check_uses(context)
    if not parts:
        return None
    size = tuple(gradient.shape)
    if not all(type(extent) is int for extent in size):
        raise _refused(context, "its size varies")
    indices = [context.fresh(part.args[3].meta, part.args[3]) for part in parts]
    values = [context.fresh(part.args[4].meta, part.args[4]) for part in parts]
    if len(parts) > 1:
        indices = [context.operate(aten.cat.default, indices, 1)]
        values = [context.operate(aten.cat.default, values)]
    metas = (indices[0].meta, values[0].meta)
    return SparseOf(size, metas), [context.node_of(indices[0]), context.node_of(values[0])]


def _parts(node: Any) -> list[Node]:
    """The sparse tensors that a node is the sum of; none if it is dense."""
    if not isinstance(node, Node):
        return []
    if node.operator is _MADE:
        return [node]
    if node.operator is _ADDED and len(node.args) == 2 and not node.kwargs:
        first, second = (_parts(part) for part in node.args)
        return [*first, *second] if first and second else []
    return []


def _check_uses(context: RecordingContext) -> None:
    """A sparse tensor goes into sums of sparse tensors only."""
    for user in context.nodes:
        if user.kind != "call" or _parts(user):
            continue
        read: list[Node] = []
        each_node(user.args, read.append)
        if any(_parts(node) for node in read):
            raise _refused(context, f"it is read by {user.operator}")


def _refused(context: RecordingContext, why: str) -> UnsupportedOperator:
    return UnsupportedOperator(
        "a sparse gradient", why, "use sparse=False, or leave this to eager", context.source_line
    )
