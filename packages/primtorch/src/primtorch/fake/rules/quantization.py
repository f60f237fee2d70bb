"""Shape rules of what quantization-aware training calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import format_strides, wrap_dimension
from primtorch.fake.registry import shape_rule

if TYPE_CHECKING:
    from primtorch.fake.meta import TensorMeta
    from primtorch.symbolic import Sizes


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
