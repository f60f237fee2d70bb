"""Views and rearrangements: all of them in terms of the few view prims, concatenation and padding.

A decomposition of a view returns a view of the operand, through the prims, so aliasing is kept. `contiguous` is the
one place where a copy is made only if the operand isn't row-major.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.promotion import cast, result_dtype
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def contiguous(tensor: Tensor) -> Tensor:
    """`tensor` itself if it is row-major, else a row-major copy."""
    if tensor.is_contiguous():
        return tensor
    return aten.clone.default(tensor, memory_format=torch.contiguous_format)


def reshaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A view of `shape` over the row-major tensor or its copy."""
    return aten.view.default(contiguous(tensor), list(shape))


def wrapped(dim: int, rank: int) -> int:
    """`dim` counted from the front; a tensor without dimensions has the dimensions 0 and -1.

    Raises:
        IndexError: outside the rank, with eager's text.
    """
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got {dim})"
        )
    return dim % limit


@decomposes(aten.t.default)
def t(self: Tensor) -> Tensor:
    """Transpose of a matrix; vectors and scalars are themselves."""
    if self.dim() > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.dim()}D")
    return aten.permute.default(self, [1, 0]) if self.dim() == 2 else aten.alias.default(self)


@decomposes(aten.transpose.int)
def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged."""
    rank = self.dim()
    first, second = wrapped(dim0, rank), wrapped(dim1, rank)
    if first == second:
        return aten.alias.default(self)
    order = list(range(rank))
    order[first], order[second] = second, first
    return aten.permute.default(self, order)


@decomposes(aten.detach.default, aten.lift_fresh.default, "aten.lift.default")
def detach(self: Tensor) -> Tensor:
    """The same tensor, outside of differentiation."""
    return aten.alias.default(self)


@decomposes(aten._unsafe_view.default, aten._reshape_alias.default)
def _unsafe_view(self: Tensor, size: Sequence[int], stride: Sequence[int] | None = None) -> Tensor:
    """A view whose base nobody else sees."""
    if stride is not None:
        return aten.as_strided.default(self, size, stride)
    return aten.view.default(self, size)


@decomposes(aten.squeeze.default)
def squeeze(self: Tensor) -> Tensor:
    """All dimensions of size 1 dropped."""
    return aten.squeeze.dims(self, [d for d, size in enumerate(self.shape) if size == 1])


@decomposes(aten.squeeze.dim)
def squeeze_dim(self: Tensor, dim: int) -> Tensor:
    """One dimension dropped if its size is 1."""
    return aten.squeeze.dims(self, [dim])


@decomposes(aten.split.Tensor, "aten.unsafe_split.Tensor")
def split(self: Tensor, split_size: int, dim: int = 0) -> list[Tensor]:
    """Pieces of `split_size` along `dim`, the last possibly smaller."""
    if self.dim() == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    if split_size < 0:
        raise RuntimeError(
            f"split expects split_size be non-negative, but got split_size={split_size}"
        )
    dim = wrapped(dim, self.dim())
    size = self.shape[dim]
    if split_size == 0:
        if size != 0:
            raise RuntimeError(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
            )
        return [aten.slice.Tensor(self, dim, 0, 0)]
    pieces = max(-(-size // split_size), 1)
    starts = [piece * split_size for piece in range(int(pieces))]
    ends = [*starts[1:], size]
    return [
        aten.slice.Tensor(self, dim, start, end) for start, end in zip(starts, ends, strict=True)
    ]


@decomposes(aten.split_with_sizes.default, "aten.unsafe_split_with_sizes.default")
def split_with_sizes(self: Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    """Pieces of the given sizes along `dim`."""
    if self.dim() == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    dim = wrapped(dim, self.dim())
    if any(size < 0 for size in split_sizes):
        raise RuntimeError(
            "split_with_sizes expects split_sizes have only non-negative entries, but got "
            f"split_sizes={list(split_sizes)}"
        )
    if sum(split_sizes) != self.shape[dim]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {self.shape[dim]} "
            f"(input tensor's size at dimension {dim}), but got split_sizes={list(split_sizes)}"
        )
    pieces, start = [], 0
    for size in split_sizes:
        pieces.append(aten.slice.Tensor(self, dim, start, start + size))
        start = start + size
    return pieces


@decomposes(aten.unbind.int)
def unbind(self: Tensor, dim: int = 0) -> list[Tensor]:
    """The slices along `dim`, that dimension dropped."""
    if self.dim() == 0:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    dim = wrapped(dim, self.dim())
    return [aten.select.int(self, dim, index) for index in range(int(self.shape[dim]))]


@decomposes(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape, joined along a new dimension."""
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    shape = list(tensors[0].shape)
    for position, tensor in enumerate(tensors):
        if list(tensor.shape) != shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {shape} at entry 0 "
                f"and {list(tensor.shape)} at entry {position}"
            )
    dim = wrapped(dim, len(shape) + 1)
    if len(shape) in (4, 5) and dim < len(shape):
        # As eager: joined along the dimension that is there, then divided; channels-last stays so.
        joined = aten.cat.default(list(tensors), dim)
        return aten.view.default(joined, [*shape[:dim], len(tensors), *shape[dim:]])
    return aten.cat.default([aten.unsqueeze.default(tensor, dim) for tensor in tensors], dim)


