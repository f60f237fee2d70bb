"""Bags of embeddings, and losses of sequences of varying length.

What eager returns beside the result, for its backward, is returned here too, laid out as the CPU's kernels do.
Offsets and lengths that eager refuses by value are refused where there is data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.reading import integers, number
from primtorch.promotion import cast, computation_dtype, promote_dtypes
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

_SUM, _MEAN, _MAX = range(3)


def _zero(like: Tensor) -> Tensor:
    return aten.full.default([], 0, dtype=like.dtype, device=like.device)


def _bags(indices: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each index: the last one that starts at it or before."""
    place = aten.arange.start_step(
        0, indices.shape[0], 1, dtype=offsets.dtype, device=offsets.device
    )
    found = aten.searchsorted.Tensor(
        offsets, place, out_int32=offsets.dtype is torch.int32, right=True
    )
    return found - 1


def _check_offsets(indices: Tensor, offsets: Tensor) -> None:
    first = number(aten.select.int(offsets, 0, 0)) if offsets.shape[0] else 0
    last = number(aten.select.int(offsets, 0, offsets.shape[0] - 1)) if offsets.shape[0] else 0
    if first is not None and first != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
            f"However, got {first}"
        )
    if last is not None and last > indices.shape[0]:
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length({indices.shape[0]}) but got offsets[-1] of {last}"
        )


def _check_bag_arguments(
    weight: Tensor, indices: Tensor, offsets: Tensor, mode: int, per_sample_weights: Tensor | None
) -> None:
    for name, tensor in (("indices", indices), ("offsets", offsets)):
        if tensor.dtype not in (torch.int32, torch.int64):
            raise RuntimeError(
                f"Expected tensor for argument '{name}' to have one of the following scalar types: Long, Int; but "
                f"got {tensor.dtype} instead"
            )
        if tensor.dim() != 1:
            raise RuntimeError(
                f"{name} has to be a 1D Tensor, but got Tensor of dimension {tensor.dim()}"
            )
    if weight.dim() != 2:
        raise RuntimeError(
            f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}"
        )
    if per_sample_weights is None:
        return
    if mode != _SUM:
        raise RuntimeError("embedding_bag: per_sample_weights was not None and mode isn't 'sum'")
    if per_sample_weights.dtype is not weight.dtype:
        raise RuntimeError(
            f"expected per_sample_weights of dtype {weight.dtype}, but got {per_sample_weights.dtype}"
        )
    if per_sample_weights.shape != indices.shape:
        raise RuntimeError(
            "expected per_sample_weights to be 1-D of the same length as indices, but got "
            f"{list(per_sample_weights.shape)} for {list(indices.shape)}"
        )


