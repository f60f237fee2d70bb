"""The gradient of values that were written through a mask: how many there are, the program has already told.

Autograd takes `gradient[mask]` for the gradient of `values` in `x[mask] = values`; how many elements that has only run
time knows, but it is as many as `values` has. Comes in: a call of `index` whose size hangs on data, as nodes and fakes.
Goes out: the same gradient with a known size, or None if no such write was recorded. Invariant: what is summed to the
shape of `values` is what eager sums, up to zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot_autograd.graph import Node
    from aot_autograd.recording import RecordingContext
    from primtorch.fake import FakeTensor, TensorMeta

aten = torch.ops.aten

_WRITES = (aten.index_put.default, aten._unsafe_index_put.default)
_MASKS = (torch.bool, torch.uint8)


def gradient_of_written(
    context: RecordingContext, gradient: FakeTensor, indices: Sequence[Any], nodes: Sequence[Any]
) -> Any:
    """What `gradient[indices]` is worth to the values that were written there; None if nothing was.

    `nodes` are the indices' nodes. Where one value goes to the places of a mask and of other indices at once, how many
    these are stays unknown: None.
    """
    given = [number for number, index in enumerate(indices) if index is not None]
    if not all(indices[number].dim() for number in given):
        return None
    values = _written(context, tuple(nodes))
    if values is None:
        return None
    masks = [number for number in given if indices[number].dtype in _MASKS]
    count = _count(gradient, indices, given, values)
    if count is not None:
        replaced: list[Any] = []
        for number, index in enumerate(indices):
            if number in masks:
                replaced += _positions(context, index, count, alone=len(given) == 1)
            else:
                replaced.append(index)
        return context.operate(aten.index.Tensor, gradient, replaced)
    if len(given) == 1:
        return _kept(context, gradient, indices[given[0]], given[0])
    return None


def _count(
    gradient: FakeTensor, indices: Sequence[Any], given: list[int], values: TensorMeta
) -> Any:
    """How many places the masks select, as the other indices or the values say; None if they say nothing but 1."""
    ranks = [indices[number].dim() if indices[number].dtype in _MASKS else 1 for number in given]
    others = [indices[number] for number in given if indices[number].dtype not in _MASKS]
    for other in others:
        if not _is_one(other.shape[-1]):
            return other.shape[-1]
    apart = given[-1] - given[0] + 1 != len(given)
    behind = gradient.dim() - sum(ranks) - (0 if apart else given[0])
    place = len(values.shape) - 1 - behind
    if place < 0 or _is_one(values.shape[place]):
        return None
    return values.shape[place]


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _positions(
    context: RecordingContext, mask: FakeTensor, count: Any, *, alone: bool
) -> list[FakeTensor]:
    """Where a mask is true, one vector a dimension; beside other indices one place may stand for all."""
    found = context.operate(aten.nonzero_static.default, mask, size=context._number(count))
    if not alone:
        first = context.operate(aten.slice.Tensor, found, 0, 0, 1)
        filled = context.operate(aten.lt.Scalar, found, 0)
        found = context.operate(aten.where.self, filled, first, found)
    return [context.operate(aten.select.int, found, 1, number) for number in range(mask.dim())]


def _written(context: RecordingContext, nodes: tuple[Any, ...]) -> TensorMeta | None:
    """The values of the one write through these indices that the trace has; None if they differ in shape."""
    metas: list[TensorMeta] = [
        node.args[2].meta for node in context.nodes if _is_write(node, nodes)
    ]
    if not metas or any(meta.shape != metas[0].shape for meta in metas):
        return None
    return metas[0]


def _is_write(node: Node, indices: tuple[Any, ...]) -> bool:
    return node.kind == "call" and node.operator in _WRITES and node.args[1] == indices


def _kept(
    context: RecordingContext, gradient: FakeTensor, mask: FakeTensor, first: int
) -> FakeTensor:
    """One value went everywhere: the gradient there, zeros elsewhere; all of it is summed anyway."""
    shape = gradient.shape
    behind = gradient.dim() - first - mask.dim()
    wide = context.operate(aten.reshape.default, mask, [*mask.shape, *[1] * behind])
    if mask.dtype is not torch.bool:
        wide = context.operate(aten.ne.Scalar, wide, 0)
    zero = context.operate(aten.full.default, [], 0, dtype=gradient.dtype, device=gradient.device)
    kept = context.operate(aten.where.self, wide, gradient, zero)
    flat = [*shape[:first], mask.numel(), *shape[gradient.dim() - behind :]]
    return context.operate(aten.reshape.default, kept, flat)
