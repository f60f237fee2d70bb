"""numpy's element-wise functions and the operators of arrays, on tensors.

Which types an operation computes in is asked of numpy itself (`ufunc.resolve_dtypes`): operands are converted to
them, so that torch's own promotion never decides. Invariant: the result has the type and the number of
dimensions that numpy's has, and is a scalar where numpy's is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynamo.values.arrays import (
    TracedArray,
    _define,
    from_constant,
    from_tensor,
    guard_error_state,
    is_number,
    refuse,
    torch_dtype,
)
from dynamo.values.operators import plain_numbers
from dynamo.values.rules import rule
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine
    from dynamo.values.session import Session

__all__ = ["array_of", "call_ufunc", "constant_call", "holds_array", "is_plain"]

_PLAIN = (int, float, complex, str, np.generic, np.dtype, type(None), type, torch.SymInt, torch.SymFloat,
          range, slice, type(Ellipsis), np.ndarray)  # fmt: skip


def holds_array(value: Any) -> bool:
    """Whether an argument is an array, or a sequence with one in it."""
    if isinstance(value, TracedArray | FakeTensor):
        return True
    if isinstance(value, list | tuple):
        return any(map(holds_array, value))
    if isinstance(value, dict):
        return any(map(holds_array, value.values()))
    return False


def is_plain(value: Any) -> bool:
    """Whether an argument means the same to numpy itself: numbers, types, text, sequences of them."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN)


def constant_call(
    session: Session, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call without arrays of the program is made now.

    An array that comes of it is the capture's own: what is done to it alone is done now, too.
    """
    if not is_plain(args) or not is_plain(tuple(kwargs.values())):
        raise refuse(f"numpy.{function.__name__} is given an object")
    result = function(*plain_numbers(args), **plain_numbers(kwargs))
    if isinstance(result, tuple | list):
        return type(result)(map(lambda item: _wrapped(session, item), result))  # noqa: C417
    return _wrapped(session, result)


def _wrapped(session: Session, value: Any) -> Any:
    return session.created(value) if type(value) is np.ndarray else value


def array_of(session: Session, value: Any) -> TracedArray:
    """An operand as an array: itself, or what `np.asarray` makes of numbers in lists."""
    if isinstance(value, TracedArray):
        return value
    if isinstance(value, FakeTensor):
        raise refuse("arrays and tensors are operands of one numpy function")
    if type(value) is np.ndarray and not session.is_created(value):
        raise refuse("an array of unknown origin is an operand")
    if is_plain(value) and not isinstance(value, str | type | np.dtype | None):
        return from_constant(session, np.asarray(plain_numbers(value)))
    if isinstance(value, list | tuple) and value:
        parts = [array_of(session, item) for item in value]
        common = np.result_type(*(part.dtype for part in parts))
        wanted = torch_dtype(common)
        return from_tensor(
            session, torch.stack([part.tensor.to(wanted) for part in parts]), scalar=False
        )
    raise refuse(f"a {type(value).__name__} is an operand of a numpy function")


def _resolved_as(value: Any) -> Any:
    """What `resolve_dtypes` is told of an operand: a type, or for Python's numbers only their kind."""
    match value:
        case TracedArray():
            return value.dtype
        case np.generic():
            return value.dtype
        case bool():
            return np.dtype(bool)
        case int() | torch.SymInt():
            return int
        case float() | torch.SymFloat():
            return float
        case complex():
            return complex
    raise AssertionError("operands are arrays and numbers")


def _as_operand(value: Any, dtype: np.dtype[Any], *, number: bool) -> Any:
    wanted = torch_dtype(dtype)
    if isinstance(value, TracedArray):
        return value.tensor if value.tensor.dtype is wanted else value.tensor.to(wanted)
    if isinstance(value, torch.SymInt | torch.SymFloat):
        value = torch.sym_float(value) if dtype.kind == "f" else value
        return value if number else torch.scalar_tensor(value, dtype=wanted)
    try:
        plain = dtype.type(value).item()
    except OverflowError as error:  # 300 for an array of uint8: numpy compares, but does not add
        raise refuse(f"{value} does not fit into {dtype}") from error
    return plain if number else torch.scalar_tensor(plain, dtype=wanted)


# -- what torch has for each ---------------------------------------------------------------------------


def _divided(function: Any) -> Callable[[Any, Any], Any]:
    """Integers divided by zero give zero in numpy; torch raises."""

    def run(left: Any, right: Any) -> Any:
        if right.dtype.is_floating_point:
            return function(left, right)
        zero = right == 0
        return torch.where(zero, 0, function(left, torch.where(zero, 1, right)))

    return run


def _power(left: Any, right: Any) -> Any:
    if not (right.dtype.is_floating_point or right.dtype.is_complex) and right.dtype.is_signed:
        raise refuse("integers are raised to powers that may be negative")
    return torch.pow(left, right)


def _same(value: Any) -> Any:
    return torch.clone(value)


def _rounded(function: Any) -> Callable[[Any], Any]:
    return lambda value: function(value) if value.dtype.is_floating_point else torch.clone(value)


_UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: torch.add,
    np.subtract: torch.sub,
    np.multiply: torch.mul,
    np.divide: torch.div,
    np.floor_divide: _divided(torch.floor_divide),
    np.remainder: _divided(torch.remainder),
    np.fmod: _divided(torch.fmod),
    np.power: _power,
    np.float_power: torch.pow,
    np.negative: torch.neg,
    np.positive: _same,
    np.absolute: lambda value: (
        torch.clone(value) if value.dtype is torch.bool else torch.abs(value)
    ),
    np.fabs: torch.abs,
    np.sign: torch.sign,
    np.rint: torch.round,
    np.exp: torch.exp,
    np.exp2: torch.exp2,
    np.expm1: torch.expm1,
    np.log: torch.log,
    np.log2: torch.log2,
    np.log10: torch.log10,
    np.log1p: torch.log1p,
    np.sqrt: torch.sqrt,
    np.square: torch.square,
    np.sin: torch.sin,
    np.cos: torch.cos,
    np.tan: torch.tan,
    np.arcsin: torch.asin,
    np.arccos: torch.acos,
    np.arctan: torch.atan,
    np.arctan2: torch.atan2,
    np.sinh: torch.sinh,
    np.cosh: torch.cosh,
    np.tanh: torch.tanh,
    np.arcsinh: torch.asinh,
    np.arccosh: torch.acosh,
    np.arctanh: torch.atanh,
    np.hypot: torch.hypot,
    np.degrees: torch.rad2deg,
    np.rad2deg: torch.rad2deg,
    np.radians: torch.deg2rad,
    np.deg2rad: torch.deg2rad,
    np.maximum: torch.maximum,
    np.minimum: torch.minimum,
    np.fmax: torch.fmax,
    np.fmin: torch.fmin,
    np.equal: torch.eq,
    np.not_equal: torch.ne,
    np.less: torch.lt,
    np.less_equal: torch.le,
    np.greater: torch.gt,
    np.greater_equal: torch.ge,
    np.logical_and: torch.logical_and,
    np.logical_or: torch.logical_or,
    np.logical_xor: torch.logical_xor,
    np.logical_not: torch.logical_not,
    np.bitwise_and: torch.bitwise_and,
    np.bitwise_or: torch.bitwise_or,
    np.bitwise_xor: torch.bitwise_xor,
    np.invert: torch.bitwise_not,
    np.isnan: torch.isnan,
    np.isinf: torch.isinf,
    np.isfinite: torch.isfinite,
    np.signbit: torch.signbit,
    np.copysign: torch.copysign,
    np.nextafter: torch.nextafter,
    np.floor: _rounded(torch.floor),
    np.ceil: _rounded(torch.ceil),
    np.trunc: _rounded(torch.trunc),
    np.logaddexp: torch.logaddexp,
    np.logaddexp2: torch.logaddexp2,
    np.heaviside: torch.heaviside,
    np.gcd: torch.gcd,
    np.lcm: torch.lcm,
    np.conjugate: torch.conj_physical,
}
if hasattr(np, "bitwise_count"):
    del _UFUNCS[np.nextafter]  # numpy 2 rounds subnormals otherwise