def _sums_in_one_kernel(
    weight: Tensor, per_sample_weights: Tensor | None, mode: int, padding_idx: int
) -> bool:
    """Whether eager's fast kernel runs, which keeps no map of bags."""
    fast = weight.dtype in (torch.float32, torch.bfloat16, torch.float16) and weight.stride(1) == 1
    if per_sample_weights is not None:
        fast = fast and per_sample_weights.stride(0) == 1
    return fast and mode == _SUM and padding_idx < 0


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,  # noqa: ARG001  concerns the gradient
    mode: int = _SUM,
    sparse: bool = False,  # noqa: ARG001  concerns the gradient
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of `weight` summed, averaged or maximized by bag; each index's bag, the bags' sizes, the rows of maxima."""
    if weight.device.type != "cpu":
        return NotImplemented  # what other devices return beside the result has other shapes
    _check_bag_arguments(weight, indices, offsets, mode, per_sample_weights)
    kind = promote_dtypes(indices.dtype, offsets.dtype)
    indices, offsets = cast(indices, kind), cast(offsets, kind)
    _check_offsets(indices, offsets)
    count = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    if count < 0:
        raise RuntimeError("include_last_offset: number of offset should be at least 1")
    if count == 0:
        unmapped = _sums_in_one_kernel(weight, per_sample_weights, mode, padding_idx)
        return _no_bags(weight, indices, mode, 0 if unmapped else indices.shape[0])
    starts = aten.slice.Tensor(offsets, 0, 0, count)
    bag = _bags(indices, starts)
    inside = aten.logical_and.default(
        aten.ge.Scalar(indices, 0), aten.lt.Scalar(indices, weight.shape[0])
    )
    indices = torch.ops.primtorch.checked.default(
        indices, inside, "an index of input is not in the valid range of rows"
    )
    rows = cast(aten.index_select.default(weight, 0, indices), computation_dtype(weight.dtype))
    used = None if padding_idx < 0 else aten.ne.Scalar(indices, padding_idx)
    if per_sample_weights is not None:
        rows = rows * aten.unsqueeze.default(cast(per_sample_weights, rows.dtype), 1)
    zeros = aten.full.default([count], 0, dtype=kind, device=weight.device)
    if used is None:
        ones = aten.full.default([indices.shape[0]], 1, dtype=kind, device=weight.device)
    else:
        ones = cast(used, kind)
    size = aten.index_put.default(zeros, [bag], ones, True)
    if mode == _MAX:
        out, largest = _largest_rows(rows, indices, bag, used, size, count)
        return cast(out, weight.dtype), bag, size, largest
    if used is not None:
        rows = aten.where.self(aten.unsqueeze.default(used, 1), rows, _zero(rows))
    blank = aten.full.default([count, weight.shape[1]], 0, dtype=rows.dtype, device=weight.device)
    out = aten.index_put.default(blank, [bag], rows, True)
    if mode == _MEAN:
        divisor = aten.clamp.default(size, 1, None)
        out = out / aten.unsqueeze.default(cast(divisor, out.dtype), 1)
        return cast(out, weight.dtype), bag, size, aten.clone.default(size)
    if _sums_in_one_kernel(weight, per_sample_weights, mode, padding_idx):
        bag = aten.full.default([0], 0, dtype=kind, device=weight.device)
    return cast(out, weight.dtype), bag, zeros, aten.clone.default(zeros)


def _no_bags(
    weight: Tensor, indices: Tensor, mode: int, mapped: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What eager returns for no offsets at all; `mapped` indices are said to lie in bag -1."""
    none = aten.full.default([0], 0, dtype=indices.dtype, device=weight.device)
    out = aten.full.default([0, weight.shape[1]], 0, dtype=weight.dtype, device=weight.device)
    largest = aten.full_like.default(out, 0, dtype=indices.dtype) if mode == _MAX else none
    bag = aten.full.default([mapped], -1, dtype=indices.dtype, device=weight.device)
    return out, bag, none, aten.clone.default(largest)


def _largest_rows(
    rows: Tensor, indices: Tensor, bag: Tensor, used: Tensor | None, size: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The greatest of each bag by column, and which row of the weight it is the first of; zeros for an empty bag."""
    total, width = rows.shape
    device = rows.device
    low = aten.full.default([], -math.inf, dtype=rows.dtype, device=device)
    if used is not None:
        rows = aten.where.self(aten.unsqueeze.default(used, 1), rows, low)
    index = aten.expand.default(aten.unsqueeze.default(cast(bag, torch.int64), 1), [total, width])
    lowest = aten.full.default([count, width], -math.inf, dtype=rows.dtype, device=device)
    best = aten.scatter_reduce.two(lowest, 0, index, rows, "amax", include_self=True)
    hit = aten.eq.Tensor(rows, aten.index_select.default(best, 0, cast(bag, torch.int64)))
    if used is not None:
        hit = aten.logical_and.default(hit, aten.unsqueeze.default(used, 1))
    place = aten.arange.start_step(0, total, 1, dtype=torch.int64, device=device)
    none = aten.full.default([], total, dtype=torch.int64, device=device)
    place = aten.where.self(hit, aten.unsqueeze.default(place, 1), none)
    last = aten.full.default([count, width], total, dtype=torch.int64, device=device)
    first = aten.scatter_reduce.two(last, 0, index, place, "amin", include_self=True)
    padded = aten.constant_pad_nd.default(indices, [0, 1], 0)  # an empty bag names row 0
    largest = aten.index.Tensor(padded, [first])
    empty = aten.unsqueeze.default(aten.eq.Scalar(size, 0), 1)
    return aten.where.self(empty, _zero(best), best), largest


for _name in ("_embedding_bag", "_embedding_bag_forward_only"):
    decomposes(f"aten.{_name}.default")(_embedding_bag)


@decomposes("aten._embedding_bag_backward.default")
def _embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of a bag's rows, summed by row of the weight."""
    if sparse or grad.device.type != "cpu":
        return NotImplemented
    kind = promote_dtypes(indices.dtype, offsets.dtype)
    indices, offsets = cast(indices, kind), cast(offsets, kind)
    if offset2bag.shape[0] != indices.shape[0]:
        # A last offset that only says where the last bag ends starts no bag.
        offset2bag = _bags(indices, aten.slice.Tensor(offsets, 0, 0, grad.shape[0]))
    return _embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
        mode, per_sample_weights, padding_idx,
    )  # fmt: skip


