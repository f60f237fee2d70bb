"""Shape rules of histograms, in one dimension or several, over even bins or bins with given edges.

Their sizes follow from the numbers of bins alone; what the edges are, only the data says. So the options `range` and
`density` are no matter here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.registry import shape_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primtorch.fake.meta import TensorMeta
    from primtorch.symbolic import Sizes

_BINNED = (torch.float32, torch.float64)


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
    weight: TensorMeta | None = None,
    **options: Any,
) -> tuple[TensorMeta, TensorMeta]:
    """(counts of even bins, their edges)."""
    del sizes, options
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
    **options: Any,
) -> tuple[TensorMeta, TensorMeta]:
    """(counts of bins with these edges, the edges)."""
    del sizes, options
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
    weight: TensorMeta | None = None,
    **options: Any,
) -> list[TensorMeta]:
    """The edges of the bins of each dimension."""
    del sizes, options
    _check_points(x, bins, weight)
    return [x.contiguous((count + 1,)) for count in bins]


@shape_rule("_histogramdd_from_bin_cts")
def histogramdd(
    sizes: Sizes,
    x: TensorMeta,
    bins: Sequence[int],
    *,
    weight: TensorMeta | None = None,
    **options: Any,
) -> TensorMeta:
    """Counts of even bins in several dimensions."""
    del sizes, options
    _check_points(x, bins, weight)
    return x.contiguous(tuple(bins))


@shape_rule("_histogramdd_from_bin_tensors")
def histogramdd_of_edges(
    sizes: Sizes,
    x: TensorMeta,
    bins: Sequence[TensorMeta],
    *,
    weight: TensorMeta | None = None,
    **options: Any,
) -> TensorMeta:
    """Counts of bins with these edges in several dimensions."""
    del sizes, options
    _check_points(x, bins, weight)
    _check_edges(x, bins)
    return x.contiguous(tuple([edges.shape[0] - 1 for edges in bins]))
