"""numpy's functions that move, choose, join and order elements: bodies as `numpy_functions` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values.arrays import (
    TracedArray,
    from_tensor,
    is_number,
    refuse,
    torch_dtype,
)
from dynamo.values.numpy_functions import axes_of, converted, implements, reduced, type_of_result
from dynamo.values.operators import plain_numbers
from dynamo.values.rules import RULES
from dynamo.values.ufuncs import (
    array_of,
    call_ufunc,
    holds_array,
    is_plain,
)

if TYPE_CHECKING:
    from dynamo.values.session import Session

__all__: list[str] = []

# -- shapes --------------------------------------------------------------------------------------------


def view_of(array: TracedArray, made: Any, function: Any, *args: Any) -> Any:
    """A result that shares memory with an array, as numpy's does."""
    result = from_tensor(array.session, made, scalar=False, writeable=array.writeable)
    if array.recipe is not None:
        result.recipe = (function, (array, *args))
    return result


def _shape_argument(args: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(args) == 1 and isinstance(args[0], tuple | list | np.ndarray):
        return tuple(args[0])
    if any(isinstance(size, TracedArray) for size in args):
        raise GraphBreak(BreakReason.DATA_DEPENDENT_SHAPE, "an array's size depends on data")
    return args


def _reshaped(array: TracedArray, shape: tuple[Any, ...], order: str) -> Any:
    if order not in ("C", "A") or array.recipe is not None:
        raise refuse("an array is reshaped in another order")
    sizes = tuple(n if is_number(n) else int(n) for n in shape)
    return view_of(array, torch.reshape(array.tensor, sizes), np.reshape, sizes)


@implements(np.reshape)
def _reshape(session: Session, a: Any, shape: Any, order: str = "C") -> Any:
    return _reshaped(array_of(session, a), _shape_argument((shape,)), order)


@implements(method="reshape")
def _reshape_method(session: Session, a: Any, *shape: Any, order: str = "C") -> Any:
    return _reshaped(array_of(session, a), _shape_argument(shape), order)


@implements(np.ravel, method="ravel")
def _ravel(session: Session, a: Any, order: str = "C") -> Any:
    return _reshaped(array_of(session, a), (-1,), order)


@implements(method="flatten")
def _flatten(session: Session, a: Any, order: str = "C") -> Any:
    array = array_of(session, a)
    if order != "C":
        raise refuse("an array is flattened in another order")
    return from_tensor(session, torch.clone(torch.reshape(array.tensor, (-1,))))


def transposed(array: TracedArray, axes: Any) -> Any:
    order = tuple(range(array.tensor.dim()))[::-1] if axes is None else tuple(map(int, axes))
    return view_of(array, array.tensor.permute(order), np.transpose, order)


@implements(np.transpose)
def _transpose(session: Session, a: Any, axes: Any = None) -> Any:
    return transposed(array_of(session, a), axes)


@implements(method="transpose")
def _transpose_method(session: Session, a: Any, *axes: Any) -> Any:
    given = axes[0] if len(axes) == 1 and not is_number(axes[0]) else axes or None
    return transposed(array_of(session, a), given)


@implements(np.swapaxes, method="swapaxes")
def swapaxes(session: Session, a: Any, axis1: int, axis2: int) -> Any:
    array = array_of(session, a)
    return view_of(array, torch.transpose(array.tensor, axis1, axis2), np.swapaxes, axis1, axis2)


@implements(np.squeeze, method="squeeze")
def _squeeze(session: Session, a: Any, axis: Any = None) -> Any:
    array = array_of(session, a)
    if axis is None:
        return view_of(array, torch.squeeze(array.tensor), np.squeeze)
    axes = axes_of(array, axis)
    if any(array.tensor.shape[i] != 1 for i in axes):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return view_of(array, torch.squeeze(array.tensor, axes), np.squeeze, axis)


@implements(np.broadcast_to)
def _broadcast_to(session: Session, array: Any, shape: Any) -> Any:
    value = array_of(session, array)
    sizes = _shape_argument((shape,))
    result = view_of(value, torch.broadcast_to(value.tensor, sizes), np.broadcast_to, sizes)
    result.writeable = False
    return result


@implements(np.diagonal, method="diagonal")
def _diagonal(session: Session, a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    array = array_of(session, a)
    made = torch.diagonal(array.tensor, offset, axis1, axis2)
    result = view_of(array, made, np.diagonal, offset, axis1, axis2)
    result.writeable = False
    return result


@implements(np.diag)
def _diag(session: Session, v: Any, k: int = 0) -> Any:
    array = array_of(session, v)
    if array.tensor.dim() == 1:
        return from_tensor(session, torch.diag(array.tensor, k))
    return _diagonal(session, array, k)


def _triangle(function: Any, torch_function: Any) -> None:
    @implements(function)
    def run(session: Session, m: Any, k: int = 0) -> Any:
        return from_tensor(session, torch_function(array_of(session, m).tensor, k))


_triangle(np.tril, torch.tril)
_triangle(np.triu, torch.triu)


@implements(np.concatenate)
def _concatenate(
    session: Session, arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None,
    casting: str = "same_kind",
) -> Any:  # fmt: skip
    if out is not None or casting != "same_kind":
        raise refuse("numpy.concatenate into an array, or with another casting")
    if isinstance(arrays, TracedArray):
        arrays = list(iter(arrays))  # type: ignore[call-overload]
    parts = [array_of(session, value) for value in arrays]
    kind = np.dtype(dtype) if dtype is not None else np.result_type(*(p.dtype for p in parts))
    tensors = [converted(part, kind) for part in parts]
    if axis is None:
        tensors, axis = [torch.reshape(t, (-1,)) for t in tensors], 0
    if len({t.dim() for t in tensors}) != 1 or not tensors[0].dim():
        raise ValueError("all the input array dimensions must match")
    return from_tensor(session, torch.cat(tensors, axis))


def _split(function: Any) -> None:
    @implements(function)
    def run(session: Session, ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
        array = array_of(session, ary)
        places = plain_numbers(indices_or_sections)
        if holds_array(places) or not is_plain(places):
            raise refuse(f"numpy.{function.__name__} at places that are no numbers")
        if isinstance(places, int | np.integer):
            if function is np.split and array.tensor.shape[axis] % places:
                raise ValueError("array split does not result in an equal division")
            where: Any = int(places)
        else:
            where = tuple(int(place) for place in places)
        parts = torch.tensor_split(array.tensor, where, axis)
        if array.recipe is not None:
            raise refuse("an array with a negative step is split")
        return [view_of(array, part, np.split) for part in parts]


_split(np.split)
_split(np.array_split)


@implements(np.roll)
def _roll(session: Session, a: Any, shift: Any, axis: Any = None) -> Any:
    array = array_of(session, a)
    return from_tensor(session, torch.roll(array.tensor, shift, axis), scalar=False)


@implements(np.repeat, method="repeat")
def _repeat(session: Session, a: Any, repeats: Any, axis: Any = None) -> Any:
    array = array_of(session, a)
    if not isinstance(repeats, int | torch.SymInt):
        raise refuse("numpy.repeat with a number for each element")
    values, axis = (array.tensor.reshape(-1), 0) if axis is None else (array.tensor, axis)
    return from_tensor(session, torch.repeat_interleave(values, repeats, axis))


# -- selection and order -------------------------------------------------------------------------------


@implements(np.where)
def _where(session: Session, condition: Any, *branches: Any) -> Any:
    if len(branches) != 2:
        raise GraphBreak(
            BreakReason.DATA_DEPENDENT_SHAPE, "the result's size of numpy.where depends on data"
        )
    test = array_of(session, condition).tensor
    kinds = [v if isinstance(v, np.generic) or is_scalar(v) else array_of(session, v)
             for v in branches]  # fmt: skip
    kind = type_of_result(np.where, np.ones(1, bool), *kinds)
    chosen = [
        converted(value, kind)
        if isinstance(value, TracedArray)
        else torch.scalar_tensor(kind.type(plain_numbers(value)).item(), dtype=torch_dtype(kind))
        for value in kinds
    ]
    found = torch.where(test if test.dtype is torch.bool else test != 0, *chosen)
    return from_tensor(session, found, scalar=False)


def is_scalar(value: Any) -> bool:
    return is_number(value) or isinstance(value, bool)


@implements(np.clip, method="clip")
def _clip(
    session: Session, a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *,
    min: Any = None, max: Any = None,
) -> Any:  # fmt: skip
    low, high = a_min if min is None else min, a_max if max is None else max
    result: Any = array_of(session, a)
    if low is None and high is None:
        return from_tensor(session, torch.clone(result.tensor))
    kind = type_of_result(np.clip, result, low, high)
    if low is not None:
        result = call_ufunc(session, np.maximum, (result, low), {})
    if high is not None:
        result = call_ufunc(session, np.minimum, (result, high), {})
    return reduced(session, a, out, kind, converted(result, kind))


@implements(np.take, method="take")
def _take(session: Session, a: Any, indices: Any, axis: Any = None) -> Any:
    array = array_of(session, a)
    values, axis = (array.tensor.reshape(-1), 0) if axis is None else (array.tensor, axis)
    if type(indices) is int:
        return from_tensor(session, torch.clone(torch.select(values, axis, indices)))
    places = array_of(session, indices).tensor
    if places.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8):
        raise refuse("numpy.take with unusual subscripts")
    key = (slice(None),) * (axis % values.dim()) + (places.to(torch.int64),)
    return from_tensor(session, values[key])


@implements(np.sort)
def _sort(session: Session, a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None) -> Any:
    del kind, stable
    array = array_of(session, a)
    values, axis = (array.tensor.reshape(-1), 0) if axis is None else (array.tensor, axis)
    return from_tensor(session, torch.sort(values, dim=axis, stable=True).values)


@implements(method="sort")
def _sort_in_place(session: Session, a: Any, axis: Any = -1, kind: Any = None) -> Any:
    del session, kind
    a.check_writeable()
    a.tensor.copy_(torch.sort(a.tensor, dim=axis, stable=True).values)


@torch.library.custom_op("dynamo::numpy_argsort", mutates_args=())
def numpy_argsort(values: torch.Tensor, axis: int, kind: str) -> torch.Tensor:
    """`numpy.argsort` of an array's tensor: row-major."""
    order: Any = kind
    return torch.from_numpy(np.argsort(values.numpy(), axis=axis, kind=order))


@numpy_argsort.register_fake
def _(values: torch.Tensor, axis: int, kind: str) -> torch.Tensor:
    del axis, kind
    return values.new_empty(values.shape, dtype=torch.int64)


@implements(np.argsort, method="argsort")
def _argsort(
    session: Session, a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None
) -> Any:
    array = array_of(session, a)
    values, axis = (array.tensor.reshape(-1), 0) if axis is None else (array.tensor, axis)
    if kind in ("stable", "mergesort") or stable is True:
        return from_tensor(session, torch.argsort(values, dim=axis, stable=True))
    # The order of equal elements is numpy's own: numpy sorts.
    return from_tensor(session, numpy_argsort(values, axis, kind or "quicksort"))


@implements(np.searchsorted, method="searchsorted")
def _searchsorted(session: Session, a: Any, v: Any, side: str = "left") -> Any:
    array = array_of(session, a)
    kind = np.result_type(array.dtype, v if is_scalar(v) else array_of(session, v).dtype)
    values = array_of(session, v)
    found = torch.searchsorted(converted(array, kind), converted(values, kind), side=side)
    return from_tensor(session, found)


@implements(np.round, method="round")
def _round(session: Session, a: Any, decimals: Any = 0, out: Any = None) -> Any:
    array = array_of(session, a)
    kind = type_of_result(np.round, array)
    if array.dtype.kind in "iub":
        found = torch.clone(converted(array, kind))
        if decimals < 0:
            raise refuse("integers are rounded to tens")
    else:
        found = torch.round(array.tensor, decimals=decimals)
    return reduced(session, a, out, kind, found)


if np.around is not np.round:
    RULES[np.around] = RULES[np.round]


@implements(np.nan_to_num)
def _nan_to_num(
    session: Session,
    x: Any,
    copy: Any = True,
    nan: Any = 0.0,
    posinf: Any = None,
    neginf: Any = None,
) -> Any:
    array = array_of(session, x)
    if not copy or array.dtype.kind == "c":
        raise refuse("numpy.nan_to_num in place, or of complex numbers")
    found = torch.nan_to_num(array.tensor, nan, posinf, neginf)
    return from_tensor(session, found)


@implements(np.pad)
def _pad(
    session: Session,
    array: Any,
    pad_width: Any,
    mode: Any = "constant",
    *,
    constant_values: Any = 0,
) -> Any:
    value = array_of(session, array)
    if mode != "constant" or not is_scalar(constant_values):
        raise refuse("numpy.pad with another mode than a constant")
    widths = np.broadcast_to(np.asarray(plain_numbers(pad_width)), (value.tensor.dim(), 2))
    flat = [int(n) for pair in widths[::-1] for n in pair]
    filled = value.dtype.type(constant_values).item()
    return from_tensor(session, torch.nn.functional.pad(value.tensor, flat, value=filled))


@implements(np.diff)
def _diff(session: Session, a: Any, n: int = 1, axis: int = -1) -> Any:
    return from_tensor(session, torch.diff(array_of(session, a).tensor, n, axis))


@implements(np.isclose)
def _isclose(
    session: Session, a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8,
    equal_nan: bool = False,
) -> Any:  # fmt: skip
    left, right = array_of(session, a), array_of(session, b)
    kind = np.result_type(left.dtype, right.dtype)
    found = torch.isclose(
        converted(left, kind), converted(right, kind), rtol, atol, equal_nan=equal_nan
    )
    return from_tensor(session, found)
