"""`torch.nn.functional.interpolate` where sizes vary: the operators with explicit sizes, never C++'s own computing.

C++ works the output's size out of a size or of factors; on the way it asks for every size of the input as a number, the
batch's too, which would tie a graph to it. Comes in: a captured function and its arguments. Goes out: what to run on
fakes in its place, or None where nothing varies or where eager is to raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from primtorch.fake.tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["upsampling"]

aten = torch.ops.aten
_OPERATORS: dict[tuple[int, str, bool], Any] = {
    (1, "nearest", False): aten.upsample_nearest1d.default,
    (2, "nearest", False): aten.upsample_nearest2d.default,
    (3, "nearest", False): aten.upsample_nearest3d.default,
    (1, "nearest-exact", False): aten._upsample_nearest_exact1d.default,
    (2, "nearest-exact", False): aten._upsample_nearest_exact2d.default,
    (3, "nearest-exact", False): aten._upsample_nearest_exact3d.default,
    (1, "linear", False): aten.upsample_linear1d.default,
    (2, "bilinear", False): aten.upsample_bilinear2d.default,
    (3, "trilinear", False): aten.upsample_trilinear3d.default,
    (2, "bicubic", False): aten.upsample_bicubic2d.default,
    (2, "bilinear", True): aten._upsample_bilinear2d_aa.default,
    (2, "bicubic", True): aten._upsample_bicubic2d_aa.default,
}


def upsampling(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Our `interpolate` for a call of torch's on a fake tensor whose sizes vary; None to leave the call."""
    if function is not functional.interpolate or not args or not isinstance(args[0], FakeTensor):
        return None
    return _interpolate if any(isinstance(size, torch.SymInt) for size in args[0].shape) else None


def _interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """`torch.nn.functional.interpolate`, same arguments; what isn't in the table is left to torch."""
    rank = input.dim() - 2
    operator = _OPERATORS.get((rank, mode, antialias))
    nearest = mode.startswith("nearest")
    sizes, factors = _each(size, rank), _each(scale_factor, rank)
    given = [values for values in (sizes, factors) if values is not None]
    asked = recompute_scale_factor and factors is None
    if (
        operator is None
        or len(given) != 1
        or len(given[0]) != rank
        or asked
        or (nearest and align_corners is not None)
    ):
        result: Tensor = functional.interpolate(
            input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        )
        return result
    if sizes is None:
        assert factors is not None
        sizes = [
            torch.sym_int(n * factor) for n, factor in zip(input.shape[2:], factors, strict=True)
        ]
    if factors is None or recompute_scale_factor:
        factors = [None] * rank
    corners = [] if nearest else [bool(align_corners)]
    return operator(input, sizes, *corners, *factors)


def _each(value: Any, rank: int) -> list[Any] | None:
    """One number for each spatial dimension."""
    if value is None:
        return None
    return list(value) if isinstance(value, (tuple, list)) else [value] * rank
