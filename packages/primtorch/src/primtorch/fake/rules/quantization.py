"""Shape rules of what quantization-aware training calls, and of histograms over given or even bins.

Histograms' sizes follow from the numbers of bins alone; what the edges are, only the data says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import format_strides, wrap_dimension
from primtorch.fake.registry import shape_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primtorch.fake.meta import TensorMeta
    from primtorch.symbolic import Sizes

_BINNED = (torch.float32, torch.float64)


def _like(sizes: Sizes, x: TensorMeta, dtype: torch.dtype | None = None) -> TensorMeta:
    """A new tensor of this one's shape in its memory order, dense."""
    return x.strided(x.shape, format_strides(sizes, x, x.shape, None), 0).with_dtype(
        x.dtype if dtype is None else dtype
    )


def _check_range(quant_min: int, quant_max: int) -> None:
    if quant_min > quant_max:
        raise RuntimeError("`quant_min` should be less than or equal to `quant_max`.")


def _check_channels(sizes: Sizes, x: TensorMeta, scale: TensorMeta, axis: int) -> None:
    dimension = wrap_dimension(axis, x.ndim)
    if scale.ndim != 1 or not sizes.same(scale.shape[0], x.shape[dimension]):
        raise RuntimeError(
            "dimensions of scale and zero-point are not consistent with input tensor"
        )


@shape_rule(
    "fake_quantize_per_tensor_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)
def fake_quantize(sizes: Sizes, x: TensorMeta, *numbers: Any) -> tuple[TensorMeta, TensorMeta]:
    """(rounded to the steps of a scale, where it was within the range)."""
    _check_range(*numbers[-2:])
    return _like(sizes, x), _like(sizes, x, torch.bool)


@shape_rule("fake_quantize_per_channel_affine_cachemask")
def fake_quantize_channels(
    sizes: Sizes,
    x: TensorMeta,
    scale: TensorMeta,
    zero_point: TensorMeta,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> tuple[TensorMeta, TensorMeta]:
    """The same with a scale for each slice of a dimension."""
    del zero_point
    _check_range(quant_min, quant_max)
    _check_channels(sizes, x, scale, axis)
    return _like(sizes, x), _like(sizes, x, torch.bool)


@shape_rule(
    "_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_learnable_per_channel_affine"
)
def fake_quantize_learnable(sizes: Sizes, x: TensorMeta, *rest: Any) -> TensorMeta:
    """Rounded to the steps of a scale that is learned."""
    del rest
    return _like(sizes, x)


@shape_rule(
    "_fake_quantize_learnable_per_tensor_affine_backward",
    "_fake_quantize_learnable_per_channel_affine_backward",
)
def fake_quantize_learnable_backward(
    sizes: Sizes,
    grad: TensorMeta,
    x: TensorMeta,
    scale: TensorMeta,
    zero_point: TensorMeta,
    *rest: Any,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """Gradients of the tensor, the scale and the zero point."""
    del grad, rest
    return _like(sizes, x), scale.contiguous(), zero_point.contiguous(dtype=zero_point.dtype)


def _check_binned(x: TensorMeta, weight: TensorMeta | None) -> None:
    if x.dtype not in _BINNED:
        raise NotImplementedError(f'"histogram_cpu" not implemented for {str(x.dtype)!r}')
    if weight is not None and weight.dtype is not x.dtype:
        raise TypeError(f"torch.histogramdd: weights of {weight.dtype} for elements of {x.dtype}")


def _check_edges(x: TensorMeta, edges: Sequence[TensorMeta]) -> None:
    for one in edges:
        if one.dtype is not x.dtype:
            raise RuntimeError(f"torch.histogramdd: bins of {one.dtype} for elements of {x.dtype}")
        if one.ndim != 1:
            raise RuntimeError("torch.histogramdd: bins tensor should have one dimension")


def _check_weight(x: TensorMeta, weight: TensorMeta | None, inner: int) -> None:
    kept = x.shape[: x.ndim - inner]
    if weight is not None and weight.shape != kept:
        raise RuntimeError(
            f"torch.histogramdd: a weight of shape {kept} is wanted, not {weight.shape}"
        )


@shape_rule("histogram.bin_ct")
def histogram(
    sizes: Sizes,
    x: TensorMeta,
    bins: int = 100,
    *,
    range: Any = None,
    weight: TensorMeta | None = None,
    density: bool = False,
) -> tuple[TensorMeta, TensorMeta]:
    """(counts of even bins, their edges)."""
    del sizes, range, density
    _check_binned(x, weight)
    _check_weight(x, weight, 0)
    if isinstance(bins, int) and bins <= 0:
        raise RuntimeError(f"torch.histogram: bins must be > 0, but got {bins}")
    return x.contiguous((bins,)), x.contiguous((bins + 1,))


@shape_rule("histogram.bins_tensor")
def histogram_of_edges(
    sizes: Sizes,
    x: TensorMeta,
    bins: TensorMeta,
    *,
    weight: TensorMeta | None = None,
    density: bool = False,
) -> tuple[TensorMeta, TensorMeta]:
    """(counts of bins with these edges, the edges)."""
    del sizes, density
    _check_binned(x, weight)
    _check_weight(x, weight, 0)
    _check_edges(x, [bins])
    return x.contiguous((bins.shape[0] - 1,)), bins.contiguous()


def _check_points(x: TensorMeta, bins: Sequence[Any], weight: TensorMeta | None) -> None:
    _check_binned(x, weight)
    if x.ndim < 2:
        raise RuntimeError(
            f"torch.histogramdd: input tensor should have at least 2 dimensions, but got {x.ndim}"
        )
    _check_weight(x, weight, 1)
    if x.shape[-1] != len(bins):
        raise RuntimeError(
            f"torch.histogramdd: bins for {x.shape[-1]} dimensions are wanted, not {len(bins)}"
        )


@shape_rule("_histogramdd_bin_edges")
def histogramdd_bin_edges(
    sizes: Sizes,
    x: TensorMeta,
    bins: Sequence[int],
    *,
    range: Any = None,
    weight: TensorMeta | None = None,
    density: bool = False,
) -> list[TensorMeta]:
    """The edges of the bins of each dimension."""
    del sizes, range, density
    _check_points(x, bins, weight)
    return [x.contiguous((count + 1,)) for count in bins]


@shape_rule("_histogramdd_from_bin_cts")
def histogramdd(
    sizes: Sizes,
    x: TensorMeta,
    bins: Sequence[int],
    *,
    range: Any = None,
    weight: TensorMeta | None = None,
    density: bool = False,
) -> TensorMeta:
    """Counts of even bins in several dimensions."""
    del sizes, range, density
    _check_points(x, bins, weight)
    return x.contiguous(tuple(bins))


@shape_rule("_histogramdd_from_bin_tensors")
def histogramdd_of_edges(
    sizes: Sizes,
    x: TensorMeta,
    bins: Sequence[TensorMeta],
    *,
    weight: TensorMeta | None = None,
    density: bool = False,
) -> TensorMeta:
    """Counts of bins with these edges in several dimensions."""
    del sizes, density
    _check_points(x, bins, weight)
    _check_edges(x, bins)
    return x.contiguous(tuple([edges.shape[0] - 1 for edges in bins]))
