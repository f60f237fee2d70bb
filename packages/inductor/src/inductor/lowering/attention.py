"""Attention whose keys and values have fewer heads than the queries.

In: the node of a fused attention on a CPU. Out: for its key and value the tensors with as many heads as they were made
of, where the graph repeats each head only for this call. The library's kernel takes fewer heads as they are; written
out, a decoder's whole cache would be copied, several times over, for each token. Invariant: head `h` of the repeated
tensor is head `h // repeats` of what is found, which is the one that the kernel reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import Node

    from inductor.lowering.builder import Builder

__all__ = ["ATTENTION_ON_CPU", "with_fewer_heads"]

aten = torch.ops.aten
ATTENTION_ON_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default})
_DIMENSIONS = 4  # batch, heads, tokens, width


def with_fewer_heads(
    builder: Builder, node: Node, args: tuple[Any, ...], found: dict[Node, Any]
) -> tuple[Any, ...]:
    """The arguments of an attention; `found` holds what the graph's nodes were lowered to."""
    sources = [_before_repetition(operand) for operand in node.args[1:3]]
    if any(source is None for source in sources):
        return args
    key, value = sources
    if _shape(key)[1] != _shape(value)[1]:
        return args
    if any(builder.realize(found[source]).stride[-1] != 1 for source in sources):
        return args  # the kernel wants a head's row in one piece
    return (args[0], found[key], found[value], *args[3:])


def _before_repetition(node: Any) -> Any:
    """The tensor that `node` is a copy of with each head repeated, for this reader alone; None elsewhere."""
    if getattr(node, "target", None) not in _RESHAPES or len(node.users) > 1:
        return None
    copy = node.args[0]
    if copy.target is not aten.clone.default or len(copy.users) > 1:
        return None
    wide = copy.args[0]
    if wide.target is not aten.expand.default:
        return None
    narrow = wide.args[0]
    if narrow.target is not aten.unsqueeze.default or narrow.args[1] != 2:
        return None
    source = narrow.args[0]
    if len(_shape(source)) != _DIMENSIONS:
        return None
    batch, heads, tokens, width = _shape(source)
    repeats = _shape(wide)[2]
    expected = (batch, heads, repeats, tokens, width)
    if tuple(_shape(wide)) != expected or tuple(_shape(node)) != (
        batch,
        heads * repeats,
        tokens,
        width,
    ):
        return None
    return source


def _shape(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].meta.shape)
