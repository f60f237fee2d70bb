"""Making and converting arrays, tensors of arrays and back, attributes of arrays, and the rest of numpy.

What has no body in these modules and is written in Python is interpreted as the program's own code is, down to
what has one.
"""

from __future__ import annotations

import functools
import math
import types
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import attributes
from dynamo.values.arrays import (
    TracedArray,
    from_constant,
    from_tensor,
    is_number,
    refuse,
    torch_dtype,
    type_of_array,
)
from dynamo.values.numpy_functions import (
    converted,
    implements,
)
from dynamo.values.numpy_shapes import is_scalar, swapaxes, transposed, view_of
from dynamo.values.operators import plain_numbers
from dynamo.values.rules import RULES, rule
from dynamo.values.ufuncs import (
    array_of,
    call_ufunc,
    constant_call,
    holds_array,
)
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo.machine.interpreter import Machine
    from dynamo.values.session import Session

__all__ = ["call_dispatcher", "is_dispatcher"]

_DISPATCHER: Any = type(np.sum)


# -- conversion ----------------------------------------------------------------------------------------


@implements(method="astype")
def _astype(session: Session, a: Any, dtype: Any, *, copy: bool = True) -> Any:
    array = array_of(session, a)
    kind = np.dtype(dtype)
    if array.dtype.kind == "c" and kind.kind != "c":
        raise refuse("complex numbers are converted to reals")
    if not copy and kind == array.dtype:
        return a
    found = converted(array, kind)
    result = torch.clone(found) if found is array.tensor else found
    return from_tensor(session, result, scalar=array.scalar)


@implements(np.copy, method="copy")
def _copy(session: Session, a: Any, order: str = "C") -> Any:
    array = array_of(session, a)
    if order not in ("C", "K"):
        raise refuse("an array is copied into another order")
    form = torch.contiguous_format if order == "C" else torch.preserve_format
    return from_tensor(session, torch.clone(array.tensor, memory_format=form), scalar=array.scalar)


def _as_array(*functions: Any, copies: bool) -> None:
    @implements(*functions)
    def run(
        session: Session, a: Any, dtype: Any = None, order: Any = None, *, copy: Any = copies,
        subok: bool = False, ndmin: int = 0,
    ) -> Any:  # fmt: skip
        del subok
        if order not in (None, "K"):
            raise refuse("an array is made in a certain order")
        if isinstance(a, FakeTensor):
            a = _numpy_of(session, a)
        array = array_of(session, a)
        if array.tensor.dim() < ndmin:
            front = (None,) * (ndmin - array.tensor.dim())
            a = array = view_of(
                array, array.tensor[front], np.expand_dims, tuple(range(len(front)))
            )
        kind = array.dtype if dtype is None else np.dtype(dtype)
        found = converted(array, kind)
        if found is array.tensor and isinstance(a, TracedArray):
            if copy or (copy is None and copies):
                return from_tensor(session, torch.clone(found), scalar=False)
            return from_tensor(session, found, scalar=False) if a.scalar else a
        return from_tensor(session, found, scalar=False)


_as_array(np.array, copies=True)
_as_array(np.asarray, np.asanyarray, copies=False)


@implements(np.ascontiguousarray)
def _ascontiguousarray(session: Session, a: Any, dtype: Any = None) -> Any:
    array = array_of(session, a)
    found = converted(array, array.dtype if dtype is None else dtype)
    if found is array.tensor and array.recipe is None and found.is_contiguous() and found.dim():
        return a
    made = found.contiguous()
    return from_tensor(session, torch.atleast_1d(made), scalar=False)


def _like(function: Any, torch_function: Any) -> None:
    @implements(function)
    def run(session: Session, a: Any, dtype: Any = None, *, shape: Any = None) -> Any:
        array = array_of(session, a)
        if shape is not None:
            raise refuse(f"numpy.{function.__name__} with another shape")
        kind = array.dtype if dtype is None else np.dtype(dtype)
        made = torch_function(array.tensor, dtype=torch_dtype(kind))
        return from_tensor(session, made, scalar=False)


_like(np.zeros_like, torch.zeros_like)
_like(np.ones_like, torch.ones_like)
_like(np.empty_like, torch.empty_like)


@implements(np.full_like)
def _full_like(session: Session, a: Any, fill_value: Any, dtype: Any = None) -> Any:
    array = array_of(session, a)
    kind = array.dtype if dtype is None else np.dtype(dtype)
    if not is_scalar(fill_value):
        raise refuse("numpy.full_like with an array to fill it with")
    filled = kind.type(fill_value).item()
    made = torch.full_like(array.tensor, filled, dtype=torch_dtype(kind))
    return from_tensor(session, made, scalar=False)


@rule(np.full)
def _full(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("shape", "fill_value", "dtype"), args, strict=False)) | kwargs
    value = given.pop("fill_value", None)
    if isinstance(value, np.ndarray | TracedArray | list | tuple) or value is None:
        raise refuse("numpy.full with an array to fill it with")
    kind = np.dtype(given.pop("dtype", None) or np.asarray(plain_numbers(value)).dtype)
    made = RULES[np.empty](machine, (), {**given, "dtype": kind})
    number = value if is_number(value) and kind.kind in "if" else kind.type(value).item()
    filled = torch.full(tuple(made.tensor.shape), number, dtype=torch_dtype(kind))
    return from_tensor(machine.session, filled, scalar=False)


