"""The closed set of scalar operations that loop bodies are made of.

A body is a list of `Operation`s in single-assignment form: an operation's value is named by its
position, operands are earlier positions. `ScalarOps` is the same set as a protocol: whoever gives a
body meaning (the recorder, the reference interpreter, each code generator) implements every method;
a test compares the methods with `OPERATIONS`.

Invariant: values have one of `VALUE_DTYPES`. Half types never occur as a value's dtype: a load
converts to float32, `round_to` rounds a float32 to what a half type holds, a store narrows.
"""

# ruff: noqa: D102  # the protocol's methods are documented by the operation list of
# docs/loop_ir.md

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch

from primtorch.symbolic import Expression, Symbol

Size = int | Expression
Constant = bool | int | float | complex

HALF_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2},
)
"""Storage types that are computed in float32."""

VALUE_DTYPES = frozenset(
    {
        torch.bool,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    },
)
"""What a value in a body can be."""

ReductionKind = Literal[
    "sum",
    "prod",
    "max",
    "min",
    "any",
    "all",
    "argmax",
    "argmin",
    "welford",
    "welford_combine",
]
ScanKind = Literal["sum", "prod", "max", "min", "logaddexp"]
StoreMode = Literal["set", "add", "mul", "max", "min"]
BoundsError = Literal["IndexError", "RuntimeError"]


