"""Random calls of single operators: odd values, dtypes that promote, odd memory, numbers, `out=`, in place.

`drawn(seed)` gives a call: a function of tensors and the tensors. Invariant: the same seed gives the same call.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
REAL = (*FLOATS, *INTEGERS, torch.bool)


@dataclass(frozen=True)
class Call:
    """`function(*tensors)`, and how it reads."""

    text: str
    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]


def _numbers(choose: random.Random, dtype: torch.dtype, count: int) -> list[Any]:
    """Values of which many are edges of the dtype."""
    if dtype is torch.bool:
        return [choose.random() < 0.5 for _ in range(count)]
    if dtype.is_complex:
        parts = [0.0, -0.0, 1.0, -1.5, 2.5, 0.25, 1e3, math.inf, math.nan]
        weights = [2, 2, 3, 3, 3, 3, 2, 0.2, 0.2]
        drawn = choose.choices(parts, weights, k=2 * count)
        return [complex(a, b) for a, b in zip(drawn[::2], drawn[1::2], strict=True)]
    if dtype.is_floating_point:
        about = torch.finfo(dtype)
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 3.7, -3.2, 127.5, -129.0, 255.5, 7.0]
        edges += [math.inf, -math.inf, math.nan, about.max, about.min, about.tiny, about.tiny / 4]
        edges += [-about.tiny / 4, about.eps, 2.0**31, -(2.0**31), 3.0e9, 2.0**63, 1e-3, 12345.678]
        return choose.choices(edges, k=count)
    about = torch.iinfo(dtype)
    edges = [
        0,
        1,
        2,
        3,
        5,
        7,
        8,
        31,
        32,
        63,
        64,
        about.min,
        about.max,
        about.min + 1,
        about.max - 1,
    ]
    edges += [-1, -2, -3, -7, -8] if about.min else [128, 200, 254]
    return choose.choices([n for n in edges if about.min <= n <= about.max], k=count)


def _filled(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    values = _numbers(choose, dtype, math.prod(shape))
    if dtype.is_floating_point:
        return torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)
    return torch.tensor(values, dtype=dtype).reshape(shape)


MEMORY = ("plain", "plain", "turned", "steps", "repeated", "overlapping", "offset", "lazy")


def tensor(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of this shape whose memory is one of `MEMORY`."""
    kind = choose.choice(MEMORY)
    if kind == "turned" and len(shape) > 1:
        return _filled(choose, dtype, shape[::-1]).permute(*reversed(range(len(shape))))
    if kind == "steps" and shape:
        return _filled(choose, dtype, (*shape[:-1], 2 * shape[-1]))[..., ::2]
    if kind == "repeated" and len(shape) > 1:
        return _filled(choose, dtype, (1, *shape[1:])).expand(shape)
    if kind == "overlapping" and len(shape) == 2:
        return _filled(choose, dtype, (sum(shape),)).as_strided(shape, (1, 1))
    if kind == "offset" and shape:
        return _filled(choose, dtype, (shape[0] + 1, *shape[1:]))[1:]
    if kind == "lazy" and dtype.is_complex:
        return _filled(choose, dtype, shape).conj()
    if kind == "lazy" and dtype in (torch.float32, torch.float64):
        wide = torch.complex64 if dtype is torch.float32 else torch.complex128
        return _filled(choose, wide, shape).conj().imag
    return _filled(choose, dtype, shape)


