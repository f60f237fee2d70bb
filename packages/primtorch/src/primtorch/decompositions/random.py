"""Random operators as pure functions of a drawn seed.

Each draws one seed from the device's default generator, in program order, and reckons its numbers from (seed, index)
by the philox prims. The distribution is eager's, the numbers aren't; whoever needs eager's numbers takes these
operators out of the table (`fallback_random`). An explicit generator can't be followed: such a call is declined
(NotImplemented), so that it is left to ATen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from primtorch.promotion import cast, computation_dtype, result_dtype
from primtorch.registry import decomposes
from primtorch.symbolic import real_function

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten
philox = torch.ops.primtorch


def _seed(device: torch.device | None) -> Tensor:
    return philox.draw_seed.default(device or torch.get_default_device())


def _uniform(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Uniform numbers of the shape of `like`, in its computation dtype."""
    wanted = dtype or computation_dtype(like.dtype)
    return philox.philox_uniform.default(_seed(like.device), 0, list(like.shape), dtype=wanted)


@decomposes(aten.native_dropout.default)
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Elements dropped with probability `p`, the others scaled by 1 / (1 - p); also the mask of those kept."""
    if train is False or p == 0:
        return aten.clone.default(input), aten.full_like.default(input, True, dtype=torch.bool)
    if p == 1:
        return aten.full_like.default(input, 0), aten.full_like.default(
            input, False, dtype=torch.bool
        )
    kept = aten.ge.Scalar(_uniform(input, torch.float32), p)
    computation = computation_dtype(input.dtype)
    scaled = cast(input, computation) * (1 / (1 - p))
    return cast(aten.where.self(kept, scaled, _zero(scaled)), input.dtype), kept


def _zero(like: Tensor) -> Tensor:
    return aten.full.default([], 0, dtype=like.dtype, device=like.device)


@decomposes(aten.native_dropout_backward.default)
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient where the mask kept, scaled."""
    result = result_dtype(grad_output, scale)
    computation = computation_dtype(result)
    kept = cast(mask, computation) * scale
    return cast(cast(grad_output, computation) * kept, result)


@decomposes(aten.bernoulli.p)
def bernoulli_p(
    self: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None
) -> Tensor:
    """One with probability `p`, else zero, in the operand's dtype."""
    if generator is not None:
        return NotImplemented
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")
    return cast(aten.lt.Scalar(_uniform(self, torch.float32), p), self.dtype)


