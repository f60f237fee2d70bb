"""Losses of which a number varies: a margin, a smoothing, a bound between two forms.

Comes in: the arguments of `torch.nn.functional`'s losses. Goes out: their values, composed as eager composes them or
from operators that are handed the number as it is. What is left to eager (the old `size_average` and `reduce`) takes
the number for a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from primtorch.direct import differentiable, direct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["LOSSES"]

aten = torch.ops.aten
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction != "none":
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return loss


def _two_forms(operator: Any, backward: Any, name: str) -> Callable[..., Tensor]:
    """`smooth_l1_loss` and `huber_loss`: quadratic near zero, up to the number."""
    eager = getattr(functional, name)

    def run(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        number = kwargs.pop("beta" if name == "smooth_l1_loss" else "delta", None)
        reduction = kwargs.pop("reduction", None)
        rest = list(args)
        if name == "huber_loss":
            reduction = rest.pop(0) if rest else reduction
            number = rest.pop(0) if rest else number
        elif len(rest) >= 3:  # size_average, reduce, reduction, beta
            old, rest = rest[:2], rest[2:]
            reduction = rest.pop(0)
            number = rest.pop(0) if rest else number
            rest = [one for one in old if one is not None] + rest
        reduction = "mean" if reduction is None else reduction
        if rest or any(value is not None for value in kwargs.values()):
            named = {"beta" if name == "smooth_l1_loss" else "delta": float(number)}
            return eager(input, target, *args, reduction=reduction, **named, **kwargs)
        first, second = torch.broadcast_tensors(input, target)
        code = _REDUCTIONS[reduction]

        def derivative(tensors: Sequence[Any], _: Any, grad: Tensor) -> Any:
            found = direct(backward, grad, *tensors, code, number)
            return found, -found

        return differentiable(operator, (first, second, code, number), (0, 1), derivative)

    return run


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: Any = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` with a smoothing that varies."""
    if size_average is not None or reduce is not None:
        return functional.cross_entropy(
            input,
            target,
            weight,
            size_average,
            ignore_index,
            reduce,
            reduction,
            float(label_smoothing),
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(
            f"label_smoothing must be between 0.0 and 1.0. Got: {float(label_smoothing)}"
        )
    place = 0 if input.dim() == 1 else 1
    classes = input.shape[place]
    scores = torch.log_softmax(input, place)
    factors = None
    if weight is not None:
        factors = weight.reshape([classes if one == place else 1 for one in range(input.dim())])
    if input.shape == target.shape:
        wanted = target * (1 - label_smoothing) + label_smoothing / classes
        product = scores * wanted if factors is None else scores * wanted * factors
        if reduction == "mean":
            return -product.sum() / (scores.numel() // classes)
        return -product.sum() if reduction == "sum" else -product.sum(place)
    loss = functional.nll_loss(
        scores, target, weight, ignore_index=ignore_index, reduction=reduction
    )
    smooth = -(scores if factors is None else scores * factors).sum(place)
    ignored = target == ignore_index
    smooth = smooth.masked_fill(ignored, 0.0)
    if reduction == "mean":
        if weight is None:
            smooth = smooth.sum() / (ignored.numel() - ignored.sum())
        else:
            chosen = weight.gather(0, target.masked_fill(ignored, 0).flatten())
            smooth = smooth.sum() / chosen.masked_fill(ignored.flatten(), 0).sum()
    elif reduction == "sum":
        smooth = smooth.sum()
    return (1 - label_smoothing) * loss + smooth * (label_smoothing / classes)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: Any = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.poisson_nll_loss`."""
    if size_average is not None or reduce is not None or log_input:
        return functional.poisson_nll_loss(
            input, target, log_input, full, size_average, float(eps), reduce, reduction
        )
    loss = input - target * torch.log(input + eps)
    if full:
        stirling = target * torch.log(target) - target + 0.5 * torch.log(2 * torch.pi * target)
        loss = loss + stirling.masked_fill(target <= 1, 0)
    return _reduced(loss, reduction)


def _with_margin(compose: Callable[..., Tensor], name: str, margin: float) -> Callable[..., Tensor]:
    """A loss of `(tensors..., margin, size_average, reduce, reduction)`."""
    eager = getattr(functional, name)
    count = compose.__code__.co_argcount - 1

    def run(*args: Any, **kwargs: Any) -> Tensor:
        names = [
            *compose.__code__.co_varnames[:count],
            "margin",
            "size_average",
            "reduce",
            "reduction",
        ]
        given = dict(zip(names, args, strict=False)) | kwargs
        number = given.get("margin", margin)
        if given.get("size_average") is not None or given.get("reduce") is not None:
            return eager(**{**given, "margin": float(number)})
        tensors = [given[one] for one in names[:count]]
        return _reduced(compose(*tensors, number), given.get("reduction", "mean"))

    return run


def _ranking(input1: Tensor, input2: Tensor, target: Tensor, margin: Any) -> Tensor:
    return (-target * (input1 - input2) + margin).clamp_min(0)


def _hinge(input: Tensor, target: Tensor, margin: Any) -> Tensor:
    zero = input.new_zeros(())
    near = torch.where(target != 1, (margin - input).clamp_min(0), zero)
    return near + torch.where(target != -1, input, zero)


def _cosine(input1: Tensor, input2: Tensor, target: Tensor, margin: Any) -> Tensor:
    place = target.dim()
    product = (input1 * input2).sum(place)
    first, second = [(one * one).sum(place) + 1e-12 for one in (input1, input2)]
    cosine = product / (first * second).sqrt()
    zero = cosine.new_zeros(())
    like = torch.where(target == 1, 1 - cosine, zero)
    return like + torch.where(target == -1, (cosine - margin).clamp_min(0), zero)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: Any = 1.0,
    p: Any = 2,
    eps: Any = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.triplet_margin_loss`."""
    if size_average is not None or reduce is not None:
        return functional.triplet_margin_loss(
            anchor,
            positive,
            negative,
            float(margin),
            p,
            float(eps),
            swap,
            size_average,
            reduce,
            reduction,
        )
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {float(margin)}")

    def distance(one: Tensor, other: Tensor) -> Tensor:
        return torch.norm(one - other + eps, p, dim=max(one.dim(), other.dim()) - 1)

    far = distance(anchor, negative)
    if swap:
        far = torch.minimum(far, distance(positive, negative))
    return _reduced((margin + distance(anchor, positive) - far).clamp_min(0), reduction)


LOSSES: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.cosine_embedding_loss: _with_margin(_cosine, "cosine_embedding_loss", 0.0),
    functional.cross_entropy: cross_entropy,
    functional.hinge_embedding_loss: _with_margin(_hinge, "hinge_embedding_loss", 1.0),
    functional.huber_loss: _two_forms(
        aten.huber_loss.default, aten.huber_loss_backward.default, "huber_loss"
    ),
    functional.margin_ranking_loss: _with_margin(_ranking, "margin_ranking_loss", 0.0),
    functional.poisson_nll_loss: poisson_nll_loss,
    functional.smooth_l1_loss: _two_forms(
        aten.smooth_l1_loss.default, aten.smooth_l1_loss_backward.default, "smooth_l1_loss"
    ),
    functional.triplet_margin_loss: triplet_margin_loss,
}
