"""Gather and scatter in their many forms, in terms of index, index_put, gather and scatter.

Negative indices count from the end where eager lets them; an index out of bounds raises where the prim does. Where an
index repeats, accumulating forms add up and the others keep one of the values, as eager.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.padding import in_format_of
from primtorch.decompositions.views import contiguous, reshaped, wrapped
from primtorch.promotion import (
    Number,
    cast,
    computation_dtype,
)
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def _constant(like: Tensor, value: Number) -> Tensor:
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


def _along(index: Tensor, dim: int) -> list[Tensor | None]:
    """Indices for `index_put` that select by `index` along `dim`."""
    return [None] * dim + [index]


@decomposes(aten.embedding.default)
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,  # noqa: ARG001  concerns the gradient only
    scale_grad_by_freq: bool = False,  # noqa: ARG001
    sparse: bool = False,  # noqa: ARG001
) -> Tensor:
    """The rows of `weight` that `indices` name."""
    if weight.dim() != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices.dim() == 1:
        return aten.index_select.default(weight, 0, indices)
    rows = aten.index_select.default(weight, 0, reshaped(indices, [-1]))
    return aten.view.default(rows, [*indices.shape, weight.shape[1]])


@decomposes(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    """The gradient summed into the rows that were read; none into the padding row."""
    computation = computation_dtype(grad_output.dtype)
    grad = cast(grad_output, computation)
    positions = cast(indices, torch.int64)
    if scale_grad_by_freq:
        counts = aten.full.default([num_weights], 0, dtype=computation, device=grad.device)
        ones = aten.full.default(list(positions.shape), 1, dtype=computation, device=grad.device)
        counts = aten.index_put.default(counts, [positions], ones, True)
        grad = grad / aten.unsqueeze.default(aten.index.Tensor(counts, [positions]), -1)
    if padding_idx >= 0:
        padding = aten.unsqueeze.default(aten.eq.Scalar(positions, padding_idx), -1)
        grad = aten.where.self(padding, _constant(grad, 0), grad)
    zeros = aten.full.default(
        [num_weights, grad.shape[-1]], 0, dtype=computation, device=grad.device
    )
    return cast(aten.index_put.default(zeros, [positions], grad, True), grad_output.dtype)


@decomposes("aten._unsafe_index.Tensor")
def _unsafe_index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """`index` by indices known to be in bounds."""
    return aten.index.Tensor(self, indices)


@decomposes("aten._unsafe_index_put.default")
def _unsafe_index_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """`index_put` by indices known to be in bounds."""
    return aten.index_put.default(self, indices, values, accumulate)


@decomposes("aten._unsafe_masked_index.default")
def _unsafe_masked_index(
    self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Number
) -> Tensor:
    """`index` where the mask holds, `fill` elsewhere; indices outside are never read there."""
    if (
        any(i is not None and i.dtype is torch.bool for i in indices)
        or mask.dtype is not torch.bool
    ):
        raise RuntimeError("tensors used as masks must be bool tensors")
    read = aten.index.Tensor(self, _clamped(self, indices))
    return aten.where.self(
        mask, read, aten.full.default([], fill, dtype=self.dtype, device=self.device)
    )


def _clamped(self: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [
        None if index is None else aten.clamp.default(index, -self.shape[dim], self.shape[dim] - 1)
        for dim, index in enumerate(indices)
    ]


@decomposes("aten._unsafe_masked_index_put_accumulate.default")
def _unsafe_masked_index_put_accumulate(
    self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    """Values added where the mask holds."""
    masked = aten.where.self(mask, values, _constant(values, 0))
    return aten.index_put.default(self, _clamped(self, indices), masked, True)


@decomposes(aten.index_add.default)
def index_add(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1
) -> Tensor:
    """`alpha * source` added to the slices along `dim` that `index` names."""
    _check_index(index, source, "index_add_()", dim, self)
    if self.dim() and source.dim():
        position = wrapped(dim, self.dim())
        if _without(self.shape, position) != _without(source.shape, position):
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified dimension. "
                f"Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}"
            )
    scaled = source if alpha == 1 else source * alpha
    return _put_slices(self, dim, index, scaled, accumulate=True)


def _without(shape: Sequence[int], position: int) -> list[int]:
    """The sizes but one."""
    return [*shape[:position], *shape[position + 1 :]]


def _check_index(index: Tensor, source: Tensor, name: str, dim: int, self: Tensor) -> None:
    if index.dim() > 1:
        raise IndexError(
            f"{name}: Index is supposed to be a vector, but got dim: {index.dim()} with type: "
            f"{index.dtype} and size: {list(index.shape)}"
        )
    if index.dtype not in (torch.int32, torch.int64):
        raise IndexError(f"{name}: Expected dtype int32/int64 for index but got: {index.dtype}")
    if self.dtype is not source.dtype:
        raise RuntimeError(
            f"{name}: self and source expected to have the same dtype, but got (self) {self.dtype} "
            f"and (source) {source.dtype}"
        )
    wrapped(dim, self.dim())


def _put_slices(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, accumulate: bool
) -> Tensor:
    """`source` written or added along `dim`; a 0-d operand is treated as a vector of one."""
    flat_index = aten.unsqueeze.default(index, 0) if index.dim() == 0 else index
    if self.dim() == 0:
        values = reshaped(source, [-1])
        out = aten.index_put.default(reshaped(self, [1]), [flat_index], values, accumulate)
        return aten.squeeze.dims(out, [0])
    dim = wrapped(dim, self.dim())
    if source.dim() == 0 and self.dim() == 1:
        source = aten.unsqueeze.default(source, 0)
    return aten.index_put.default(self, _along(flat_index, dim), source, accumulate)


@decomposes(aten.index_copy.default)
def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`source` written to the slices along `dim` that `index` names."""
    if self.dim() and source.dim() and self.dim() != source.dim():
        raise IndexError(
            "index_copy_(): When source and destination are not scalars, their dimensionality must match. "
            f"Source dimensionality ({source.dim()}), destination dimensionality ({self.dim()})"
        )
    if index.dtype is not torch.int64:
        raise IndexError(f"index_copy_(): Expected a long tensor for index, but got {index.dtype}")
    if self.dtype is not source.dtype:
        raise RuntimeError(
            "index_copy_(): self and source expected to have the same dtype, but got (self) "
            f"{self.dtype} and (source) {source.dtype}"
        )
    return _put_slices(self, dim, index, source, accumulate=False)


