"""Losses and their derivatives.

`reduction` is ATen's number: 0 none, 1 mean, 2 sum. Half types are computed in float32 up to and through the
reduction and rounded once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from primtorch.decompositions.indexing import in_range
from primtorch.decompositions.views import contiguous
from primtorch.promotion import cast, computation_dtype, elementwise, result_dtype
from primtorch.registry import decomposes

aten = torch.ops.aten

_NONE, _MEAN, _SUM = 0, 1, 2
_SMALLEST = 0x8CBCCC * 2.0**-63
"""1e-12 as eager has it: rounded to float32, for float64 too."""


def _constant(like: Tensor, value: float) -> Tensor:
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


def _reduced(loss: Tensor, reduction: int, dtype: torch.dtype) -> Tensor:
    """The loss, its mean or its sum, in `dtype`."""
    if reduction == _NONE:
        return cast(loss, dtype)
    total = aten.sum.dim_IntList(loss, list(range(loss.dim())))
    return cast(
        total / loss.numel()
        if reduction == _MEAN and loss.numel()
        else total * math.nan
        if reduction == _MEAN
        else total,
        dtype,
    )


def _spread(grad_output: Tensor, like: Tensor, reduction: int) -> Tensor:
    """The factor of each element in the gradient: the incoming gradient, divided by the count for a mean."""
    return grad_output / like.numel() if reduction == _MEAN and like.numel() else grad_output


def _averaged(value: Tensor, like: Tensor, reduction: int, factor: float = 1.0) -> Tensor:
    """`value` times `factor`, divided by the count of `like` for a mean.

    A symbolic count is divided by as it is: graphs hold integers, not quotients of them.
    """
    count = like.numel()
    if reduction != _MEAN or (isinstance(count, int) and count == 0):
        return value * factor if factor != 1.0 else value
    if isinstance(count, int):
        return value * (factor / count)
    return (value * factor if factor != 1.0 else value) / count


def _wide(*tensors: Tensor) -> tuple[torch.dtype, list[Tensor]]:
    """The promoted dtype and the operands in its computation dtype."""
    result = result_dtype(*tensors)
    computation = computation_dtype(result)
    return result, [cast(t, computation) for t in tensors]


@decomposes(aten.mse_loss.default)
def mse_loss(self: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """(x - y)^2."""
    result, (left, right) = _wide(self, target)
    difference = left - right
    return _reduced(difference * difference, reduction, result)


@decomposes(aten.mse_loss_backward.default)
def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Gradient of `mse_loss`."""
    result, (grad, left, right) = _wide(grad_output, self, target)
    return cast(_averaged((left - right), self, reduction, 2.0) * grad, result)


@decomposes(aten.smooth_l1_loss.default)
def smooth_l1_loss(
    self: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0
) -> Tensor:
    """Squared below `beta`, absolute above."""
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    result, (left, right) = _wide(self, target)
    distance = aten.abs.default(left - right)
    if beta == 0:
        return _reduced(distance, reduction, result)
    loss = aten.where.self(
        aten.lt.Scalar(distance, beta), distance * 0.5 * distance / beta, distance - 0.5 * beta
    )
    return _reduced(loss, reduction, result)


