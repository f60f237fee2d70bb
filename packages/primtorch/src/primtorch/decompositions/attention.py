"""Attention kernels taken apart, for backends that have none: scores, softmax and their gradients by products.

The "inductor" table keeps the kernels whole. What is written here is their meaning, including the row-wise
log-sum-exp that they hand to their backward. Dropout inside the kernel can't be followed, so it is declined.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from primtorch.decompositions.views import contiguous, reshaped
from primtorch.promotion import cast, computation_dtype
from primtorch.registry import decomposes

aten = torch.ops.aten


def _batched(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, H, L, E) as (B H, L, E) in `dtype`."""
    return reshaped(
        cast(tensor, dtype), [tensor.shape[0] * tensor.shape[1], tensor.shape[2], tensor.shape[3]]
    )


def _scores(
    query: Tensor,
    key: Tensor,
    scale: float,
    is_causal: bool,
    attn_mask: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Scaled products of queries and keys with the mask added, (B, H, L, S)."""
    batch, heads, length, _ = query.shape
    products = aten.bmm.default(
        _batched(query, dtype), aten.permute.default(_batched(key, dtype), [0, 2, 1])
    )
    scores = aten.view.default(products, [batch, heads, length, key.shape[2]]) * scale
    if attn_mask is not None:
        scores = scores + cast(attn_mask, dtype)
    if is_causal:
        row = aten.arange.start_step(0, length, 1, dtype=torch.int64, device=query.device)
        column = aten.arange.start_step(0, key.shape[2], 1, dtype=torch.int64, device=query.device)
        later = aten.gt.Tensor(aten.unsqueeze.default(column, 0), aten.unsqueeze.default(row, 1))
        scores = aten.where.self(
            later, aten.full.default([], -math.inf, dtype=dtype, device=query.device), scores
        )
    return scores


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


@decomposes("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _scaled_dot_product_flash_attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention with the query's strides, and the log-sum-exp of its rows, stored (B, L, H)."""
    if dropout_p:
        return NotImplemented
    dtype = computation_dtype(query.dtype)
    batch, heads, length, _ = query.shape
    scores = _scores(query, key, _scale(query, scale), is_causal, attn_mask, dtype)
    normaliser = aten.logsumexp.default(scores, [-1], True)
    weights = aten.exp.default(scores - normaliser)
    product = aten.bmm.default(
        aten.view.default(contiguous(weights), [batch * heads, length, key.shape[2]]),
        _batched(value, dtype),
    )
    out = aten.view.default(cast(product, query.dtype), [batch, heads, length, value.shape[3]])
    wanted = aten.empty_like.default(query)
    if wanted.stride() != out.stride() and wanted.shape == out.shape:
        out = aten.copy.default(wanted, out)
    rows = aten.squeeze.dims(normaliser, [-1])
    rows = aten.permute.default(contiguous(aten.permute.default(rows, [0, 2, 1])), [0, 2, 1])
    return out, rows


@decomposes("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def _scaled_dot_product_flash_attention_for_cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for query, key and value."""
    if dropout_p:
        return NotImplemented
    dtype = computation_dtype(query.dtype)
    batch, heads, length, _ = query.shape
    span = key.shape[2]
    factor = _scale(query, scale)
    scores = _scores(query, key, factor, is_causal, attn_mask, dtype)
    weights = aten.exp.default(scores - aten.unsqueeze.default(cast(logsumexp, dtype), -1))
    flat_weights = aten.view.default(contiguous(weights), [batch * heads, length, span])
    grad = _batched(grad_out, dtype)
    grad_value = aten.bmm.default(aten.permute.default(flat_weights, [0, 2, 1]), grad)
    grad_weights = aten.bmm.default(grad, aten.permute.default(_batched(value, dtype), [0, 2, 1]))
    projection = aten.sum.dim_IntList(grad * _batched(out, dtype), [-1], True)
    grad_scores = flat_weights * (grad_weights - projection) * factor
    grad_query = aten.bmm.default(grad_scores, _batched(key, dtype))
    grad_key = aten.bmm.default(
        aten.permute.default(grad_scores, [0, 2, 1]), _batched(query, dtype)
    )
    return (
        _heads_inside(grad_query, query),
        _heads_inside(grad_key, key),
        _heads_inside(grad_value, value),
    )


def _heads_inside(flat: Tensor, like: Tensor) -> Tensor:
    """(B H, L, E) as (B, H, L, E) in the dtype of `like`, stored as (B, L, H, E)."""
    split = aten.view.default(cast(flat, like.dtype), list(like.shape))
    return aten.permute.default(contiguous(aten.permute.default(split, [0, 2, 1, 3])), [0, 2, 1, 3])
