"""Reading a number out of a tensor where there is data, for what eager refuses by value.

On a fake tensor there is nothing to read: `number` is None then, and a decomposition that needs the number returns
NotImplemented, so that the operator stays whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from primtorch.errors import DataDependentError

aten = torch.ops.aten


def number(tensor: Tensor) -> int | float | None:
    """The one element of a tensor, None if its data isn't there."""
    try:
        found = aten._local_scalar_dense.default(tensor)
    except DataDependentError:
        return None
    return found if isinstance(found, int | float) else None


def integers(tensor: Tensor) -> list[int] | None:
    """The elements of a vector of integers, None if its data isn't there."""
    found = []
    for position in range(tensor.shape[0]):
        value = number(aten.select.int(tensor, 0, position))
        if not isinstance(value, int):
            return None
        found.append(value)
    return found