@decomposes(aten.roll.default)
def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Elements moved along dimensions, those that fall off come back at the front."""
    if not shifts:
        raise RuntimeError("`shifts` required")
    if not dims and len(shifts) == 1:
        return aten.view.default(
            roll(reshaped(self, [self.numel()]), shifts, [0]), list(self.shape)
        )
    if len(shifts) != len(dims):
        raise RuntimeError(
            f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}"
        )
    out = self
    for shift, dim in zip(shifts, dims, strict=True):
        size = out.shape[wrapped(dim, out.dim())]
        if out.numel() == 0:
            continue
        start = (size - shift) % size
        if start:
            out = aten.cat.default(
                [aten.slice.Tensor(out, dim, start, size), aten.slice.Tensor(out, dim, 0, start)],
                dim,
            )
    return aten.clone.default(out, memory_format=torch.contiguous_format) if out is self else out


@decomposes(aten.rot90.default)
def rot90(self: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """A quarter turn `k` times in the plane of two dimensions."""
    rank = self.dim()
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if rank < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {rank}")
    if dims[0] == dims[1] or abs(dims[0] - dims[1]) == rank:
        raise RuntimeError(
            f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}"
        )
    first, second = (wrapped(d, rank) for d in dims)
    match k % 4:
        case 1:
            return transpose(aten.flip.default(self, [second]), first, second)
        case 2:
            return aten.flip.default(self, [first, second])
        case 3:
            return transpose(aten.flip.default(self, [first]), first, second)
        case _:
            return contiguous_copy(self)


def contiguous_copy(tensor: Tensor) -> Tensor:
    """A row-major copy, always new."""
    return aten.clone.default(tensor, memory_format=torch.contiguous_format)


@decomposes(aten.pixel_shuffle.default)
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    """(.., C r^2, H, W) to (.., C, H r, W r)."""
    *batch, channels, height, width = self.shape
    factor = upscale_factor
    if channels % (factor * factor):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={channels} is not divisible by {factor * factor}"
        )
    rank = len(batch)
    split_shape = reshaped(
        self, [*batch, channels // (factor * factor), factor, factor, height, width]
    )
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    moved = contiguous_copy(aten.permute.default(split_shape, order))
    return aten.view.default(
        moved, [*batch, channels // (factor * factor), height * factor, width * factor]
    )


@decomposes(aten.pixel_unshuffle.default)
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    """(.., C, H r, W r) to (.., C r^2, H, W)."""
    *batch, channels, height, width = self.shape
    factor = downscale_factor
    if height % factor or width % factor:
        raise RuntimeError(
            "pixel_unshuffle expects height and width to be divisible by downscale_factor"
        )
    rank = len(batch)
    split_shape = reshaped(
        self, [*batch, channels, height // factor, factor, width // factor, factor]
    )
    order = [*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3]
    moved = contiguous_copy(aten.permute.default(split_shape, order))
    return aten.view.default(
        moved, [*batch, channels * factor * factor, height // factor, width // factor]
    )


@decomposes("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    """Channels (dimension 1) dealt out over `groups`."""
    batch, channels, *rest = self.shape
    if channels % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {channels} channels and {groups} groups."
        )
    split_shape = reshaped(self, [batch, groups, channels // groups, *rest])
    moved = contiguous_copy(transpose(split_shape, 1, 2))
    return aten.view.default(moved, list(self.shape))


@decomposes(aten.diag_embed.default)
def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dimension laid out along a diagonal of zeros."""
    rank = self.dim() + 1
    first, second = wrapped(dim1, rank), wrapped(dim2, rank)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    length = self.shape[-1] + abs(offset)
    shape = list(self.shape[:-1])
    for position in sorted((first, second)):
        shape.insert(position, length)
    zeros = aten.full.default(shape, 0, dtype=self.dtype, device=self.device)
    return aten.diagonal_scatter.default(zeros, self, offset, first, second)