@decomposes("aten._embedding_bag_dense_backward.default")
def _embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The same as a dense tensor, the bag of each index given."""
    if grad.device.type != "cpu":
        return NotImplemented
    wide = cast(grad, computation_dtype(grad.dtype))
    width = grad.shape[1]
    zeros = aten.full.default([num_weights, width], 0, dtype=wide.dtype, device=grad.device)
    if mode == _MAX:
        filled = aten.unsqueeze.default(aten.ne.Scalar(bag_size, 0), 1)
        wide = aten.where.self(filled, wide, _zero(wide))
        rows = cast(maximum_indices, torch.int64)
        return cast(aten.scatter_add.default(zeros, 0, rows, wide), grad.dtype)
    scale = aten.full.default([indices.shape[0]], 1, dtype=wide.dtype, device=grad.device)
    if per_sample_weights is not None:
        scale = cast(per_sample_weights, wide.dtype)
    if scale_grad_by_freq:
        scale = scale / _frequencies(indices, num_weights, wide.dtype)
    if mode == _MEAN:
        sizes = aten.clamp.default(cast(bag_size, wide.dtype), 1, None)
        scale = scale / aten.index.Tensor(sizes, [offset2bag])
    if padding_idx >= 0:
        scale = aten.where.self(aten.eq.Scalar(indices, padding_idx), _zero(scale), scale)
    rows = aten.index.Tensor(wide, [offset2bag]) * aten.unsqueeze.default(scale, 1)
    return cast(aten.index_put.default(zeros, [indices], rows, True), grad.dtype)


def _frequencies(indices: Tensor, num_weights: int, dtype: torch.dtype) -> Tensor:
    """By how much eager's kernel scales each index down.

    It counts the indices, then reads for the n-th distinct one the count of the n-th sorted one.
    """
    zeros = aten.full.default([num_weights], 0, dtype=dtype, device=indices.device)
    ones = aten.full.default([indices.shape[0]], 1, dtype=dtype, device=indices.device)
    counts = aten.index_put.default(zeros, [indices], ones, True)
    ordered, order = aten.sort.stable(indices, stable=True)
    before = aten.slice.Tensor(ordered, 0, 0, -1)
    changes = aten.ne.Tensor(aten.slice.Tensor(ordered, 0, 1), before)
    rank = aten.cumsum.default(
        aten.constant_pad_nd.default(cast(changes, torch.int64), [1, 0], 0), 0
    )
    read = aten.index.Tensor(counts, [aten.index.Tensor(ordered, [rank])])
    return aten.scatter.src(ones, 0, order, read)


@decomposes("aten._embedding_bag_per_sample_weights_backward.default")
def _embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """The product of each index's row with its bag's gradient."""
    if grad.device.type != "cpu":
        return NotImplemented
    if mode != _SUM:
        raise RuntimeError(
            "embedding_bag_backward: per_sample_weights only supported for mode='sum'"
        )
    kind = promote_dtypes(indices.dtype, offsets.dtype)
    indices, offsets = cast(indices, kind), cast(offsets, kind)
    if offset2bag.shape[0] != indices.shape[0]:
        offset2bag = _bags(indices, aten.slice.Tensor(offsets, 0, 0, grad.shape[0]))
    computation = computation_dtype(grad.dtype)
    rows = cast(aten.index_select.default(weight, 0, indices), computation)
    grads = cast(aten.index.Tensor(grad, [offset2bag]), computation)
    out = aten.sum.dim_IntList(rows * grads, [1])
    if padding_idx >= 0:
        out = aten.where.self(aten.eq.Scalar(indices, padding_idx), _zero(out), out)
    return cast(out, grad.dtype)


# The loss of connectionist temporal classification


def _vector(values: Sequence[int], like: Tensor) -> Tensor:
    """Numbers as a vector of int64."""
    single = [
        aten.full.default([1], value, dtype=torch.int64, device=like.device) for value in values
    ]
    return aten.cat.default(single)


def _labels(
    log_probs: Tensor, targets: Tensor, target_lengths: Sequence[int], blank: int
) -> Tensor:
    """Each target with blanks around and between its labels, (batch, 2 * longest + 1)."""
    batch = log_probs.shape[1]
    longest = max(target_lengths, default=0)
    place = aten.arange.start_step(0, longest, 1, dtype=torch.int64, device=log_probs.device)
    lengths = aten.unsqueeze.default(_vector(target_lengths, log_probs), 1)
    within = aten.lt.Tensor(place, lengths)
    nothing = aten.full.default([], blank, dtype=torch.int64, device=log_probs.device)
    if longest == 0:
        return aten.full.default([batch, 1], blank, dtype=torch.int64, device=log_probs.device)
    if targets.dim() == 1:
        starts = aten.cumsum.default(lengths, 0) - lengths
        flat = aten.where.self(within, starts + place, _zero(starts))
        names = cast(aten.index.Tensor(targets, [flat]), torch.int64)
    else:
        names = cast(aten.slice.Tensor(targets, 1, 0, longest), torch.int64)
    names = aten.where.self(within, names, nothing)
    blanks = aten.full.default([batch, longest], blank, dtype=torch.int64, device=log_probs.device)
    pairs = aten.stack.default([blanks, names], 2)
    flat_pairs = aten.view.default(pairs, [batch, 2 * longest])
    return aten.constant_pad_nd.default(flat_pairs, [0, 1], blank)


def _check_lengths(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int,
) -> None:
    time, batch, classes = log_probs.shape
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    if len(input_lengths) != batch:
        raise RuntimeError(f"input_lengths must be of size batch_size {batch}")
    if len(target_lengths) != batch:
        raise RuntimeError(f"target_lengths must be of size batch_size {batch}")
    if batch == 0:
        raise RuntimeError("ctc_loss: batch_size must be nonzero")
    for length in input_lengths:
        if not 0 <= length <= time:
            raise RuntimeError(
                f"Expected input_lengths to have value at most {time} and at least 0, but got value {length}"
            )
    if any(length < 0 for length in target_lengths):
        raise RuntimeError("Expected target_lengths to have value at least 0")
    if targets.dim() == 1 and targets.shape[0] != sum(target_lengths):
        raise RuntimeError(
            f"Expected target_lengths to sum to {targets.shape[0]}, but they sum to {sum(target_lengths)}"
        )
    if targets.dim() == 2 and (targets.shape[0] != batch or max(target_lengths) > targets.shape[1]):
        raise RuntimeError(
            f"Expected targets of at least {[batch, max(target_lengths)]}, but got {list(targets.shape)}"
        )


def _added(terms: Sequence[Tensor]) -> Tensor:
    """The logarithm of the sum of the exponentials of tensors; minus infinity where all are."""
    stacked = aten.stack.default(list(terms))
    peak = aten.amax.default(stacked, [0])
    hopeless = aten.eq.Scalar(peak, -math.inf)
    peak = aten.where.self(hopeless, _zero(peak), peak)
    total = aten.sum.dim_IntList(aten.exp.default(stacked - peak), [0])
    return aten.log.default(total) + peak


def _moved(row: Tensor, by: int) -> Tensor:
    """The row shifted along its last dimension, minus infinity coming in."""
    return aten.constant_pad_nd.default(row, [by, -by], -math.inf)


def _skips(labels: Tensor, blank: int) -> Tensor:
    """Where a path may skip the blank before a label: it differs from the label before that."""
    before = aten.constant_pad_nd.default(labels, [2, -2], blank)
    return aten.ne.Tensor(labels, before)


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,  # noqa: ARG001  concerns the gradient
) -> tuple[Tensor, Tensor]:
    """The negative log-likelihood of each target, and the forward variables (batch, time, labels)."""
    if log_probs.dim() != 3 or log_probs.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    _check_lengths(log_probs, targets, input_lengths, target_lengths, blank)
    time, batch, _ = log_probs.shape
    labels = _labels(log_probs, targets, target_lengths, blank)
    count = labels.shape[1]
    position = aten.arange.start_step(0, count, 1, dtype=torch.int64, device=log_probs.device)
    lengths = aten.unsqueeze.default(_vector(target_lengths, log_probs), 1)
    reached = aten.le.Tensor(position, lengths * 2)
    low = aten.full.default([], -math.inf, dtype=log_probs.dtype, device=log_probs.device)
    index = aten.expand.default(aten.unsqueeze.default(labels, 0), [time, batch, count])
    read = aten.where.self(reached, aten.gather.default(log_probs, 2, index), low)
    may_skip = _skips(labels, blank)
    first = aten.le.Scalar(position, 1)
    alpha = aten.where.self(first, aten.select.int(read, 0, 0), low) if time else None
    steps = [] if alpha is None else [alpha]
    for moment in range(1, time):
        previous = steps[-1]
        skipped = aten.where.self(may_skip, _moved(previous, 2), low)
        merged = _added([previous, _moved(previous, 1), skipped])
        steps.append(merged + aten.select.int(read, 0, moment))
    log_alpha = (
        aten.stack.default(steps, 1)
        if steps
        else aten.full.default([batch, 0, count], 0, dtype=low.dtype, device=low.device)
    )
    return _likelihood(log_alpha, input_lengths, lengths, low), log_alpha


def _likelihood(
    log_alpha: Tensor, input_lengths: Sequence[int], lengths: Tensor, low: Tensor
) -> Tensor:
    """Minus the logarithm of the two ways to end, at each sequence's last moment."""
    inputs = _vector(input_lengths, log_alpha)
    nothing_read = aten.eq.Scalar(inputs, 0)
    nothing_said = aten.squeeze.dims(aten.eq.Scalar(lengths, 0), [1])
    zero = _zero(log_alpha)
    without_input = aten.where.self(nothing_said, zero, -low)
    if log_alpha.shape[1] == 0:
        return without_input
    rows = aten.arange.start_step(0, inputs.shape[0], 1, dtype=torch.int64, device=inputs.device)
    last = aten.index.Tensor(log_alpha, [rows, aten.clamp.default(inputs - 1, 0, None)])
    at_blank = aten.squeeze.dims(aten.gather.default(last, 1, lengths * 2), [1])
    label = aten.clamp.default(lengths * 2 - 1, 0, None)
    at_label = aten.squeeze.dims(aten.gather.default(last, 1, label), [1])
    at_label = aten.where.self(nothing_said, low, at_label)
    found = -_added([at_blank, at_label])
    return aten.where.self(nothing_read, without_input, found)


