"""Type promotion over metadata: which dtype a pointwise operator computes in.

Operands are `TensorMeta`s and Python or symbolic numbers. Tensors with dimensions decide first,
then 0-d tensors, then numbers: a lower group only changes the result if its kind (bool < integral
< floating < complex) is higher.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.meta import TensorMeta
from primtorch.promotion import COMPLEX_OF, REAL_OF, promote_dtypes
from primtorch.symbolic import Expression, Real, RealSymbol

if TYPE_CHECKING:
    from collections.abc import Iterable


def number_dtype(value: Any) -> torch.dtype | None:
    """The dtype that a number counts as; None if `value` is no number."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, (int, Expression)):
        return torch.int64
    if isinstance(value, (float, Real, RealSymbol)):
        return torch.get_default_dtype()
    if isinstance(value, complex):
        return COMPLEX_OF[torch.get_default_dtype()]
    return None


def real_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part of a complex dtype; a real dtype is itself."""
    return REAL_OF.get(dtype, dtype)


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype whose parts have this dtype."""
    return dtype if dtype.is_complex else COMPLEX_OF[dtype]


def floating(dtype: torch.dtype) -> torch.dtype:
    """The dtype itself if it is floating or complex, else the default floating dtype."""
    if dtype.is_floating_point or dtype.is_complex:
        return dtype
    return torch.get_default_dtype()


def result_dtype(operands: Iterable[Any]) -> torch.dtype:
    """The common dtype of tensors and numbers; other values (None) are passed over."""
    groups: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if operand.__class__ is TensorMeta:
            group = 0 if operand.shape else 1
            dtype = operand.dtype
        else:
            number = number_dtype(operand)
            if number is None:
                continue
            group, dtype = 2, number
        known = groups[group]
        groups[group] = dtype if known is None or known is dtype else promote_dtypes(known, dtype)
    dimensioned, scalar, number = groups
    if scalar is None and number is None and dimensioned is not None:
        return dimensioned
    combined = _combine(_combine(dimensioned, scalar), number)
    assert combined is not None
    return combined


@lru_cache(1024)
def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if lower is None or higher is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return complex_of(higher) if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return promote_dtypes(higher, lower)
    return higher