def value_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a loaded element of storage type `dtype` is computed in."""
    return torch.float32 if dtype in HALF_DTYPES else dtype


@dataclass(frozen=True, slots=True)
class BoundsCheck:
    """What eager raises when an index is outside `[-size, size)` (or `[0, size)`).

    `message` is a format string over `index`, `dimension` and `size`.
    """

    error: BoundsError
    message: str
    dimension: int = 0


@dataclass(frozen=True, slots=True)
class Indirect:
    """An index that is a computed value: how operation `indirect` turns a value into `symbol`.

    `wrap` adds `size` to negative values first; `check` raises when the result is outside `[0,
    size)`; without a check the value is promised to be inside.
    """

    symbol: Symbol
    size: Size
    wrap: bool
    check: BoundsCheck | None


Attribute = Constant | Indirect | str | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One scalar operation.

    Fields:
        name: a key of `OPERATIONS`.
        operands: positions of the operands. Of a load or store: the value (store only), then the
            `indirect` operations whose symbols `index` uses, then the mask if `masked`.
        dtype: dtype of the value; of a store, the storage dtype of the buffer.
        buffer: buffer read or written, else None.
        index: element index into the buffer's storage (buffer's own offset included), or the
            expression of an `index_expression`.
        attribute: the constant of `constant` as Python text (`constant_value` reads it), the half
            type's name of a `load` from half storage (else None), the `Indirect` of `indirect`, the
            name of `argument`, the kind of `reduce`, `scan` and `accumulate`, the mode of `store`,
            the number of `part`, the half dtype's name of `round_to`.
        masked: the last operand is a bool: a load reads (yields 0 else), a store writes, only where
            it holds.
    """

    name: str
    operands: tuple[int, ...]
    dtype: torch.dtype
    buffer: str | None = None
    index: Size | None = None
    attribute: Attribute = None
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Arity and result rule of an operation; `operands` is -1 where the count varies."""

    family: Literal["leaf", "memory", "convert", "unary", "binary", "ternary", "random", "loop"]
    operands: int
    result: Literal["same", "bool", "given"]


TRANSCENDENTAL = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
    "digamma", "sigmoid",
)  # fmt: skip
"""Functions of one number that take many instructions."""
_UNARY_FLOAT = [*TRANSCENDENTAL, "sqrt", "rsqrt", "reciprocal"]
_UNARY_ANY = ["neg", "abs", "sign", "floor", "ceil", "trunc", "round", "bitwise_not"]
_UNARY_BOOL = ["isnan", "isinf", "signbit", "logical_not"]
_BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "floor_div",
    "trunc_div",
    "remainder",
    "fmod",
    "pow",
    "maximum",
    "minimum",
    "atan2",
    "copysign",
    "hypot",
    "nextafter",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "shift_left",
    "shift_right",
]
_BINARY_BOOL = ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"]

OPERATIONS: dict[str, Signature] = {
    "constant": Signature("leaf", 0, "given"),
    "index_expression": Signature("leaf", -1, "given"),
    "argument": Signature("leaf", 0, "given"),
    "load": Signature("memory", -1, "given"),
    "store": Signature("memory", -1, "given"),
    "accumulate": Signature("memory", -1, "given"),
    "indirect": Signature("memory", -1, "given"),
    "to_dtype": Signature("convert", 1, "given"),
    "round_to": Signature("convert", 1, "same"),
    "bitcast": Signature("convert", 1, "given"),
    **{name: Signature("unary", 1, "same") for name in (*_UNARY_FLOAT, *_UNARY_ANY)},
    **{name: Signature("unary", 1, "bool") for name in _UNARY_BOOL},
    "real": Signature("unary", 1, "given"),
    "imag": Signature("unary", 1, "given"),
    **{name: Signature("binary", 2, "same") for name in _BINARY},
    **{name: Signature("binary", 2, "bool") for name in _BINARY_BOOL},
    "make_complex": Signature("binary", 2, "given"),
    "where": Signature("ternary", 3, "same"),
    "philox_uniform": Signature("random", 3, "given"),
    "philox_normal": Signature("random", 3, "given"),
    "philox_bits": Signature("random", 3, "given"),
    "reduce": Signature("loop", -1, "given"),
    "part": Signature("loop", 1, "given"),
    "scan": Signature("loop", 1, "same"),
}
"""Every operation; `docs/loop_ir.md` states the meaning of each."""

EFFECTS = frozenset({"store", "accumulate"})
DIVISIONS = frozenset({"floor_div", "trunc_div", "remainder", "fmod"})
"""Of integers: by zero they are refused."""


def combines(operation: Operation) -> bool:
    """Whether a store reads what is there: points may meet in one element, and their order may matter."""
    return operation.name == "store" and operation.attribute != "set"


"""Operations that are kept although nobody reads their value."""

T = TypeVar("T")


class ScalarOps(Protocol[T]):
    """The meaning of each scalar operation over values of type `T`.

    `dtype` is always the dtype of the result. Operands of one arithmetic operation have equal
    dtypes (the lowering converts), except where said. NaN, infinities and signed zero behave as in
    eager ATen.
    """

    # leaves
    def constant(self, value: Constant, dtype: torch.dtype) -> T:
        """A literal."""
        ...

    def index_expression(self, index: Size, dtype: torch.dtype, indirects: tuple[T, ...]) -> T:
        """The value of an integer expression over loop variables, sizes and indirect symbols."""
        ...

    def argument(self, name: str, dtype: torch.dtype) -> T:
        """A Python number that is an input of the graph."""
        ...

    # memory
    def load(
        self,
        buffer: str,
        index: Size,
        dtype: torch.dtype,
        indirects: tuple[T, ...],
        mask: T | None,
    ) -> T:
        """The element at `index`, half types widened to float32; 0 where `mask` is false."""
        ...

    def store(
        self,
        buffer: str,
        index: Size,
        value: T,
        mode: StoreMode,
        dtype: torch.dtype,
        indirects: tuple[T, ...],
        mask: T | None,
    ) -> T:
        """Write `value` (or combine it with what is there, indivisibly), narrowed to storage type `dtype`."""
        ...

    def accumulate(
        self, buffer: str, index: Size, value: T, kind: ReductionKind, dtype: torch.dtype
    ) -> T:
        """Combine `value` over all outer iterations; `index` uses reduction variables only."""
        ...

    def indirect(self, value: T, indirect: Indirect, mask: T | None) -> T:
        """Let `indirect.symbol` stand for an integer; no check where `mask` is false."""
        ...

    # conversion
    def to_dtype(self, x: T, dtype: torch.dtype) -> T:
        """Convert as `Tensor.to`: float to integer truncates, to bool is `!= 0`."""
        ...

    def round_to(self, x: T, half: str, dtype: torch.dtype) -> T:
        """Round a float32 to the half type named `half` (ties to even), kept as float32."""
        ...

    def bitcast(self, x: T, dtype: torch.dtype) -> T:
        """The same bits as another type of the same width."""
        ...

    # unary
    def exp(self, x: T, dtype: torch.dtype) -> T: ...
    def exp2(self, x: T, dtype: torch.dtype) -> T: ...
    def expm1(self, x: T, dtype: torch.dtype) -> T: ...
    def log(self, x: T, dtype: torch.dtype) -> T: ...
    def log1p(self, x: T, dtype: torch.dtype) -> T: ...
    def log2(self, x: T, dtype: torch.dtype) -> T: ...
    def log10(self, x: T, dtype: torch.dtype) -> T: ...
    def sin(self, x: T, dtype: torch.dtype) -> T: ...
    def cos(self, x: T, dtype: torch.dtype) -> T: ...
    def tan(self, x: T, dtype: torch.dtype) -> T: ...
    def asin(self, x: T, dtype: torch.dtype) -> T: ...
    def acos(self, x: T, dtype: torch.dtype) -> T: ...
    def atan(self, x: T, dtype: torch.dtype) -> T: ...
    def sinh(self, x: T, dtype: torch.dtype) -> T: ...
    def cosh(self, x: T, dtype: torch.dtype) -> T: ...
    def tanh(self, x: T, dtype: torch.dtype) -> T: ...
    def asinh(self, x: T, dtype: torch.dtype) -> T: ...
    def acosh(self, x: T, dtype: torch.dtype) -> T: ...
    def atanh(self, x: T, dtype: torch.dtype) -> T: ...
    def sqrt(self, x: T, dtype: torch.dtype) -> T: ...
    def rsqrt(self, x: T, dtype: torch.dtype) -> T: ...
    def reciprocal(self, x: T, dtype: torch.dtype) -> T: ...
    def erf(self, x: T, dtype: torch.dtype) -> T: ...
    def erfc(self, x: T, dtype: torch.dtype) -> T: ...
    def erfinv(self, x: T, dtype: torch.dtype) -> T: ...
    def lgamma(self, x: T, dtype: torch.dtype) -> T: ...
    def digamma(self, x: T, dtype: torch.dtype) -> T: ...
    def sigmoid(self, x: T, dtype: torch.dtype) -> T: ...
    def neg(self, x: T, dtype: torch.dtype) -> T: ...
    def abs(self, x: T, dtype: torch.dtype) -> T: ...
    def sign(self, x: T, dtype: torch.dtype) -> T: ...
    def floor(self, x: T, dtype: torch.dtype) -> T: ...
    def ceil(self, x: T, dtype: torch.dtype) -> T: ...
    def trunc(self, x: T, dtype: torch.dtype) -> T: ...
    def round(self, x: T, dtype: torch.dtype) -> T:
        """Half to even."""
        ...

    def bitwise_not(self, x: T, dtype: torch.dtype) -> T: ...
    def isnan(self, x: T, dtype: torch.dtype) -> T: ...
    def isinf(self, x: T, dtype: torch.dtype) -> T: ...
    def signbit(self, x: T, dtype: torch.dtype) -> T: ...
    def logical_not(self, x: T, dtype: torch.dtype) -> T: ...
    def real(self, x: T, dtype: torch.dtype) -> T: ...
    def imag(self, x: T, dtype: torch.dtype) -> T: ...

    # binary
    def add(self, x: T, y: T, dtype: torch.dtype) -> T:
        """Integers wrap; bool adds as or."""
        ...

    def sub(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def mul(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def div(self, x: T, y: T, dtype: torch.dtype) -> T:
        """True division of floats or complex numbers."""
        ...

    def floor_div(self, x: T, y: T, dtype: torch.dtype) -> T:
        """Quotient rounded down as `torch.floor_divide`; an integer by 0 gives 0, no trap."""
        ...

    def trunc_div(self, x: T, y: T, dtype: torch.dtype) -> T:
        """Integer quotient rounded towards zero; divided by 0 gives 0, no trap."""
        ...

    def remainder(self, x: T, y: T, dtype: torch.dtype) -> T:
        """Remainder with the divisor's sign; an integer modulo 0 gives 0, no trap."""
        ...

    def fmod(self, x: T, y: T, dtype: torch.dtype) -> T:
        """Remainder with the dividend's sign."""
        ...

    def pow(self, x: T, y: T, dtype: torch.dtype) -> T:
        """Integers: repeated multiplication, negative exponents give 0 except for bases 1 and -1."""
        ...

    def maximum(self, x: T, y: T, dtype: torch.dtype) -> T:
        """NaN if either is NaN."""
        ...

    def minimum(self, x: T, y: T, dtype: torch.dtype) -> T:
        """NaN if either is NaN."""
        ...

    def atan2(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def copysign(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def hypot(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def nextafter(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def bitwise_and(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def bitwise_or(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def bitwise_xor(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def shift_left(self, x: T, y: T, dtype: torch.dtype) -> T:
        """0 when the shift is negative or at least the width."""
        ...

    def shift_right(self, x: T, y: T, dtype: torch.dtype) -> T:
        """Arithmetic for signed types; the sign when the shift is negative or at least the width."""
        ...

    def eq(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def ne(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def lt(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def le(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def gt(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def ge(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def logical_and(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def logical_or(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def logical_xor(self, x: T, y: T, dtype: torch.dtype) -> T: ...
    def make_complex(self, x: T, y: T, dtype: torch.dtype) -> T:
        """From a real and an imaginary part."""
        ...

    def where(self, condition: T, x: T, y: T, dtype: torch.dtype) -> T:
        """`condition` is bool."""
        ...

    # random numbers: Philox 4x32-10 of (int64 seed, int64 offset, int64 element), as
    # primtorch.philox_* define it
    def philox_uniform(self, seed: T, offset: T, element: T, dtype: torch.dtype) -> T: ...
    def philox_normal(self, seed: T, offset: T, element: T, dtype: torch.dtype) -> T: ...
    def philox_bits(self, seed: T, offset: T, element: T, dtype: torch.dtype) -> T:
        """Int64 whose low 32 bits are the first word, its high 32 bits the second."""
        ...

    # loops
    def reduce(self, kind: ReductionKind, values: tuple[T, ...], dtype: torch.dtype) -> T:
        """Over all reduction variables; the value exists after the stage."""
        ...

    def part(self, x: T, number: int, dtype: torch.dtype) -> T:
        """One result of a reduction with several: welford gives mean, m2, count."""
        ...

    def scan(self, x: T, kind: ScanKind, dtype: torch.dtype) -> T:
        """Inclusive running combination in ascending order of the (single) reduction variable."""
        ...