UNARY = (
    "neg", "abs", "sign", "sgn", "floor", "ceil", "round", "trunc", "frac", "sqrt", "rsqrt",
    "exp", "expm1", "log", "log1p", "log2", "sin", "cos", "tanh", "sigmoid", "reciprocal",
    "square", "isnan", "isinf", "isfinite", "signbit", "logical_not", "bitwise_not", "relu",
    "positive", "isposinf", "isneginf", "deg2rad", "nan_to_num", "angle", "erf", "atan",
    "asinh", "conj_physical", "exp2", "i0", "sinc",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "maximum",
    "minimum", "fmax", "fmin", "atan2", "copysign", "hypot", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "logical_and", "logical_or",
    "logical_xor", "eq", "ne", "lt", "le", "gt", "ge", "nextafter", "gcd", "heaviside", "xlogy",
    "logaddexp", "true_divide", "rsub",
)  # fmt: skip
REDUCTIONS = (
    "sum", "prod", "mean", "amax", "amin", "any", "all", "nansum", "var", "std", "logsumexp",
    "count_nonzero",
)  # fmt: skip
SCANS = (
    "cumsum", "cumprod", "cummax", "cummin", "sort", "argsort", "logcumsumexp",
)  # fmt: skip
PLACES = (
    "max", "min", "argmax", "argmin", "median", "mode",
)  # fmt: skip
SHAPES = ((), (1,), (5,), (17,), (3, 4), (4, 1), (2, 3, 4), (0,), (2, 0))
FUNCTIONAL = (
    "softmax", "log_softmax", "relu6", "hardtanh", "leaky_relu", "hardswish", "softplus", "elu",
    "gelu", "silu", "mish",
)  # fmt: skip