# Take a Python number as their second operand without another type coming out.
_NUMBERS = frozenset({np.add, np.subtract, np.multiply, np.divide, np.equal, np.not_equal, np.less,
                      np.less_equal, np.greater, np.greater_equal})  # fmt: skip
_WITHOUT_COMPLEX = frozenset({np.sign, np.maximum, np.minimum, np.fmax, np.fmin, np.less, np.greater,
                              np.less_equal, np.greater_equal, np.isinf, np.isfinite})  # fmt: skip


def call_ufunc(
    session: Session, function: Any, operands: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`function(*operands, **kwargs)` for an element-wise function of numpy."""
    out = kwargs.pop("out", None)
    dtype = kwargs.pop("dtype", None)
    operands, given = operands[: function.nin], operands[function.nin :]
    usual = (("subok", True), ("order", "K"), ("casting", "same_kind"), ("where", True))
    for name, value in usual:
        if name in kwargs and (kwargs[name] is value or kwargs[name] == value or name == "subok"):
            del kwargs[name]
    if isinstance(out, tuple):
        out = out[0]
    if given:
        out = given[0]
    if kwargs or function not in _UFUNCS or len(operands) != function.nin:
        raise refuse(f"numpy.{function.__name__} is called in a way that is not captured")
    guard_error_state(session)
    values = [
        value
        if isinstance(value, TracedArray | np.generic) or is_number(value)
        else array_of(session, value)
        for value in operands
    ]
    if not any(isinstance(value, TracedArray) for value in values):
        raise refuse(f"numpy.{function.__name__} writes numbers into an array")
    kinds = tuple(map(_resolved_as, values))
    wanted_loop: dict[str, Any] = {}
    if dtype is not None:
        wanted_loop["signature"] = (None,) * function.nin + (np.dtype(dtype),)
    loop = function.resolve_dtypes((*kinds, None), **wanted_loop)
    if function in _WITHOUT_COMPLEX and loop[0].kind == "c":
        raise refuse(f"numpy.{function.__name__} of complex numbers")
    parts = [
        _as_operand(
            value,
            kind,
            number=i > 0 and function in _NUMBERS and isinstance(values[0], TracedArray),
        )
        for i, (value, kind) in enumerate(zip(values, loop, strict=False))
    ]
    result = _UFUNCS[function](*parts)
    wanted = torch_dtype(loop[function.nin])
    if result.dtype is not wanted:
        result = result.to(wanted)
    if out is None:
        return from_tensor(session, result)
    return store(out, result, loop[function.nin])


def store(out: Any, result: Any, dtype: np.dtype[Any]) -> Any:
    """The result of a call with `out=`."""
    if not isinstance(out, TracedArray) or out.scalar:
        raise refuse("the result goes into an object that is no array of this capture")
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise refuse("the result does not fit into the array that it goes to")
    out.check_writeable()
    if tuple(out.tensor.shape) != tuple(torch.broadcast_shapes(out.tensor.shape, result.shape)):
        raise refuse("the result has another shape than the array that it goes to")
    out.tensor.copy_(result)
    return out


def _register(function: Any) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if holds_array(args) or holds_array(kwargs):
            return call_ufunc(machine.session, function, args, dict(kwargs))
        return constant_call(machine.session, function, args, kwargs)


for _function in {value for value in vars(np).values() if isinstance(value, np.ufunc)}:
    if _function is not np.matmul:
        _register(_function)


@rule(divmod)
def _divmod(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if any(isinstance(value, torch.SymInt | torch.SymFloat) for value in args):
        first, second = args
        return first // second, first % second
    if not any(isinstance(value, TracedArray) for value in args):
        from dynamo.values.native import call_native

        return call_native(machine, divmod, args, kwargs)
    session = machine.session
    return (
        call_ufunc(session, np.floor_divide, args, {}),
        call_ufunc(session, np.remainder, args, {}),
    )


# -- operators -----------------------------------------------------------------------------------------

_OPERATORS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}


def _operand(value: Any) -> bool:
    return (
        isinstance(value, TracedArray | np.generic | np.ndarray | list | tuple)
        or is_number(value)
        or isinstance(value, bool)
    )


def _binary(function: Any, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def run(self: TracedArray, other: Any) -> Any:
        if isinstance(other, FakeTensor):
            raise refuse("an array and a tensor are operands")
        if not _operand(other):
            if function in (np.equal, np.not_equal):
                raise refuse(f"an array is compared with a {type(other).__name__}")
            return NotImplemented
        if function is np.power and not reflected:
            special = _fast_power(self, other)
            if special is not None:
                return special
        pair = (other, self) if reflected else (self, other)
        return call_ufunc(self.session, function, pair, {})

    return run


def _fast_power(self: TracedArray, other: Any) -> Any:
    """Powers by a small number that are another function in numpy, or safe for integers."""
    if type(other) not in (int, float):
        return None
    if other == 2:
        return call_ufunc(self.session, np.square, (self,), {})
    if self.dtype.kind in "iu" and type(other) is int:
        if other < 0:
            raise ValueError("Integers to negative integer powers are not allowed.")
        if self.dtype.type(other) == other:
            return self.made(torch.pow(self.tensor, other))
    return None


def _in_place(function: Any) -> Callable[[Any, Any], Any]:
    def run(self: TracedArray, other: Any) -> Any:
        if self.scalar:
            return NotImplemented
        if isinstance(other, FakeTensor):
            raise refuse("an array and a tensor are operands")
        if not _operand(other):
            return NotImplemented
        made = (_fast_power(self, other) if function is np.power else None) or call_ufunc(
            self.session, function, (self, other), {}
        )
        return store(self, made.tensor, made.dtype)

    return run


def _matrix(self: TracedArray, other: Any) -> Any:
    from dynamo.values.numpy_functions import matmul

    return matmul(self.session, self, other)


def _matrix_reflected(self: TracedArray, other: Any) -> Any:
    from dynamo.values.numpy_functions import matmul

    return matmul(self.session, other, self)


for _name, _ufunc in _OPERATORS.items():
    _define(f"__{_name}__", _binary(_ufunc))
    _define(f"__r{_name}__", _binary(_ufunc, reflected=True))
    _define(f"__i{_name}__", _in_place(_ufunc))
for _name, _ufunc in _COMPARISONS.items():
    _define(f"__{_name}__", _binary(_ufunc))
for _name, _ufunc in _UNARY.items():
    _define(f"__{_name}__", lambda self, ufunc=_ufunc: call_ufunc(self.session, ufunc, (self,), {}))
_define("__matmul__", _matrix)
_define("__rmatmul__", _matrix_reflected)
