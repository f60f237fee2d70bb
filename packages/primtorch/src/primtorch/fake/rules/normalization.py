"""Shape rules of normalisations and of the classification losses, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import format_strides, suggested_format
from primtorch.fake.meta import TensorMeta
from primtorch.fake.registry import shape_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primtorch.symbolic import Expression, Sizes


def _accumulation(x: TensorMeta) -> torch.dtype:
    """The dtype in which statistics of half inputs are kept."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if half else x.dtype


@shape_rule("native_layer_norm")
def native_layer_norm(
    sizes: Sizes,
    x: TensorMeta,
    normalized_shape: Sequence[int | Expression],
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    eps: float,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """(output, mean, reciprocal deviation); statistics keep the normalised dimensions as ones."""
    del bias, eps
    count = len(normalized_shape)
    inner = x.shape[x.ndim - count :]
    if len(inner) != count or not all(
        sizes.same(a, b) for a, b in zip(inner, normalized_shape, strict=True)
    ):
        raise RuntimeError(
            f"Given normalized_shape={list(normalized_shape)}, expected input with shape [*, "
            f"{', '.join(map(str, normalized_shape))}], but got input of size{list(x.shape)}"
        )
    outer = (*x.shape[: x.ndim - count], *(1,) * count)
    dtype = x.dtype
    if x.device.type != "cpu" or (weight is not None and weight.dtype is not x.dtype):
        dtype = _accumulation(x)
    statistic = x.contiguous(outer, dtype)
    return x.contiguous(), statistic, statistic


@shape_rule("native_layer_norm_backward")
def native_layer_norm_backward(
    sizes: Sizes,
    grad_out: TensorMeta,
    x: TensorMeta,
    normalized_shape: Sequence[int | Expression],
    mean: TensorMeta,
    rstd: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    output_mask: Sequence[bool],
) -> tuple[TensorMeta | None, ...]:
    """Gradients of input, weight and bias, each if its mask is set."""
    del sizes, grad_out, mean, rstd
    shape = tuple(normalized_shape)
    return (
        x.contiguous() if output_mask[0] else None,
        (weight or x).contiguous(shape) if output_mask[1] else None,
        (bias or weight or x).contiguous(shape) if output_mask[2] else None,
    )


@shape_rule("_fused_rms_norm")
def fused_rms_norm(
    sizes: Sizes,
    x: TensorMeta,
    normalized_shape: Sequence[int | Expression],
    weight: TensorMeta | None,
    eps: float | None,
) -> tuple[TensorMeta, TensorMeta]:
    """(output, reciprocal root mean square)."""
    del sizes, weight, eps
    count = len(normalized_shape)
    outer = (*x.shape[: x.ndim - count], *(1,) * count)
    return x.contiguous(), x.contiguous(outer, _accumulation(x))


@shape_rule("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    sizes: Sizes,
    grad_out: TensorMeta,
    x: TensorMeta,
    normalized_shape: Sequence[int | Expression],
    rstd: TensorMeta,
    weight: TensorMeta | None,
    output_mask: Sequence[bool],
) -> tuple[TensorMeta | None, ...]:
    """Gradients of input and weight."""
    del sizes, grad_out, rstd
    return (
        x.contiguous() if output_mask[0] else None,
        (weight or x).contiguous(tuple(normalized_shape)) if output_mask[1] else None,
    )


@shape_rule("native_group_norm")
def native_group_norm(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    N: int | Expression,
    C: int | Expression,
    HxW: int | Expression,
    group: int,
    eps: float,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """(output, mean, reciprocal deviation) of groups of channels."""
    del bias, C, HxW, eps
    stride = x.contiguous().stride
    if x.device.type == "cpu":
        stride = format_strides(sizes, x, x.shape, suggested_format(sizes, x))
    mixed = weight is not None and weight.dtype is not x.dtype
    statistic = x.contiguous((N, group), weight.dtype if mixed and weight is not None else x.dtype)
    return TensorMeta(x.shape, stride, x.dtype, x.device), statistic, statistic


@shape_rule("native_group_norm_backward")
def native_group_norm_backward(
    sizes: Sizes,
    grad_out: TensorMeta,
    x: TensorMeta,
    mean: TensorMeta,
    rstd: TensorMeta,
    weight: TensorMeta | None,
    N: int | Expression,
    C: int | Expression,
    HxW: int | Expression,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[TensorMeta | None, ...]:
    """Gradients of input, weight and bias."""
    del grad_out, mean, rstd, N, HxW, group
    stride = format_strides(sizes, x, x.shape, suggested_format(sizes, x))
    channels = (weight or x).contiguous((C,))
    return (
        TensorMeta(x.shape, stride, x.dtype, x.device) if output_mask[0] else None,
        channels if output_mask[1] else None,
        channels if output_mask[2] else None,
    )


# ---------------------------------------------------------------- batch norm
def _batch_norm(
    sizes: Sizes, x: TensorMeta, weight: TensorMeta | None, training: bool
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    if x.device.type != "cpu":
        stride = format_strides(sizes, x, x.shape, None)
        statistic = x.contiguous((x.shape[1],), _accumulation(x))
        return TensorMeta(x.shape, stride, x.dtype, x.device), statistic, statistic
    stride = format_strides(sizes, x, x.shape, suggested_format(sizes, x))
    mixed = weight is not None and weight.dtype is not x.dtype
    dtype = weight.dtype if mixed and weight is not None else x.dtype
    statistic = x.contiguous((x.shape[1] if training else 0,), dtype)
    return TensorMeta(x.shape, stride, x.dtype, x.device), statistic, statistic


@shape_rule("native_batch_norm")
def native_batch_norm(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    running_mean: TensorMeta | None,
    running_var: TensorMeta | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """(output, saved mean, saved reciprocal deviation); the statistics are empty in inference."""
    del bias, running_mean, running_var, momentum, eps
    return _batch_norm(sizes, x, weight, training)


@shape_rule("_native_batch_norm_legit")
def native_batch_norm_legit(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    running_mean: TensorMeta,
    running_var: TensorMeta,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """As native_batch_norm, declaring that it writes the running statistics."""
    del bias, running_mean, running_var, momentum, eps
    return _batch_norm(sizes, x, weight, training)


@shape_rule("_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """Batch norm without running statistics."""
    del bias, momentum, eps
    return _batch_norm(sizes, x, weight, training)


@shape_rule("_native_batch_norm_legit_no_training")
def native_batch_norm_no_training(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    running_mean: TensorMeta,
    running_var: TensorMeta,
    momentum: float,
    eps: float,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """Batch norm by the running statistics."""
    del bias, running_mean, running_var, momentum, eps
    return _batch_norm(sizes, x, weight, training=False)


@shape_rule("_native_batch_norm_legit_functional")
def native_batch_norm_functional(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    running_mean: TensorMeta,
    running_var: TensorMeta,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorMeta, ...]:
    """Batch norm that returns the new running statistics instead of writing them."""
    del bias, momentum, eps
    return (
        *_batch_norm(sizes, x, weight, training),
        running_mean.contiguous(),
        running_var.contiguous(),
    )


@shape_rule("_batch_norm_with_update")
def batch_norm_with_update(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    running_mean: TensorMeta,
    running_var: TensorMeta,
    momentum: float,
    eps: float,
) -> tuple[TensorMeta, ...]:
    """Batch norm in training that writes the running statistics; with a reserve of bytes."""
    del bias, running_mean, running_var, momentum, eps
    return (*_batch_norm(sizes, x, weight, training=True), x.contiguous((0,), torch.uint8))


@shape_rule("_batch_norm_no_update")
def batch_norm_no_update(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta | None,
    bias: TensorMeta | None,
    running_mean: TensorMeta | None,
    running_var: TensorMeta | None,
    momentum: float,
    eps: float,
) -> tuple[TensorMeta, ...]:
    """Batch norm by the running statistics; with a reserve of bytes."""
    del bias, running_mean, running_var, momentum, eps
    return (*_batch_norm(sizes, x, weight, training=False), x.contiguous((0,), torch.uint8))


@shape_rule("cudnn_batch_norm")
def cudnn_batch_norm(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta | None,
    running_mean: TensorMeta | None,
    running_var: TensorMeta | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[TensorMeta, ...]:
    """Batch norm of cuDNN: output, saved statistics, and a reserve of bytes."""
    del bias, running_mean, running_var, exponential_average_factor, epsilon
    output, mean, deviation = _batch_norm(sizes, x, weight, training)
    return output, mean, deviation, x.contiguous((0,), torch.uint8)


@shape_rule("native_batch_norm_backward")
def native_batch_norm_backward(
    sizes: Sizes,
    grad_out: TensorMeta,
    x: TensorMeta,
    weight: TensorMeta | None,
    running_mean: TensorMeta | None,
    running_var: TensorMeta | None,
    save_mean: TensorMeta | None,
    save_invstd: TensorMeta | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[TensorMeta | None, ...]:
    """Gradients of input, weight and bias, each if its mask is set."""
    del running_mean, running_var, save_mean, save_invstd, eps, grad_out
    channels = (weight or x).contiguous((x.shape[1],))
    absent: TensorMeta | None = None
    chosen = suggested_format(sizes, x)
    if x.device.type != "cpu":
        if not train:
            chosen = torch.contiguous_format
        elif chosen is not torch.contiguous_format:
            absent = x.contiguous((0,), _accumulation(x))  # that kernel returns empty tensors
    stride = format_strides(sizes, x, x.shape, chosen)
    return (
        TensorMeta(x.shape, stride, x.dtype, x.device) if output_mask[0] else None,
        channels if output_mask[1] else absent,
        channels if output_mask[2] else absent,
    )


@shape_rule("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(
    sizes: Sizes, x: TensorMeta, grad_output: TensorMeta, weight: TensorMeta, *args: Any
) -> tuple[TensorMeta, ...]:
    """Gradients of input, weight and bias."""
    del grad_output, args
    stride = format_strides(sizes, x, x.shape, suggested_format(sizes, x))
    gradient = TensorMeta(x.shape, stride, x.dtype, x.device)
    return gradient, weight.contiguous(), weight.contiguous()


@shape_rule("batch_norm_backward")
def batch_norm_backward(
    sizes: Sizes,
    grad_out: TensorMeta,
    x: TensorMeta,
    weight: TensorMeta | None,
    running_mean: TensorMeta | None,
    running_var: TensorMeta | None,
    save_mean: TensorMeta | None,
    save_var: TensorMeta | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: TensorMeta,
) -> tuple[TensorMeta | None, ...]:
    """As native_batch_norm_backward, with a reserve of bytes that is passed over."""
    del reserve
    statistics = (running_mean, running_var, save_mean, save_var)
    return native_batch_norm_backward(
        sizes, grad_out, x, weight, *statistics, update, eps, output_mask
    )


# ---------------------------------------------------------------- losses
@shape_rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    sizes: Sizes,
    x: TensorMeta,
    target: TensorMeta,
    weight: TensorMeta | None,
    reduction: int,
    ignore_index: int | Expression,
) -> tuple[TensorMeta, TensorMeta]:
    """(loss, total weight) of log-probabilities over class indices."""
    del sizes, weight, ignore_index
    total = x.contiguous(())
    batched = x.ndim in (2, 4)
    if reduction == 0 and batched:
        return x.contiguous(target.shape), (x.contiguous(()) if x.ndim == 2 else total)
    return x.contiguous(()), total


@shape_rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, *args: Any
) -> TensorMeta:
    """The gradient of the log-probabilities."""
    del sizes, grad_output, args
    return x.contiguous()


@shape_rule("binary_cross_entropy", "binary_cross_entropy_with_logits")
def binary_cross_entropy(
    sizes: Sizes,
    x: TensorMeta,
    target: TensorMeta,
    weight: TensorMeta | None = None,
    *rest: Any,
    reduction: int | None = None,
) -> TensorMeta:
    """Cross entropy of probabilities, or of logits (which has a weight of positives before it)."""
    del target, weight
    numbers = [value for value in rest if isinstance(value, int)]
    chosen = reduction if reduction is not None else (numbers[0] if numbers else 1)
    if chosen != 0:
        return x.contiguous(())
    return TensorMeta(x.shape, format_strides(sizes, x, x.shape, None), x.dtype, x.device)


@shape_rule("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, *args: Any
) -> TensorMeta:
    """The gradient of the probabilities."""
    del grad_output, args
    return TensorMeta(x.shape, format_strides(sizes, x, x.shape, None), x.dtype, x.device)
