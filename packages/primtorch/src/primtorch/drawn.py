"""Random numbers in eager's own order: `primtorch::drawn_in_place`.

ATen fills a tensor in an order, and by an algorithm, that depend on its strides (`normal_` of a contiguous tensor is
another one than of a transposed tensor). Comes in: the name of an in-place random operator, the layout of the tensor
that it fills, its numbers. Goes out: a new tensor of that layout with what the operator put there; row-major where the
layout has gaps. Invariant: the generator moves as in eager, so that a compiled program under `fallback_random` draws
what eager draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.meta import TensorMeta
from primtorch.fake.registry import RULES
from primtorch.library import _LIBRARY
from primtorch.symbolic.layout import contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

    from primtorch.fake.meta import Shape
    from primtorch.symbolic.layout import Sizes

__all__ = ["DRAWN_IN_PLACE", "draws_in_place"]

_LIBRARY.define(
    "drawn_in_place(str operator, SymInt[] size, SymInt[] stride, bool gaps, Scalar[] numbers, *, "
    "ScalarType dtype, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)

_OPERATORS: dict[str, OpOverload] = {
    str(operator): operator
    for operator in (
        getattr(torch.ops.aten.random_, "from"),
        torch.ops.aten.random_.to,
        torch.ops.aten.random_.default,
        torch.ops.aten.bernoulli_.float,
        torch.ops.aten.cauchy_.default,
        torch.ops.aten.exponential_.default,
        torch.ops.aten.geometric_.default,
        torch.ops.aten.log_normal_.default,
        torch.ops.aten.normal_.default,
        torch.ops.aten.uniform_.default,
    )
}


def draws_in_place(operator: OpOverload) -> bool:
    """Whether an operator fills a tensor with random numbers that depend on nothing but numbers."""
    return str(operator) in _OPERATORS


def drawn_in_place(
    operator: str,
    size: Sequence[int],
    stride: Sequence[int],
    gaps: bool,
    numbers: Sequence[Any],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """What ATen's operator of this name puts into a new tensor of this layout.

    Args:
        operator: Its full name, such as `aten.normal_.default`.
        size: Shape of the tensor.
        stride: Its strides.
        gaps: Whether they leave memory between elements out: then the result is row-major.
        numbers: The operator's arguments after the tensor; optional ones at the end may be left out.
        dtype: Of the tensor.
        device: Whose default generator is drawn from.
    """
    found = _OPERATORS[operator]
    made = torch.empty_strided(size, stride, dtype=dtype, device=device)
    arguments = [one for one in found._schema.arguments if not one.kwarg_only]
    missing = arguments[1 + len(numbers) :]
    rest = [one.default_value if one.has_default_value() else None for one in missing]
    found(made, *numbers, *rest)
    # A result is new: nobody has counted a change of it.
    return made.contiguous() if gaps else made.data


def _meta(
    _sizes: Sizes,
    _operator: str,
    size: Shape,
    stride: Shape,
    gaps: bool,
    _numbers: Sequence[Any],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> TensorMeta:
    """Shape rule: the layout that is asked for, row-major where it has gaps."""
    shape = tuple(size)
    return TensorMeta(shape, contiguous_strides(shape) if gaps else tuple(stride), dtype, device)


_LIBRARY.impl("drawn_in_place", drawn_in_place, "CompositeExplicitAutograd")
DRAWN_IN_PLACE: OpOverload = torch.ops.primtorch.drawn_in_place.default
RULES[DRAWN_IN_PLACE] = _meta
