"""Scaled dot product attention: which kernel computes it, by the logical device, never by a stand-in's.

`torch.nn.functional.scaled_dot_product_attention` chooses its kernel in C++, by the device that C++ sees; a fake tensor
of a GPU may stand on another one. `substitute(function)` therefore gives whoever runs a captured graph on fakes our own
choice in its place: the same operators that eager ends up with on that device, one call each, their backward known to
autograd. On a CPU C++ chooses right, and nothing is substituted there. `index_fill` by a tensor that requires grad has
a substitute too: its derivative in ATen looks at data.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from primtorch.composed import composed
from primtorch.fake.tensor import FakeTensor
from primtorch.pinned import unpinned
from primtorch.products import product
from primtorch.recurrent import recurrent_layer
from primtorch.upsampling import upsampling
from primtorch.varying import varying

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

__all__ = ["scaled_dot_product_attention", "substitute"]

aten = torch.ops.aten
_EAGER = torch.nn.functional.scaled_dot_product_attention
_HALF = (torch.float16, torch.bfloat16)
_BIAS_ALIGNMENT = 16


def substitute(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., Any]:
    """What to run on fake tensors in place of a captured `function`; mostly the function itself."""
    own = varying(function, args, kwargs)
    if own is not None:
        return own
    if (
        function is _EAGER
        and args
        and isinstance(args[0], FakeTensor)
        and args[0].device.type == "cuda"
    ):
        return scaled_dot_product_attention
    if function is torch.index_fill and len(args) == 4 and _wants_gradient(args[3]):
        return index_fill
    return (
        product(function, args)
        or unpinned(function, args)
        or recurrent_layer(function, args)
        or upsampling(function, args)
        or composed(function, args)
        or function
    )


def _wants_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """`torch.index_fill`; its derivative by the value needs no distinct indices, which only data tells."""
    if value.dim() != 0:
        raise RuntimeError(
            f"index_fill_ only supports a 0-dimensional value tensor, got {value.dim()}"
        )
    size = input.shape[dim] if input.dim() else 1
    chosen = torch.zeros(size, dtype=torch.bool, device=input.device).index_fill(0, index, True)
    if input.dim() == 0:
        return torch.where(chosen[0], value, input)
    shape = [1] * input.dim()
    shape[dim] = size
    return torch.where(chosen.reshape(shape), value.to(input.dtype), input)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.mT * scale + mask) @ value by the fused kernel that fits, else by its definition.

    Args:
        query: (batch, heads, tokens, width), a CUDA tensor by its logical device.
        key: (batch, heads, tokens of key, width).
        value: (batch, heads, tokens of key, width of value).
        attn_mask: bool (True takes part) or added to the scores; broadcast to (..., tokens, tokens of key).
        dropout_p: probability of dropping a weight.
        is_causal: mask out later keys; then `attn_mask` must be None.
        scale: factor of the scores, 1 / sqrt(width) by default.
        enable_gqa: fewer heads in key and value than in query.
    """
    if torch.is_autocast_enabled("cuda"):
        narrow = torch.get_autocast_dtype("cuda")
        query, key, value = (_autocast(tensor, narrow) for tensor in (query, key, value))
        attn_mask = None if attn_mask is None else _autocast(attn_mask, narrow)
    options = {"scale": scale}
    wants_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    match _kernel(query, key, value, attn_mask, dropout_p, is_causal=is_causal, gqa=enable_gqa):
        case "cudnn":
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, None, wants_grad, dropout_p, is_causal, False, **options
            )[0]
        case "flash":
            return aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, **options
            )[0]
        case "efficient":
            bias = None if attn_mask is None else _aligned_bias(attn_mask, query, key)
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, wants_grad, dropout_p, is_causal, **options
            )[0]
        case _:
            return aten._scaled_dot_product_attention_math(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                None,
                scale=scale,
                enable_gqa=enable_gqa,
            )[0]


def _autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What autocast makes of an operand: floating numbers but float64 become `dtype`."""
    if tensor.dtype in (torch.float32, *_HALF):
        return tensor.to(dtype)
    return tensor


def _kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    *,
    is_causal: bool,
    gqa: bool,
) -> str:
    if not (query.ndim == key.ndim == value.ndim == 4) or query.dtype is torch.float64:
        return "math"
    width, backends = query.shape[-1], torch.backends.cuda
    if any(t.stride(-1) != 1 for t in (query, key, value)) or any(
        0 in t.shape for t in (query, key, value)
    ):
        return "math"
    if not query.dtype == key.dtype == value.dtype:
        return "math"
    half = query.dtype in _HALF
    same_width = value.shape[-1] == width and isinstance(width, int)
    square = query.shape[2] == key.shape[2]
    if half and same_width and mask is None and width % 8 == 0 and (square or not is_causal):
        longer = query.shape[2] > 1 and key.shape[2] > 1
        if (
            width <= 128
            and longer
            and not gqa
            and dropout_p == 0.0
            and backends.cudnn_sdp_enabled()
        ):
            return "cudnn"
        if width <= 256 and backends.flash_sdp_enabled():
            return "flash"
    fits = (
        isinstance(width, int)
        and width % (8 if half else 4) == 0
        and value.shape[-1] % (8 if half else 4) == 0
    )
    if (
        fits
        and not gqa
        and backends.mem_efficient_sdp_enabled()
        and query.dtype in (*_HALF, torch.float32)
    ):
        return "efficient"
    return "math"


def _aligned_bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask as numbers to add, of full shape, its rows stored at a stride the kernel can load."""
    if mask.dtype is torch.bool:
        bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill(
            mask.logical_not(), float("-inf")
        )
    else:
        bias = mask
    length = key.shape[2]
    rest = length % _BIAS_ALIGNMENT
    if rest:
        bias = torch.nn.functional.pad(bias, (0, _BIAS_ALIGNMENT - rest))[..., :length]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], length)
