"""Functions whose C++ takes a float as a number, which would tie a graph to it: the same in operators that don't.

`varying(function, args, kwargs)` gives whoever runs a captured graph on fakes what to run in place of a function of
which a number varies from call to call, or None to leave it. Operators whose schema says `float` are handed to the
context of the fakes directly (`primtorch.direct`), with their derivatives. Invariant: values, dtypes, gradients and
kinds of exceptions are those of eager; what is asked of a number is a condition on it, never its value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from primtorch._torch import uncounted
from primtorch.direct import differentiable, direct
from primtorch.promotion import computation_dtype, result_dtype
from primtorch.quantiles import nanquantile, quantile
from primtorch.symbolic import REAL_ARITHMETIC, real_function
from primtorch.varying_losses import LOSSES
from primtorch.varying_random import RANDOM, dropout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

__all__ = ["varying"]

aten = torch.ops.aten


def varying(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """Our own `function` if a float among the arguments varies; None otherwise."""
    if not (any(map(_varies, args)) or any(map(_varies, kwargs.values()))):
        return None
    try:
        own = _FUNCTIONS.get(function)
        if own is None and function in REAL_ARITHMETIC:
            numbers = not any(isinstance(one, torch.Tensor) for one in args)
            own = REAL_ARITHMETIC[function] if numbers else None
    except TypeError:  # it has no hash
        return None
    return own


def _varies(value: object) -> bool:
    return isinstance(value, torch.SymFloat)


# -- elementwise ---------------------------------------------------------------------------------------


def _number(value: Any, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A number as a tensor without dimensions."""
    return like.new_full((), value, dtype=dtype)


def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    """`torch.where` with numbers on one side or both."""
    dtype = result_dtype(input, other)
    sides = [
        side if isinstance(side, torch.Tensor) else _number(side, dtype, condition)
        for side in (input, other)
    ]
    return torch.where(condition, *sides)


def where_method(input: Tensor, condition: Tensor, other: Any) -> Tensor:
    """`Tensor.where`."""
    return where(condition, input, other)


def float_power(input: Any, exponent: Any) -> Tensor:
    """`torch.float_power`: a power in double precision."""
    wide = [
        side.to(torch.complex128 if side.is_complex() else torch.float64)
        if isinstance(side, torch.Tensor)
        else side
        for side in (input, exponent)
    ]
    return power(*wide)


def lerp(input: Tensor, end: Any, weight: Any) -> Tensor:
    """`torch.lerp` by a number."""

    def derivative(_: Any, __: Any, grad: Tensor) -> Any:
        return grad * (1 - weight), grad * weight

    operands = torch.broadcast_tensors(input, end)
    return differentiable(aten.lerp.Scalar, (*operands, weight), (0, 1), derivative)


def lerp_(input: Tensor, end: Any, weight: Any) -> Tensor:
    """`Tensor.lerp_` by a number."""
    with torch.no_grad():
        value = lerp(input, end, weight)
    if not (torch.is_grad_enabled() and (input.requires_grad or end.requires_grad)):
        return input.copy_(value)
    return input.mul_(1 - weight).add_(end * weight)


def power(base: Any, exponent: Any) -> Tensor:
    """`torch.pow` by a number, or of one."""
    if isinstance(base, torch.Tensor):
        for special in (2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.0):
            if exponent == special:  # which has a kernel of its own
                return torch.pow(base, special)
        return differentiable(
            aten.pow.Tensor_Scalar, (base, exponent), (0,), _slope_by_base(exponent)
        )

    def slope(tensors: Sequence[Any], results: Sequence[Tensor], grad: Tensor) -> Tensor:
        if base == 0:
            zero = grad.new_zeros(())
            return torch.where(tensors[0] >= 0, zero, grad * (results[0] * float("-inf")))
        return grad * (results[0] * (real_function("log", base) if base > 0 else float("nan")))

    return differentiable(aten.pow.Scalar, (base, exponent), (1,), slope)


