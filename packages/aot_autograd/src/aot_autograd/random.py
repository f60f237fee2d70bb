"""Random operators as pure functions of a seed.

Comes in: ATen's random operators, already functional. Goes out: `primtorch.philox_*` of one seed
per device and graph, drawn from the device's default generator at the first random operator in
program order, with the operator's number in the graph as the offset. The numbers are pure values:
the partition recomputes them in the backward instead of saving them. Invariant: two operators of
one graph never share an offset. An operator without a rule stays with ATen, in program order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot_autograd._torch import OpOverload
    from aot_autograd.recorder import Recorder
    from primtorch.fake import FakeTensor

aten = torch.ops.aten


def _real_dtype(dtype: torch.dtype | None) -> torch.dtype:
    return torch.get_default_dtype() if dtype is None else dtype


def _uniform(context: Recorder, device: torch.device, shape: Any, dtype: torch.dtype) -> FakeTensor:
    seeds = context.seeds
    seed = seeds.seed(context, device)
    return context.operate(
        torch.ops.primtorch.philox_uniform.default, seed, seeds.offset(), list(shape), dtype=dtype
    )


def _normal(context: Recorder, device: torch.device, shape: Any, dtype: torch.dtype) -> FakeTensor:
    seeds = context.seeds
    seed = seeds.seed(context, device)
    return context.operate(
        torch.ops.primtorch.philox_normal.default, seed, seeds.offset(), list(shape), dtype=dtype
    )


def _integers(
    context: Recorder,
    device: torch.device,
    shape: Any,
    bounds: tuple[Any, Any],
    dtype: torch.dtype,
) -> FakeTensor:
    seeds = context.seeds
    seed = seeds.seed(context, device)
    return context.operate(
        torch.ops.primtorch.philox_randint.default,
        seed,
        seeds.offset(),
        list(shape),
        *bounds,
        dtype=dtype,
    )


def _device_of(device: Any) -> torch.device:
    return torch.device("cpu") if device is None else torch.device(device)


def _has_rule_for(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and not dtype.is_complex


def _demand(condition: bool, message: str, *numbers: float) -> None:
    """What eager refuses is refused while tracing: the graph then runs eagerly and raises eager's error."""
    if not condition:
        raise RuntimeError(message.format(*map(float, numbers)))


def bernoulli_p(context: Recorder, self: FakeTensor, p: float, **_: Any) -> Any:
    """Ones with probability p, in the dtype of `self`."""
    _demand(0 <= p <= 1, "bernoulli_ expects p to be in [0, 1], but got p={:g}", p)
    drawn = _uniform(context, self.meta.device, self.shape, torch.float32)
    chosen = context.operate(aten.lt.Scalar, drawn, p)
    return context.operate(aten._to_copy.default, chosen, dtype=self.dtype)


def bernoulli(context: Recorder, self: FakeTensor, **_: Any) -> Any:
    """Ones with the probabilities in `self`."""
    drawn = _uniform(context, self.meta.device, self.shape, torch.float32)
    chosen = context.operate(aten.lt.Tensor, drawn, self)
    return context.operate(aten._to_copy.default, chosen, dtype=self.dtype)


def bernoulli_tensor(context: Recorder, self: FakeTensor, p: FakeTensor, **_: Any) -> Any:
    """Ones with the probabilities in `p`, in the dtype and shape of `self`."""
    drawn = _uniform(context, self.meta.device, self.shape, torch.float32)
    chosen = context.operate(aten.lt.Tensor, drawn, p)
    return context.operate(aten._to_copy.default, chosen, dtype=self.dtype)


def native_dropout(context: Recorder, tensor: FakeTensor, p: float, train: bool | None) -> Any:
    """(tensor * mask / (1 - p), mask)."""
    if train is False or p == 0:
        ones = context.operate(aten.ones_like.default, tensor, dtype=torch.bool)
        return context.operate(aten.clone.default, tensor), ones
    if p == 1:
        zeros = context.operate(aten.zeros_like.default, tensor, dtype=torch.bool)
        return context.operate(aten.mul.Scalar, tensor, 0.0), zeros
    drawn = _uniform(context, tensor.meta.device, tensor.shape, torch.float32)
    mask = context.operate(aten.ge.Scalar, drawn, p)
    kept = context.operate(aten.mul.Tensor, tensor, mask)
    return context.operate(aten.mul.Scalar, kept, 1.0 / (1.0 - p)), mask


