"""Quantiles where the position or a size varies: eager's composition, which in C++ makes numbers of both.

Comes in: the arguments of `torch.quantile` and `torch.nanquantile`, the position a number or a tensor. Invariant:
values and gradients are those of eager; a position outside [0, 1] raises what eager raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["nanquantile", "quantile"]

_KINDS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """`torch.quantile`."""
    return _quantile(input, q, dim, keepdim, interpolation, ignore_nan=False)


def nanquantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """`torch.nanquantile`."""
    return _quantile(input, q, dim, keepdim, interpolation, ignore_nan=True)


def _quantile(
    input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, *, ignore_nan: bool
) -> Tensor:
    name = "nanquantile" if ignore_nan else "quantile"
    if isinstance(q, torch.Tensor) or interpolation not in _KINDS:  # eager looks at the data
        eager: Any = getattr(torch, name)
        result: Tensor = eager(input, q, dim, keepdim, interpolation=interpolation)
        return result
    if not (q >= 0 and q <= 1):
        raise RuntimeError(f"quantile() q must be in the range [0, 1] but got {float(q)}")
    if input.dtype not in (torch.float32, torch.float64):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    place = 0 if dim is None or not input.dim() else dim % input.dim()
    flat = input.reshape(-1) if dim is None or not input.dim() else input
    ordered = flat.transpose(place, -1).sort(-1)[0]
    missing = ordered.isnan()
    position = ordered.new_full((), q)
    if ignore_nan:
        last = (~missing).sum(-1, keepdim=True) - 1
        ranks = (position * last).clamp_min(0)
    else:
        last = ordered.shape[-1] - 1
        ranks = torch.where(
            missing.any(-1, keepdim=True), ordered.new_full((), last), position * last
        )
    found = _at(ordered, ranks, interpolation)
    found = found.transpose(place, -1) if dim is not None else found
    if not keepdim:
        return found.squeeze(place)
    return found if dim is not None else found.reshape([1] * input.dim())


def _at(ordered: Tensor, ranks: Tensor, interpolation: str) -> Tensor:
    """The values at the ranks of the last dimension."""
    if interpolation in ("lower", "higher", "nearest"):
        name = {"lower": "floor", "higher": "ceil", "nearest": "round"}[interpolation]
        return ordered.gather(-1, getattr(ranks, name)().to(torch.int64))
    below = ranks.to(torch.int64)
    weights = ranks.new_full((), 0.5) if interpolation == "midpoint" else ranks - below
    above = ranks.ceil().to(torch.int64)
    return torch.lerp(ordered.gather(-1, below), ordered.gather(-1, above), weights)
