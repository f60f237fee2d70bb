"""Tensors from nothing: constants, ranges, identity, random numbers by counter.

None of them reads memory (random numbers read their seed), so they are computed where needed.
"""

# ruff: noqa: ARG001  # a lowering has its operator's signature

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import primtorch
from inductor.errors import UnsupportedOperationError
from inductor.ir.index import contiguous_stride, linear_index
from inductor.ir.operations import HALF_DTYPES, Size, value_dtype
from inductor.lowering.pointwise import reader
from inductor.lowering.registry import lowers
from primtorch.symbolic import Expression

if TYPE_CHECKING:
    from collections.abc import Callable

    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Coordinates, Value

aten = torch.ops.aten
assert primtorch.__version__, "importing primtorch registers its operators"


def _generated(
    builder: Builder,
    function: Callable[[Recorder, Coordinates], Scalar],
    operations: int,
    loads: int = 0,
) -> Value:
    fact = builder.fact

    def load(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        return recorder.to_dtype(function(recorder, coordinates), fact.dtype)

    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=operations,
        loads=loads,
        stride=fact.stride,
    )


def _constant(builder: Builder, value: Any) -> Value:
    read = reader(value, builder.fact.shape)
    return _generated(builder, read, 0)


@lowers(aten.full.default)
def full(builder: Builder, size: Any, value: Any, **_: Any) -> Value:
    """One number everywhere."""
    return _constant(builder, value)


@lowers(aten.full_like.default, aten.new_full.default)
def full_like(builder: Builder, x: Value, *arguments: Any, **_: Any) -> Value:
    """One number everywhere, in the shape of another tensor or of its own."""
    return _constant(builder, arguments[-1])


@lowers(aten.scalar_tensor.default)
def scalar_tensor(builder: Builder, value: Any, **_: Any) -> Value:
    """A number as a tensor without dimensions."""
    return _constant(builder, value)


@lowers(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.empty_permuted.default,
)
def zeros(builder: Builder, *_: Any, **__: Any) -> Value:
    """Zeros; memory that nobody promised the contents of is zeros too."""
    return _constant(builder, 0)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(builder: Builder, *_: Any, **__: Any) -> Value:
    """Ones."""
    return _constant(builder, 1)


@lowers(aten.arange.start_step, aten.arange.start, aten.arange.default)
def arange(builder: Builder, *arguments: Any, **_: Any) -> Value:
    """`start + i * step`."""
    start: Any = 0
    step: Any = 1
    if len(arguments) == 2:
        start = arguments[0]
    elif len(arguments) == 3:
        start, _end, step = arguments
    fact = builder.fact
    if fact.dtype == torch.int64:  # as eager: what is counted are integers
        start, step = (int(value) if isinstance(value, float) else value for value in (start, step))
    if isinstance(start, float) or isinstance(step, float):
        wide = value_dtype(fact.dtype)
        if not wide.is_floating_point:
            wide = torch.float64

        def of_floats(recorder: Recorder, coordinates: Coordinates) -> Scalar:
            def number(value: Any) -> Scalar:
                if isinstance(value, int | float):
                    return recorder.constant(value, wide)
                return recorder.to_dtype(recorder.index_expression(value, torch.int64), wide)

            scaled = recorder.op("mul", number(coordinates[0]), number(step))
            return recorder.op("add", number(start), scaled)

        return _generated(builder, of_floats, 3)

    def of_integers(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        return recorder.index_expression(coordinates[0] * step + start, torch.int64)

    return _generated(builder, of_integers, 1)


@lowers(aten.eye.m, aten.eye.default)
def eye(builder: Builder, *_: Any, **__: Any) -> Value:
    """Ones on the diagonal."""

    def load(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        row, column = (recorder.index_expression(c, torch.int64) for c in coordinates)
        return recorder.op("eq", row, column)

    return _generated(builder, load, 1)


# ---- random numbers
def _primtorch(name: str) -> Any:
    """An operator of primtorch's library."""
    return getattr(torch.ops.primtorch, name).default


def _counter(
    builder: Builder, seed: Value, offset: int
) -> Callable[[Recorder, Coordinates], tuple[Scalar, Scalar, Scalar]]:
    shape = builder.fact.shape
    stride = contiguous_stride(shape)

    def load(recorder: Recorder, coordinates: Coordinates) -> tuple[Scalar, Scalar, Scalar]:
        element = recorder.index_expression(linear_index(coordinates, stride), torch.int64)
        return (
            seed.load(recorder, (0,) * len(seed.shape)),
            recorder.constant(offset, torch.int64),
            element,
        )

    return load


def _word(recorder: Recorder, counter: tuple[Scalar, Scalar, Scalar]) -> Scalar:
    bits = recorder.op("philox_bits", *counter, dtype=torch.int64)
    return recorder.op("bitwise_and", bits, recorder.constant(0xFFFFFFFF, torch.int64))


@lowers(_primtorch("philox_uniform"))
def philox_uniform(
    builder: Builder, seed: Value, offset: int, size: Any, *, dtype: torch.dtype
) -> Value:
    """Uniform in [0, 1)."""
    counter = _counter(builder, seed, offset)
    bits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype)

    def load(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        drawn = recorder.op(
            "philox_uniform", *counter(recorder, coordinates), dtype=value_dtype(dtype)
        )
        if bits is None:
            return drawn
        # the upper bits of the same word, which a half type holds exactly
        top = recorder.op("mul", drawn, recorder.constant(2.0**bits, torch.float32))
        unit = recorder.constant(2.0**-bits, torch.float32)
        return recorder.op("mul", recorder.op("floor", top), unit)

    return _generated(builder, load, 24, 0)


@lowers(_primtorch("philox_normal"))
def philox_normal(
    builder: Builder, seed: Value, offset: int, size: Any, *, dtype: torch.dtype
) -> Value:
    """Standard normal."""
    counter = _counter(builder, seed, offset)

    def load(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        return recorder.op(
            "philox_normal", *counter(recorder, coordinates), dtype=value_dtype(dtype)
        )

    return _generated(builder, load, 48, 0)


@lowers(_primtorch("philox_randint"))
def philox_randint(
    builder: Builder,
    seed: Value,
    offset: int,
    size: Any,
    low: Size,
    high: Size,
    *,
    dtype: torch.dtype,
) -> Value:
    """Integers in [low, high)."""
    width = high - low
    if isinstance(width, Expression) or width > 2**31 or dtype in HALF_DTYPES:
        raise UnsupportedOperationError("philox_randint", "with more than 31 bits")
    counter = _counter(builder, seed, offset)

    def load(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        word = _word(recorder, counter(recorder, coordinates))
        scaled = recorder.op("mul", word, recorder.constant(width, torch.int64))
        drawn = recorder.op("shift_right", scaled, recorder.constant(32, torch.int64))
        shifted = recorder.index_expression(low, torch.int64)
        return recorder.op("add", drawn, shifted)

    return _generated(builder, load, 24, 0)
