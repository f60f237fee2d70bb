"""The C++ meaning of each scalar operation.

`ArithmeticOps` implements the methods of `ScalarOps` that are pure expressions, over `Value`s; memory and whatever
happens across loop iterations is the kernel printer's. Invariant: no expression has a side effect, so an operation may
be printed at any level where its operands exist.
"""

# ruff: noqa: D102 - one method per scalar operation, described by ScalarOps
from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inductor.codegen.cpp.types import C_TYPES, Value, literal
from inductor.ir.operations import TRANSCENDENTAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from inductor.ir.operations import Constant

__all__ = ["SCALAR_EXPRESSIONS", "ArithmeticOps"]

_COMPLEX_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_UNSIGNED = frozenset({torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64})


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


class ArithmeticOps:
    """Operations that are pure expressions of their operands."""

    # ---- conversion
    def constant(self, value: Constant, dtype: torch.dtype) -> Value:
        return Value(literal(value, dtype), dtype)

    def to_dtype(self, x: Value, dtype: torch.dtype) -> Value:
        source, target = x.dtype, C_TYPES[dtype]
        if source is dtype:
            return x
        if dtype is torch.bool:
            if source.is_complex:
                return Value(f"({x.text}.re != 0 || {x.text}.im != 0)", dtype)
            return Value(f"({x.text} != 0)", dtype)
        if source.is_complex:
            if dtype.is_complex:
                part = C_TYPES[_COMPLEX_PARTS[dtype]]
                return Value(f"{target}{{({part}){x.text}.re, ({part}){x.text}.im}}", dtype)
            return self.to_dtype(Value(f"{x.text}.re", _COMPLEX_PARTS[source]), dtype)
        if dtype.is_complex:
            part = _COMPLEX_PARTS[dtype]
            return Value(f"{target}{{{self.to_dtype(x, part).text}, 0}}", dtype)
        if source is torch.bool and _is_float(dtype):
            # A selection: gcc turns it into a mask, where a conversion keeps the whole loop scalar.
            return Value(f"({x.text} ? {literal(1, dtype)} : {literal(0, dtype)})", dtype)
        if _is_float(source) and not _is_float(dtype):
            # Below 64 bits the machine converts to 32 or 64 bits first and cuts, and so does eager.
            wide = dtype in {torch.int64, torch.uint32, torch.uint64}
            bytes_of_doubles = source is torch.float64 and dtype is torch.uint8
            middle = "i64" if wide or bytes_of_doubles else "i32"
            return Value(f"({target})({middle}){x.text}", dtype)
        return Value(f"({target}){x.text}", dtype)

    def round_to(self, x: Value, half: str, dtype: torch.dtype) -> Value:
        name = {
            "float16": "f16",
            "bfloat16": "bf16",
            "float8_e4m3fn": "f8e4m3",
            "float8_e5m2": "f8e5m2",
        }[half]
        if dtype.itemsize == 4 and name in {"f16", "bf16"}:
            return Value(f"ci_round_{name}({x.text})", dtype)
        return Value(f"ci_from_{name}(ci_to_{name}({x.text}))", dtype)

    def bitcast(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(f"__builtin_bit_cast({C_TYPES[dtype]}, {x.text})", dtype)

    def real(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(f"{x.text}.re" if x.dtype.is_complex else x.text, dtype)

    def imag(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(f"{x.text}.im" if x.dtype.is_complex else literal(0, dtype), dtype)

    def make_complex(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return Value(f"{C_TYPES[dtype]}{{{x.text}, {y.text}}}", dtype)

    # ---- unary
    def neg(self, x: Value, dtype: torch.dtype) -> Value:
        return self._narrow(f"-{x.text}", dtype)

    def abs(self, x: Value, dtype: torch.dtype) -> Value:
        if x.dtype.is_complex:
            return Value(f"ci_hypot({x.text}.re, {x.text}.im)", dtype)
        if _is_float(dtype):
            return Value(f"ci_abs({x.text})", dtype)
        return (
            x if dtype in _UNSIGNED else Value(f"ci_abs_integer<{C_TYPES[dtype]}>({x.text})", dtype)
        )

    def sign(self, x: Value, dtype: torch.dtype) -> Value:
        return x if dtype is torch.bool else Value(f"ci_sign<{C_TYPES[dtype]}>({x.text})", dtype)

    def bitwise_not(self, x: Value, dtype: torch.dtype) -> Value:
        return (
            Value(f"!{x.text}", dtype) if dtype is torch.bool else self._narrow(f"~{x.text}", dtype)
        )

    def logical_not(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(f"!{self.to_dtype(x, torch.bool).text}", dtype)

    def isnan(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(f"({x.text} != {x.text})" if _is_float(x.dtype) else "false", dtype)

    def isinf(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(f"(ci_abs({x.text}) == CI_INF)" if _is_float(x.dtype) else "false", dtype)

    def signbit(self, x: Value, dtype: torch.dtype) -> Value:
        if _is_float(x.dtype):
            return Value(f"ci_signbit({x.text})", dtype)
        return Value("false" if x.dtype in _UNSIGNED else f"({x.text} < 0)", dtype)

    def reciprocal(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(f"({literal(1, dtype)} / {x.text})", dtype)

    # ---- binary
    def add(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._arithmetic("||", "+", x, y, dtype)

    def sub(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._arithmetic("!=", "-", x, y, dtype)

    def mul(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._arithmetic("&&", "*", x, y, dtype)

    def div(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return Value(f"({x.text} / {y.text})", dtype)

    def _arithmetic(self, logic: str, sign: str, x: Value, y: Value, dtype: torch.dtype) -> Value:
        if dtype is torch.bool:
            return Value(f"({x.text} {logic} {y.text})", dtype)
        return self._narrow(f"({x.text} {sign} {y.text})", dtype)

    @staticmethod
    def _narrow(text: str, dtype: torch.dtype) -> Value:
        """Undo C's promotion of small integers to int."""
        small = not _is_float(dtype) and not dtype.is_complex and dtype.itemsize < 4
        return Value(f"({C_TYPES[dtype]}){text}" if small else f"({text})", dtype)

    def floor_div(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._division("ci_floordiv", x, y, dtype)

    def trunc_div(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        if _is_float(dtype):
            return Value(f"ci_trunc({x.text} / {y.text})", dtype)
        return Value(f"ci_truncdiv<{C_TYPES[dtype]}>({x.text}, {y.text})", dtype)

    def remainder(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._division("ci_mod", x, y, dtype)

    def _division(self, function: str, x: Value, y: Value, dtype: torch.dtype) -> Value:
        kind = "float" if _is_float(dtype) else "signed"
        return Value(f"{function}_{kind}<{C_TYPES[dtype]}>({x.text}, {y.text})", dtype)

    def fmod(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        if _is_float(dtype):
            return Value(f"ci_fmod({x.text}, {y.text})", dtype)
        return Value(f"ci_truncmod<{C_TYPES[dtype]}>({x.text}, {y.text})", dtype)

    def pow(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        if _is_float(dtype) or dtype.is_complex:
            return Value(f"ci_pow({x.text}, {y.text})", dtype)
        return Value(f"ci_pow_integer<{C_TYPES[dtype]}>({x.text}, {y.text})", dtype)

    def maximum(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return Value(f"ci_maximum<{C_TYPES[dtype]}>({x.text}, {y.text})", dtype)

    def minimum(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return Value(f"ci_minimum<{C_TYPES[dtype]}>({x.text}, {y.text})", dtype)

    def bitwise_and(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._narrow(f"({x.text} & {y.text})", dtype)

    def bitwise_or(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._narrow(f"({x.text} | {y.text})", dtype)

    def bitwise_xor(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._narrow(f"({x.text} ^ {y.text})", dtype)

    def shift_left(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return Value(f"ci_shift_left<{C_TYPES[dtype]}>({x.text}, {y.text})", dtype)

    def shift_right(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return Value(f"ci_shift_right<{C_TYPES[dtype]}>({x.text}, {y.text})", dtype)

    def logical_and(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._logical("&", x, y, dtype)

    def logical_or(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._logical("|", x, y, dtype)

    def logical_xor(self, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return self._logical("^", x, y, dtype)

    def _logical(self, sign: str, x: Value, y: Value, dtype: torch.dtype) -> Value:
        left, right = self.to_dtype(x, torch.bool), self.to_dtype(y, torch.bool)
        return Value(f"(bool)({left.text} {sign} {right.text})", dtype)

    def where(self, condition: Value, x: Value, y: Value, dtype: torch.dtype) -> Value:
        return Value(f"({condition.text} ? {x.text} : {y.text})", dtype)

    # ---- random numbers
    def philox_uniform(
        self, seed: Value, offset: Value, element: Value, dtype: torch.dtype
    ) -> Value:
        return self._philox("uniform", seed, offset, element, dtype)

    def philox_normal(
        self, seed: Value, offset: Value, element: Value, dtype: torch.dtype
    ) -> Value:
        return self._philox("normal", seed, offset, element, dtype)

    def philox_bits(self, seed: Value, offset: Value, element: Value, dtype: torch.dtype) -> Value:
        return self._philox("bits", seed, offset, element, dtype)

    @staticmethod
    def _philox(kind: str, seed: Value, offset: Value, element: Value, dtype: torch.dtype) -> Value:
        operands = f"(u64){seed.text}, (u64){offset.text}, (u64){element.text}"
        return Value(f"ci_philox_{kind}_{C_TYPES[dtype]}({operands})", dtype)


def _function(name: str) -> Callable[..., Value]:
    def call(self: ArithmeticOps, *operands: Value | torch.dtype) -> Value:
        del self
        *values, dtype = operands
        assert isinstance(dtype, torch.dtype)
        texts = ", ".join(value.text for value in values if isinstance(value, Value))
        return Value(f"ci_{name}({texts})", dtype)

    call.__name__ = name
    return call


def _rounding(name: str) -> Callable[..., Value]:
    def call(self: ArithmeticOps, x: Value, dtype: torch.dtype) -> Value:
        del self
        return Value(f"ci_{name}({x.text})", dtype) if _is_float(dtype) else x

    call.__name__ = name
    return call


def _comparison(name: str, sign: str) -> Callable[..., Value]:
    def call(self: ArithmeticOps, x: Value, y: Value, dtype: torch.dtype) -> Value:
        del self
        return Value(f"({x.text} {sign} {y.text})", dtype)

    call.__name__ = name
    return call


_FUNCTIONS = (
    *TRANSCENDENTAL, "sqrt", "rsqrt", "atan2", "copysign", "hypot", "nextafter",
)  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

for _name in _FUNCTIONS:
    setattr(ArithmeticOps, _name, _function(_name))
for _name in ("floor", "ceil", "trunc", "round"):
    setattr(ArithmeticOps, _name, _rounding(_name))
for _name, _sign in _COMPARISONS.items():
    setattr(ArithmeticOps, _name, _comparison(_name, _sign))

SCALAR_EXPRESSIONS = frozenset(name for name in vars(ArithmeticOps) if not name.startswith("_"))
"""Operations that are pure expressions; the others belong to the kernel printer."""