def _factory(function: Any, torch_function: Any) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("shape", "dtype", "order"), args, strict=False)) | kwargs
        usual = given.pop("order", "C") == "C" and given.pop("device", None) in (None, "cpu")
        if set(given) - {"shape", "dtype"} or len(args) > 3 or not usual:
            raise refuse(f"numpy.{function.__name__} is called with other arguments")
        if "shape" not in given:
            raise TypeError(f"{function.__name__}() missing required argument 'shape' (pos 0)")
        shape = given["shape"]
        sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        if holds_array(sizes):
            raise GraphBreak(BreakReason.DATA_DEPENDENT_SHAPE, "an array's size depends on data")
        sizes = tuple(int(n) if isinstance(n, np.generic) else n for n in sizes)
        dtype = torch_dtype(given.get("dtype") or np.float64)
        return from_tensor(machine.session, torch_function(sizes, dtype=dtype), scalar=False)


_factory(np.zeros, torch.zeros)
_factory(np.ones, torch.ones)
_factory(np.empty, torch.empty)


@implements(np.copyto)
def _copyto(session: Session, dst: Any, src: Any, casting: str = "same_kind") -> None:
    if not isinstance(dst, TracedArray) or dst.scalar:
        raise refuse("numpy.copyto into something that is no array of this capture")
    array = array_of(session, src)
    if casting != "unsafe" and not np.can_cast(array.dtype, dst.dtype, cast("Any", casting)):
        raise refuse("elements of another kind are copied into an array")
    dst.check_writeable()
    dst.tensor.copy_(array.tensor)


@implements(method="fill")
def _fill(session: Session, a: Any, value: Any) -> None:
    del session
    if not is_scalar(value):
        raise refuse("an array is filled with something other than a number")
    a.check_writeable()
    a.tensor.fill_(a.dtype.type(value).item())


@implements(method="item")
def _item(session: Session, a: Any, *place: Any) -> Any:
    del session
    if place:
        raise refuse("an element is read by item() with its place")
    return a.tensor.item()


@implements(method="tolist")
def _tolist(session: Session, a: Any) -> Any:
    del session
    return a.tensor.tolist()


@implements(method="conj")
def _conj(session: Session, a: Any) -> Any:
    return a if a.dtype.kind != "c" else call_ufunc(session, np.conjugate, (a,), {})


# -- what asks for no data -----------------------------------------------------------------------------


def _asks(function: Any, answer: Callable[[TracedArray], Any]) -> None:
    @implements(function)
    def run(session: Session, a: Any) -> Any:
        return answer(array_of(session, a))


_asks(np.shape, lambda array: tuple(array.tensor.shape))
_asks(np.ndim, lambda array: array.tensor.dim())


def _typed(function: Any) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del machine
        found = tuple(v.dtype if isinstance(v, TracedArray) else v for v in args)
        return function(*found, **kwargs)


_typed(np.result_type)
_typed(np.can_cast)


@rule(np.iscomplexobj)
def _iscomplexobj(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del machine, kwargs
    value = args[0]
    return value.dtype.kind == "c" if isinstance(value, TracedArray) else np.iscomplexobj(value)


def _plain_rule(function: Any) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if holds_array(args):
            raise refuse(f"numpy.{function.__name__} of an array is not captured")
        return constant_call(machine.session, function, args, kwargs)


for _function in (
    np.arange, np.linspace, np.eye, np.identity, np.tri, np.logspace, np.finfo, np.iinfo, np.dtype,
    np.promote_types, np.issubdtype, np.isscalar, np.indices, np.logspace, np.geomspace,
    np.broadcast_shapes, np.hamming, np.hanning, np.blackman, np.bartlett, np.kaiser,
    np.lib.array_utils.normalize_axis_index,
):  # fmt: skip
    if _function not in RULES:
        _plain_rule(_function)


def _scalar_type(kind: Any) -> None:
    @rule(kind)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and isinstance(args[0], TracedArray):
            return _astype(machine.session, args[0], kind)
        return constant_call(machine.session, kind, args, kwargs)


for _kind in ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
              "float16", "float32", "float64", "complex64", "complex128"):  # fmt: skip
    _scalar_type(getattr(np, _kind))


# -- between tensors and arrays ------------------------------------------------------------------------


def _numpy_of(session: Session, tensor: Any, *, force: bool = False) -> TracedArray:
    if tensor.device.type != "cpu" or tensor.requires_grad:
        if not force:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_CALL, "a tensor that no array can share memory with"
            )
        tensor = torch.resolve_conj(tensor.detach().cpu())
    return from_tensor(session, tensor, scalar=False)