decomposes("aten._ctc_loss.default")(_ctc_loss)


@decomposes("aten._ctc_loss.Tensor")
def _ctc_loss_tensor(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The same, the lengths in tensors; declined without their data, which the shapes depend on."""
    inputs, lengths = _read_lengths(input_lengths, target_lengths)
    if inputs is None or lengths is None:
        return NotImplemented
    return _ctc_loss(log_probs, targets, inputs, lengths, blank, zero_infinity)


def _read_lengths(
    input_lengths: Tensor, target_lengths: Tensor
) -> tuple[list[int] | None, list[int] | None]:
    for tensor in (input_lengths, target_lengths):
        if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != 1:
            return None, None
    return integers(input_lengths), integers(target_lengths)


def _ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """Gradient of the loss for the log-probabilities, from forward and backward variables."""
    time, batch, _ = log_probs.shape
    labels = _labels(log_probs, targets, target_lengths, blank)
    count = labels.shape[1]
    device = log_probs.device
    position = aten.arange.start_step(0, count, 1, dtype=torch.int64, device=device)
    lengths = aten.unsqueeze.default(_vector(target_lengths, log_probs), 1)
    inputs = _vector(input_lengths, log_probs)
    reached = aten.le.Tensor(position, lengths * 2)
    low = aten.full.default([], -math.inf, dtype=log_probs.dtype, device=device)
    index = aten.expand.default(aten.unsqueeze.default(labels, 0), [time, batch, count])
    read = aten.where.self(reached, aten.gather.default(log_probs, 2, index), low)
    ends = aten.logical_and.default(aten.ge.Tensor(position, lengths * 2 - 1), reached)
    # A path skips from two labels on; the first two columns that come in are out of reach anyhow.
    may_skip = aten.constant_pad_nd.default(_skips(labels, blank), [-2, 2], False)
    beta = aten.full.default([batch, count], -math.inf, dtype=log_probs.dtype, device=device)
    joint = []
    for moment in range(time - 1, -1, -1):
        skipped = aten.where.self(may_skip, _moved(beta, -2), low)
        going = _added([beta, _moved(beta, -1), skipped])
        is_last = aten.unsqueeze.default(aten.eq.Scalar(inputs, moment + 1), 1)
        here = aten.select.int(read, 0, moment)
        start = aten.where.self(ends, here, low)
        beta = aten.where.self(is_last, start, going + here)
        active = aten.unsqueeze.default(aten.gt.Scalar(inputs, moment), 1)
        both = aten.select.int(log_alpha, 1, moment) + beta
        joint.append(aten.where.self(aten.logical_and.default(active, reached), both, low))
    return _ctc_gradient(
        grad, log_probs, labels, inputs, neg_log_likelihood, joint[::-1], zero_infinity
    )


def _ctc_gradient(
    grad: Tensor,
    log_probs: Tensor,
    labels: Tensor,
    inputs: Tensor,
    neg_log_likelihood: Tensor,
    joint: Sequence[Tensor],
    zero_infinity: bool,
) -> Tensor:
    """exp(log_probs) less the share of the paths through each class, for the moments of each sequence."""
    time, batch, classes = log_probs.shape
    low = aten.full.default([], -math.inf, dtype=log_probs.dtype, device=log_probs.device)
    zero = _zero(log_probs)
    paths = aten.stack.default(list(joint))
    index = aten.expand.default(aten.unsqueeze.default(labels, 0), list(paths.shape))
    base = aten.full.default(
        [time, batch, classes], -math.inf, dtype=log_probs.dtype, device=log_probs.device
    )
    peak = aten.scatter_reduce.two(base, 2, index, paths, "amax", include_self=True)
    finite = aten.where.self(aten.eq.Scalar(peak, -math.inf), zero, peak)
    parts = aten.exp.default(paths - aten.gather.default(finite, 2, index))
    total = aten.scatter_add.default(aten.full_like.default(base, 0), 2, index, parts)
    through = aten.log.default(total) + finite
    through = aten.where.self(aten.eq.Scalar(total, 0), low, through)
    nll = aten.unsqueeze.default(neg_log_likelihood, 1)
    share = aten.exp.default(through + nll - log_probs)
    out = (aten.exp.default(log_probs) - share) * aten.unsqueeze.default(grad, 1)
    moment = aten.arange.start_step(0, time, 1, dtype=torch.int64, device=log_probs.device)
    kept = aten.lt.Tensor(aten.unsqueeze.default(moment, 1), inputs)
    if zero_infinity:
        kept = aten.logical_and.default(kept, aten.ne.Scalar(neg_log_likelihood, math.inf))
    return aten.where.self(aten.unsqueeze.default(kept, 2), out, zero)


decomposes("aten._ctc_loss_backward.default")(_ctc_loss_backward)


@decomposes("aten._ctc_loss_backward.Tensor")
def _ctc_loss_backward_tensor(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """The same, the lengths in tensors; declined without their data."""
    inputs, lengths = _read_lengths(input_lengths, target_lengths)
    if inputs is None or lengths is None:
        return NotImplemented
    return _ctc_loss_backward(
        grad, log_probs, targets, inputs, lengths, neg_log_likelihood, log_alpha, blank,
        zero_infinity,
    )  # fmt: skip
