"""How values and literals are spelled in generated C++.

Invariant: equal values have equal spellings in every process, because kernels are found again by their text.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import torch

__all__ = ["C_TYPES", "Value", "literal", "storage_type"]

C_TYPES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
"""Names of `prelude.h` for everything that a value can be."""

_STORAGE_TYPES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}


class Value(NamedTuple):
    """An expression of generated code and the dtype it has."""

    text: str
    dtype: torch.dtype


def storage_type(dtype: torch.dtype) -> str:
    """The type of an element in memory."""
    return _STORAGE_TYPES.get(dtype) or C_TYPES[dtype]


def _float(value: float, dtype: torch.dtype) -> str:
    suffix = "f" if dtype is torch.float32 else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if suffix and math.isfinite(value):
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return f"{value.hex()}{suffix}"


def literal(value: complex, dtype: torch.dtype) -> str:
    """`value` as a constant expression of `dtype`."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_complex:
        number = complex(value)
        part = torch.float32 if dtype is torch.complex64 else torch.float64
        return f"{C_TYPES[dtype]}{{{_float(number.real, part)}, {_float(number.imag, part)}}}"
    assert not isinstance(value, complex)
    if dtype.is_floating_point:
        return _float(float(value), dtype)
    bits = dtype.itemsize * 8
    integer = int(value) & ((1 << bits) - 1)
    if dtype not in {torch.uint8, torch.uint16, torch.uint32, torch.uint64}:
        if integer == 1 << (bits - 1) and bits == 64:
            return "(-9223372036854775807l - 1)"
        if integer >> (bits - 1):
            integer -= 1 << bits
        return f"({C_TYPES[dtype]}){integer}l" if bits < 64 else f"{integer}l"
    return f"({C_TYPES[dtype]}){integer}ul"
