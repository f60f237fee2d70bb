"""What is known of a tensor without its data.

`TensorMeta` holds shape and stride as `int | Expression`, dtype, logical device and storage
offset. Shape rules take and return it; it is immutable and hashable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from primtorch.symbolic.expression import Expression, product
from primtorch.symbolic.layout import contiguous_strides

Shape = tuple[int | Expression, ...]


def logical_device(device: torch.device | str | None) -> torch.device:
    """A device with its index as a tensor on it would have; None is the default device."""
    result = torch.get_default_device() if device is None else torch.device(device)
    if result.type == "cuda" and result.index is None:
        index = torch.cuda.current_device() if torch.cuda.is_available() else 0
        return torch.device("cuda", index)
    return result


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape, stride, dtype, logical device and storage offset of a tensor."""

    shape: Shape
    stride: Shape
    dtype: torch.dtype
    device: torch.device
    storage_offset: int | Expression = 0

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int | Expression:
        """The number of elements."""
        return product(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether shape, stride and offset are plain ints."""
        for value in self.shape:
            if not isinstance(value, int):
                return False
        for value in self.stride:
            if not isinstance(value, int):
                return False
        return isinstance(self.storage_offset, int)

    def contiguous(
        self, shape: Shape | None = None, dtype: torch.dtype | None = None
    ) -> TensorMeta:
        """A new row-major tensor on the same device; shape and dtype as this one's if not given."""
        shape = self.shape if shape is None else shape
        return TensorMeta(shape, contiguous_strides(shape), dtype or self.dtype, self.device)

    def strided(
        self, shape: Shape, stride: Shape, storage_offset: int | Expression | None = None
    ) -> TensorMeta:
        """A view of the same storage with other geometry."""
        offset = self.storage_offset if storage_offset is None else storage_offset
        return TensorMeta(shape, stride, self.dtype, self.device, offset)

    def with_dtype(self, dtype: torch.dtype) -> TensorMeta:
        """The same geometry in a fresh storage with another dtype."""
        return TensorMeta(self.shape, self.stride, dtype, self.device)