def _slope_by_base(exponent: Any) -> Callable[..., Tensor]:
    def slope(tensors: Sequence[Any], _: Any, grad: Tensor) -> Tensor:
        if exponent == 0:
            return torch.zeros_like(grad)
        found = exponent * power(tensors[0], exponent - 1)
        return grad * (found.conj() if found.is_complex() else found)

    return slope


def power_of_base(exponent: Tensor, base: Any) -> Tensor:
    """`Tensor.__rpow__`."""
    return power(base, exponent)


def isclose(
    input: Tensor, other: Tensor, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Tensor:
    """`torch.isclose`."""
    if input.dtype != other.dtype:
        names = [str(one.dtype).removeprefix("torch.") for one in (input, other)]
        raise RuntimeError(f"{names[0]} did not match {names[1]}")
    if rtol < 0:
        raise RuntimeError(f"rtol must be greater than or equal to zero, but got {float(rtol)}")
    if atol < 0:
        raise RuntimeError(f"atol must be greater than or equal to zero, but got {float(atol)}")
    close = input == other
    if equal_nan and (input.is_floating_point() or input.is_complex()):
        close = close | (input.isnan() & other.isnan())
    if rtol == 0 and atol == 0:
        return close
    if not (input.is_floating_point() or input.is_complex()):
        wide = torch.get_default_dtype()
        return isclose(input.to(wide), other.to(wide), rtol, atol)
    allowed = atol + (rtol * other).abs()
    difference = (input - other).abs()
    return close | (difference.isfinite() & (difference <= allowed))


def celu(input: Tensor, alpha: Any = 1.0, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.celu`."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    found: Tensor = aten.elu.default(input, alpha, 1.0, 1.0 / alpha)
    return input.copy_(found) if inplace else found


def _with_number(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two of which one is a number, in the dtype of the other."""

    def run(input: Any, other: Any) -> Tensor:
        dtype = result_dtype(input, other)
        if not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        like = input if isinstance(input, torch.Tensor) else other
        sides = [
            one if isinstance(one, torch.Tensor) else _number(one, dtype, like)
            for one in (input, other)
        ]
        result: Tensor = function(*sides)
        return result

    return run


def nan_to_num(input: Tensor, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
    """`torch.nan_to_num`."""
    if input.is_complex() or not input.is_floating_point():
        return torch.nan_to_num(input)
    limits = torch.finfo(input.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    found = torch.where(
        input.isnan(), _number(0.0 if nan is None else nan, input.dtype, input), input
    )
    found = torch.where(input == float("inf"), _number(high, input.dtype, input), found)
    return torch.where(input == float("-inf"), _number(low, input.dtype, input), found)


def logit(input: Tensor, eps: Any = None) -> Tensor:
    """`torch.logit`, of what is clamped into [eps, 1 - eps]; a gradient only inside."""

    def derivative(tensors: Sequence[Any], _: Any, grad: Tensor) -> Tensor:
        value: Tensor = tensors[0]
        low, high, outside = (0.0, 1.0, float("nan")) if eps < 0 else (eps, 1.0 - eps, 0.0)
        slope = grad / (value * (1.0 - value))
        return torch.where((value >= low) & (value <= high), slope, slope.new_full((), outside))

    return differentiable(aten.logit.default, (input, eps), (0,), derivative)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    """`torch.nn.functional.pad` with a number."""
    if mode != "constant":
        return functional.pad(input, pad, mode, value)
    return aten.constant_pad_nd.default(input, list(pad), value)


def set_item(tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value` for a number."""
    tensor[index] = _number(value, tensor.dtype, tensor)


def rrelu(
    input: Tensor,
    lower: Any = 1.0 / 8,
    upper: Any = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """`torch.nn.functional.rrelu`: the mean slope outside of training."""
    if training:
        lower, upper = float(lower), float(upper)
        return functional.rrelu(input, lower, upper, training, inplace)
    return functional.leaky_relu(input, (lower + upper) / 2, inplace)


# -- integrals and quantiles -----------------------------------------------------------------------------


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = 1, dim: int = -1) -> Tensor:
    """`torch.trapezoid` of points that are `dx` apart."""
    if x is not None:
        return torch.trapezoid(y, x, dim=dim)
    if y.shape[dim] == 0:
        return torch.zeros_like(y).sum(dim)
    last = y.shape[dim] - 1
    return (y.sum(dim) - (y.select(dim, 0) + y.select(dim, last)) / 2) * dx


def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: Any = 1, dim: int = -1
) -> Tensor:
    """`torch.cumulative_trapezoid` of points that are `dx` apart."""
    if x is not None:
        return torch.cumulative_trapezoid(y, x, dim=dim)
    count = y.shape[dim] - 1
    return (dx / 2.0) * (y.narrow(dim, 0, count) + y.narrow(dim, 1, count)).cumsum(dim)


# -- normalisations --------------------------------------------------------------------------------------


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Any = 1e-05,
    cudnn_enable: bool = True,
) -> Tensor:
    """`torch.layer_norm`."""
    del cudnn_enable
    inner = list(normalized_shape)

    def derivative(tensors: Sequence[Any], results: Sequence[Tensor], grad: Tensor, *_: Any) -> Any:
        value, scale, shift = tensors
        mask = [one is not None and one.requires_grad for one in tensors]
        return aten.native_layer_norm_backward.default(
            grad, value, inner, results[1], results[2], scale, shift, mask
        )

    args = (input, inner, weight, bias, eps)
    return differentiable(aten.native_layer_norm.default, args, (0, 2, 3), derivative)[0]


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: Any = None
) -> Tensor:
    """`torch.rms_norm`."""
    wide = input.to(computation_dtype(input.dtype))
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    found = wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + eps)
    if weight is not None:
        found = found * weight
    return found.to(input.dtype)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Any = 1e-05,
    cudnn_enabled: bool = True,
) -> Tensor:
    """`torch.group_norm`."""
    del cudnn_enabled
    batch, channels = input.shape[:2]
    if channels % num_groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={num_groups}"
        )
    count = 1
    for size in input.shape[2:]:
        count = count * size
    value = input.contiguous()
    sizes = (batch, channels, count, num_groups)

    def derivative(tensors: Sequence[Any], results: Sequence[Tensor], grad: Tensor, *_: Any) -> Any:
        mask = [one is not None and one.requires_grad for one in tensors]
        return aten.native_group_norm_backward.default(
            grad.contiguous(), tensors[0], results[1], results[2], tensors[1], *sizes, mask
        )

    args = (value, weight, bias, *sizes, eps)
    return differentiable(aten.native_group_norm.default, args, (0, 1, 2), derivative)[0]


def _channelwise(value: Tensor, rank: int) -> Tensor:
    return value.reshape(1, -1, *[1] * (rank - 2))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: Any = 1e-05,
) -> Tensor:
    """`torch.nn.functional.batch_norm`."""
    rank = input.dim()
    wide = input.to(computation_dtype(input.dtype))
    if training:
        count: Any = 1
        for place, size in enumerate(input.shape):
            count = count if place == 1 else count * size
        if count == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {input.shape}"
            )
        dims = [0, *range(2, rank)]
        variance, mean = torch.var_mean(wide, dims, correction=0.0)
        with torch.no_grad():
            if running_mean is not None:
                _move(running_mean, mean, momentum)
            if running_var is not None:
                _move(running_var, variance * count / (count - 1), momentum)
    else:
        assert running_mean is not None and running_var is not None, "eager refuses the call"  # noqa: PT018
        mean, variance = running_mean.to(wide.dtype), running_var.to(wide.dtype)
    scale = _channelwise(torch.rsqrt(variance + eps), rank)
    found = (wide - _channelwise(mean, rank)) * scale
    if weight is not None:
        found = found * _channelwise(weight.to(wide.dtype), rank)
    if bias is not None:
        found = found + _channelwise(bias.to(wide.dtype), rank)
    return found.to(input.dtype)


def _move(running: Tensor, value: Tensor, momentum: Any) -> None:
    wide = running.to(value.dtype)
    with uncounted(running):  # ATen's kernel writes below autograd
        running.copy_(wide * (1 - momentum) + value * momentum)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: Any = 1e-05,
) -> Tensor:
    """`torch.nn.functional.instance_norm`: a batch norm whose channels are those of each instance."""
    batch, channels = input.shape[:2]

    def repeated(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.repeat(batch)

    means, variances = repeated(running_mean), repeated(running_var)
    flat = input.contiguous().reshape(1, batch * channels, *input.shape[2:])
    found = batch_norm(
        flat, means, variances, repeated(weight), repeated(bias), use_input_stats, momentum, eps
    )
    if use_input_stats:
        with torch.no_grad():
            for running, values in ((running_mean, means), (running_var, variances)):
                if running is not None and values is not None:
                    running.copy_(values.reshape(batch, channels).mean(0))
    return found.reshape(input.shape)


# -- distances -------------------------------------------------------------------------------------------


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: Any = 1e-08) -> Tensor:
    """`torch.cosine_similarity`: lengths below `eps` count as `eps`, but not in the derivative."""
    dtype = result_dtype(x1, x2)
    first, second = torch.broadcast_tensors(x1.to(dtype), x2.to(dtype))
    lengths = []
    for value in (first, second):
        length = torch.linalg.vector_norm(value, 2, dim=dim, keepdim=True).clone()
        with torch.no_grad():
            length.clamp_min_(eps)
        lengths.append(length)
    return ((first / lengths[0]) * (second / lengths[1])).sum(dim)


def vector_norm(
    x: Tensor,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`torch.linalg.vector_norm` of an order that varies."""
    for special in (0.0, 1.0, 2.0, float("inf"), float("-inf")):
        if ord == special:
            return torch.linalg.vector_norm(x, special, dim, keepdim, dtype=dtype)
    value = x if dtype is None else x.to(dtype)
    dims = [dim] if isinstance(dim, int) else dim

    def derivative(tensors: Sequence[Any], results: Sequence[Tensor], grad: Tensor) -> Tensor:
        one, length = tensors[0], results[0]
        if dims and not keepdim:
            rank = one.dim()
            for place in sorted(place % rank for place in dims):
                grad, length = grad.unsqueeze(place), length.unsqueeze(place)
        zero = length.new_zeros(())
        scale = torch.where(length == 0, zero, grad / power(length, ord - 1))
        slope = one.sgn() * power(one.abs(), ord - 1)
        return torch.where(one == 0, one.new_zeros(()), slope * scale)

    arguments = (value, ord, dims, keepdim)
    return differentiable(aten.linalg_vector_norm.default, arguments, (0,), derivative)


def norm(
    input: Tensor,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`torch.norm` of an order that varies."""
    found = vector_norm(input, p, dim, keepdim, dtype=dtype)
    return found if out is None else out.copy_(found)


def norm_method(
    input: Tensor,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`Tensor.norm`."""
    return vector_norm(input, p, dim, keepdim, dtype=dtype)


def dist(input: Tensor, other: Tensor, p: Any = 2) -> Tensor:
    """`torch.dist`."""
    return vector_norm(input - other, p)


def normalize(
    input: Tensor, p: Any = 2.0, dim: int = 1, eps: Any = 1e-12, out: Tensor | None = None
) -> Tensor:
    """`torch.nn.functional.normalize`."""
    length = vector_norm(input, p, dim, keepdim=True)
    found = input / length.clamp_min(eps).expand_as(input)
    return found if out is None else out.copy_(found)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: Any = 2.0, eps: Any = 1e-6, keepdim: bool = False
) -> Tensor:
    """`torch.pairwise_distance`."""
    dim = max(x1.dim(), x2.dim()) - 1
    return vector_norm(x1 - x2 + eps, p, dim, keepdim)


def cdist(x1: Tensor, x2: Tensor, p: Any = 2.0, compute_mode: str | None = None) -> Tensor:
    """`torch.cdist` of any order."""
    del compute_mode
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    first = x1.expand(*batch, *x1.shape[-2:]).contiguous()
    second = x2.expand(*batch, *x2.shape[-2:]).contiguous()

    def derivative(tensors: Sequence[Any], results: Any, grad: Tensor) -> Any:
        one, two = tensors
        backward = aten._cdist_backward.default
        distances, grad = results[0], grad.contiguous()
        found = direct(backward, grad, one, two, p, distances) if one.requires_grad else None
        if not two.requires_grad:
            return found, None
        turned = distances.mT.contiguous(), grad.mT.contiguous()
        return found, direct(backward, turned[1], two, one, p, turned[0])

    return differentiable(aten._cdist_forward.default, (first, second, p, None), (0, 1), derivative)


def pdist(input: Tensor, p: Any = 2) -> Tensor:
    """`torch.pdist`."""
    if input.dim() != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.dim()}D")
    if p < 0:
        raise RuntimeError("pdist only supports non-negative p values")

    def derivative(tensors: Sequence[Any], results: Any, grad: Tensor) -> Any:
        return direct(aten._pdist_backward.default, grad.contiguous(), tensors[0], p, results[0])

    return differentiable(aten._pdist_forward.default, (input.contiguous(), p), (0,), derivative)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention whose scale or dropout varies: the queries are scaled before, a dropout is taken apart."""
    from primtorch.attention import substitute  # which chooses this function

    if scale is not None:
        own = query.shape[-1] ** -0.5
        query, scale = query * (scale / own), None
    if dropout_p == 0:
        args = (query, key, value, attn_mask, 0.0, is_causal)
        chosen = substitute(functional.scaled_dot_product_attention, args)
        result: Tensor = chosen(*args, enable_gqa=enable_gqa)
        return result
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    weights = query @ key.mT * (query.shape[-1] ** -0.5)
    if is_causal:
        shape = weights.shape[-2:]
        attn_mask = query.new_ones(shape, dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        weights = weights.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        weights = weights + attn_mask
    return dropout(torch.softmax(weights, -1), dropout_p) @ value


def _fused(name: str) -> dict[Callable[..., Any], Callable[..., Any]]:
    """A fused optimizer's step, whose rates vary under a schedule."""
    packet = getattr(aten, name)

    def run(*args: Any, **kwargs: Any) -> None:
        tensor = isinstance(kwargs.get("lr"), torch.Tensor)
        direct(packet.tensor_lr if tensor else packet.default, *args, **kwargs)

    return {getattr(torch, name): run}


def _methods(**functions: Callable[..., Any]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """By name: of `torch`, of tensors, and of `torch.nn.functional`, those that there are."""
    found = {}
    for name, own in functions.items():
        for owner in (torch, torch.Tensor, functional, torch.special, torch._C._nn):
            eager = getattr(owner, name, None)
            if callable(eager):
                found[eager] = own
    return found


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    **_methods(
        batch_norm=batch_norm,
        cdist=cdist,
        celu=celu,
        cosine_similarity=cosine_similarity,
        cumulative_trapezoid=cumulative_trapezoid,
        dist=dist,
        float_power=float_power,
        group_norm=group_norm,
        instance_norm=instance_norm,
        isclose=isclose,
        layer_norm=layer_norm,
        lerp=lerp,
        lerp_=lerp_,
        logit=logit,
        nan_to_num=nan_to_num,
        nanquantile=nanquantile,
        norm=norm,
        normalize=normalize,
        pad=pad,
        pairwise_distance=pairwise_distance,
        pdist=pdist,
        pow=power,
        quantile=quantile,
        rms_norm=rms_norm,
        rrelu=rrelu,
        scaled_dot_product_attention=scaled_dot_product_attention,
        trapezoid=trapezoid,
        xlog1py=_with_number(torch.special.xlog1py),
        xlogy=_with_number(torch.xlogy),
        **RANDOM,
    ),
    **LOSSES,
    **_fused("_fused_adagrad_"),
    **_fused("_fused_adam_"),
    **_fused("_fused_adamw_"),
    **_fused("_fused_sgd_"),
    torch.linalg.vector_norm: vector_norm,
    torch.where: where,
    torch.Tensor.norm: norm_method,
    torch.Tensor.where: where_method,
    torch.Tensor.__pow__: power,
    torch.Tensor.__rpow__: power_of_base,
    torch.Tensor.__setitem__: set_item,
}
