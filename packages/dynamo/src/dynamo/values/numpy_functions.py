"""numpy's functions and the methods of arrays, on tensors.

Each body takes the session and numpy's own parameters; a call with other ones is a graph break. The type of a
result is numpy's answer for arrays of the same types and numbers of dimensions with one element.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynamo.values.arrays import (
    TracedArray,
    from_tensor,
    refuse,
    torch_dtype,
)
from dynamo.values.operators import plain_numbers
from dynamo.values.rules import RULES, rule
from dynamo.values.ufuncs import (
    array_of,
    call_ufunc,
    constant_call,
    holds_array,
    store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine
    from dynamo.values.session import Session

__all__ = ["implements", "matmul"]


def implements(*functions: Any, method: str | None = None) -> Callable[[Any], Any]:
    """Register a body for functions, and for the method of arrays and scalars of a name."""

    def register(body: Any) -> Any:
        signature = inspect.signature(body)
        targets = list(functions)
        if method is not None:
            targets += [vars(t)[method] for t in (np.ndarray, np.generic) if method in vars(t)]

        def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            session = machine.session
            if not holds_array(args) and not holds_array(kwargs):
                return constant_call(
                    session, functions[0] if functions else targets[0], args, kwargs
                )
            try:
                bound = signature.bind(session, *args, **kwargs)
            except TypeError as error:
                raise refuse(f"{spelling(targets[0])} is called with other arguments") from error
            return body(*bound.args, **bound.kwargs)

        rule(*dict.fromkeys(targets))(run)
        return body

    return register


def spelling(function: Any) -> str:
    owner = getattr(function, "__objclass__", None)
    name = getattr(function, "__name__", "?")
    return f"numpy.{name}" if owner is None else f"numpy.{owner.__name__}.{name}"


def _sample(value: Any) -> Any:
    """An argument of the same type and number of dimensions with one element."""
    match value:
        case TracedArray():
            one = np.ones((1,) * value.tensor.dim(), value.dtype)
            return one[()] if value.scalar else one
        case list() | tuple():
            return type(value)(map(_sample, value))
    return plain_numbers(value)


def type_of_result(function: Any, *args: Any, **kwargs: Any) -> np.dtype[Any]:
    """The type of what `function` gives for such arguments."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = function(*map(_sample, args), **{n: _sample(v) for n, v in kwargs.items()})
    if not isinstance(result, np.ndarray | np.generic):
        raise refuse(f"{spelling(function)} gives a {type(result).__name__}")
    return result.dtype


def converted(value: TracedArray, dtype: Any) -> Any:
    wanted = torch_dtype(dtype)
    return value.tensor if value.tensor.dtype is wanted else value.tensor.to(wanted)


def axes_of(value: TracedArray, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(value.tensor.dim()))
    return tuple(axis) if isinstance(axis, tuple | list) else (int(axis),)


# -- reductions ----------------------------------------------------------------------------------------


def reduced(session: Session, a: Any, out: Any, dtype: np.dtype[Any], tensor: Any) -> Any:
    wanted = torch_dtype(dtype)
    result = tensor if tensor.dtype is wanted else tensor.to(wanted)
    del a
    return from_tensor(session, result) if out is None else store(out, result, dtype)


@implements(np.sum, method="sum")
def _sum(
    session: Session, a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
    keepdims: Any = False,
) -> Any:  # fmt: skip
    array = array_of(session, a)
    kind = type_of_result(np.sum, array, dtype=dtype)
    wide = torch.int64 if kind.kind == "u" else torch_dtype(kind)
    total = torch.sum(array.tensor, axes_of(array, axis), keepdim=bool(keepdims), dtype=wide)
    return reduced(session, a, out, kind, total)


@implements(np.prod, method="prod")
def _prod(
    session: Session, a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
    keepdims: Any = False,
) -> Any:  # fmt: skip
    array = array_of(session, a)
    kind = type_of_result(np.prod, array, dtype=dtype)
    result = converted(array, np.int64 if kind.kind == "u" else kind)
    rank = array.tensor.dim()
    for dimension in sorted((i % rank for i in axes_of(array, axis)), reverse=True):
        result = torch.prod(result, dimension, keepdim=bool(keepdims))
    return reduced(session, a, out, kind, result)


@implements(np.mean, method="mean")
def _mean(
    session: Session, a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
    keepdims: Any = False,
) -> Any:  # fmt: skip
    array = array_of(session, a)
    kind = type_of_result(np.mean, array, dtype=dtype)
    mean = torch.mean(converted(array, kind), axes_of(array, axis), keepdim=bool(keepdims))
    return reduced(session, a, out, kind, mean)


