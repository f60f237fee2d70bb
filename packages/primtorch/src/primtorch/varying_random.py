"""Random functions of which a number varies: a probability, a mean, a bound.

Comes in: the arguments of torch's functions. Goes out: what they give, from operators that are handed the number as it
is. Invariant: the checks are those of eager, as conditions on the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from primtorch.direct import differentiable, direct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["RANDOM"]

aten = torch.ops.aten
_ALPHA = 1.7580993408473766  # of SELU: its negative saturation


def _check(p: Any) -> None:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {float(p)}")


def _noise(like: Tensor, p: Any, *, feature: bool) -> Tensor:
    """One where a number, or with `feature` a channel, is kept, else zero."""
    shape = list(like.shape)
    channels = [*shape[:2], *[1] * (len(shape) - 2)]
    made = like.new_empty(channels) if feature else torch.empty_like(like.detach())
    with torch.no_grad():
        drawn: Tensor = direct(aten.bernoulli_.float, made, 1 - p)
    return drawn


def _dropped(input: Tensor, p: Any, training: bool, *, alpha: bool, feature: bool) -> Tensor:
    _check(p)
    if not training or p == 0:
        return input
    if p == 1:
        return input * input.new_zeros(())
    noise = _noise(input, p, feature=feature)
    if not alpha:
        return input * (noise / (1 - p))
    factor = 1.0 / torch.sym_sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = (noise - 1) * (_ALPHA * factor) + _ALPHA * factor * p
    return input * (noise * factor) + shift


def _kept(found: Tensor, input: Tensor, inplace: bool) -> Tensor:
    return input.copy_(found) if inplace and found is not input else found


def dropout(input: Tensor, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.dropout`."""
    _check(p)
    if input.device.type == "cpu" or not training or p in (0, 1):
        return _kept(_dropped(input, p, training, alpha=False, feature=False), input, inplace)

    def derivative(_: Any, results: Sequence[Tensor], grad: Tensor) -> Tensor:
        return grad * results[1] * (1 / (1 - p))

    found = differentiable(aten.native_dropout.default, (input, p, True), (0,), derivative)[0]
    return _kept(found, input, inplace)


def alpha_dropout(
    input: Tensor, p: Any = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`torch.nn.functional.alpha_dropout`."""
    return _kept(_dropped(input, p, training, alpha=True, feature=False), input, inplace)


def feature_alpha_dropout(
    input: Tensor, p: Any = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`torch.nn.functional.feature_alpha_dropout`."""
    return _kept(_dropped(input, p, training, alpha=True, feature=True), input, inplace)


def _of_channels(dimensions: int) -> Callable[..., Tensor]:
    """`dropoutNd`: whole channels of images of so many dimensions, or of batches of them."""
    eager = getattr(functional, f"dropout{dimensions}d")

    def run(input: Tensor, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        rank = input.dim()
        if rank not in (dimensions + 1, dimensions + 2):
            return eager(input, p, training, inplace)
        batched = (
            rank == dimensions + 2 or dimensions == 2
        )  # eager's own reading of three dimensions
        whole = input if batched else input.unsqueeze(0)
        found = _dropped(whole, p, training, alpha=False, feature=True)
        if found is whole:
            return input
        return _kept(found if batched else found.squeeze(0), input, inplace)

    return run


def _drawn(operator: Any, *defaults: float) -> Callable[..., Tensor]:
    """An operator that fills a tensor with random numbers."""

    def run(
        self: Tensor, *given: Any, generator: torch.Generator | None = None, **named: Any
    ) -> Tensor:
        names = [one.name for one in operator._schema.arguments[1:]]
        numbers = list(defaults)
        numbers[: len(given)] = given
        for name, value in named.items():
            numbers[names.index(name)] = value
        with torch.no_grad():
            made = self.detach().new_empty_strided(self.shape, self.stride())
            value = direct(operator, made, *numbers, generator=generator)
        return self.copy_(value)

    return run


def bernoulli(input: Tensor, p: Any, *, generator: torch.Generator | None = None) -> Tensor:
    """`torch.bernoulli` with one probability for all."""
    found: Tensor = direct(aten.bernoulli.p, input.detach(), p, generator=generator)
    return found


def normal(
    mean: Any,
    std: Any = 1.0,
    size: Sequence[int] | None = None,
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Tensor:
    """`torch.normal` of numbers; with tensors the number scales or shifts."""
    if size is None:
        tensor = mean if isinstance(mean, torch.Tensor) else std
        drawn = aten.normal_functional.default(tensor.detach(), 0.0, 1.0, generator=generator)
        return mean + std * drawn
    empty = torch.empty(size, **options)
    found: Tensor = direct(aten.normal_functional.default, empty, mean, std, generator=generator)
    return found


RANDOM: dict[str, Callable[..., Any]] = {
    "alpha_dropout": alpha_dropout,
    "bernoulli": bernoulli,
    "bernoulli_": _drawn(aten.bernoulli_.float, 0.5),
    "cauchy_": _drawn(aten.cauchy_.default, 0.0, 1.0),
    "dropout": dropout,
    "dropout1d": _of_channels(1),
    "dropout2d": _of_channels(2),
    "dropout3d": _of_channels(3),
    "exponential_": _drawn(aten.exponential_.default, 1.0),
    "feature_alpha_dropout": feature_alpha_dropout,
    "geometric_": _drawn(aten.geometric_.default, 0.5),
    "log_normal_": _drawn(aten.log_normal_.default, 1.0, 2.0),
    "normal": normal,
    "normal_": _drawn(aten.normal_.default, 0.0, 1.0),
    "uniform_": _drawn(aten.uniform_.default, 0.0, 1.0),
}
