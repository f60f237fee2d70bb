"""Shape rules of operators whose result depends on data: a size or number known only at run time.

With an environment that allows it the result has a new symbol; otherwise DataDependentError says
what was asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.errors import DataDependentError
from primtorch.fake.geometry import broadcast, wrap_dimension
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


@shape_rule("unique_consecutive")
def unique_consecutive(
    sizes: Sizes,
    x: TensorMeta,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """Runs of equal elements (or slices along `dim`), the run of each element, the runs' lengths."""
    count = run_time_size(sizes, "the number of unique elements", "unique_consecutive")
    none = x.contiguous((0,), torch.int64)
    lengths = x.contiguous((count,), torch.int64) if return_counts else none
    if dim is None:
        places = x.contiguous(x.shape, torch.int64) if return_inverse else none
        return x.contiguous((count,)), places, lengths
    dim = wrap_dimension(dim, x.ndim)
    places = x.contiguous((x.shape[dim],), torch.int64)
    # The slices are flattened to rows and turned back: `dim` is outermost in memory.
    order = [dim, *(d for d in range(x.ndim) if d != dim)]
    shape = tuple(count if d == dim else size for d, size in enumerate(x.shape))
    steps = x.contiguous(tuple(shape[d] for d in order)).stride
    stride = tuple(steps[order.index(d)] for d in range(x.ndim))
    return x.contiguous(shape).strided(shape, stride), places, lengths


@shape_rule("bincount")
def bincount(
    sizes: Sizes, x: TensorMeta, weights: TensorMeta | None = None, minlength: Any = 0
) -> TensorMeta:
    """How often each number occurs, or the sums of weights; float32 or float64 with weights."""
    del minlength
    count = run_time_size(sizes, "the largest element", "bincount")
    if weights is None:
        return x.contiguous((count,), torch.int64)
    dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    return x.contiguous((count,), dtype)
