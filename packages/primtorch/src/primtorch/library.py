"""The operators of the `primtorch` namespace: what the prims need and ATen lacks.

Counter-based random numbers. `draw_seed(device)` takes one int64 from the default generator of a device, so that
`torch.manual_seed` makes a program repeatable; the `philox_*` operators are pure functions of (seed, offset, index of
the element in the contiguous result), so that a compiler may fuse, reorder and recompute them.

The exact function, which code generators reproduce bit by bit: Philox 4x32 with 10 rounds, key = (low, high 32 bits
of the seed), counter = (low, high 32 bits of the index, low, high 32 bits of the offset), giving words w0..w3.
    uniform float32   (w >> 8) * 2**-24, float16 (w >> 21) * 2**-11, bfloat16 (w >> 24) * 2**-8, where w is word
            index mod 4 of the counter with index div 4: one call serves four neighbours
            float64   ((w0 << 21) | (w1 >> 11)) * 2**-53
    normal  half, float32  sqrt(-2 log(((w0 >> 8) + 1) * 2**-24)) * cos(2 pi (w1 >> 8) * 2**-24), rounded once
            float64        the same with ((w0 << 21 | w1 >> 11) + 1) * 2**-53 and (w2 << 21 | w3 >> 11) * 2**-53
    randint width = high - low: up to 2**32  low + (w0 * width >> 32), else low + (((w1 << 32) | w0) mod width),
            the remainder of unsigned numbers
Results are contiguous and lie on the seed's device. Invariant: nothing here reads or moves a generator but `draw_seed`.

`checked(value, condition, message)` is what eager's operators do that look at the numbers they are given: whoever reads
the value reads it checked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from primtorch.fake.meta import TensorMeta
from primtorch.fake.registry import RULES
from primtorch.symbolic.layout import contiguous_strides

if TYPE_CHECKING:
    from primtorch.fake.meta import Shape
    from primtorch.symbolic.layout import Sizes

__all__ = [
    "checked",
    "draw_seed",
    "philox_normal",
    "philox_randint",
    "philox_uniform",
    "philox_words",
]

_LIBRARY = torch.library.Library("primtorch", "DEF")
_LIBRARY.define("draw_seed(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_LIBRARY.define(
    "philox_uniform(Tensor seed, int offset, SymInt[] size, *, ScalarType dtype) -> Tensor"
)
_LIBRARY.define(
    "philox_normal(Tensor seed, int offset, SymInt[] size, *, ScalarType dtype) -> Tensor"
)
_LIBRARY.define(
    "philox_randint(Tensor seed, int offset, SymInt[] size, SymInt low, SymInt high, *, ScalarType dtype) -> Tensor"
)

_LIBRARY.define("checked(Tensor value, Tensor condition, str message) -> Tensor")

_MASK = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def draw_seed(device: torch.device) -> torch.Tensor:
    """One int64 of 63 random bits, shape (1,), from the default generator of `device`, which moves on."""
    return torch.randint(0, 2**63 - 1, (1,), dtype=torch.int64, device=device)


def _product(word: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of word * multiplier, both below 2**32 (int64 wraps, its bits are right)."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK


def philox_words(
    seed: torch.Tensor, offset: int, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four words of each of `count` counters, as int64 tensors of values below 2**32."""
    index = torch.arange(count, dtype=torch.int64, device=seed.device)
    word_0, word_1 = index & _MASK, index >> 32
    word_2 = torch.full_like(index, offset & _MASK)
    word_3 = torch.full_like(index, (offset >> 32) & _MASK)
    key_0, key_1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(_ROUNDS):
        high_0, low_0 = _product(word_0, _MULTIPLIER_0)
        high_1, low_1 = _product(word_2, _MULTIPLIER_1)
        word_0, word_1, word_2, word_3 = (
            high_1 ^ word_1 ^ key_0,
            low_1,
            high_0 ^ word_3 ^ key_1,
            low_0,
        )
        key_0, key_1 = (key_0 + _WEYL_0) & _MASK, (key_1 + _WEYL_1) & _MASK
    return word_0, word_1, word_2, word_3


def _unit_double(high: torch.Tensor, low: torch.Tensor, *, plus: int = 0) -> torch.Tensor:
    return (((high << 21) | (low >> 11)) + plus).to(torch.float64) * 2.0**-53


