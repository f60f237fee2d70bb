"""The counter-based random numbers of bodies, in torch: Philox 4x32 with 10 rounds.

Key: the seed's low and high 32 bits; counter: the element's, then the offset's low and high 32
bits. Uniform float32 numbers take the four words of one counter for four neighbouring elements.
Equal, element for element, to the `primtorch.philox_*` operators.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _words(seed: Tensor, offset: Tensor, element: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    seed, offset, element = torch.broadcast_tensors(seed, offset, element)
    words = (element & _MASK, element >> 32, offset & _MASK, (offset >> 32) & _MASK)
    keys = (seed & _MASK, (seed >> 32) & _MASK)
    for _ in range(_ROUNDS):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = (
            ((second >> 32) & _MASK) ^ words[1] ^ keys[0],
            second & _MASK,
            ((first >> 32) & _MASK) ^ words[3] ^ keys[1],
            first & _MASK,
        )
        keys = ((keys[0] + _WEYL[0]) & _MASK, (keys[1] + _WEYL[1]) & _MASK)
    return words


def _unit_double(high: Tensor, low: Tensor, plus: int = 0) -> Tensor:
    return (((high << 21) | (low >> 11)) + plus).to(torch.float64) * 2.0**-53


def philox_uniform(seed: Tensor, offset: Tensor, element: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniform in [0, 1) as float32 or float64."""
    if dtype == torch.float64:
        word_0, word_1, _, _ = _words(seed, offset, element)
        return _unit_double(word_0, word_1)
    words = torch.stack(_words(seed, offset, element >> 2))
    word = words.gather(0, (element & 3).expand(words.shape[1:])[None])[0]
    return (word >> 8).to(torch.float32) * 2.0**-24


def philox_normal(seed: Tensor, offset: Tensor, element: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normal by Box and Muller as float32 or float64."""
    word_0, word_1, word_2, word_3 = _words(seed, offset, element)
    if dtype == torch.float64:
        radius, angle = _unit_double(word_0, word_1, 1), _unit_double(word_2, word_3)
    else:
        radius = ((word_0 >> 8) + 1).to(torch.float32) * 2.0**-24
        angle = (word_1 >> 8).to(torch.float32) * 2.0**-24
    return torch.sqrt(torch.log(radius) * -2) * torch.cos(angle * (2 * math.pi))


def philox_bits(seed: Tensor, offset: Tensor, element: Tensor, dtype: torch.dtype) -> Tensor:
    """The first two words as one int64."""
    word_0, word_1, _, _ = _words(seed, offset, element)
    return (word_0 | (word_1 << 32)).to(dtype)