@decomposes(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """Gradient of `smooth_l1_loss`."""
    result, (grad, left, right) = _wide(grad_output, self, target)
    difference = left - right
    scaled = _averaged(grad, self, reduction)
    if beta == 0:
        return cast(aten.sign.default(difference) * scaled, result)
    inside = difference * scaled / beta
    outside = aten.sign.default(difference) * scaled
    beyond = aten.ge.Scalar(aten.abs.default(difference), beta)  # not NaN, which goes on
    return cast(aten.where.self(beyond, outside, inside), result)


@decomposes(aten.huber_loss.default)
def huber_loss(self: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Tensor:
    """Half the square up to `delta`, linear beyond."""
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    result, (left, right) = _wide(self, target)
    distance = aten.abs.default(left - right)
    loss = aten.where.self(
        aten.le.Scalar(distance, delta), distance * 0.5 * distance, (distance - 0.5 * delta) * delta
    )
    return _reduced(loss, reduction, result)


@decomposes(aten.huber_loss_backward.default)
def huber_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    """Gradient of `huber_loss`."""
    result, (grad, left, right) = _wide(grad_output, self, target)
    scaled = _averaged(grad, self, reduction)
    difference = left - right
    inside = aten.where.self(aten.gt.Scalar(difference, delta), scaled * delta, difference * scaled)
    return cast(
        aten.where.self(aten.lt.Scalar(difference, -delta), scaled * -delta, inside), result
    )


@decomposes(aten.soft_margin_loss.default)
def soft_margin_loss(self: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """log(1 + exp(-x y)), which eager composes of operators: half types are rounded by each."""
    powers = _soft_margin_powers(self, target)
    loss = cast(aten.log1p.default(powers), computation_dtype(powers.dtype))
    return _reduced(loss, reduction, powers.dtype)


def _soft_margin_powers(self: Tensor, target: Tensor) -> Tensor:
    return aten.exp.default(aten.mul.Tensor(aten.neg.default(self), target))


@decomposes(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """Gradient of `soft_margin_loss`."""
    result = result_dtype(grad_output, self, target)
    powers = _soft_margin_powers(self, target)
    factor = -1.0
    if reduction == _MEAN and self.numel():
        factor = -1.0 / self.numel()
    slope = aten.mul.Tensor(target, powers) * factor / (powers + 1)
    return cast(slope * grad_output, result)


@decomposes(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    """-(y log x + (1 - y) log(1 - x)), each logarithm no less than -100."""
    dtype = self.dtype
    computation = computation_dtype(dtype)
    left, right = cast(self, computation), cast(target, computation)
    first = aten.clamp.default(aten.log.default(left), -100, None)
    second = aten.clamp.default(aten.log1p.default(-left), -100, None)
    loss = (right - 1) * second - right * first
    if weight is not None:
        loss = loss * cast(weight, computation)
    return _reduced(loss, reduction, dtype)


@decomposes(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Gradient of `binary_cross_entropy`, its denominator no less than 1e-12."""
    dtype = self.dtype
    computation = computation_dtype(dtype)
    left, right = cast(self, computation), cast(target, computation)
    denominator = (1 - left) * left
    if not (dtype is torch.float16 and self.device.type == "cpu"):  # which rounds it to zero
        denominator = aten.clamp.default(denominator, _SMALLEST, None)
    out = cast(grad_output, computation) * (left - right) / denominator
    if weight is not None:
        out = out * cast(weight, computation)
    if reduction == _MEAN and self.numel():
        out = out / self.numel()
    return cast(out, dtype)


@decomposes(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Cross entropy of sigmoid(x) with y, without computing the sigmoid."""
    result, (left, right) = _wide(self, target)
    computation = left.dtype
    log_sigmoid = aten.minimum.default(left, _constant(left, 0)) - aten.log1p.default(
        aten.exp.default(-aten.abs.default(left))
    )
    if pos_weight is None:
        loss = (1 - right) * left - log_sigmoid
    else:
        log_weight = (cast(pos_weight, computation) - 1) * right + 1
        loss = (1 - right) * left - log_weight * log_sigmoid
    if weight is not None:
        loss = loss * cast(weight, computation)
    return _reduced(loss, reduction, result)


def _nll_weights(target: Tensor, weight: Tensor | None, ignored: Tensor, like: Tensor) -> Tensor:
    """Each target's class weight in the dtype of `like`, zero where it is ignored."""
    one = _constant(like, 1) if weight is None else None
    if one is None:
        assert weight is not None, "either the weights are given or all are one"
        one = aten.index.Tensor(cast(weight, like.dtype), [target])
    return aten.where.self(ignored, _constant(like, 0), one)


def _nll_forward(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    class_dim: int,
) -> tuple[Tensor, Tensor]:
    dtype = self.dtype
    computation = computation_dtype(dtype)
    ignored = aten.eq.Scalar(target, ignore_index)
    safe = in_range(aten.where.self(ignored, _constant(target, 0), target), self.shape[class_dim])
    picked = aten.gather.default(self, class_dim, aten.unsqueeze.default(safe, class_dim))
    picked = cast(aten.squeeze.dims(picked, [class_dim]), computation)
    weights = _nll_weights(safe, weight, ignored, picked)
    loss = aten.where.self(ignored, _constant(picked, 0), -picked * weights)
    if reduction == _NONE:
        return cast(loss, dtype), aten.full.default([], 0, dtype=dtype, device=self.device)
    dims = list(range(target.dim()))
    total = aten.sum.dim_IntList(loss, dims)
    if weights.dim() == 0:
        weights = aten.expand.default(weights, list(target.shape))
    total_weight = aten.sum.dim_IntList(weights, dims)
    out = total / total_weight if reduction == _MEAN else total
    return cast(out, dtype), cast(total_weight, dtype)


def _check_nll(self: Tensor, target: Tensor, weight: Tensor | None) -> None:
    if self.dim() not in (1, 2):
        raise RuntimeError("input tensor should be 1D or 2D")
    if target.dim() > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if self.dim() != 1 and self.shape[0] != target.shape[0]:
        raise RuntimeError(
            f"size mismatch (got input: {list(self.shape)}, target: {list(target.shape)})"
        )
    if weight is not None and (weight.dim() != 1 or weight.shape[0] != self.shape[-1]):
        raise RuntimeError(
            f"weight tensor should be defined either for all {self.shape[-1]} classes or no classes "
            f"but got weight tensor of shape: {list(weight.shape)}"
        )


@decomposes(aten.nll_loss_forward.default)
def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Minus the log probability of each target, and the total weight by which a mean divides."""
    _check_nll(self, target, weight)
    return _nll_forward(self, target, weight, reduction, ignore_index, self.dim() - 1)


@decomposes(aten.nll_loss2d_forward.default)
def nll_loss2d_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """`nll_loss_forward` for images: the classes are dimension 1."""
    if target.dim() != 3:
        raise RuntimeError(
            f"only batches of spatial targets supported (3D tensors) but got targets of dimension: {target.dim()}"
        )
    if self.dim() != 4:
        raise RuntimeError(
            f"only batches of spatial inputs supported (4D tensors), but got input of dimension: {self.dim()}"
        )
    return _nll_forward(self, target, weight, reduction, ignore_index, 1)


def _nll_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
    class_dim: int,
) -> Tensor:
    dtype = self.dtype
    computation = computation_dtype(dtype)
    grad = cast(grad_output, computation)
    if reduction == _MEAN:
        grad = grad / cast(total_weight, computation)
    ignored = aten.eq.Scalar(target, ignore_index)
    safe = aten.where.self(ignored, _constant(target, 0), target)
    weights = _nll_weights(safe, weight, ignored, grad)
    column = aten.unsqueeze.default(
        aten.where.self(ignored, _constant(grad, 0), -grad * weights), class_dim
    )
    classes = aten.arange.start_step(
        0, self.shape[class_dim], 1, dtype=torch.int64, device=self.device
    )
    shape = [1] * self.dim()
    shape[class_dim] = self.shape[class_dim]
    hit = aten.eq.Tensor(aten.view.default(classes, shape), aten.unsqueeze.default(safe, class_dim))
    return cast(aten.where.self(hit, column, _constant(grad, 0)), dtype)


@decomposes(aten.nll_loss_backward.default)
def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Gradient of `nll_loss_forward`, elementwise over the classes: no scatter, so that it fuses."""
    return _nll_backward(
        grad_output, self, target, weight, reduction, ignore_index, total_weight, self.dim() - 1
    )


@decomposes(aten.nll_loss2d_backward.default)
def nll_loss2d_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Gradient of `nll_loss2d_forward`."""
    return _nll_backward(
        grad_output, self, target, weight, reduction, ignore_index, total_weight, 1
    )


@decomposes(aten.multi_margin_loss.default)
def multi_margin_loss(
    self: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Mean over the other classes of max(0, margin - x_target + x)^p."""
    rows, targets = _rows(self, target)
    gap, hit, class_weight = _margins(rows, targets, margin, weight)
    loss = gap if p == 1 else gap * gap
    if class_weight is not None:
        loss = loss * class_weight
    counts = aten.logical_and.default(aten.gt.Scalar(gap, 0), aten.logical_not.default(hit))
    loss = aten.where.self(counts, loss, _constant(loss, 0))  # NaN does not count
    per_row = aten.sum.dim_IntList(loss, [1]) / rows.shape[1]
    if reduction == _NONE and target.dim() == 0:
        per_row = aten.squeeze.dims(per_row, [0])
    return _reduced(per_row, reduction, self.dtype)


def _rows(self: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The operand as (N, C) in its computation dtype and the targets as (N, 1)."""
    wide = cast(self, computation_dtype(self.dtype))
    if wide.dim() == 0:
        wide = aten.unsqueeze.default(wide, 0)
    if wide.dim() == 1:
        wide = aten.unsqueeze.default(wide, 0)
    flat = aten.unsqueeze.default(target, 0) if target.dim() == 0 else target
    return wide, aten.unsqueeze.default(flat, 1)


def _margins(
    rows: Tensor, targets: Tensor, margin: float, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """margin - x_target + x, where x is the target's, and each row's class weight."""
    gap = (margin - aten.gather.default(rows, 1, targets)) + rows
    classes = aten.arange.start_step(0, rows.shape[1], 1, dtype=torch.int64, device=rows.device)
    hit = aten.eq.Tensor(aten.unsqueeze.default(classes, 0), targets)
    class_weight = (
        None if weight is None else aten.index.Tensor(cast(weight, rows.dtype), [targets])
    )
    return gap, hit, class_weight


@decomposes(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Gradient of `multi_margin_loss`."""
    rows, targets = _rows(self, target)
    gap, hit, class_weight = _margins(rows, targets, margin, weight)
    slope = _constant(gap, 1.0) if p == 1 else gap * 2
    scale = aten.where.self(aten.gt.Scalar(gap, 0), slope, _constant(gap, 0)) / rows.shape[1]
    if class_weight is not None:
        scale = scale * class_weight
    scale = aten.where.self(hit, _constant(gap, 0), scale)
    target_slope = 0 - aten.sum.dim_IntList(scale, [1], True)
    grad = cast(grad_output, rows.dtype)
    if reduction == _MEAN:
        grad = grad / rows.shape[0]
    elif reduction == _NONE and grad.dim() == 1:
        grad = aten.unsqueeze.default(grad, 1)
    out = aten.where.self(hit, target_slope, scale) * grad
    return cast(aten.view.default(out, list(self.shape)), self.dtype)


@decomposes(aten.log_sigmoid.default)
@elementwise()
def log_sigmoid(self: Tensor) -> Tensor:
    """log(sigmoid(x))."""
    return aten.minimum.default(self, _constant(self, 0)) - aten.log1p.default(
        aten.exp.default(-aten.abs.default(self))
    )


def _label_mask(rows: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Targets as (N, C, 1) positions, which of them count (those before the first -1), and which classes they name."""
    labels = aten.view.default(contiguous(target), [1, -1]) if target.dim() < 2 else target
    negative = cast(aten.lt.Scalar(labels, 0), torch.int64)
    counted = aten.eq.Scalar(aten.cumsum.default(negative, 1), 0)
    safe = aten.where.self(counted, labels, _constant(labels, 0))
    classes = aten.arange.start_step(0, rows.shape[1], 1, dtype=torch.int64, device=rows.device)
    named = aten.logical_and.default(
        aten.eq.Tensor(aten.unsqueeze.default(safe, 2), classes), aten.unsqueeze.default(counted, 2)
    )
    return safe, counted, aten.any.dims(named, [1])


def _label_margins(rows: Tensor, safe: Tensor, counted: Tensor, is_target: Tensor) -> Tensor:
    """1 - x_target + x for every counted target and every class that isn't one, zero elsewhere: (N, T, C)."""
    reached = aten.gather.default(rows, 1, safe)
    gap = (1 - aten.unsqueeze.default(reached, 2)) + aten.unsqueeze.default(rows, 1)
    used = aten.logical_and.default(
        aten.unsqueeze.default(counted, 2),
        aten.unsqueeze.default(aten.logical_not.default(is_target), 1),
    )
    return aten.where.self(used, gap, _constant(gap, 0))


def _label_rows(self: Tensor) -> Tensor:
    wide = cast(self, computation_dtype(self.dtype))
    return aten.view.default(contiguous(wide), [1, -1]) if wide.dim() < 2 else wide


@decomposes(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(
    self: Tensor, target: Tensor, reduction: int
) -> tuple[Tensor, Tensor]:
    """Hinge losses between every target class and every other one; also which classes are targets."""
    if target.shape != self.shape:
        raise RuntimeError(
            f"inconsistent target size: {list(target.shape)} for input of size: {list(self.shape)}"
        )
    if self.dim() > 2 or self.numel() == 0:
        return NotImplemented  # eager leaves the result unwritten, or refuses
    rows = _label_rows(self)
    safe, counted, is_target = _label_mask(rows, target)
    hinge = aten.clamp.default(_label_margins(rows, safe, counted, is_target), 0, None)
    per_row = aten.sum.dim_IntList(hinge, [1, 2]) / rows.shape[1]
    if reduction == _NONE and self.dim() < 2:
        per_row = aten.squeeze.dims(per_row, [0])
    flags = aten.view.default(cast(is_target, self.dtype), list(target.shape))
    return _reduced(per_row, reduction, self.dtype), flags


@decomposes(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    reduction: int,
    is_target: Tensor,  # noqa: ARG001  recomputed from the targets
) -> Tensor:
    """Gradient of `multilabel_margin_loss_forward`."""
    if self.dim() > 2 or self.numel() == 0:
        return NotImplemented
    rows = _label_rows(self)
    safe, counted, named = _label_mask(rows, target)
    gap = _label_margins(rows, safe, counted, named)
    active = cast(aten.gt.Scalar(gap, 0), rows.dtype) / rows.shape[1]
    others = aten.sum.dim_IntList(active, [1])
    targets = aten.sum.dim_IntList(active, [2])
    out = aten.scatter_add.default(others, 1, safe, -targets)
    grad = cast(grad_output, rows.dtype)
    if reduction == _MEAN:
        grad = grad / rows.shape[0]
    elif reduction == _NONE and grad.dim() == 1:
        grad = aten.unsqueeze.default(grad, 1)
    return cast(aten.view.default(out * grad, list(self.shape)), self.dtype)
