"""Type promotion as eager does it: which dtype an operator computes in, and which it returns.

Comes in: the operands of one operator, tensors and Python numbers. Goes out: dtypes. A tensor with dimensions
outranks one without, which outranks a Python number; a lower rank changes the dtype only by being of a higher
category (bool < integer < floating < complex). Half types are computed in float32 and rounded once, at the end:
`elementwise` wraps a function of float32 operands so that this holds for all of its callers.
"""

from __future__ import annotations

import functools
import math
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "COMPLEX_OF",
    "REAL_OF",
    "Number",
    "Promotion",
    "cast",
    "computation_dtype",
    "elementwise",
    "promote_dtypes",
    "real_dtype",
    "real_part",
    "result_dtype",
    "rounded",
]

aten = torch.ops.aten
Number = int | float | complex
Function = TypeVar("Function", bound="Callable[..., Any]")

_COMPUTATION = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
REAL_OF = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
COMPLEX_OF = {
    torch.float16: torch.complex32,
    torch.bfloat16: torch.complex64,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
)


def _promoted(left: torch.dtype, right: torch.dtype) -> torch.dtype | None:
    try:
        return torch.promote_types(left, right)
    except RuntimeError:  # two unsigned types that nothing holds
        return None


# torch.promote_types is itself an operator that a tracing mode would see, so it is asked once, here.
_PROMOTED = {(left, right): _promoted(left, right) for left in _DTYPES for right in _DTYPES}


def promote_dtypes(left: torch.dtype, right: torch.dtype) -> torch.dtype:
    """The smallest dtype that holds both.

    Raises:
        RuntimeError: if eager has none for these two.
    """
    found = left if left is right else _PROMOTED.get((left, right))
    return torch.promote_types(left, right) if found is None else found


class Promotion(Enum):
    """What an elementwise operator returns, given the dtype its operands promote to."""

    SAME = "the promoted dtype"
    FLOAT = "the promoted dtype, the default floating dtype if that is an integer or bool"
    BOOL = "bool"


def computation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which eager's kernels compute on operands of `dtype`: float32 for half types."""
    return _COMPUTATION.get(dtype, dtype)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part of a complex dtype; any other dtype is its own."""
    return REAL_OF.get(dtype, dtype)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return COMPLEX_OF[higher] if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return promote_dtypes(higher, lower)
    return higher


def _number_dtype(value: object) -> torch.dtype | None:
    if isinstance(value, bool | torch.SymBool):
        return torch.bool
    if isinstance(value, int | torch.SymInt):
        return torch.int64
    if isinstance(value, float | torch.SymFloat):
        return torch.get_default_dtype()
    if isinstance(value, complex):
        return COMPLEX_OF[torch.get_default_dtype()]
    return None


def result_dtype(*operands: object, kind: Promotion = Promotion.SAME) -> torch.dtype:
    """The dtype that an operator over `operands` (tensors, numbers; anything else is ignored) returns."""
    if kind is Promotion.BOOL:
        return torch.bool
    ranks: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            rank, dtype = (0 if operand.dim() else 1), operand.dtype
        else:
            number = _number_dtype(operand)
            if number is None:
                continue
            rank, dtype = 2, number
        known = ranks[rank]
        ranks[rank] = dtype if known is None else promote_dtypes(known, dtype)
    promoted = _combine(ranks[0], _combine(ranks[1], ranks[2]))
    assert promoted is not None, "an operator has at least one operand with a dtype"
    if kind is Promotion.FLOAT and not (promoted.is_floating_point or promoted.is_complex):
        return torch.get_default_dtype()
    return promoted


def rounded(number: float, dtype: torch.dtype) -> float:
    """A normal number as a floating `dtype` holds it, found without a tensor, which a tracing mode would see."""
    fraction, exponent = math.frexp(number)
    digits = torch.finfo(dtype).eps
    return math.ldexp(round(fraction * 2 / digits) * digits / 2, exponent)


def real_part(number: Any) -> Any:
    """The real part of a Python number; a symbolic one is real."""
    return number.real if isinstance(number, complex) else number


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor` in `dtype`, itself if it has that already."""
    if tensor.dtype is dtype:
        return tensor
    return aten._to_copy.default(tensor, dtype=dtype)


def _widened(tensor: torch.Tensor, promoted: torch.dtype, computation: torch.dtype) -> torch.Tensor:
    """An operand as eager's kernel computes with it.

    Eager converts a tensor to the promoted dtype and computes wider than half types element by element: rounding
    belongs to the first, and only the first makes repeated elements (the order of strides hangs on them) dense.
    """
    if promoted is computation:
        return cast(tensor, computation)
    if tensor.dtype is not promoted:
        return cast(cast(tensor, promoted), computation)
    once = tensor
    for dimension, step in enumerate(tensor.stride()):
        if isinstance(step, int) and step == 0:
            once = aten.slice.Tensor(once, dimension, 0, 1)
    wide = cast(once, computation)
    return wide if once is tensor else aten.expand.default(wide, list(tensor.shape))


def elementwise(kind: Promotion = Promotion.SAME) -> Callable[[Function], Function]:
    """Wrap an elementwise function: operands arrive in one computation dtype, the result leaves in eager's dtype.

    All positional tensors and numbers take part in the promotion; keywords don't. Half types arrive as float32 and
    the result (a tensor or a tuple of tensors) is rounded once.
    """

    def wrap(function: Function) -> Function:
        @functools.wraps(function)
        def promoted(*args: Any, **kwargs: Any) -> Any:
            first = args[0]
            if (
                isinstance(first, torch.Tensor)
                and all(
                    not isinstance(other, torch.Tensor) or other.dtype is first.dtype
                    for other in args
                )
                and first.dtype in (torch.float32, torch.float64)
            ):
                return function(*args, **kwargs)
            result = result_dtype(*args, kind=Promotion.SAME)
            if kind is Promotion.FLOAT and not (result.is_floating_point or result.is_complex):
                result = torch.get_default_dtype()
            computation = computation_dtype(result)
            operands = [
                _widened(a, result, computation) if isinstance(a, torch.Tensor) else a for a in args
            ]
            out = function(*operands, **kwargs)
            if kind is Promotion.BOOL:
                result = torch.bool
            if isinstance(out, tuple):
                return tuple(cast(o, result) for o in out)
            if out is NotImplemented:
                return out
            return cast(out, result)

        return promoted  # type: ignore[return-value]

    return wrap