def rand(
    context: Recorder,
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Any:
    """Uniform in [0, 1)."""
    dtype = _real_dtype(dtype)
    if not _has_rule_for(dtype):
        return NotImplemented
    return _uniform(context, _device_of(device), size, dtype)


def randn(
    context: Recorder,
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Any:
    """Standard normal."""
    dtype = _real_dtype(dtype)
    if not _has_rule_for(dtype):
        return NotImplemented
    return _normal(context, _device_of(device), size, dtype)


def _like(context: Recorder, self: FakeTensor, drawn: FakeTensor) -> FakeTensor:
    """`drawn` with the layout that a `*_like` factory gives: that of `self` where it is dense."""
    template = context.operate(aten.empty_like.default, self, dtype=drawn.dtype)
    if template.meta.stride == drawn.meta.stride:
        return drawn
    return context.operate(aten.copy.default, template, drawn)


def rand_like(
    context: Recorder,
    self: FakeTensor,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Any:
    """Uniform in [0, 1), shaped like `self`."""
    dtype = self.dtype if dtype is None else dtype
    if not _has_rule_for(dtype) or device is not None:
        return NotImplemented
    return _like(context, self, _uniform(context, self.meta.device, self.shape, dtype))


def randn_like(
    context: Recorder,
    self: FakeTensor,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Any:
    """Standard normal, shaped like `self`."""
    dtype = self.dtype if dtype is None else dtype
    if not _has_rule_for(dtype) or device is not None:
        return NotImplemented
    return _like(context, self, _normal(context, self.meta.device, self.shape, dtype))


def randint(
    context: Recorder,
    high: Any,
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Any:
    """Integers in [0, high)."""
    return randint_low(context, 0, high, size, dtype=dtype, device=device)


def randint_low(
    context: Recorder,
    low: Any,
    high: Any,
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Any:
    """Integers in [low, high)."""
    kind = torch.int64 if dtype is None else dtype
    return _integers(context, _device_of(device), size, (low, high), kind)


def randint_like(
    context: Recorder,
    self: FakeTensor,
    high: Any,
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Any:
    """Integers in [0, high), shaped like `self`."""
    return randint_like_low(context, self, 0, high, dtype=dtype)


def randint_like_low(
    context: Recorder,
    self: FakeTensor,
    low: Any,
    high: Any,
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Any:
    """Integers in [low, high), shaped like `self`."""
    kind = self.dtype if dtype is None else dtype
    drawn = _integers(context, self.meta.device, self.shape, (low, high), kind)
    return _like(context, self, drawn)


def uniform(
    context: Recorder, self: FakeTensor, low: float = 0.0, high: float = 1.0, **kwargs: Any
) -> Any:
    """Uniform in [low, high), shaped like `self`; ATen's name for `low` is `from`."""
    low = kwargs.get("from", low)
    high = kwargs.get("to", high)
    _demand(
        low <= high, "uniform_ expects a [from, to) range, but found from={} > to={}", low, high
    )
    if not _has_rule_for(self.dtype):
        return NotImplemented
    drawn = _uniform(context, self.meta.device, self.shape, self.dtype)
    scaled = context.operate(aten.mul.Scalar, drawn, high - low) if high - low != 1 else drawn
    return context.operate(aten.add.Scalar, scaled, low) if low != 0 else scaled


def normal_functional(
    context: Recorder, self: FakeTensor, mean: float = 0.0, std: float = 1.0, **_: Any
) -> Any:
    """Normal with the given mean and deviation, shaped like `self`."""
    _demand(std >= 0, "normal expects std >= 0.0, but found std {}", std)
    if not _has_rule_for(self.dtype):
        return NotImplemented
    drawn = _normal(context, self.meta.device, self.shape, self.dtype)
    scaled = context.operate(aten.mul.Scalar, drawn, std) if std != 1 else drawn
    return context.operate(aten.add.Scalar, scaled, mean) if mean != 0 else scaled


def exponential(context: Recorder, self: FakeTensor, lambd: float = 1.0, **_: Any) -> Any:
    """Exponential with rate `lambd`, shaped like `self`."""
    _demand(lambd > 0, "exponential_ expects lambda > 0.0, but found lambda={}", lambd)
    if not _has_rule_for(self.dtype) or not lambd < math.inf:
        return NotImplemented
    drawn = _uniform(context, self.meta.device, self.shape, torch.float32)
    # 1 - u lies in (0, 1], so that the logarithm is finite.
    complement = context.operate(aten.rsub.Scalar, drawn, 1.0)
    logarithm = context.operate(aten.log.default, complement)
    scaled = context.operate(aten.mul.Scalar, logarithm, -1.0 / lambd)
    if self.dtype is torch.float32:
        return scaled
    return context.operate(aten._to_copy.default, scaled, dtype=self.dtype)


def random_from(context: Recorder, self: FakeTensor, low: Any, high: Any = None, **_: Any) -> Any:
    """Integers in [low, high) in the shape and dtype of `self`."""
    if high is None or (not _has_rule_for(self.dtype) and self.dtype is not torch.int64):
        return NotImplemented
    _demand(
        low < high, "random_ expects 'from' to be less than 'to', but got from={:g} >= to={:g}", low, high
    )  # fmt: skip
    drawn = _integers(context, self.meta.device, self.shape, (low, high), torch.int64)
    if self.dtype is torch.int64:
        return drawn
    return context.operate(aten._to_copy.default, drawn, dtype=self.dtype)


def random_to(context: Recorder, self: FakeTensor, high: Any, **_: Any) -> Any:
    """Integers in [0, high) in the shape and dtype of `self`."""
    return random_from(context, self, 0, high)


RULES: dict[OpOverload, Callable[..., Any]] = {
    aten.bernoulli.p: bernoulli_p,
    aten.bernoulli.default: bernoulli,
    aten.bernoulli.Tensor: bernoulli_tensor,
    aten.native_dropout.default: native_dropout,
    aten.rand.default: rand,
    aten.randn.default: randn,
    aten.rand_like.default: rand_like,
    aten.randn_like.default: randn_like,
    aten.randint.default: randint,
    aten.randint.low: randint_low,
    aten.randint_like.default: randint_like,
    aten.randint_like.low_dtype: randint_like_low,
    aten.uniform.default: uniform,
    aten.normal_functional.default: normal_functional,
    aten.exponential.default: exponential,
    getattr(aten.random, "from"): random_from,
    aten.random.to: random_to,
}
"""For each random operator, how it is written in terms of philox."""