@rule(torch.Tensor.numpy, FakeTensor.numpy)
def _tensor_numpy(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _numpy_of(machine.session, args[0], force=bool(kwargs.get("force")))


def _array_or_native(function: Any, convert: Callable[..., Any]) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from dynamo.values.native import call_native

        if args and type(args[0]) is np.ndarray:
            args[0].flags.writeable = False  # the tensor is another copy: neither may change
            args = (from_constant(machine.session, args[0]), *args[1:])
        if args and isinstance(args[0], TracedArray):
            if args[0].recipe is not None:
                raise refuse("a tensor is made of an array with a negative stride")
            return convert(args[0], *args[1:], **kwargs)
        return call_native(machine, function, args, kwargs)


def _from_numpy(array: TracedArray) -> Any:
    if array.scalar:
        raise TypeError(f"expected np.ndarray (got numpy.{array.dtype})")
    return array.tensor.detach()


def _as_tensor(array: TracedArray, dtype: Any = None, device: Any = None) -> Any:
    made = torch.clone(array.tensor) if array.scalar else array.tensor.detach()
    return made if dtype is None and device is None else made.to(device=device, dtype=dtype)


def _tensor(
    array: TracedArray, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    if requires_grad:
        raise refuse("a leaf is made of an array")
    return torch.clone(array.tensor).to(device=device, dtype=dtype or array.tensor.dtype)


_array_or_native(torch.from_numpy, _from_numpy)
_array_or_native(torch.as_tensor, _as_tensor)
_array_or_native(torch.asarray, _as_tensor)
_array_or_native(torch.tensor, _tensor)


# -- the rest of numpy ---------------------------------------------------------------------------------


def is_dispatcher(function: Any) -> bool:
    """Whether this is one of numpy's functions that other libraries may override."""
    return type(function) is _DISPATCHER


def call_dispatcher(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A function of numpy without a body here: its own Python code is interpreted."""
    inner = getattr(function, "_implementation", None)
    if type(inner) is not types.FunctionType:
        raise refuse(f"numpy.{function.__name__} is not captured")
    return machine.inline(inner, args, kwargs)


# -- attributes ----------------------------------------------------------------------------------------


def _strides(array: TracedArray) -> tuple[int, ...]:
    if array.recipe is not None:
        raise refuse("the strides of an array with a negative step are read")
    width = array.tensor.element_size()
    return tuple(step * width for step in array.tensor.stride())


def _flags(array: TracedArray) -> Any:
    """The flags that programs ask for; whether the memory is its own isn't known."""
    if array.recipe is not None:
        raise refuse("the flags of an array with a negative step are read")
    rows = array.tensor.is_contiguous()
    columns = array.tensor.permute(tuple(range(array.tensor.dim()))[::-1]).is_contiguous()
    return array.session.created(
        types.SimpleNamespace(
            contiguous=rows,
            c_contiguous=rows,
            f_contiguous=columns,
            fortran=columns and not rows,
            forc=rows or columns,
            writeable=array.writeable,
            aligned=True,
        )
    )


_PROPERTIES: dict[str, Callable[[TracedArray], Any]] = {
    "shape": lambda array: tuple(array.tensor.shape),
    "ndim": lambda array: array.tensor.dim(),
    "size": lambda array: math.prod(array.tensor.shape),
    "dtype": lambda array: array.dtype,
    "itemsize": lambda array: array.dtype.itemsize,
    "nbytes": lambda array: array.dtype.itemsize * math.prod(array.tensor.shape),
    "strides": _strides,
    "T": lambda array: array if array.scalar else transposed(array, None),
    "mT": lambda array: swapaxes(array.session, array, -1, -2),
    "flags": _flags,
    "real": lambda array: array if array.dtype.kind != "c" else _real(array),
    "__class__": type_of_array,
}


def _real(array: TracedArray) -> Any:
    return view_of(array, torch.real(array.tensor), np.real)


def _load(machine: Machine, owner: TracedArray, name: str) -> Any:
    found = _PROPERTIES.get(name)
    if found is not None:
        return found(owner)
    kind = type_of_array(owner)
    member = attributes.class_attribute(kind, name)
    if member is attributes.MISSING:
        raise AttributeError(
            f"'{kind.__module__}.{kind.__name__}' object has no attribute '{name}'"
        )
    if isinstance(member, types.GetSetDescriptorType):
        raise refuse(f"the attribute {name} of an array is not captured")
    del machine
    return types.MethodType(member, owner)


attributes.register_loader(TracedArray, _load)


def _method_rules() -> None:
    """Operators that are called as methods (`a.__add__(b)`), as numpy's own Python code does."""
    for name in ("add", "sub", "mul", "truediv", "pow", "lt", "le", "eq", "ne", "gt", "ge",
                 "matmul", "getitem", "setitem", "neg", "len", "iter"):  # fmt: skip
        special = vars(np.ndarray).get(f"__{name}__")
        if special is not None and special not in RULES:
            RULES[special] = functools.partial(_operator, f"__{name}__")


def _operator(name: str, machine: Machine, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    del machine
    if not isinstance(args[0], TracedArray):
        raise refuse(f"ndarray.{name} of another object")
    return getattr(args[0], name)(*args[1:], **kwargs)


_method_rules()