def _others(choose: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that this one broadcasts with."""
    kind = choose.randrange(4)
    if kind == 0:
        return ()
    if kind == 1:
        return tuple(1 if choose.random() < 0.5 else size for size in shape)
    return shape[1:] if kind == 2 else shape


_NUMBERS = (
    0, 1, -1, 2, -3, 7, True, False, 0.0, -0.0, 0.5, -1.5, 2.5, math.inf, -math.inf, math.nan, 31, 32,
    64, 255, -128, 1e-40, 1e5, 3.0,
)  # fmt: skip


def _number(choose: random.Random) -> Any:
    return choose.choice(_NUMBERS)


def _unary(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    name = choose.choice(UNARY)
    function = getattr(torch, name)
    return Call(f"{name}", function, (tensor(choose, dtype, shape),))


def _binary(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    name = choose.choice(BINARY)
    function = getattr(torch, name)
    x = tensor(choose, dtype, shape)
    kind = choose.randrange(4)
    if kind == 0:
        number = _number(choose)
        return Call(f"{name}(x, {number!r})", lambda x: function(x, number), (x,))
    if kind == 1 and name in ("add", "sub", "mul", "div", "pow", "remainder", "floor_divide"):
        number = _number(choose)
        operator = {"add": "__radd__", "sub": "__rsub__", "mul": "__rmul__", "div": "__rtruediv__"}
        operator |= {"pow": "__rpow__", "remainder": "__rmod__", "floor_divide": "__rfloordiv__"}
        swapped = getattr(torch.Tensor, operator[name])
        return Call(f"{name}({number!r}, x)", lambda x: swapped(x, number), (x,))
    other = choose.choice((*REAL, *COMPLEX)) if kind == 2 else dtype
    y = tensor(choose, other, _others(choose, shape))
    return Call(name, function, (x, y))


def _in_place(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    name = choose.choice(
        [
            "add_",
            "sub_",
            "mul_",
            "div_",
            "floor_divide_",
            "remainder_",
            "pow_",
            "bitwise_and_",
            "eq_",
            "copy_",
        ]
    )
    function = getattr(torch.Tensor, name)
    x = tensor(choose, dtype, shape)
    y = tensor(choose, choose.choice(REAL), _others(choose, shape))
    return Call(name, lambda x, y: function(x.clone(), y), (x, y))


def _out(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    name = choose.choice(
        [
            "add",
            "mul",
            "sub",
            "div",
            "maximum",
            "eq",
            "floor_divide",
            "remainder",
            "bitwise_or",
            "lt",
        ]
    )
    function, wanted = getattr(torch, name), choose.choice(REAL)
    turned = choose.random() < 0.3
    x, y = tensor(choose, dtype, shape), tensor(choose, dtype, shape)

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(shape[::-1] if turned else shape, dtype=wanted)
        return function(x, y, out=out.permute(*reversed(range(len(shape)))) if turned else out)

    return Call(f"{name}(out={wanted}{', turned' if turned else ''})", program, (x, y))


def _ternary(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    name = choose.choice(
        ["where", "clamp", "clamp, numbers", "lerp", "addcmul", "addcdiv", "add, alpha"]
    )
    x, y = (tensor(choose, dtype, shape) for _ in range(2))
    z = tensor(choose, dtype, _others(choose, shape))
    number, second = _number(choose), _number(choose)
    table: dict[str, Any] = {
        "where": lambda x, y, z: torch.where(x.isnan() if x.is_floating_point() else x != 0, y, z),
        "clamp": torch.clamp,
        "clamp, numbers": lambda x, y, z: torch.clamp(x, number, second),
        "lerp": lambda x, y, z: torch.lerp(x, y, 0.25),
        "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=number),
        "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=number),
        "add, alpha": lambda x, y, z: torch.add(x, y, alpha=number),
    }
    return Call(f"{name} of numbers {number!r} {second!r}", table[name], (x, y, z))


def _reduction(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    name = choose.choice(REDUCTIONS)
    function = getattr(torch, name)
    x = tensor(choose, dtype, shape)
    dim = choose.randrange(len(shape)) if shape and choose.random() < 0.8 else None
    keywords: dict[str, Any] = {} if dim is None else {"dim": dim}
    if dim is None and name == "logsumexp":
        keywords = {"dim": tuple(range(len(shape)))}
    if dim is not None and name != "count_nonzero" and choose.random() < 0.5:
        keywords["keepdim"] = True
    if name in ("sum", "prod", "mean", "nansum") and choose.random() < 0.4:
        keywords["dtype"] = choose.choice(FLOATS + INTEGERS[:2])
    return Call(f"{name}(x, {keywords})", lambda x: function(x, **keywords), (x,))


def _along(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    name = choose.choice(SCANS + PLACES)
    function = getattr(torch, name)
    x = tensor(choose, dtype, shape)
    dim = choose.randrange(max(1, len(shape)))
    keywords = {"stable": True} if name in ("sort", "argsort") else {}
    return Call(f"{name}(x, dim={dim})", lambda x: function(x, dim=dim, **keywords), (x,))


def _cast(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    wanted = choose.choice((*REAL, *COMPLEX))
    return Call(f"to({wanted})", lambda x: x.to(wanted), (tensor(choose, dtype, shape),))


def _divided(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    mode = choose.choice(["floor", "trunc", None])
    x, y = tensor(choose, dtype, shape), tensor(choose, choose.choice(REAL), _others(choose, shape))
    return Call(f"div {mode}", lambda x, y: torch.div(x, y, rounding_mode=mode), (x, y))


def _functional(choose: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    name = choose.choice(FUNCTIONAL)
    function = getattr(torch.nn.functional, name)
    keywords = {"dim": -1} if "softmax" in name else {}
    return Call(f"{name}", lambda x: function(x, **keywords), (tensor(choose, dtype, shape),))


KINDS = (
    *(_unary, _binary, _binary, _binary, _in_place, _out, _ternary, _ternary),
    *(_reduction, _along, _cast, _divided, _functional),
)


def drawn(seed: int) -> Call:
    """The call of this number."""
    choose = random.Random(seed)
    dtype = choose.choice((*REAL, *REAL, *COMPLEX))
    call = choose.choice(KINDS)(choose, dtype, choose.choice(SHAPES))
    about = ", ".join(
        f"{str(t.dtype)[6:]}{tuple(t.shape)}/{t.stride()}{'c' if t.is_conj() else ''}{'n' if t.is_neg() else ''}"
        for t in call.tensors
    )
    return Call(f"{call.text} of {about}", call.function, call.tensors)