def _spread(function: Any, torch_function: Any) -> None:
    @implements(function, method=function.__name__)
    def run(
        session: Session, a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
        ddof: Any = 0, keepdims: Any = False,
    ) -> Any:  # fmt: skip
        array = array_of(session, a)
        kind = type_of_result(function, array, dtype=dtype)
        if array.dtype.kind == "c":
            raise refuse(f"numpy.{function.__name__} of complex numbers")
        values = converted(array, kind)
        if not values.dim():
            raise refuse(f"numpy.{function.__name__} of one number")
        found = torch_function(
            values, axes_of(array, axis), correction=ddof, keepdim=bool(keepdims)
        )
        return reduced(session, a, out, kind, found)


_spread(np.var, torch.var)
_spread(np.std, torch.std)


def _extreme(function: Any, torch_function: Any, *aliases: Any) -> None:
    @implements(function, *aliases, method=function.__name__)
    def run(
        session: Session, a: Any, axis: Any = None, out: Any = None, keepdims: Any = False
    ) -> Any:
        array = array_of(session, a)
        if array.dtype.kind == "c":
            raise refuse(f"numpy.{function.__name__} of complex numbers")
        found = torch_function(array.tensor, axes_of(array, axis), keepdim=bool(keepdims))
        return reduced(session, a, out, array.dtype, found)


_extreme(np.max, torch.amax, *({np.amax} - {np.max}))
_extreme(np.min, torch.amin, *({np.amin} - {np.min}))


def _place(function: Any, torch_function: Any) -> None:
    @implements(function, method=function.__name__)
    def run(session: Session, a: Any, axis: Any = None, out: Any = None, *,
            keepdims: Any = False) -> Any:  # fmt: skip
        array = array_of(session, a)
        values = array.tensor.to(torch.uint8) if array.dtype.kind == "b" else array.tensor
        if axis is None and keepdims:
            raise refuse(f"numpy.{function.__name__} of all elements keeps dimensions")
        found = torch_function(values, axis, keepdim=bool(keepdims))
        return reduced(session, a, out, np.dtype(np.intp), found)


_place(np.argmax, torch.argmax)
_place(np.argmin, torch.argmin)


def _quantified(function: Any, torch_function: Any) -> None:
    @implements(function, method=function.__name__)
    def run(
        session: Session, a: Any, axis: Any = None, out: Any = None, keepdims: Any = False
    ) -> Any:
        array = array_of(session, a)
        values = array.tensor if array.dtype.kind == "b" else array.tensor != 0
        if axis is None and not keepdims:
            return reduced(session, a, out, np.dtype(bool), torch_function(values))
        found = torch_function(values, axes_of(array, axis), keepdim=bool(keepdims))
        return reduced(session, a, out, np.dtype(bool), found)


_quantified(np.any, torch.any)
_quantified(np.all, torch.all)


