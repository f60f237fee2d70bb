"""Single kernels that models spend their time in, at three sizes, in float32 and bfloat16, against eager and torch.

The systems take turns (benchmarks/turns.py); a ratio is the median of the ratios of the rounds. Forward rows run
without gradients; backward rows time forward and backward together. Results are compared with eager's first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.systems import reset, systems
from benchmarks.turns import take_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.steady import Request

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# elements of the main operand: in the first cache, in the second, in memory
SIZES = {"small": (16, 256), "medium": (256, 768), "large": (2048, 1024)}
MINIMUM_SECONDS = 0.004


def _random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, dtype=torch.float32).to(dtype)


def softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), weight, bias)


def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x)


def bias_gelu_dropout(x: Tensor, bias: Tensor) -> Tensor:
    return functional.dropout(functional.gelu(x + bias), 0.1, training=True)


def dequantize(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (x.to(scale.dtype) - zero) * scale


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(x, target)


def rope(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cosine + turned * sine


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * scaled.to(x.dtype)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.group_norm(x, 8, weight, bias)


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, variance, weight, bias, training=True)


def embedding(index: Tensor, weight: Tensor) -> Tensor:
    return functional.embedding(index, weight)


def transposed(x: Tensor) -> Tensor:
    return x.t().contiguous()


def cumulative_sum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def row_sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def full_sum(x: Tensor) -> Tensor:
    return x.sum()


Case = tuple["Callable[..., Tensor]", tuple[Tensor, ...], bool]


def cases(size: str, dtype: torch.dtype) -> dict[str, Case]:
    """Gives each row's function, its inputs, and whether its backward runs too."""
    n, m = SIZES[size]
    x = _random(n, m, dtype=dtype)
    weight, bias = _random(m, dtype=dtype), _random(m, dtype=dtype)
    image = _random(max(1, n // 64), 64, m // 4, 4, dtype=dtype)
    channel = [_random(64, dtype=dtype) for _ in range(2)]
    running = [torch.zeros(64, dtype=dtype), torch.ones(64, dtype=dtype)]
    target = torch.randint(0, m, (n,))
    quantized = torch.randint(-128, 128, (n, m), dtype=torch.int8)
    scale, zero = _random(n, 1, dtype=dtype), _random(n, 1, dtype=dtype)
    heads = x.view(1, n // 16, 16, m)[..., :64] if m <= 64 else x.view(1, -1, n, 64)
    angles = _random(heads.shape[-2], 64, dtype=dtype)

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.clone().requires_grad_()

    return {
        "softmax": (softmax, (x,), False),
        "layer norm": (layer_norm, (x, weight, bias), False),
        "layer norm, both": (layer_norm, (leaf(x), leaf(weight), leaf(bias)), True),
        "gelu": (gelu, (x,), False),
        "bias, gelu, dropout": (bias_gelu_dropout, (x, bias), False),
        "int8 dequantization": (dequantize, (quantized, scale, zero), False),
        "cross entropy": (cross_entropy, (x, target), False),
        "cross entropy, both": (cross_entropy, (leaf(x), target), True),
        "rope": (rope, (heads, angles.cos(), angles.sin()), False),
        "rms norm": (rms_norm, (x, weight), False),
        "group norm": (group_norm, (image, *channel), False),
        "batch norm, training": (batch_norm, (image, *running, *channel), False),
        "embedding, both": (embedding, (target, leaf(x.t().contiguous())), True),
        "transposed copy": (transposed, (x,), False),
        "cumulative sum": (cumulative_sum, (x,), False),
        "row sum": (row_sum, (x,), False),
        "full sum": (full_sum, (x,), False),
    }


def _work(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], both: bool
) -> Callable[[], Any]:
    if not both:
        return lambda: function(*inputs)
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    result = function(*inputs)
    tangent = torch.ones_like(result).cumsum(0) * 0.01
    return lambda: torch.autograd.grad(function(*inputs), leaves, tangent)


def _wide(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _check(name: str, results: dict[str, Any], reference: Any, dtype: torch.dtype) -> None:
    """No system may be further from float64 than eager is, but for a few roundings."""
    allowance = 1e-2 if dtype is torch.bfloat16 else 1e-5

    def errors(result: Any) -> list[float]:
        pairs = (
            [(result, reference)]
            if isinstance(result, Tensor)
            else zip(result, reference, strict=True)
        )
        return [((a.double() - b).norm() / b.norm().clamp(min=1e-12)).item() for a, b in pairs]

    for system, result in results.items():
        for ours, eager in zip(errors(result), errors(results["eager"]), strict=True):
            if not ours <= 2 * eager + allowance:
                raise AssertionError(f"{name}: {system} errs by {ours:.2g}, eager by {eager:.2g}")


def _row(label: str, case: Case, request: Request, dtype: torch.dtype) -> dict[str, Any]:
    """Checks and times one kernel."""
    function, inputs, both = case
    reset(request.compare)
    works = {
        system: _work(make(function), inputs, both)
        for system, make in systems(request.compare).items()
    }
    with torch.set_grad_enabled(both):
        results = {system: work() for system, work in works.items()}
        if "dropout" not in label:  # other random numbers
            wide = [_wide(tensor) for tensor in inputs]
            _check(label, results, _work(function, tuple(wide), both)(), dtype)
        return take_turns(works, request.rounds, MINIMUM_SECONDS).row("us")


def run(request: Request) -> Iterator[dict[str, Any]]:
    """Yields one row for each kernel, size and dtype; one that fails says why."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    for dtype_name, dtype in DTYPES.items():
        for size in ("small",) if request.small else SIZES:
            for name, case in cases(size, dtype).items():
                label = f"{name}, {size}, {dtype_name}"
                if request.only not in label:
                    continue
                row: dict[str, Any] = {"name": label, "threads": threads}
                try:
                    row |= _row(label, case, request, dtype)
                except Exception as fault:  # noqa: BLE001 - whatever a system raises is the row
                    row["fault"] = f"{type(fault).__name__}: {fault}"[:300]
                yield row
