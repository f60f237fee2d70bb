"""Operators whose result may hang on the order in which threads come, as eager computes them.

Under `torch.use_deterministic_algorithms(True)` eager chooses another algorithm for each, or refuses. Which of the two
hangs on device, dtype and arguments, and differs from version to version; so a compiler that meets one of them in that
mode calls the operator itself, whole: then values and exceptions are eager's. Goes out: a set, and a question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from primtorch.registry import overload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._ops import OpOverload

__all__ = ["ORDER_DEPENDENT", "deterministic"]

_NAMES = (
    # several elements written or added to one place
    "scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add", "scatter_reduce.two",
    "index_add", "index_copy", "index_reduce", "index_put", "_unsafe_index_put", "put", "masked_scatter_backward",
    "_unsafe_masked_index_put_accumulate", "embedding_dense_backward", "_embedding_bag_dense_backward",
    "_embedding_bag_backward", "unfold_backward", "histc", "bincount",
    # gradients of windows and of interpolation
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool3d_backward",
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward",
    "max_unpool2d", "max_unpool3d", "upsample_linear1d_backward", "upsample_bilinear2d_backward",
    "upsample_bicubic2d_backward", "upsample_trilinear3d_backward", "_upsample_bilinear2d_aa_backward",
    "_upsample_bicubic2d_aa_backward", "grid_sampler_2d_backward", "grid_sampler_3d_backward",
    "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward", "col2im",
    # others that eager warns of
    "cumsum", "median.dim", "nanmedian.dim", "kthvalue", "nll_loss2d_forward", "nll_loss2d_backward",
    "_ctc_loss_backward", "_ctc_loss_backward.Tensor", "_cdist_backward",
)  # fmt: skip


def _found() -> Iterator[OpOverload]:
    for name in _NAMES:
        operator = overload(f"aten.{name}")
        if operator is not None:  # versions differ
            yield operator


ORDER_DEPENDENT: frozenset[OpOverload] = frozenset(_found())
"""Left whole in the deterministic mode."""


def deterministic() -> bool:
    """Whether the mode is on, be it to refuse or only to warn."""
    return torch.are_deterministic_algorithms_enabled()