@decomposes(aten.select_backward.default)
def select_backward(
    grad_output: Tensor, input_sizes: Sequence[int], dim: int, index: int
) -> Tensor:
    """Zeros with the gradient written where `select` read."""
    zeros = _zeros(grad_output, input_sizes)
    return aten.select_scatter.default(zeros, grad_output, dim, index)


@decomposes(aten.slice_backward.default)
def slice_backward(
    grad_output: Tensor, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Tensor:
    """Zeros with the gradient written where `slice` read."""
    zeros = _zeros(grad_output, input_sizes)
    return aten.slice_scatter.default(zeros, grad_output, dim, start, end, step)


@decomposes(aten.diagonal_backward.default)
def diagonal_backward(
    grad_output: Tensor, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Tensor:
    """Zeros with the gradient written on the diagonal."""
    return aten.diagonal_scatter.default(
        _zeros(grad_output, input_sizes), grad_output, offset, dim1, dim2
    )


def _zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    return aten.full.default(list(shape), 0, dtype=like.dtype, device=like.device)


@decomposes(aten.unfold_backward.default)
def unfold_backward(
    grad_in: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> Tensor:
    """The gradient of overlapping windows, summed where they overlap."""
    if not input_sizes:
        return aten.sum.dim_IntList(grad_in, [0])
    dim = wrapped(dim, len(input_sizes))
    rank = len(input_sizes)
    windows = aten.arange.start_step(
        0, grad_in.shape[dim], 1, dtype=torch.int64, device=grad_in.device
    )
    inside = aten.arange.start_step(0, size, 1, dtype=torch.int64, device=grad_in.device)
    positions = aten.unsqueeze.default(windows * step, 1) + aten.unsqueeze.default(inside, 0)
    flat = reshaped(positions, [-1])
    order = [d for d in range(rank + 1) if d not in (dim, rank)]
    moved = aten.permute.default(grad_in, [dim, rank, *order])
    source = reshaped(moved, [flat.shape[0], *(grad_in.shape[d] for d in order)])
    target = _zeros(grad_in, [input_sizes[dim], *(input_sizes[d] for d in range(rank) if d != dim)])
    summed = aten.index_put.default(target, [flat], source, True)
    back = list(range(1, rank))
    back.insert(dim, 0)
    return contiguous(aten.permute.default(summed, back))


@decomposes(aten.narrow_copy.default)
def narrow_copy(self: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A copy of `length` slices along `dim` from `start`."""
    if self.dim() == 0:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    if dim >= self.dim():
        raise RuntimeError(f"narrow() expects a dimension below {self.dim()}, but got {dim}")
    size = self.shape[dim]
    if not -size <= start <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [{-size}, {size}], but got {start})"
        )
    if start < 0:
        start = start + size
    if length < 0 or start > size - length:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return contiguous_copy(aten.slice.Tensor(self, dim, start, start + length))


def _copy_of(view: str, *overloads: str) -> None:
    """Register `<view>_copy`: the view, then a row-major copy of each tensor."""
    for name in overloads or ("default",):
        viewed = getattr(getattr(aten, view), name)

        def copied(*args: object, __viewed: object = viewed, **kwargs: object) -> object:
            out = __viewed(*args, **kwargs)  # type: ignore[operator]
            if isinstance(out, Tensor):
                return contiguous_copy(out)
            return [contiguous_copy(o) for o in out]

        copied.__name__ = copied.__qualname__ = f"{view}_copy_{name}"
        decomposes(f"aten.{view}_copy.{name}")(copied)


_copy_of("alias")
_copy_of("detach")
_copy_of("t")
_copy_of("as_strided")
_copy_of("diagonal")
_copy_of("expand")
_copy_of("permute")
_copy_of("select", "int")
_copy_of("slice", "Tensor")
_copy_of("split", "Tensor")
_copy_of("split_with_sizes")
_copy_of("squeeze", "default", "dim", "dims")
_copy_of("transpose", "int")
_copy_of("unbind", "int")
_copy_of("unfold")
_copy_of("unsqueeze")
_copy_of("view", "default", "dtype")
_copy_of("view_as_real")
_copy_of("view_as_complex")


@decomposes(aten._chunk_cat.default)
def _chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Each tensor cut in `num_chunks` along `dim` (padded with zeros), flattened, and joined chunk by chunk."""
    if not tensors:
        raise RuntimeError("_chunk_cat expects a non-empty input tensor list")
    if num_chunks < 1:
        raise RuntimeError(f"_chunk_cat expects positive num_chunks, but got {num_chunks}")
    ranks = {tensor.dim() for tensor in tensors}
    if 0 in ranks or any(tensor.numel() == 0 for tensor in tensors):
        raise RuntimeError("_chunk_cat expects non-empty tensor")
    if len(ranks) > 1 and dim < 0:
        raise RuntimeError(
            "_chunk_cat expects non-negative dim when input tensors have different ndims"
        )
    if dim >= min(ranks):
        raise RuntimeError("_chunk_cat expects dim < ndim for all input tensors")
    if len({tuple(tensor.shape[:dim]) for tensor in tensors}) > 1:
        raise RuntimeError(
            "_chunk_cat expects same sizes of 0,...,dim-1 dimensions for all input tensors"
        )
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise RuntimeError("_chunk_cat expects all input tensors with the same dtype")
    dim = wrapped(dim, tensors[0].dim())
    parts = []
    for tensor in tensors:
        size = tensor.shape[dim]
        chunk = -(-size // num_chunks)
        padding = [0, 0] * (tensor.dim() - dim - 1) + [0, chunk * num_chunks - size]
        padded = (
            aten.constant_pad_nd.default(tensor, padding) if chunk * num_chunks != size else tensor
        )
        parts.append(reshaped(padded, [*tensor.shape[:dim], num_chunks, -1]))
    return aten.cat.default(parts, dim + 1)


@decomposes(aten.block_diag.default)
def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    """Matrices placed along a diagonal of zeros."""
    if not tensors:
        return aten.full.default([1, 0], 0)
    matrices = []
    for position, tensor in enumerate(tensors):
        if tensor.dim() > 2:
            raise RuntimeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {position} "
                f"has {tensor.dim()} dimensions"
            )
        matrices.append(tensor if tensor.dim() == 2 else reshaped(tensor, [1, -1]))
    dtype = result_dtype(*matrices)
    width = sum(m.shape[1] for m in matrices)
    rows, left = [], 0
    for matrix in matrices:
        right = width - left - matrix.shape[1]
        rows.append(aten.constant_pad_nd.default(cast(matrix, dtype), [left, right], 0))
        left = left + matrix.shape[1]
    return aten.cat.default(rows, 0)


@decomposes(aten.linalg_cross.default)
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Cross product of three-vectors along `dim`."""
    if self.dim() != other.dim():
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    if self.shape[dim] != 3 or other.shape[dim] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {self.shape[dim]} and {other.shape[dim]}"
        )
    shape = torch.broadcast_shapes(self.shape, other.shape)
    left, right = aten.expand.default(self, shape), aten.expand.default(other, shape)
    return _turned(left, 1, dim) * _turned(right, 2, dim) - _turned(left, 2, dim) * _turned(
        right, 1, dim
    )


def _turned(tensor: Tensor, shift: int, dim: int) -> Tensor:
    """The three components along `dim`, starting from component `shift`."""
    return aten.cat.default(
        [aten.slice.Tensor(tensor, dim, shift, 3), aten.slice.Tensor(tensor, dim, 0, shift)], dim
    )


@decomposes(aten.trace.default)
def trace(self: Tensor) -> Tensor:
    """Sum of the diagonal of a matrix."""
    if self.dim() != 2:
        raise RuntimeError("trace: expected a matrix")
    return aten.sum.dim_IntList(aten.diagonal.default(self), [0])


@decomposes(aten.im2col.default)
def im2col(
    self: Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Sliding windows of an image as columns: (N, C kh kw, L)."""
    batched = self.dim() == 4
    image = self if batched else aten.unsqueeze.default(self, 0)
    count, channels = image.shape[:2]
    rows = _window_positions(image, 2, kernel_size[0], dilation[0], padding[0], stride[0])
    columns = _window_positions(image, 3, kernel_size[1], dilation[1], padding[1], stride[1])
    padded = aten.constant_pad_nd.default(image, [padding[1], padding[1], padding[0], padding[0]])
    row_index = aten.unsqueeze.default(aten.unsqueeze.default(rows, -1), -1)
    windows = aten.index.Tensor(padded, [None, None, row_index, columns])
    ordered = contiguous_copy(aten.permute.default(windows, [0, 1, 2, 4, 3, 5]))
    out = aten.view.default(
        ordered,
        [count, channels * kernel_size[0] * kernel_size[1], rows.shape[1] * columns.shape[1]],
    )
    return out if batched else aten.squeeze.dims(out, [0])


def _window_positions(
    image: Tensor, dim: int, kernel: int, dilation: int, padding: int, stride: int
) -> Tensor:
    """Positions (kernel, windows) in the padded image along `dim`."""
    windows = (image.shape[dim] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return _positions(image, windows, kernel, dilation, stride)


def _positions(like: Tensor, windows: int, kernel: int, dilation: int, stride: int) -> Tensor:
    starts = aten.arange.start_step(0, windows, 1, dtype=torch.int64, device=like.device) * stride
    inside = aten.arange.start_step(0, kernel, 1, dtype=torch.int64, device=like.device) * dilation
    return aten.unsqueeze.default(inside, 1) + aten.unsqueeze.default(starts, 0)


@decomposes(aten.col2im.default)
def col2im(
    self: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Columns summed back into an image, the transpose of `im2col`."""
    batched = self.dim() == 3
    columns = self if batched else aten.unsqueeze.default(self, 0)
    count = columns.shape[0]
    channels = columns.shape[1] // math.prod(kernel_size)
    padded = [size + 2 * pad for size, pad in zip(output_size, padding, strict=True)]
    positions, windows = [], []
    for axis in range(2):
        number = (padded[axis] - dilation[axis] * (kernel_size[axis] - 1) - 1) // stride[axis] + 1
        windows.append(number)
        positions.append(_positions(self, number, kernel_size[axis], dilation[axis], stride[axis]))
    split_shape = reshaped(columns, [count, channels, *kernel_size, *windows])
    source = aten.permute.default(split_shape, [0, 1, 2, 4, 3, 5])
    zeros = _zeros(self, [count, channels, *padded])
    row_index = aten.unsqueeze.default(aten.unsqueeze.default(positions[0], -1), -1)
    summed = aten.index_put.default(zeros, [None, None, row_index, positions[1]], source, True)
    out = aten.constant_pad_nd.default(summed, [-padding[1], -padding[1], -padding[0], -padding[0]])
    return out if batched else aten.squeeze.dims(out, [0])
