"""Padding by reflection and replication, forward and backward, as gathers along each padded dimension.

The backward sums the gradient into the places that were read. The result keeps a channels-last
operand's memory format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from primtorch.decompositions.views import contiguous
from primtorch.promotion import cast, computation_dtype
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Index = Callable[[Tensor, int], Tensor]

aten = torch.ops.aten


def in_format_of(out: Tensor, like: Tensor) -> Tensor:
    """`out` stored channels-last if `like` is, row-major otherwise."""
    if like.dim() in (4, 5) and is_channels_last(like):
        channels_last = torch.channels_last if like.dim() == 4 else torch.channels_last_3d
        return aten.clone.default(out, memory_format=channels_last)
    return contiguous(out)


def is_channels_last(like: Tensor) -> bool:
    """Whether eager would take the tensor for channels-last: by the order of its strides alone."""
    shape, stride = like.shape, like.stride()
    if stride[1] == 0:
        return False
    least = 0
    for dim in (1, *range(like.dim() - 1, 1, -1), 0):
        if shape[dim] == 0 or stride[dim] < least or (dim == 0 and least == stride[1]):
            return False
        least = stride[dim] * shape[dim] if shape[dim] > 1 else stride[dim]
    return True


def positions(like: Tensor, start: int, end: int) -> Tensor:
    """The integers from `start` below `end` on the device of `like`."""
    return aten.arange.start_step(start, end, 1, dtype=torch.int64, device=like.device)


def outer_indices(indices: Sequence[Tensor], rank: int) -> list[Tensor | None]:
    """Vectors of positions along the last dimensions, shaped so that they select a grid."""
    count = len(indices)
    shaped: list[Tensor | None] = [None] * (rank - count)
    for position, index in enumerate(indices):
        widened = index
        for _ in range(count - 1 - position):
            widened = aten.unsqueeze.default(widened, -1)
        shaped.append(widened)
    return shaped


def _reflected(index: Tensor, size: int) -> Tensor:
    """Positions mirrored at both ends, the end itself not repeated."""
    mirrored = aten.abs.default(aten.abs.default(index) - (size - 1))
    return aten.sub.Tensor(size - 1, mirrored)


def _replicated(index: Tensor, size: int) -> Tensor:
    """Positions moved to the nearest end."""
    return aten.clamp.default(index, 0, size - 1)


def _sources(self: Tensor, padding: Sequence[int], source: Index) -> list[Tensor]:
    """For each padded dimension, from the first to the last, which position each place reads."""
    count = len(padding) // 2
    found = []
    for axis in range(count):
        size = self.shape[self.dim() - count + axis]
        left, right = padding[2 * (count - 1 - axis)], padding[2 * (count - 1 - axis) + 1]
        found.append(source(positions(self, -left, size + right), size))
    return found


def _check(self: Tensor, padding: Sequence[int], *, reflection: bool) -> None:
    count = len(padding) // 2
    if self.dim() not in (count + 1, count + 2):
        raise RuntimeError(
            f"Expected {count + 1}D or {count + 2}D (batch mode) tensor with possibly 0 batch size "
            f"and other non-zero dimensions for input, but got: {list(self.shape)}"
        )
    for axis in range(count):
        size = self.shape[self.dim() - 1 - axis]
        left, right = padding[2 * axis], padding[2 * axis + 1]
        if reflection and (left >= size or right >= size):
            raise RuntimeError(
                "Padding size should be less than the corresponding input dimension, but got: "
                f"padding ({left}, {right}) at dimension {self.dim() - 1 - axis} "
                f"of input {list(self.shape)}"
            )
        if size + left + right < 1:
            raise RuntimeError(
                f"input (size {size}) is too small. Calculated output size: {size + left + right}"
            )


def _register(kind: str, rank: int, source: Index) -> None:
    """Register `<kind>_pad<rank>d` and its backward."""
    reflection = kind == "reflection"

    def pad(self: Tensor, padding: Sequence[int]) -> Tensor:
        _check(self, padding, reflection=reflection)
        indices = outer_indices(_sources(self, padding, source), self.dim())
        return in_format_of(aten.index.Tensor(self, indices), self)

    def pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
        indices = outer_indices(_sources(self, padding, source), self.dim())
        computation = computation_dtype(grad_output.dtype)
        zeros = aten.full.default(list(self.shape), 0, dtype=computation, device=self.device)
        grad = cast(grad_output, computation)
        summed = aten.index_put.default(zeros, indices, grad, True)
        return in_format_of(cast(summed, grad_output.dtype), self)

    for tail, function in (("", pad), ("_backward", pad_backward)):
        name = f"{kind}_pad{rank}d{tail}"
        function.__name__ = function.__qualname__ = name
        decomposes(f"aten.{name}.default")(function)


for _rank in (1, 2, 3):
    _register("reflection", _rank, _reflected)
    _register("replication", _rank, _replicated)