def _running(function: Any, torch_function: Any) -> None:
    @implements(function, method=function.__name__)
    def run(session: Session, a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        array = array_of(session, a)
        kind = type_of_result(function, array, axis=axis, dtype=dtype)
        values = converted(array, np.int64 if kind.kind == "u" else kind)
        if axis is None:
            values, axis = values.reshape(-1), 0
        return reduced(session, a, out, kind, torch_function(values, axis))


_running(np.cumsum, torch.cumsum)
_running(np.cumprod, torch.cumprod)

_REDUCTIONS = {
    np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min,
    np.logical_or: np.any, np.logical_and: np.all,
}  # fmt: skip
_RUNNING = {np.add: np.cumsum, np.multiply: np.cumprod}


@rule(np.ufunc.reduce)
def _reduce(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function, *rest = args
    if not holds_array(rest):
        return constant_call(machine.session, function.reduce, tuple(rest), kwargs)
    names = ("array", "axis", "dtype", "out", "keepdims")
    given = dict(zip(names, rest, strict=False)) | kwargs
    array, axis = given.pop("array"), given.pop("axis", 0)
    given = {name: value for name, value in given.items() if value is not None}
    found = _REDUCTIONS.get(function)
    if found is None or len(rest) > len(names):
        raise refuse(f"numpy.{function.__name__}.reduce is not captured")
    return RULES[found](machine, (array,), {"axis": axis, **given})


@rule(np.ufunc.accumulate)
def _accumulate(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function, array, *rest = args
    found = _RUNNING.get(function)
    if found is None or rest or set(kwargs) - {"axis"}:
        raise refuse(f"numpy.{function.__name__}.accumulate is not captured")
    return RULES[found](machine, (array,), {"axis": kwargs.get("axis", 0)})


@implements(np.count_nonzero)
def _count_nonzero(session: Session, a: Any, axis: Any = None) -> Any:
    array = array_of(session, a)
    kind = type_of_result(np.count_nonzero, array, axis=axis)
    found = torch.count_nonzero(array.tensor, None if axis is None else axes_of(array, axis))
    return reduced(session, a, None, kind, found)


def _nan_reduction(function: Any, torch_function: Any) -> None:
    @implements(function)
    def run(session: Session, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
        array = array_of(session, a)
        kind = type_of_result(function, array)
        values = converted(array, kind)
        found = torch_function(values, axes_of(array, axis), keepdim=bool(keepdims))
        return reduced(session, a, None, kind, found)


_nan_reduction(np.nansum, torch.nansum)
_nan_reduction(np.nanmean, torch.nanmean)


# -- products ------------------------------------------------------------------------------------------


@implements(np.matmul)
def matmul(session: Session, a: Any, b: Any) -> Any:
    """`a @ b`."""
    left, right = array_of(session, a), array_of(session, b)
    kind = type_of_result(np.matmul, left, right)
    return from_tensor(session, torch.matmul(converted(left, kind), converted(right, kind)))


@implements(np.dot, method="dot")
def _dot(session: Session, a: Any, b: Any) -> Any:
    left, right = array_of(session, a), array_of(session, b)
    if 0 in (left.tensor.dim(), right.tensor.dim()):
        return call_ufunc(session, np.multiply, (a, b), {})
    kind = type_of_result(np.dot, left, right)
    first, second = converted(left, kind), converted(right, kind)
    if second.dim() > 2:
        return from_tensor(session, torch.tensordot(first, second, ([-1], [-2])))
    return from_tensor(session, torch.matmul(first, second))


@implements(np.inner)
def _inner(session: Session, a: Any, b: Any) -> Any:
    left, right = array_of(session, a), array_of(session, b)
    if 0 in (left.tensor.dim(), right.tensor.dim()):
        return call_ufunc(session, np.multiply, (a, b), {})
    kind = type_of_result(np.inner, left, right)
    return from_tensor(session, torch.inner(converted(left, kind), converted(right, kind)))


@implements(np.vdot)
def _vdot(session: Session, a: Any, b: Any) -> Any:
    left, right = array_of(session, a), array_of(session, b)
    kind = type_of_result(np.vdot, left, right)
    first, second = (converted(value, kind).reshape(-1) for value in (left, right))
    return from_tensor(session, torch.dot(torch.conj_physical(first), second))


@implements(np.einsum)
def _einsum(session: Session, subscripts: Any, *operands: Any, optimize: Any = False) -> Any:
    del optimize
    if not isinstance(subscripts, str):
        raise refuse("numpy.einsum is called without a text of subscripts")
    arrays = [array_of(session, value) for value in operands]
    kind = np.result_type(*(value.dtype for value in arrays))
    return from_tensor(
        session, torch.einsum(subscripts, *(converted(value, kind) for value in arrays))
    )


@implements(np.tensordot)
def _tensordot(session: Session, a: Any, b: Any, axes: Any = 2) -> Any:
    left, right = array_of(session, a), array_of(session, b)
    kind = np.result_type(left.dtype, right.dtype)
    found = torch.tensordot(converted(left, kind), converted(right, kind), axes)
    return from_tensor(session, found, scalar=False)


@implements(np.outer)
def _outer(session: Session, a: Any, b: Any) -> Any:
    left, right = array_of(session, a), array_of(session, b)
    kind = np.result_type(left.dtype, right.dtype)
    found = torch.outer(converted(left, kind).reshape(-1), converted(right, kind).reshape(-1))
    return from_tensor(session, found)


@implements(np.trace, method="trace")
def _trace(session: Session, a: Any) -> Any:
    array = array_of(session, a)
    kind = type_of_result(np.trace, array)
    found = torch.sum(torch.diagonal(array.tensor), -1, dtype=torch_dtype(kind))
    return from_tensor(session, found)


@implements(np.linalg.norm)
def _norm(
    session: Session, x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False
) -> Any:
    array = array_of(session, x)
    kind = type_of_result(np.linalg.norm, array)
    dimensions = tuple(axis) if isinstance(axis, list) else axis
    source = np.float64 if array.dtype.kind in "biu" else array.dtype
    values = converted(array, source)
    if ord is None:
        found = torch.linalg.vector_norm(values, 2, dimensions, keepdim=bool(keepdims))
    else:
        found = torch.linalg.norm(values, ord, dimensions, keepdim=bool(keepdims))
    return reduced(session, x, None, kind, found)


def _linear_algebra(function: Any, torch_function: Any) -> None:
    @implements(function)
    def run(session: Session, a: Any, *others: Any) -> Any:
        arrays = [array_of(session, value) for value in (a, *others)]
        kind = type_of_result(function, *arrays)
        source = np.float64 if kind.kind not in "fc" else kind
        found = torch_function(*(converted(value, source) for value in arrays))
        return reduced(session, a, None, kind, found)


_linear_algebra(np.linalg.inv, torch.linalg.inv)
_linear_algebra(np.linalg.det, torch.linalg.det)
_linear_algebra(np.linalg.cholesky, torch.linalg.cholesky)