@decomposes(aten.bernoulli.default)
def bernoulli(self: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """One with each element's own probability."""
    if generator is not None:
        return NotImplemented
    computation = torch.float64 if self.dtype is torch.float64 else torch.float32
    return cast(aten.lt.Tensor(_uniform(self, computation), cast(self, computation)), self.dtype)


@decomposes("aten.bernoulli.Tensor")
def bernoulli_tensor(
    self: Tensor, p: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """One with the probabilities of `p`."""
    if generator is not None:
        return NotImplemented
    computation = torch.float64 if p.dtype is torch.float64 else torch.float32
    return cast(aten.lt.Tensor(_uniform(self, computation), cast(p, computation)), self.dtype)


@decomposes(aten.rand.default)
def rand(size: Sequence[int], **options: Any) -> Tensor:
    """Uniform numbers in [0, 1)."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if dtype.is_complex:
        return NotImplemented
    return philox.philox_uniform.default(_seed(options.get("device")), 0, list(size), dtype=dtype)


@decomposes(aten.randn.default)
def randn(size: Sequence[int], **options: Any) -> Tensor:
    """Standard normal numbers."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if dtype.is_complex:
        return NotImplemented
    return philox.philox_normal.default(_seed(options.get("device")), 0, list(size), dtype=dtype)


@decomposes(aten.randint.low)
def randint_low(low: int, high: int, size: Sequence[int], **options: Any) -> Tensor:
    """Integers in [low, high)."""
    dtype = options.get("dtype") or torch.int64
    seed = _seed(options.get("device"))
    return philox.philox_randint.default(seed, 0, list(size), low, high, dtype=dtype)


@decomposes(aten.randint.default)
def randint(high: int, size: Sequence[int], **options: Any) -> Tensor:
    """Integers in [0, high)."""
    return randint_low(0, high, size, **options)


def _laid_out(like: Tensor, drawn: Tensor, memory_format: torch.memory_format | None) -> Tensor:
    """`drawn` with the strides that a new tensor like `like` has."""
    wanted = aten.empty_like.default(like, dtype=drawn.dtype, memory_format=memory_format)
    return drawn if wanted.stride() == drawn.stride() else aten.copy.default(wanted, drawn)


@decomposes(aten.rand_like.default)
def rand_like(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    **_: Any,
) -> Tensor:
    """Uniform numbers of the tensor's shape."""
    if (dtype or self.dtype).is_complex:
        return NotImplemented
    seed = _seed(device or self.device)
    drawn = philox.philox_uniform.default(seed, 0, list(self.shape), dtype=dtype or self.dtype)
    return _laid_out(self, drawn, memory_format)


@decomposes(aten.randn_like.default)
def randn_like(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    **_: Any,
) -> Tensor:
    """Standard normal numbers of the tensor's shape."""
    if (dtype or self.dtype).is_complex:
        return NotImplemented
    seed = _seed(device or self.device)
    drawn = philox.philox_normal.default(seed, 0, list(self.shape), dtype=dtype or self.dtype)
    return _laid_out(self, drawn, memory_format)


@decomposes(aten.randint_like.low_dtype)
def randint_like_low(
    self: Tensor,
    low: int,
    high: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    **_: Any,
) -> Tensor:
    """Integers in [low, high) of the tensor's shape."""
    seed = _seed(device or self.device)
    drawn = philox.philox_randint.default(
        seed, 0, list(self.shape), low, high, dtype=dtype or self.dtype
    )
    return _laid_out(self, drawn, memory_format)


@decomposes(aten.randint_like.default)
def randint_like(self: Tensor, high: int, **options: Any) -> Tensor:
    """Integers in [0, high) of the tensor's shape."""
    return randint_like_low(self, 0, high, **options)


@decomposes("aten.uniform.default")
def uniform(
    self: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Uniform numbers in [from, to) of the tensor's shape and dtype."""
    if from_ > to:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={from_:g} > to={to:g}"
        )
    if generator is not None or self.dtype.is_complex:
        return NotImplemented
    return cast(_uniform(self) * (to - from_) + from_, self.dtype)


@decomposes("aten.normal_functional.default")
def normal_functional(
    self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Normal numbers of the tensor's shape and dtype."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    if generator is not None or self.dtype.is_complex:
        return NotImplemented
    return cast(_normal(self) * std + mean, self.dtype)


def _normal(like: Tensor) -> Tensor:
    dtype = computation_dtype(like.dtype)
    return philox.philox_normal.default(_seed(like.device), 0, list(like.shape), dtype=dtype)


@decomposes(aten.normal.Tensor_float)
def normal_tensor_float(
    mean: Tensor, std: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Normal numbers about each element."""
    if generator is not None or mean.dtype.is_complex:
        return NotImplemented
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    return cast(_normal(mean) * std + mean, mean.dtype)


@decomposes(aten.normal.float_Tensor)
def normal_float_tensor(
    mean: float, std: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """Normal numbers with each element's deviation."""
    if generator is not None:
        return NotImplemented
    return cast(_normal(std) * std + mean, std.dtype)


@decomposes("aten.exponential.default")
def exponential(
    self: Tensor, lambd: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Exponential numbers of rate `lambd`."""
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
    if generator is not None:
        return NotImplemented
    return cast(aten.log1p.default(-_uniform(self)) * (-1 / lambd), self.dtype)


@decomposes("aten.cauchy.default")
def cauchy(
    self: Tensor,
    median: float = 0.0,
    sigma: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Cauchy numbers."""
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma:g}")
    if generator is not None:
        return NotImplemented
    return cast(aten.tan.default((_uniform(self) - 0.5) * math.pi) * sigma + median, self.dtype)


@decomposes("aten.log_normal.default")
def log_normal(
    self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Numbers whose logarithm is normal."""
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std:g}")
    if generator is not None:
        return NotImplemented
    return cast(aten.exp.default(_normal(self) * std + mean), self.dtype)


@decomposes("aten.geometric.default")
def geometric(self: Tensor, p: float, *, generator: torch.Generator | None = None) -> Tensor:
    """The number of trials up to the first success of probability `p`."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p:g}")
    if generator is not None:
        return NotImplemented
    drawn = _uniform(self, torch.float64 if self.dtype is torch.float64 else torch.float32)
    trials = aten.ceil.default(aten.log1p.default(-drawn) / real_function("log1p", -p))
    return cast(aten.clamp.default(trials, 1, None), self.dtype)


@decomposes(aten.normal.Tensor_Tensor)
def normal_tensor_tensor(
    mean: Tensor, std: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """Normal numbers about each element with each element's deviation."""
    if generator is not None or mean.dtype.is_complex:
        return NotImplemented
    shape = torch.broadcast_shapes(mean.shape, std.shape)
    dtype = computation_dtype(mean.dtype)
    drawn = philox.philox_normal.default(_seed(mean.device), 0, list(shape), dtype=dtype)
    return cast(drawn * std + mean, mean.dtype)


@decomposes("aten.normal.float_float")
def normal_float_float(
    mean: float,
    std: float,
    size: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Tensor:
    """Normal numbers of a given size."""
    if generator is not None:
        return NotImplemented
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    drawn = randn(size, **options)
    return NotImplemented if drawn is NotImplemented else drawn * std + mean


@decomposes("aten.rrelu_with_noise_functional.default")
def rrelu_with_noise_functional(
    self: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Leaky relu with slopes drawn between `lower` and `upper`; also the slopes used."""
    if generator is not None:
        return NotImplemented
    if not training:
        return aten.leaky_relu.default(self, (lower + upper) / 2), aten.alias.default(noise)
    slopes = cast(_uniform(self) * (upper - lower) + lower, self.dtype)
    negative = aten.le.Scalar(self, 0)
    one = aten.full.default([], 1, dtype=self.dtype, device=self.device)
    return aten.where.self(negative, self * slopes, self), aten.where.self(negative, slopes, one)


@decomposes(aten.multinomial.default)
def multinomial(
    self: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Positions drawn with the given relative probabilities, with or without replacement."""
    if generator is not None:
        return NotImplemented
    _check_multinomial(self, num_samples, replacement)
    self = _checked_probabilities(self)
    vector = self.dim() == 1
    weights = cast(self, computation_dtype(self.dtype))
    weights = aten.unsqueeze.default(weights, 0) if vector else weights
    if replacement and num_samples > 1:
        drawn = _drawn_again(weights, num_samples)
    else:
        # The smallest of exponentials with these rates is any one with its probability.
        waiting = -aten.log1p.default(-_uniform(weights))
        _, drawn = aten.topk.default(weights / waiting, num_samples, -1)
    return aten.squeeze.dims(drawn, [0]) if vector else drawn


def _check_multinomial(self: Tensor, num_samples: int, replacement: bool) -> None:
    if not 0 < self.dim() <= 2:
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not self.dtype.is_floating_point:
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for input, got: {self.dtype}"
        )
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > self.shape[-1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )


def _checked_probabilities(self: Tensor) -> Tensor:
    if self.numel() == 0:
        return self
    usable = aten.logical_and.default(aten.ge.Scalar(self, 0), aten.lt.Scalar(self, math.inf))
    unusable = "probability tensor contains either `inf`, `nan` or element < 0"
    self = torch.ops.primtorch.checked.default(self, usable, unusable)
    possible = aten.gt.Scalar(aten.sum.dim_IntList(self, [-1]), 0)
    impossible = "invalid multinomial distribution (sum of probabilities <= 0)"
    return torch.ops.primtorch.checked.default(self, possible, impossible)


def _drawn_again(weights: Tensor, count: int) -> Tensor:
    """Positions by the inverse of the cumulated weights; one without weight is never drawn."""
    cumulated = aten.cumsum.default(weights, 1)
    total = aten.slice.Tensor(cumulated, 1, weights.shape[1] - 1)
    shape = [weights.shape[0], count]
    uniform = philox.philox_uniform.default(_seed(weights.device), 0, shape, dtype=weights.dtype)
    found = aten.searchsorted.Tensor(cumulated, uniform * total, right=True)
    return aten.minimum.default(found, aten.searchsorted.Tensor(cumulated, total))
