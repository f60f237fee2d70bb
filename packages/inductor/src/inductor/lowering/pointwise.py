"""Elementwise operators: arithmetic, comparison, selection, conversion.

An operator computes in the dtype its operands promote to (float32 for half types, rounded once at
the end, as eager's kernels do) and yields the dtype that the graph promises.
"""

# a lowering has its operator's signature

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from inductor.errors import UnsupportedOperationError
from inductor.ir.operations import HALF_DTYPES, TRANSCENDENTAL, Size, value_dtype
from inductor.lowering.builder import Builder, TensorFact
from inductor.lowering.registry import lowers
from inductor.lowering.values import Coordinates, Value
from primtorch.symbolic import Expression

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inductor.ir.recorder import Recorder, Scalar

aten = torch.ops.aten
Number = bool | int | float | complex
Operand = Value | Number | Expression

EXPENSIVE = frozenset({*TRANSCENDENTAL, "pow", "atan2", "hypot", "remainder", "fmod", "floor_div"})
"""Operations that count as eight when weighing recomputation."""


def broadcast_shape(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The shape that operands broadcast to."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Size] = []
    for axis in range(-rank, 0):
        extent: Size = 1
        for shape in shapes:
            if -axis <= len(shape) and shape[axis] != 1:
                extent = shape[axis]
        result.append(extent)
    return tuple(result)


def reader(operand: Operand, shape: tuple[Size, ...]) -> Callable[[Recorder, Coordinates], Scalar]:
    """A load of an operand at the coordinates of a result that it broadcasts to."""
    if isinstance(operand, Value):
        rank = len(operand.shape)
        skip = len(shape) - rank
        if skip == 0 and operand.shape == shape:
            return operand.load
        keep = tuple(
            None if extent == 1 else skip + axis for axis, extent in enumerate(operand.shape)
        )

        def load(recorder: Recorder, coordinates: Coordinates) -> Scalar:
            inner = tuple(0 if axis is None else coordinates[axis] for axis in keep)
            return operand.load(recorder, inner)

        return load
    if isinstance(operand, Expression):
        expression = operand
        return lambda recorder, _: recorder.index_expression(expression, torch.int64)
    number = operand
    dtype = number_dtype(number)
    return lambda recorder, _: recorder.constant(number, dtype)


def number_dtype(number: Number) -> torch.dtype:
    """The widest dtype of a Python number's kind; conversions of constants happen at compile time."""
    match number:
        case bool():
            return torch.bool
        case int():
            return torch.int64
        case float():
            return torch.float64
        case _:
            return torch.complex128


@lru_cache(4096)
def _promoted(kinds: tuple[tuple[torch.dtype, bool] | type, ...]) -> torch.dtype:
    """Torch's own promotion; a kind is (dtype, has dimensions) or the type of a Python number."""
    examples = [
        kind(1) if isinstance(kind, type) else torch.empty((1,) if kind[1] else (), dtype=kind[0])
        for kind in kinds
    ]
    if len(examples) == 1:
        only = examples[0]
        return only.dtype if isinstance(only, torch.Tensor) else number_dtype(only)
    dtypes = [(index, kind[0]) for index, kind in enumerate(kinds) if not isinstance(kind, type)]
    if not dtypes:
        return number_dtype(sum(examples))
    tensors = [examples[index] for index, _ in dtypes]
    result = tensors[0]
    current = result.dtype
    ranked = [example for example in examples if example is not result]
    for example in ranked:
        current = torch.result_type(result, example)
        shape = (1,) if _has_dimension(result) or _has_dimension(example) else ()
        result = torch.empty(shape, dtype=current)
    return current


def _has_dimension(example: object) -> bool:
    return isinstance(example, torch.Tensor) and example.dim() > 0


def promoted(operands: Sequence[Operand]) -> torch.dtype:
    """The dtype that operands promote to, as eager has it."""
    kinds: list[tuple[torch.dtype, bool] | type] = []
    for operand in operands:
        if isinstance(operand, Value):
            kinds.append((operand.dtype, bool(operand.shape)))
        else:
            kinds.append(int if isinstance(operand, Expression) else type(operand))
    return _promoted(tuple(kinds))


def elementwise(
    builder: Builder,
    operands: Sequence[Operand],
    function: Callable[..., Scalar],
    *,
    compute: torch.dtype | None = None,
    weight: int = 1,
    exact_numbers: bool = False,
) -> Value:
    """A computed value: `function(recorder, *scalars)` of operands converted to `compute`.

    `compute` None converts to the dtype of the result. Beside half types all else is rounded to theirs first; with
    `exact_numbers` numbers are not.
    """
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    dtype = fact.dtype
    wide = value_dtype(dtype if compute is None else compute)
    shape = fact.shape
    # Without rounding a half value stays float32 until it is stored.
    rounded = dtype if builder.round_halves else value_dtype(dtype)
    readers = tuple(
        _reader_of_half(operand, shape, dtype if compute is None else compute, exact_numbers)
        for operand in operands
    )

    def load(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        scalars = [recorder.to_dtype(read(recorder, coordinates), wide) for read in readers]
        return recorder.to_dtype(function(recorder, *scalars), rounded)

    operations, loads = cost(operands)
    return builder.pointwise(
        load,
        shape=shape,
        dtype=dtype,
        device=fact.device,
        operations=operations + weight,
        loads=loads,
        stride=fact.stride,
        traffic=_traffic(operands, shape),
    )


def _reader_of_half(
    operand: Operand, shape: tuple[Size, ...], compute: torch.dtype, numbers: bool
) -> Callable[[Recorder, Coordinates], Scalar]:
    """As `reader`; what is of another dtype than the half type `compute` is rounded to it first, as eager converts it.

    With `numbers` those, and tensors of one number, stay as they are: eager's kernels take them in float32.
    """
    read = reader(operand, shape)
    if compute not in HALF_DTYPES:
        return read
    single = not isinstance(operand, Value) or not operand.shape
    if isinstance(operand, Value) and operand.dtype in (compute, torch.bool):
        return read
    if single and numbers:
        return read
    return lambda recorder, coordinates: recorder.round_to(
        recorder.to_dtype(read(recorder, coordinates), torch.float32), compute
    )


def _traffic(operands: Sequence[Operand], shape: Sequence[Size]) -> int | None:
    """Bytes read for one element of an elementwise result."""
    total = 0
    for operand in operands:
        if isinstance(operand, Value):
            read = operand.traffic_within(shape)
            if read is None:
                return None
            total += read
    return total


def cost(operands: Sequence[Operand]) -> tuple[int, int]:
    """Operations and loads of computing operands."""
    operations = loads = 0
    for operand in operands:
        if isinstance(operand, Value):
            if operand.stored:
                loads += 1
            else:
                operations += operand.operations
                loads += operand.loads
    return operations, loads


def _weight(name: str) -> int:
    return 8 if name in EXPENSIVE else 1


def _simple(name: str) -> Callable[..., Scalar]:
    return lambda recorder, *scalars: recorder.op(name, *scalars)


def _overloads(packet: str, *names: str) -> list[Any]:
    found = getattr(aten, packet, None)
    return [getattr(found, name, None) for name in names] if found is not None else []


def _unary(aten_name: str, name: str) -> None:
    @lowers(*_overloads(aten_name, "default"))
    def lower(builder: Builder, x: Operand, **_: Any) -> Value:
        return elementwise(builder, (x,), _simple(name), weight=_weight(name))


for _name in (*TRANSCENDENTAL, "sqrt", "rsqrt", "reciprocal", "neg", "bitwise_not"):
    _unary(_name, _name)


@lowers(aten.abs.default)
def absolute(builder: Builder, x: Value) -> Value:
    """`|x|`; of a complex number the real magnitude."""
    if x.dtype.is_complex:
        real = torch.float32 if x.dtype == torch.complex64 else torch.float64
        return elementwise(
            builder,
            (x,),
            lambda recorder, s: recorder.op(
                "hypot",
                recorder.op("real", s, dtype=real),
                recorder.op("imag", s, dtype=real),
            ),
            compute=x.dtype,
            weight=8,
        )
    if x.dtype in (torch.bool, torch.uint8):
        return elementwise(builder, (x,), lambda _, s: s)
    return elementwise(builder, (x,), _simple("abs"))


@lowers(aten.sign.default, aten.sgn.default)
def sign(builder: Builder, x: Value) -> Value:
    """-1, 0 or 1 (NaN stays)."""
    if x.dtype.is_complex:
        return elementwise(builder, (x,), _direction, weight=16)
    if x.dtype == torch.bool:
        return elementwise(builder, (x,), lambda _, s: s)
    return elementwise(builder, (x,), _simple("sign"))


def _direction(recorder: Recorder, s: Scalar) -> Scalar:
    """`s / |s|`, and 0 for 0."""
    real = torch.float32 if s.dtype == torch.complex64 else torch.float64
    parts = [recorder.op(part, s, dtype=real) for part in ("real", "imag")]
    size = recorder.op("hypot", *parts)
    at_zero = recorder.op("eq", size, recorder.constant(0, real))
    unit = recorder.op(
        "make_complex", *(recorder.op("div", part, size) for part in parts), dtype=s.dtype
    )
    return recorder.op("where", at_zero, recorder.constant(0, s.dtype), unit)


def _rounding(name: str) -> None:
    @lowers(getattr(aten, name).default)
    def lower(builder: Builder, x: Value) -> Value:
        if not x.dtype.is_floating_point:
            return elementwise(builder, (x,), lambda _, s: s)
        return elementwise(builder, (x,), _simple(name))


for _name in ("ceil", "floor", "round", "trunc"):
    _rounding(_name)


@lowers(aten.relu.default)
def relu(builder: Builder, x: Value) -> Value:
    """`max(x, 0)`; NaN and -0 stay."""

    def compute(recorder: Recorder, s: Scalar) -> Scalar:
        # Of equal operands the kernels give the second.
        return recorder.op("maximum", recorder.constant(0, s.dtype), s)

    return elementwise(builder, (x,), compute)


@lowers(
    aten.positive.default,
    aten.conj_physical.default,
    aten._conj_physical.default,
    aten._conj.default,
)
def conjugate(builder: Builder, x: Value) -> Value:
    """The complex conjugate; anything real is itself."""
    if not x.dtype.is_complex:
        return elementwise(builder, (x,), lambda _, s: s)
    if builder.operator is aten.positive.default:
        return elementwise(builder, (x,), lambda _, s: s)
    return elementwise(builder, (x,), _conjugate)


def _conjugate(recorder: Recorder, s: Scalar) -> Scalar:
    real = torch.float32 if s.dtype == torch.complex64 else torch.float64
    imaginary = recorder.op("neg", recorder.op("imag", s, dtype=real))
    return recorder.op("make_complex", recorder.op("real", s, dtype=real), imaginary, dtype=s.dtype)


def _predicate(name: str) -> None:
    def either_part(recorder: Recorder, s: Scalar) -> Scalar:
        real = torch.float32 if s.dtype == torch.complex64 else torch.float64
        first, second = (
            recorder.op(name, recorder.op(part, s, dtype=real)) for part in ("real", "imag")
        )
        return recorder.op("logical_or", first, second)

    @lowers(getattr(aten, name).default)
    def lower(builder: Builder, x: Value) -> Value:
        if x.dtype.is_complex:
            return elementwise(builder, (x,), either_part, compute=x.dtype)
        if not x.dtype.is_floating_point and name != "signbit":
            return elementwise(
                builder, (x,), lambda recorder, _: recorder.constant(False, torch.bool)
            )
        if x.dtype == torch.bool:
            return elementwise(
                builder, (x,), lambda recorder, _: recorder.constant(False, torch.bool)
            )
        return elementwise(builder, (x,), _simple(name), compute=x.dtype)


for _name in ("isnan", "isinf", "signbit"):
    _predicate(_name)


# ---- binary
def _binary(name: str, *operators: Any) -> None:
    @lowers(*operators)
    def lower(builder: Builder, x: Operand, y: Operand) -> Value:
        return elementwise(builder, (x, y), _simple(name), weight=_weight(name))


@lowers(*_overloads("mul", "Tensor", "Scalar"))
def multiply(builder: Builder, x: Operand, y: Operand) -> Value:
    """The product."""
    return elementwise(builder, (x, y), _simple("mul"), exact_numbers=True)


_binary("atan2", *_overloads("atan2", "default"))
_binary("copysign", *_overloads("copysign", "Tensor", "Scalar"))
_binary("hypot", *_overloads("hypot", "default"))
_binary("maximum", *_overloads("maximum", "default"))
_binary("minimum", *_overloads("minimum", "default"))
_binary("remainder", *_overloads("remainder", "Tensor", "Scalar", "Scalar_Tensor"))
_binary("fmod", *_overloads("fmod", "Tensor", "Scalar"))
_binary("pow", *_overloads("pow", "Tensor_Tensor", "Scalar"))
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _binary(_name, *_overloads(_name, "Tensor", "Scalar", "Scalar_Tensor"))
_binary("shift_left", *_overloads("bitwise_left_shift", "Tensor", "Tensor_Scalar"))
_binary("shift_right", *_overloads("bitwise_right_shift", "Tensor", "Tensor_Scalar"))


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(builder: Builder, x: Operand, y: Operand, alpha: Number | Value = 1) -> Value:
    """`x + alpha * y`."""
    return _with_factor(builder, "add", x, y, alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def subtract(builder: Builder, x: Operand, y: Operand, alpha: Number | Value = 1) -> Value:
    """`x - alpha * y`."""
    return _with_factor(builder, "sub", x, y, alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def reverse_subtract(builder: Builder, x: Operand, y: Operand, alpha: Number | Value = 1) -> Value:
    """`y - alpha * x`."""
    return _with_factor(builder, "sub", y, x, alpha)


def _with_factor(
    builder: Builder, name: str, x: Operand, y: Operand, factor: Number | Value
) -> Value:
    """`name` of `x` and `factor * y`; a factor that the caller passes is read like an operand."""
    operands = (x, y) if isinstance(factor, (int, float)) and factor == 1 else (x, y, factor)
    narrow = _narrowed(builder, operands)

    def compute(recorder: Recorder, *scalars: Scalar) -> Scalar:
        first, second, *by = narrow(recorder, scalars)
        return recorder.op(name, first, recorder.op("mul", second, by[0]) if by else second)

    return elementwise(builder, operands, compute, exact_numbers=True)


def _narrowed(
    builder: Builder, operands: Sequence[Operand]
) -> Callable[[Recorder, Sequence[Scalar]], Sequence[Scalar]]:
    """Rounds numbers beside half types to theirs, as eager does on a CPU where it adds, subtracts and takes powers."""
    fact = builder.fact
    dtype = fact.dtype
    if dtype not in HALF_DTYPES or builder.on_gpu(fact.device):
        return lambda _, scalars: scalars
    numbers = [not isinstance(one, Value) or one.dtype is not dtype for one in operands]
    return lambda recorder, scalars: [
        recorder.round_to(one, dtype) if number else one
        for number, one in zip(numbers, scalars, strict=True)
    ]


@lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def divide(builder: Builder, x: Operand, y: Operand) -> Value:
    """True division."""
    return elementwise(builder, (x, y), _simple("div"), weight=4, exact_numbers=True)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def divide_rounded(builder: Builder, x: Operand, y: Operand, *, rounding_mode: str | None) -> Value:
    """Division rounded down or towards zero."""
    match rounding_mode:
        case None:
            return divide(builder, x, y)
        case "floor":
            return elementwise(builder, (x, y), _simple("floor_div"), weight=8, exact_numbers=True)
        case "trunc":
            return elementwise(builder, (x, y), _trunc_div, weight=4, exact_numbers=True)
        case other:
            raise UnsupportedOperationError("div", f"rounding mode {other!r}")


def _trunc_div(recorder: Recorder, s: Scalar, t: Scalar) -> Scalar:
    if s.dtype.is_floating_point:
        return recorder.op("trunc", recorder.op("div", s, t))
    return recorder.op("trunc_div", s, t)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(builder: Builder, x: Operand, y: Operand) -> Value:
    """Division rounded down."""
    return elementwise(builder, (x, y), _simple("floor_div"), weight=8, exact_numbers=True)


@lowers(aten.pow.Tensor_Scalar)
def power(builder: Builder, x: Value, exponent: Operand) -> Value:
    """`x ** exponent`; small exponents by multiplication, as eager does."""
    if isinstance(exponent, (int, float)):
        fact = builder.fact
        floating = fact.dtype.is_floating_point or fact.dtype.is_complex
        # Of -0 and -inf a root differs from a power, which eager's CPU takes of float16.
        roots = floating and not (fact.dtype is torch.float16 and fact.device.type == "cpu")
        match exponent:
            case 2:
                return elementwise(builder, (x,), lambda r, s: r.op("mul", s, s))
            case 3:
                return elementwise(builder, (x,), lambda r, s: r.op("mul", r.op("mul", s, s), s))
            case 0.5 if roots:
                return elementwise(builder, (x,), _simple("sqrt"))
            case -0.5 if roots:
                return elementwise(builder, (x,), _simple("rsqrt"))
            case -1 if floating:
                return elementwise(builder, (x,), _simple("reciprocal"))
            case -2 if floating:
                return elementwise(
                    builder, (x,), lambda r, s: r.op("reciprocal", r.op("mul", s, s))
                )
            case 0:
                return elementwise(builder, (x,), lambda r, s: r.constant(1, s.dtype))
            case 1:
                return elementwise(builder, (x,), lambda _, s: s)
            case _:
                pass
    narrow = _narrowed(builder, (x, exponent))
    return elementwise(
        builder,
        (x, exponent),
        lambda r, *scalars: r.op("pow", *narrow(r, scalars)),
        weight=8,
        exact_numbers=True,
    )


@lowers(*_overloads("ldexp", "Tensor"))
def ldexp(builder: Builder, x: Operand, exponent: Operand) -> Value:
    """`x * 2 ** exponent`, the power in the result's dtype, as eager computes it."""

    def compute(recorder: Recorder, s: Scalar, t: Scalar) -> Scalar:
        scale = recorder.op("pow", recorder.constant(2, t.dtype), t)
        return recorder.op("mul", s, recorder.round_to(scale, dtype) if half else scale)

    dtype = builder.fact.dtype
    half = dtype in HALF_DTYPES
    return elementwise(builder, (x, exponent), compute, weight=9)


def _ignoring_nan(name: str, aten_name: str) -> None:
    @lowers(*_overloads(aten_name, "default"))
    def lower(builder: Builder, x: Operand, y: Operand) -> Value:
        def compute(recorder: Recorder, s: Scalar, t: Scalar) -> Scalar:
            if not s.dtype.is_floating_point:
                return recorder.op(name, s, t)
            chosen = recorder.op(name, t, s)  # of zeros of either sign the first
            without_s = recorder.op("where", recorder.op("isnan", s), t, chosen)
            return recorder.op("where", recorder.op("isnan", t), s, without_s)

        return elementwise(builder, (x, y), compute, weight=4)


_ignoring_nan("maximum", "fmax")
_ignoring_nan("minimum", "fmin")


@lowers(*_overloads("nextafter", "default"))
def nextafter(builder: Builder, x: Operand, y: Operand) -> Value:
    """The neighbour of `x` in the direction of `y`."""
    fact = builder.fact
    if isinstance(fact, TensorFact) and fact.dtype in HALF_DTYPES:
        raise UnsupportedOperationError(
            "nextafter", "half types are computed in float32, whose steps are others"
        )
    return elementwise(builder, (x, y), _simple("nextafter"), weight=_weight("nextafter"))


# ---- comparison and logic
def _comparison(name: str) -> None:
    @lowers(*_overloads(name, "Tensor", "Scalar"))
    def lower(builder: Builder, x: Operand, y: Operand) -> Value:
        compute = promoted((x, y))
        return elementwise(builder, (x, y), _simple(name), compute=compute)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


def _logical(name: str) -> None:
    @lowers(*_overloads(name, "default"))
    def lower(builder: Builder, x: Operand, *others: Operand) -> Value:
        return elementwise(builder, (x, *others), _simple(name), compute=torch.bool)


for _name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    _logical(_name)


# ---- selection
@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(builder: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    """`x` where `condition`, else `y`."""
    fact = builder.fact
    wide = value_dtype(fact.dtype)
    choose, first, second = (reader(operand, fact.shape) for operand in (condition, x, y))

    def load(recorder: Recorder, coordinates: Coordinates) -> Scalar:
        mask = recorder.to_dtype(choose(recorder, coordinates), torch.bool)
        left = recorder.to_dtype(first(recorder, coordinates), wide)
        right = recorder.to_dtype(second(recorder, coordinates), wide)
        return recorder.to_dtype(recorder.op("where", mask, left, right), fact.dtype)

    operations, loads = cost((condition, x, y))
    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=operations + 1,
        loads=loads,
        stride=fact.stride,
        traffic=_traffic((condition, x, y), fact.shape),
    )


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(builder: Builder, x: Value, mask: Value, value: Operand) -> Value:
    """`value` where `mask`, else `x`."""
    return where(builder, mask, value, x)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(
    builder: Builder, x: Value, min: Operand | None = None, max: Operand | None = None
) -> Value:
    """Not below `min`, then not above `max`; NaN stays, and of two zeros x or what a tensor holds."""
    operands: list[Operand] = [x]
    names: list[str] = []
    for bound, name in ((min, "maximum"), (max, "minimum")):
        if bound is not None:
            operands.append(bound)
            names.append(name)

    def compute(recorder: Recorder, s: Scalar, *limits: Scalar) -> Scalar:
        for name, limit in zip(names, limits, strict=True):
            s = recorder.op(name, *((s, limit) if of_tensors else (limit, s)))
        return s

    of_tensors = builder.operator is aten.clamp.Tensor
    return elementwise(builder, operands, compute, weight=len(names))


# ---- conversion
@lowers(aten._to_copy.default)
def to_copy(
    builder: Builder,
    x: Value,
    *,
    device: torch.device | None = None,
    **_: Any,
) -> Value:
    """Another dtype or layout; to another device is a call."""
    if device is not None and torch.device(device) != x.device:
        raise UnsupportedOperationError("_to_copy", "between devices")
    return convert(builder, x)


def convert(builder: Builder, x: Value) -> Value:
    """`x` in the dtype and with the strides that the current fact promises."""
    fact = builder.fact
    dtype = fact.dtype
    if x.dtype.is_complex and not dtype.is_complex:
        real = torch.float32 if x.dtype == torch.complex64 else torch.float64
        if dtype != torch.bool:
            return elementwise(
                builder,
                (x,),
                lambda recorder, s: recorder.op("real", s, dtype=real),
                compute=x.dtype,
            )
    return elementwise(builder, (x,), lambda _, s: s, compute=x.dtype, weight=int(x.dtype != dtype))


@lowers(aten.clone.default, aten.contiguous.default if hasattr(aten, "contiguous") else None)
def clone(builder: Builder, x: Value, **_: Any) -> Value:
    """The same values in the promised layout; nothing to do where they lie so already."""
    fact = builder.fact
    if x.view is not None and x.view.stride == fact.stride:
        return x
    return convert(builder, x)


@lowers(aten.copy.default)
def copy(builder: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """`source` in the shape and dtype of `x`."""
    del x, non_blocking
    return convert(builder, source)


@lowers(aten.complex.default)
def make_complex(builder: Builder, x: Value, y: Value) -> Value:
    """From real and imaginary parts."""
    fact = builder.fact
    real = torch.float32 if fact.dtype == torch.complex64 else torch.float64
    return elementwise(
        builder,
        (x, y),
        lambda recorder, s, t: recorder.op("make_complex", s, t, dtype=fact.dtype),
        compute=real,
    )


@lowers(aten.view_as_real.default)
def view_as_real(builder: Builder, x: Value) -> Value:
    """Real and imaginary part as a last dimension."""
    fact = builder.fact

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        scalar = x.load(recorder, place[:-1])
        first = recorder.index_expression(place[-1], torch.int64)
        at_real = recorder.op("eq", first, recorder.constant(0, torch.int64))
        real = recorder.op("real", scalar, dtype=fact.dtype)
        return recorder.op("where", at_real, real, recorder.op("imag", scalar, dtype=fact.dtype))

    operations, loads = cost((x,))
    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=operations + 3,
        loads=loads,
    )


@lowers(aten.view_as_complex.default)
def view_as_complex(builder: Builder, x: Value) -> Value:
    """Pairs of the last dimension as complex numbers."""
    fact = builder.fact

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        real, imaginary = x.load(recorder, (*place, 0)), x.load(recorder, (*place, 1))
        return recorder.op("make_complex", real, imaginary, dtype=fact.dtype)

    operations, loads = cost((x,))
    return builder.pointwise(
        load,
        shape=fact.shape,
        dtype=fact.dtype,
        device=fact.device,
        operations=2 * operations + 1,
        loads=2 * loads,
    )


@lowers(aten.real.default, aten.imag.default)
def part_of_complex(builder: Builder, x: Value) -> Value:
    """The real or imaginary part."""
    if not x.dtype.is_complex:
        return convert(builder, x)
    fact = builder.fact
    name = "real" if builder.operator is aten.real.default else "imag"
    return elementwise(
        builder,
        (x,),
        lambda recorder, s: recorder.op(name, s, dtype=fact.dtype),
        compute=x.dtype,
    )
