"""The least time that a call could take on this machine, so that a row says how much is left to gain.

The practical floor adds up two parts. Products, convolutions and attention, as eager calls them: each at the rate of a
large product, or at the rate of a copy where its operands and result take longer to move. Everything else: the bytes
that our fused kernels read and write, at the rate of a copy. Both rates are measured in the same run. So the floor
holds for the way in which we fuse; better fusion lowers it. Launches count nothing.
"""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import compile_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOVED = re.compile(r"(?:reads|writes) (\d+)")
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine reaches: operations a second of a large product, by dtype, and bytes a second of a copy."""

    product: dict[torch.dtype, float]
    copy: float


@dataclass(frozen=True, slots=True)
class Product:
    """One product, convolution or attention: floating-point operations, bytes of operands and result."""

    operations: int
    moved: int
    dtype: torch.dtype


def measure_rates(device: str) -> Rates:
    """The rates of this machine."""
    on_card = device == "cuda"
    extent = 8192 if on_card else 1024
    dtypes = [torch.float32, *([torch.bfloat16] if on_card else [])]
    product = {}
    for dtype in dtypes:
        left, right = (torch.randn(extent, extent, device=device, dtype=dtype) for _ in range(2))
        product[dtype] = 2 * extent**3 / _seconds(lambda a=left, b=right: a @ b, on_card=on_card)
    source = torch.empty((1 << 30) if on_card else (1 << 27), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    taken = _seconds(lambda: target.copy_(source), on_card=on_card)
    return Rates(product, 2 * source.numel() / taken)


def _seconds(call: Callable[[], Any], *, on_card: bool) -> float:
    samples = []
    for _ in range(_REPEATS + 2):
        if on_card:
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(4):
            call()
        if on_card:
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) / 4)
    return statistics.median(samples[2:])


class _Products(TorchDispatchMode):
    """Notes the products of whatever runs below it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Product] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        operations = _operations(function, args, kwargs, result)
        if operations:
            tensors = [
                leaf
                for leaf in pytree.tree_leaves((args, kwargs, result))
                if isinstance(leaf, torch.Tensor)
            ]
            moved = sum(leaf.numel() * leaf.itemsize for leaf in tensors)
            self.found.append(Product(operations, moved, tensors[0].dtype))
        return result


def _operations(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Floating-point operations of one call; half of them where attention is causal."""
    name = function._schema.name
    if name == "aten::_scaled_dot_product_flash_attention_for_cpu":
        count = _attention(args[0], args[1], args[2])
    elif name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward":
        count = 5 * _attention(args[1], args[2], args[3]) // 2
    else:
        formula = flop_registry.get(function._overloadpacket)
        count = int(formula(*args, **kwargs, out_val=result)) if formula else 0
    given = {
        argument.name: value
        for argument, value in zip(function._schema.arguments, args, strict=False)
    }
    return count // 2 if (given | kwargs).get("is_causal") is True else count


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Two products: queries by keys, the result by values."""
    *batch, rows, depth = query.shape
    columns, width = value.shape[-2:]
    assert key.shape[-2] == columns
    heads = 1
    for extent in batch:
        heads *= extent
    return 2 * heads * rows * columns * (depth + width)


def products_of(call: Callable[[], Any]) -> tuple[Product, ...]:
    """The products of one call, its backward included if the call runs it."""
    with _Products() as noted:
        call()
    return tuple(noted.found)


def moved_by_kernels(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Bytes that our kernels move in one call of `function`, and in the backward of its result."""
    explanation = compile_api.explain(function, *args, **kwargs)
    return sum(
        int(count) for kernel in explanation.kernels for count in _MOVED.findall(kernel.traffic)
    )


def practical_floor(products: Iterable[Product], moved: int, rates: Rates) -> float:
    """Seconds; see the module."""
    slowest = min(rates.product.values())
    multiplied = sum(
        max(each.operations / rates.product.get(each.dtype, slowest), each.moved / rates.copy)
        for each in products
    )
    return multiplied + moved / rates.copy
