"""Shape rules of operators whose result depends on data: a size or number known only at run time.

With an environment that allows it the result has a new symbol; otherwise DataDependentError says
what was asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.errors import DataDependentError
from primtorch.fake.geometry import broadcast
from primtorch.fake.registry import shape_rule

if TYPE_CHECKING:
    from primtorch.fake.meta import TensorMeta
    from primtorch.symbolic import Expression, Sizes


def run_time_size(sizes: Sizes, what: str, operator: str) -> Expression:
    """A new size known only at run time; DataDependentError if the environment refuses it."""
    symbol = sizes.unbacked()
    if symbol is None:
        raise DataDependentError(what, sizes.line(), operator=operator)
    return symbol


@shape_rule("_local_scalar_dense")
def local_scalar_dense(sizes: Sizes, x: TensorMeta) -> Expression:
    """The one element as a number: an integer known only at run time."""
    integral = not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool)
    symbol = sizes.unbacked(size=False) if integral else None
    if symbol is None:
        raise DataDependentError("the value of a tensor", sizes.line(), operator="item")
    return symbol


@shape_rule("nonzero")
def nonzero(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """The positions of nonzero elements, stored by coordinate."""
    count = run_time_size(sizes, "the number of nonzero elements", "nonzero")
    result = x.contiguous((count, x.ndim), torch.int64)
    return result.strided((count, x.ndim), (1, count))


@shape_rule("masked_select")
def masked_select(sizes: Sizes, x: TensorMeta, mask: TensorMeta) -> TensorMeta:
    """The elements that a mask selects."""
    broadcast(sizes, x.shape, mask.shape)
    return x.contiguous((run_time_size(sizes, "the number of selected elements", "masked_select"),))


@shape_rule("_unique2")
def unique2(
    sizes: Sizes,
    x: TensorMeta,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """Distinct elements, the place of each element among them, how often each occurs."""
    del sorted
    count = run_time_size(sizes, "the number of unique elements", "unique")
    return (
        x.contiguous((count,)),
        x.contiguous(x.shape if return_inverse or return_counts else (0,), torch.int64),
        x.contiguous((count,) if return_counts else (0,), torch.int64),
    )


@shape_rule("repeat_interleave.Tensor")
def repeat_interleave(sizes: Sizes, repeats: TensorMeta, *, output_size: Any = None) -> TensorMeta:
    """Each index as often as told; the length is the sum unless it is given."""
    if output_size is None:
        output_size = run_time_size(sizes, "the sum of the repeats", "repeat_interleave")
    return repeats.contiguous((output_size,))
