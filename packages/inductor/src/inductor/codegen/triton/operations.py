"""The scalar operations as Triton text: one method for each operation of the closed set.

`TritonOps` implements `ScalarOps[str]`: values are names or short expressions of Triton values. Loads, stores and loop
operations need the tile they stand in; they are delegated to the `Tile` that the kernel writer passes.
"""

# ruff: noqa: D102, ARG002 - each method's contract and parameters stand in ScalarOps
from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from inductor.ir import Indirect, Size
    from inductor.ir.operations import Constant, ReductionKind, ScanKind, StoreMode

TRITON_TYPES: dict[torch.dtype, str] = {
    torch.bool: "tl.int1",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float8_e4m3fn: "tl.float8e4nv",
    torch.float8_e5m2: "tl.float8e5",
}

SIGNATURE_TYPES: dict[torch.dtype, str] = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}


def triton_type(dtype: torch.dtype) -> str:
    """The name of a dtype in device code.

    Raises:
        KeyError: Triton has no such type (complex numbers): the kernel is not for this code generator.
    """
    return TRITON_TYPES[dtype]


class Tile(Protocol):
    """What depends on where an operation stands: addresses, masks, accumulators."""

    @property
    def narrow(self) -> bool: ...
    @property
    def row_constant(self) -> bool: ...
    def constant(self, text: str, dtype: torch.dtype) -> str: ...
    def index_expression(self, index: Size, dtype: torch.dtype) -> str: ...
    def load(self, buffer: str, index: Size, dtype: torch.dtype, mask: str | None) -> str: ...
    def store(
        self,
        buffer: str,
        index: Size,
        value: str,
        mode: StoreMode,
        dtype: torch.dtype,
        mask: str | None,
    ) -> str: ...
    def accumulate(
        self, buffer: str, index: Size, value: str, kind: ReductionKind, dtype: torch.dtype
    ) -> str: ...
    def indirect(self, value: str, indirect: Indirect, mask: str | None) -> str: ...
    def reduce(self, kind: ReductionKind, values: tuple[str, ...], dtype: torch.dtype) -> str: ...
    def part(self, value: str, number: int) -> str: ...
    def scan(self, value: str, kind: ScanKind, dtype: torch.dtype) -> str: ...
    def words(self, seed: str, offset: str) -> str | None: ...
    def words_below(self) -> str | None: ...
    def erf_plus_one(self) -> str | None: ...