@decomposes(aten.index_fill.int_Scalar)
def index_fill(self: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    """A number written to the slices along `dim` that `index` names."""
    if index.dtype is not torch.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if index.dim() > 1:
        raise IndexError("Index has to be a vector/scalar")
    if isinstance(value, complex) and not self.dtype.is_complex:
        raise RuntimeError(
            "index_fill_(): Converting complex Scalar to non-complex type is not supported"
        )
    if self.numel() == 0:  # eager doesn't look at the index
        return aten.clone.default(self)
    return _put_slices(self, dim, index, _constant(self, value), accumulate=False)


@decomposes(aten.index_fill.int_Tensor)
def index_fill_tensor(self: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """A 0-d tensor's value written to the slices along `dim` that `index` names."""
    if value.dim():
        raise RuntimeError(
            f"Only supports 0-dimension value tensor, but got tensor with {value.dim()} dimension(s)"
        )
    if index.dtype is not torch.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if index.dim() > 1:
        raise IndexError("Index has to be a vector/scalar")
    if self.numel() == 0:
        return aten.clone.default(self)
    return _put_slices(self, dim, index, cast(value, self.dtype), accumulate=False)


@decomposes(aten.take.default)
def take(self: Tensor, index: Tensor) -> Tensor:
    """The elements that `index` names in the flattened tensor."""
    if index.dtype is not torch.int64:
        raise RuntimeError("take(): Expected a long tensor for index, but got " + str(index.dtype))
    return aten.index.Tensor(reshaped(self, [-1]), [index])


@decomposes(aten.put.default)
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`source` written or added at the positions that `index` names in the flattened tensor."""
    if index.dtype is not torch.int64:
        raise RuntimeError("put_(): Expected a long tensor for index, but got " + str(index.dtype))
    if self.dtype is not source.dtype:
        raise RuntimeError(
            "put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{self.dtype} and source.dtype = {source.dtype}"
        )
    if index.numel() != source.numel():
        raise RuntimeError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    flat = aten.index_put.default(
        reshaped(self, [-1]), [reshaped(index, [-1])], reshaped(source, [-1]), accumulate
    )
    return aten.view.default(flat, list(self.shape))


@decomposes(aten.scatter.reduce)
def scatter_reduce_src(
    self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str
) -> Tensor:
    """`src` added or multiplied in."""
    if reduce == "add":
        return aten.scatter_add.default(self, dim, index, src)
    return aten.scatter_reduce.two(self, dim, index, src, _reduction(reduce))


def _reduction(reduce: str) -> str:
    if reduce not in ("add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")
    return {"add": "sum", "multiply": "prod"}[reduce]


@decomposes(aten.scatter.value_reduce)
def scatter_value_reduce(
    self: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str
) -> Tensor:
    """A number added or multiplied in."""
    source = aten.full.default(list(index.shape), value, dtype=self.dtype, device=self.device)
    return aten.scatter_reduce.two(self, dim, index, source, _reduction(reduce))


def in_range(index: Tensor, size: int) -> Tensor:
    """The same indices, read from the row of all of them: one out of bounds is an IndexError, as in eager."""
    numbers = aten.arange.start_step(0, size, 1, dtype=torch.int64, device=index.device)
    rows = aten.embedding.default(aten.unsqueeze.default(numbers, 1), index)
    return aten.squeeze.dims(rows, [-1])


@decomposes(aten.index_reduce.default)
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """The slices of `source` reduced into the slices along `dim` that `index` names."""
    names = {"prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}
    if reduce not in names:
        raise RuntimeError(
            f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}."
        )
    vector = self.dim() == 0
    target = reshaped(self, [1]) if vector else self
    values = reshaped(source, [-1]) if vector or source.dim() == 0 else source
    position = wrapped(dim, target.dim())
    shape = [1] * target.dim()
    shape[position] = -1
    if target.numel():
        index = in_range(index, target.shape[position])
    flat = aten.view.default(contiguous(index), shape)
    spread = aten.expand.default(flat, list(values.shape))
    out = aten.scatter_reduce.two(
        target,
        position,
        cast(spread, torch.int64),
        values,
        names[reduce],
        include_self=include_self,
    )
    return aten.squeeze.dims(out, [0]) if vector else out


@decomposes(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradient of the source of `masked_scatter`: the selected elements in order, zeros behind them."""
    shape = list(torch.broadcast_shapes(grad_output.shape, mask.shape))
    flat = reshaped(aten.expand.default(mask, shape), [-1])
    gradient = reshaped(aten.expand.default(grad_output, shape), [-1])
    length = math.prod(sizes)
    place = aten.cumsum.default(cast(flat, torch.int64), 0) - 1
    # What is not selected goes to one element behind the end.
    place = aten.where.self(
        flat, place, aten.full.default([], length, dtype=torch.int64, device=mask.device)
    )
    zeros = aten.full.default([length + 1], 0, dtype=grad_output.dtype, device=grad_output.device)
    filled = aten.scatter.src(zeros, 0, place, gradient)
    return aten.view.default(contiguous(aten.slice.Tensor(filled, 0, 0, length)), list(sizes))


@decomposes(aten.bucketize.Tensor)
def bucketize(
    self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The bucket of each element between sorted boundaries."""
    if boundaries.dim() != 1:
        raise RuntimeError(
            f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})"
        )
    return aten.searchsorted.Tensor(boundaries, self, out_int32=out_int32, right=right)


@decomposes("aten.isin.Tensor_Tensor")
def isin(
    elements: Tensor,
    test_elements: Tensor,
    *,
    assume_unique: bool = False,  # noqa: ARG001  a hint
    invert: bool = False,
) -> Tensor:
    """Whether each element is among the test elements."""
    if test_elements.numel() == 0:
        return aten.full_like.default(elements, invert, dtype=torch.bool)
    equal = aten.eq.Tensor(
        aten.unsqueeze.default(contiguous(elements), -1), reshaped(test_elements, [-1])
    )
    found = aten.any.dims(equal, [-1])
    return aten.logical_not.default(found) if invert else found


@decomposes("aten.isin.Tensor_Scalar")
def isin_scalar(
    elements: Tensor,
    test_element: Number,
    *,
    assume_unique: bool = False,  # noqa: ARG001  a hint
    invert: bool = False,
) -> Tensor:
    """Whether each element equals the number."""
    return (
        aten.ne.Scalar(elements, test_element) if invert else aten.eq.Scalar(elements, test_element)
    )


def _unpooled(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Each value written to its position in zeros, the last dimensions flattened."""
    rank = len(output_size)
    outer = list(self.shape[: self.dim() - rank])
    flat = math.prod(output_size)
    zeros = aten.full.default([*outer, flat], 0, dtype=self.dtype, device=self.device)
    index = reshaped(indices, [*outer, -1]) if self.numel() else reshaped(indices, [*outer, 0])
    source = reshaped(self, list(index.shape))
    out = aten.scatter.src(zeros, len(outer), index, source)
    return aten.view.default(out, [*outer, *output_size])


@decomposes(aten.max_unpool2d.default)
def max_unpool2d(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Values put back where pooling found them, zeros elsewhere."""
    _check_unpool(self, indices, output_size, 2)
    return in_format_of(_unpooled(self, indices, output_size), self)


@decomposes(aten.max_unpool3d.default)
def max_unpool3d(
    self: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],  # noqa: ARG001  part of the size that the caller computed
) -> Tensor:
    """Values put back where pooling found them, zeros elsewhere."""
    if any(step <= 0 for step in stride):
        raise RuntimeError(f"strides should be greater than zero, but got stride: {list(stride)}")
    _check_unpool(self, indices, output_size, 3)
    return _unpooled(self, indices, output_size)


def _check_unpool(self: Tensor, indices: Tensor, output_size: Sequence[int], rank: int) -> None:
    if indices.dtype is not torch.int64:
        raise RuntimeError(f"elements in indices should be type int64 but got: {indices.dtype}")
    if len(output_size) != rank:
        raise RuntimeError(
            f"There should be exactly {rank} elements in output_size, but got {len(output_size)} elements."
        )
    if self.dim() not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"Input to max_unpooling{rank}d should be a {rank + 1}d or {rank + 2}d Tensor, but got a "
            f"tensor with {self.dim()} dimensions."
        )
    if self.shape != indices.shape:
        raise RuntimeError(
            f"Expected shape of indices to be same as that of the input tensor ({list(self.shape)}) "
            f"but got indices tensor with shape: {list(indices.shape)}"
        )