def philox_uniform(
    seed: torch.Tensor, offset: int, size: list[int], *, dtype: torch.dtype
) -> torch.Tensor:
    """Uniform numbers in [0, 1), exact multiples of the step that `dtype` resolves, shape `size`."""
    count = math.prod(size)
    if dtype is torch.float64:
        word_0, word_1, _, _ = philox_words(seed, offset, count)
        return _unit_double(word_0.view(size), word_1.view(size))
    bits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)
    words = torch.stack(philox_words(seed, offset, -(-count // 4)), dim=1).flatten()[:count]
    return ((words.view(size) >> (32 - bits)).to(torch.float32) * 2.0**-bits).to(dtype)


def philox_normal(
    seed: torch.Tensor, offset: int, size: list[int], *, dtype: torch.dtype
) -> torch.Tensor:
    """Standard normal numbers by Box and Muller, shape `size`."""
    words = philox_words(seed, offset, math.prod(size))
    word_0, word_1, word_2, word_3 = (word.view(size) for word in words)
    if dtype is torch.float64:
        radius, angle = _unit_double(word_0, word_1, plus=1), _unit_double(word_2, word_3)
    else:
        radius = ((word_0 >> 8) + 1).to(torch.float32) * 2.0**-24
        angle = (word_1 >> 8).to(torch.float32) * 2.0**-24
    return (torch.sqrt(torch.log(radius) * -2) * torch.cos(angle * (2 * math.pi))).to(dtype)


def philox_randint(
    seed: torch.Tensor, offset: int, size: list[int], low: int, high: int, *, dtype: torch.dtype
) -> torch.Tensor:
    """Integers in [low, high), shape `size`.

    Raises:
        RuntimeError: if high <= low.
    """
    if high <= low:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    words = philox_words(seed, offset, math.prod(size))
    word_0, word_1 = words[0].view(size), words[1].view(size)
    width = high - low
    if width <= 2**32:
        drawn = (word_0 * width >> 32) & _MASK
    else:
        # The unsigned remainder of a 64-bit number from the signed one: split off the lowest bit.
        number = (word_1 << 32) | word_0
        half = (number >> 1) & (2**63 - 1)
        drawn = (
            (half % width) * 2 % width if width < 2**62 else (half % width) + (half % width - width)
        ) % width
        drawn = (drawn + (number & 1)) % width
    return (drawn + low).to(dtype)


def checked(value: torch.Tensor, condition: torch.Tensor, message: str) -> torch.Tensor:
    """A contiguous copy of `value`.

    Raises:
        RuntimeError: with `message`, if `condition` does not hold everywhere.
    """
    if not bool(condition.all()):
        raise RuntimeError(message)
    return value.clone(memory_format=torch.contiguous_format)


def _checked_meta_kernel(
    value: torch.Tensor, _condition: torch.Tensor, _message: str
) -> torch.Tensor:
    return value.new_empty(value.shape)


def _meta_kernel(
    seed: torch.Tensor, _offset: int, size: list[int], *_: int, dtype: torch.dtype
) -> torch.Tensor:
    return seed.new_empty(size, dtype=dtype)


_LIBRARY.impl("draw_seed", draw_seed, "CompositeExplicitAutograd")
for _name, _function in (
    ("philox_uniform", philox_uniform),
    ("philox_normal", philox_normal),
    ("philox_randint", philox_randint),
):
    for _backend in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _function, _backend)
    _LIBRARY.impl(_name, _meta_kernel, "Meta")


for _backend in ("CPU", "CUDA"):
    _LIBRARY.impl("checked", checked, _backend)
_LIBRARY.impl("checked", _checked_meta_kernel, "Meta")


def _checked_meta(
    _sizes: Sizes, value: TensorMeta, _condition: TensorMeta, _message: str
) -> TensorMeta:
    """Shape rule of `checked`: the value, row-major."""
    return TensorMeta(value.shape, contiguous_strides(value.shape), value.dtype, value.device)


def _drawn_meta(
    _sizes: Sizes, seed: TensorMeta, _offset: int, size: Shape, *_: int, dtype: torch.dtype
) -> TensorMeta:
    """Shape rule of the philox operators: the asked size, row-major, on the seed's device."""
    return TensorMeta(tuple(size), contiguous_strides(tuple(size)), dtype, seed.device)


def _seed_meta(_sizes: Sizes, device: torch.device) -> TensorMeta:
    """Shape rule of draw_seed: one int64."""
    return TensorMeta((1,), (1,), torch.int64, device)


RULES[torch.ops.primtorch.checked.default] = _checked_meta
RULES[torch.ops.primtorch.draw_seed.default] = _seed_meta
for _operator in (
    torch.ops.primtorch.philox_uniform.default,
    torch.ops.primtorch.philox_normal.default,
    torch.ops.primtorch.philox_randint.default,
):
    RULES[_operator] = _drawn_meta