def constant_text(value: Constant) -> str:
    """A Python literal that device code reads as the same number."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124 - the test for NaN
            return 'float("nan")'
        if value in (float("inf"), float("-inf")):
            return f'float("{value}")'
    return repr(value)


class TritonOps:
    """`ScalarOps[str]` for Triton."""

    def __init__(self, tile: Tile) -> None:
        self._tile = tile

    # ---- leaves and memory
    def constant(self, value: Constant, dtype: torch.dtype) -> str:
        return self._tile.constant(constant_text(value), dtype)

    def index_expression(self, index: Size, dtype: torch.dtype, indirects: tuple[str, ...]) -> str:
        del indirects
        return self._tile.index_expression(index, dtype)

    def argument(self, name: str, dtype: torch.dtype) -> str:
        if dtype is torch.bool:
            return f"({self._tile.constant('0', torch.int32)} + {name} != 0)"
        return f"({self._tile.constant('0', dtype)} + {name})"

    def load(
        self,
        buffer: str,
        index: Size,
        dtype: torch.dtype,
        indirects: tuple[str, ...],
        mask: str | None,
    ) -> str:
        del indirects
        return self._tile.load(buffer, index, dtype, mask)

    def store(
        self,
        buffer: str,
        index: Size,
        value: str,
        mode: StoreMode,
        dtype: torch.dtype,
        indirects: tuple[str, ...],
        mask: str | None,
    ) -> str:
        del indirects
        return self._tile.store(buffer, index, value, mode, dtype, mask)

    def accumulate(
        self, buffer: str, index: Size, value: str, kind: ReductionKind, dtype: torch.dtype
    ) -> str:
        return self._tile.accumulate(buffer, index, value, kind, dtype)

    def indirect(self, value: str, indirect: Indirect, mask: str | None) -> str:
        return self._tile.indirect(value, indirect, mask)

    # ---- conversion
    def to_dtype(self, x: str, dtype: torch.dtype) -> str:
        if dtype is torch.bool:
            return f"({x} != 0)"
        return f"{x}.to({triton_type(dtype)})"

    def round_to(self, x: str, half: str, dtype: torch.dtype) -> str:
        return f"{x}.to({triton_type(getattr(torch, half))}).to({triton_type(dtype)})"

    def bitcast(self, x: str, dtype: torch.dtype) -> str:
        return f"{x}.to({triton_type(dtype)}, bitcast=True)"

    # ---- unary, through the prelude where Triton's own differs from ATen's
    def exp(self, x: str, dtype: torch.dtype) -> str:
        if self._tile.narrow and dtype is torch.float32:
            return f"prelude.narrow_exp({x})"
        return f"prelude.exp({x})"

    def exp2(self, x: str, dtype: torch.dtype) -> str:
        return f"tl.exp2({x})"

    def expm1(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.expm1({x})"

    def log(self, x: str, dtype: torch.dtype) -> str:
        return f"tl.log({x})"

    def log1p(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.log1p({x})"

    def log2(self, x: str, dtype: torch.dtype) -> str:
        return f"tl.log2({x})"

    def log10(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.log10({x})"

    def sin(self, x: str, dtype: torch.dtype) -> str:
        return f"tl.sin({x})"

    def cos(self, x: str, dtype: torch.dtype) -> str:
        return f"tl.cos({x})"

    def tan(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.tan({x})"

    def asin(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.asin({x})"

    def acos(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.acos({x})"

    def atan(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.atan({x})"

    def sinh(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.sinh({x})"

    def cosh(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.cosh({x})"

    def tanh(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.tanh({x})"

    def asinh(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.asinh({x})"

    def acosh(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.acosh({x})"

    def atanh(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.atanh({x})"

    def sqrt(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.sqrt({x})"

    def rsqrt(self, x: str, dtype: torch.dtype) -> str:
        return f"tl.rsqrt({x})"

    def reciprocal(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.divide(tl.full([1], 1.0, {triton_type(dtype)}) + tl.zeros_like({x}), {x})"

    def erf(self, x: str, dtype: torch.dtype) -> str:
        name = "prelude.narrow_erf" if self._tile.narrow else "tl.erf"
        return f"{name}({x})"

    def erfc(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.erfc({x})"

    def erfinv(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.erfinv({x})"

    def lgamma(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.lgamma({x})"

    def digamma(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.digamma({x})"

    def sigmoid(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.sigmoid({x})"

    def neg(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.negate({x})" if dtype.is_floating_point else f"(-{x})"

    def abs(self, x: str, dtype: torch.dtype) -> str:
        return x if dtype is torch.bool or not dtype.is_signed else f"tl.abs({x})"

    def sign(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.sign({x})"

    def _rounding(self, function: str, x: str, dtype: torch.dtype) -> str:
        return f"{function}({x})" if dtype.is_floating_point else x

    def floor(self, x: str, dtype: torch.dtype) -> str:
        return self._rounding("tl.floor", x, dtype)

    def ceil(self, x: str, dtype: torch.dtype) -> str:
        return self._rounding("tl.ceil", x, dtype)

    def trunc(self, x: str, dtype: torch.dtype) -> str:
        return self._rounding("prelude.trunc", x, dtype)

    def round(self, x: str, dtype: torch.dtype) -> str:
        return self._rounding("prelude.round_half_even", x, dtype)

    def bitwise_not(self, x: str, dtype: torch.dtype) -> str:
        return f"({x} == 0)" if dtype is torch.bool else f"(~{x})"

    def isnan(self, x: str, dtype: torch.dtype) -> str:
        return f"({x} != {x})"

    def isinf(self, x: str, dtype: torch.dtype) -> str:
        return f'(tl.abs({x}) == float("inf"))'

    def signbit(self, x: str, dtype: torch.dtype) -> str:
        return f"prelude.sign_bit({x})"

    def logical_not(self, x: str, dtype: torch.dtype) -> str:
        return f"({x} == 0)"

    def real(self, x: str, dtype: torch.dtype) -> str:
        raise KeyError(f"complex numbers have no Triton type ({dtype})")

    def imag(self, x: str, dtype: torch.dtype) -> str:
        raise KeyError(f"complex numbers have no Triton type ({dtype})")

    def make_complex(self, x: str, y: str, dtype: torch.dtype) -> str:
        raise KeyError(f"complex numbers have no Triton type ({dtype})")

    # ---- binary
    def _arithmetic(self, x: str, sign: str, y: str, dtype: torch.dtype) -> str:
        # Triton may widen small integers: cut back to what wraps.
        text = f"({x} {sign} {y})"
        small = not dtype.is_floating_point and dtype.itemsize < 4
        return f"{text}.to({triton_type(dtype)})" if small else text

    def add(self, x: str, y: str, dtype: torch.dtype) -> str:
        if dtype is torch.bool:
            return f"({x} | {y})"
        return self._tile.erf_plus_one() or self._arithmetic(x, "+", y, dtype)

    def sub(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} ^ {y})" if dtype is torch.bool else self._arithmetic(x, "-", y, dtype)

    def mul(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} & {y})" if dtype is torch.bool else self._arithmetic(x, "*", y, dtype)

    def div(self, x: str, y: str, dtype: torch.dtype) -> str:
        if self._tile.narrow and self._tile.row_constant and dtype is torch.float32:
            return f"prelude.divide_by_row({x}, {y})"
        return f"prelude.divide({x}, {y})"

    def floor_div(self, x: str, y: str, dtype: torch.dtype) -> str:
        function = "float_floor_divide" if dtype.is_floating_point else "floor_div"
        return f"prelude.{function}({x}, {y})"

    def trunc_div(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"prelude.trunc_div({x}, {y})"

    def remainder(self, x: str, y: str, dtype: torch.dtype) -> str:
        function = "float_remainder" if dtype.is_floating_point else "floor_modulo"
        return f"prelude.{function}({x}, {y})"

    def fmod(self, x: str, y: str, dtype: torch.dtype) -> str:
        function = "float_fmod" if dtype.is_floating_point else "trunc_modulo"
        return f"prelude.{function}({x}, {y})"

    def pow(self, x: str, y: str, dtype: torch.dtype) -> str:
        function = "power" if dtype.is_floating_point else "integer_power"
        return f"prelude.{function}({x}, {y})"

    def maximum(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} | {y})" if dtype is torch.bool else f"prelude.maximum({x}, {y})"

    def minimum(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} & {y})" if dtype is torch.bool else f"prelude.minimum({x}, {y})"

    def atan2(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"prelude.atan2({x}, {y})"

    def copysign(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"prelude.copysign({x}, {y})"

    def hypot(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"prelude.hypot({x}, {y})"

    def nextafter(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"prelude.nextafter({x}, {y})"

    def bitwise_and(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} & {y})"

    def bitwise_or(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} | {y})"

    def bitwise_xor(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} ^ {y})"

    def shift_left(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"prelude.shift_left({x}, {y}, {dtype.itemsize * 8})"

    def shift_right(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"prelude.shift_right({x}, {y}, {dtype.itemsize * 8})"

    def eq(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} == {y})"

    def ne(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} != {y})"

    def lt(self, x: str, y: str, dtype: torch.dtype) -> str:
        return self._tile.words_below() or f"({x} < {y})"

    def le(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} <= {y})"

    def gt(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"({x} > {y})"

    def ge(self, x: str, y: str, dtype: torch.dtype) -> str:
        below = self._tile.words_below()
        return f"({below} == 0)" if below is not None else f"({x} >= {y})"

    def logical_and(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"(({x} != 0) & ({y} != 0))"

    def logical_or(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"(({x} != 0) | ({y} != 0))"

    def logical_xor(self, x: str, y: str, dtype: torch.dtype) -> str:
        return f"(({x} != 0) ^ ({y} != 0))"

    def where(self, condition: str, x: str, y: str, dtype: torch.dtype) -> str:
        return f"tl.where({condition}, {x}, {y})"

    # ---- random numbers
    def philox_uniform(self, seed: str, offset: str, element: str, dtype: torch.dtype) -> str:
        words = self._tile.words(seed, offset) if dtype is torch.float32 else None
        if words is not None:
            return f"prelude.unit_float({words})"
        return f"prelude.philox_uniform({seed}, {offset}, {element}, {dtype is torch.float64})"

    def philox_normal(self, seed: str, offset: str, element: str, dtype: torch.dtype) -> str:
        return f"prelude.philox_normal({seed}, {offset}, {element}, {dtype is torch.float64})"

    def philox_bits(self, seed: str, offset: str, element: str, dtype: torch.dtype) -> str:
        return f"prelude.philox_bits({seed}, {offset}, {element}).to({triton_type(dtype)})"

    # ---- loops
    def reduce(self, kind: ReductionKind, values: tuple[str, ...], dtype: torch.dtype) -> str:
        return self._tile.reduce(kind, values, dtype)

    def part(self, x: str, number: int, dtype: torch.dtype) -> str:
        return f"{self._tile.part(x, number)}.to({triton_type(dtype)})"

    def scan(self, x: str, kind: ScanKind, dtype: torch.dtype) -> str:
        return self._tile.scan(x, kind, dtype)
