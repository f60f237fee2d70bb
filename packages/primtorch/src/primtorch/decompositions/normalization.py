"""Normalisations over rows, groups and channels, forward and backward.

Mean and variance come from the var_mean prim (two passes or Welford, never E[x^2] - E[x]^2). Half types are computed
in float32 and each result is rounded once. The statistics that eager hands back keep eager's dtypes, which differ
between CPU (the operand's, or the weight's) and CUDA (float32).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from primtorch.decompositions.views import contiguous
from primtorch.promotion import cast, computation_dtype
from primtorch.registry import decomposes

aten = torch.ops.aten


def _statistics_dtype(input: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """The dtype of saved statistics: on the CPU that of the parameters, elsewhere the accumulator's."""
    if input.device.type != "cpu":
        return computation_dtype(input.dtype)
    for parameter in parameters:
        if parameter is not None and parameter.dtype is not input.dtype:
            return computation_dtype(input.dtype)
    return input.dtype


def moments(wide: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """Variance and mean, kept with size 1, accumulated in the operand's dtype as eager's normalisations do.

    A correction that is a float says so; with any other the CPU's `var_mean` of float32 accumulates in double.
    """
    variance, mean = aten.var_mean.correction(wide, dims, correction=0.0, keepdim=True)
    return variance, mean


@decomposes(aten.native_layer_norm.default)
def native_layer_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimensions; also mean and reciprocal deviation."""
    _check_normalized(input, normalized_shape, weight, bias)
    computation = computation_dtype(input.dtype)
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    wide = contiguous(cast(input, computation))
    variance, mean = moments(wide, dims)
    reciprocal = aten.rsqrt.default(variance + eps)
    out = (wide - mean) * reciprocal
    if weight is not None:
        out = out * cast(weight, computation)
    if bias is not None:
        out = out + cast(bias, computation)
    statistics = _statistics_dtype(input, weight, bias)
    return cast(out, input.dtype), cast(mean, statistics), cast(reciprocal, statistics)


def _check_normalized(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None
) -> None:
    inner = list(normalized_shape)
    if not inner:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            f"but got normalized_shape = {inner}"
        )
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and list(parameter.shape) != inner:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(parameter.shape)} and normalized_shape = {inner}"
            )
    if input.dim() < len(inner) or list(input.shape[input.dim() - len(inner) :]) != inner:
        stars = ", ".join(f"{size}" for size in inner)
        raise RuntimeError(
            f"Given normalized_shape={inner}, expected input with shape [*, {stars}], "
            f"but got input of size{list(input.shape)}"
        )


@decomposes(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of `native_layer_norm` for input, weight and bias, those that `output_mask` asks for."""
    computation = computation_dtype(input.dtype)
    first = input.dim() - len(normalized_shape)
    outer, inner = list(range(first)), list(range(first, input.dim()))
    count = math.prod(input.shape[first:])
    grad = contiguous(cast(grad_out, computation))
    reciprocal = cast(rstd, computation)
    normalized = (contiguous(cast(input, computation)) - cast(mean, computation)) * reciprocal
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * cast(weight, computation)
        average = aten.sum.dim_IntList(scaled, inner, True) / count
        projection = aten.sum.dim_IntList(scaled * normalized, inner, True) / count
        grad_input = cast((scaled - average - normalized * projection) * reciprocal, input.dtype)
    if output_mask[1] and weight is not None:
        product = grad * normalized
        grad_weight = cast(aten.sum.dim_IntList(product, outer) if outer else product, weight.dtype)
    if output_mask[2] and bias is not None:
        total = aten.sum.dim_IntList(grad, outer) if outer else aten.clone.default(grad)
        grad_bias = cast(total, bias.dtype)
    return grad_input, grad_weight, grad_bias


@decomposes("aten._fused_rms_norm.default")
def _fused_rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimensions; also the reciprocal root."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    computation = computation_dtype(input.dtype)
    wide = cast(input, computation)
    if eps is None:
        eps = torch.finfo(computation).eps
    count = math.prod(normalized_shape)
    reciprocal = aten.rsqrt.default(aten.sum.dim_IntList(wide * wide, dims, True) / count + eps)
    out = wide * reciprocal
    if weight is not None:
        out = out * cast(weight, computation)
    return cast(out, input.dtype), reciprocal


@decomposes("aten._fused_rms_norm_backward.default")
def _fused_rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of `_fused_rms_norm` for input and weight."""
    computation = computation_dtype(input.dtype)
    first = input.dim() - len(normalized_shape)
    outer, inner = list(range(first)), list(range(first, input.dim()))
    grad, reciprocal = cast(grad_out, computation), cast(rstd, computation)
    normalized = cast(input, computation) * reciprocal
    grad_input = grad_weight = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * cast(weight, computation)
        projection = aten.sum.dim_IntList(scaled * normalized, inner, True) / math.prod(
            normalized_shape
        )
        grad_input = cast((scaled - normalized * projection) * reciprocal, input.dtype)
    if output_mask[1] and weight is not None:
        product = grad * normalized
        grad_weight = cast(aten.sum.dim_IntList(product, outer) if outer else product, weight.dtype)
    return grad_input, grad_weight


@decomposes(aten.native_group_norm.default)
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each group of channels; also mean and reciprocal deviation of shape (N, group)."""
    computation = computation_dtype(input.dtype)
    grouped = aten.view.default(contiguous(cast(input, computation)), [N, group, C // group * HxW])
    variance, mean = moments(grouped, [2])
    reciprocal = aten.rsqrt.default(variance + eps)
    out = aten.view.default((grouped - mean) * reciprocal, list(input.shape))
    channel = [1, C] + [1] * (input.dim() - 2)
    if weight is not None:
        out = out * aten.view.default(contiguous(cast(weight, computation)), channel)
    if bias is not None:
        out = out + aten.view.default(contiguous(cast(bias, computation)), channel)
    statistics = _statistics_dtype(input, weight, bias)
    out = cast(out, input.dtype)
    if input.device.type == "cpu" and input.dim() in (4, 5):
        channels_last = torch.channels_last if input.dim() == 4 else torch.channels_last_3d
        if input.is_contiguous(memory_format=channels_last):
            out = aten.clone.default(out, memory_format=channels_last)
    return (
        out,
        cast(aten.squeeze.dims(mean, [2]), statistics),
        cast(aten.squeeze.dims(reciprocal, [2]), statistics),
    )


@decomposes(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of `native_group_norm` for input, weight and bias."""
    computation = computation_dtype(input.dtype)
    shape = [N, group, C // group, HxW]
    grad = aten.view.default(contiguous(cast(grad_out, computation)), shape)
    reciprocal = aten.view.default(contiguous(cast(rstd, computation)), [N, group, 1, 1])
    centre = aten.view.default(contiguous(cast(mean, computation)), [N, group, 1, 1])
    normalized = (
        aten.view.default(contiguous(cast(input, computation)), shape) - centre
    ) * reciprocal
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad
        if weight is not None:
            scaled = grad * aten.view.default(
                contiguous(cast(weight, computation)), [1, group, C // group, 1]
            )
        count = C // group * HxW
        average = aten.sum.dim_IntList(scaled, [2, 3], True) / count
        projection = aten.sum.dim_IntList(scaled * normalized, [2, 3], True) / count
        grad_input = (scaled - average - normalized * projection) * reciprocal
        grad_input = cast(aten.view.default(grad_input, list(input.shape)), input.dtype)
    if output_mask[1]:
        grad_weight = cast(
            aten.view.default(aten.sum.dim_IntList(grad * normalized, [0, 3]), [C]), input.dtype
        )
    if output_mask[2]:
        grad_bias = cast(aten.view.default(aten.sum.dim_IntList(grad, [0, 3]), [C]), input.dtype)
    return grad_input, grad_weight, grad_bias


def _channelwise(tensor: Tensor, rank: int) -> Tensor:
    """A vector over channels as (1, C, 1, ..): dimension 1 of a tensor of `rank` dimensions."""
    return aten.view.default(contiguous(tensor), [1, -1] + [1] * (rank - 2))


def _batch_statistics(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Variance and mean over all dimensions but the channel's, kept with size 1."""
    dims = [0, *range(2, wide.dim())]
    variance, mean = moments(wide, dims)
    return variance, mean


def _normalized_batch(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    reciprocal: Tensor,
) -> Tensor:
    """(x - mean) * reciprocal * weight + bias by channel, rounded to the operand's dtype."""
    rank = input.dim()
    computation = mean.dtype
    out = (cast(input, computation) - mean) * reciprocal
    if weight is not None:
        out = out * _channelwise(cast(weight, computation), rank)
    if bias is not None:
        out = out + _channelwise(cast(bias, computation), rank)
    return cast(out, input.dtype)


def _running_update(running: Tensor, batch: Tensor, momentum: float) -> Tensor:
    """The running statistic moved towards this batch's by `momentum`."""
    computation = computation_dtype(running.dtype)
    return cast(
        cast(running, computation) * (1 - momentum) + cast(batch, computation) * momentum,
        running.dtype,
    )


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Output, saved mean, saved reciprocal deviation, new running mean and variance."""
    computation = computation_dtype(input.dtype)
    rank = input.dim()
    statistics = _statistics_dtype(input, weight, bias, running_mean, running_var)
    if not training:
        assert running_mean is not None, "eager refuses inference without running statistics"
        assert running_var is not None, "eager refuses inference without running statistics"
        mean = _channelwise(cast(running_mean, computation), rank)
        reciprocal = aten.rsqrt.default(_channelwise(cast(running_var, computation), rank) + eps)
        out = _normalized_batch(input, weight, bias, mean, reciprocal)
        if input.device.type == "cpu":
            saved_mean = aten.new_empty.default(input, [0], dtype=statistics)
            saved_reciprocal = aten.new_empty.default(input, [0], dtype=statistics)
        else:
            saved_mean = aten.squeeze.dims(mean, [0, *range(2, rank)])
            saved_reciprocal = aten.squeeze.dims(reciprocal, [0, *range(2, rank)])
        return out, saved_mean, saved_reciprocal, running_mean, running_var
    wide = cast(input, computation)
    dims = [0, *range(2, rank)]
    variance, mean = _batch_statistics(wide)
    reciprocal = aten.rsqrt.default(variance + eps)
    out = _normalized_batch(input, weight, bias, mean, reciprocal)
    flat_mean = aten.squeeze.dims(mean, dims)
    new_mean = None if running_mean is None else _running_update(running_mean, flat_mean, momentum)
    new_variance = None
    if running_var is not None:
        count = input.numel() // input.shape[1]
        unbiased = aten.squeeze.dims(variance, dims)
        # Multiplied, then divided: graphs hold symbolic integers, not quotients of them.
        unbiased = unbiased * count / (count - 1) if count > 1 else unbiased * math.nan
        new_variance = _running_update(running_var, unbiased, momentum)
    flat_reciprocal = aten.squeeze.dims(reciprocal, dims)
    return (
        out,
        cast(flat_mean, statistics),
        cast(flat_reciprocal, statistics),
        new_mean,
        new_variance,
    )


@decomposes(aten.native_batch_norm.default)
def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm that writes nothing: in training it declines running statistics, as eager's writes them.

    A tracer runs that call as `_native_batch_norm_legit_functional`.
    """
    if training and (running_mean is not None or running_var is not None):
        return NotImplemented
    if not training and (running_mean is None or running_var is None):
        raise RuntimeError("running_mean and running_var must be defined in evaluation mode")
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[:3]


@decomposes(aten._native_batch_norm_legit_functional.default)
def _native_batch_norm_legit_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Batch norm that returns the new running statistics instead of writing them."""
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


@decomposes(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm_legit_no_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm with the running statistics."""
    return _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


@decomposes(aten._native_batch_norm_legit.no_stats)
def _native_batch_norm_legit_no_stats(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm with the batch's own statistics and nothing to keep."""
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)[:3]


@decomposes(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of batch norm for input, weight and bias, those that `output_mask` asks for."""
    computation = computation_dtype(input.dtype)
    rank = input.dim()
    dims = [0, *range(2, rank)]
    if train:
        assert save_mean is not None, "training saves the batch's mean"
        assert save_invstd is not None, "training saves the batch's deviation"
        mean = _channelwise(cast(save_mean, computation), rank)
        reciprocal = _channelwise(cast(save_invstd, computation), rank)
    else:
        assert running_mean is not None, "inference reads running statistics"
        assert running_var is not None, "inference reads running statistics"
        mean = _channelwise(cast(running_mean, computation), rank)
        reciprocal = aten.rsqrt.default(_channelwise(cast(running_var, computation), rank) + eps)
    grad = cast(grad_out, computation)
    normalized = (cast(input, computation) - mean) * reciprocal
    total = aten.sum.dim_IntList(grad, dims, True)
    projection = aten.sum.dim_IntList(grad * normalized, dims, True)
    parameter_dtype = input.dtype if weight is None else weight.dtype
    if input.device.type == "cpu":
        parameter_dtype = _statistics_dtype(input, weight, running_mean, running_var, save_mean)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scale = (
            reciprocal
            if weight is None
            else reciprocal * _channelwise(cast(weight, computation), rank)
        )
        if train:
            count = input.numel() // input.shape[1]
            grad_input = (grad - total / count - normalized * (projection / count)) * scale
        else:
            grad_input = grad * scale
        grad_input = cast(grad_input, input.dtype)
    if output_mask[1]:
        grad_weight = cast(aten.squeeze.dims(projection, dims), parameter_dtype)
    if output_mask[2]:
        grad_bias = cast(aten.squeeze.dims(total, dims), parameter_dtype)
    return grad_input, grad_weight, grad_bias


@decomposes("aten._batch_norm_with_update_functional.default")
def _batch_norm_with_update_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Batch norm in training; a reserve that only some devices use is empty here."""
    out, mean, reciprocal, new_mean, new_variance = _batch_norm(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    reserve = aten.full.default([0], 0, dtype=torch.uint8, device=input.device)
    return out, mean, reciprocal, reserve, new_mean, new_variance


@decomposes("aten.batch_norm_backward.default")
def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: list[bool],
    reserve: Tensor,  # noqa: ARG001  some devices' own
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of `_batch_norm_with_update`."""
    return native_batch_norm_backward(
        grad_out,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )


@decomposes(aten.renorm.default)
def renorm(self: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scale down each slice along `dim` whose p-norm exceeds `maxnorm`."""
    if self.dim() < 2:
        raise RuntimeError(
            f"renorm: input needs at least 2 dimensions, got {self.dim()} dimensions"
        )
    if p <= 0:
        raise RuntimeError("renorm: non-positive-norm not supported")
    if maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm:g}")
    computation = computation_dtype(self.dtype)
    wide = cast(self, computation)
    position = dim % self.dim()
    dims = [d for d in range(self.dim()) if d != position]
    norm = aten.linalg_vector_norm.default(wide, p, dims, True)
    factor = aten.where.self(
        aten.gt.Scalar(norm, maxnorm),
        aten.reciprocal.default(norm + 1e-7) * maxnorm,
        aten.full.default([], 1, dtype=norm.dtype, device=norm.device),
    )
    return cast(contiguous(wide * factor), self.dtype)
