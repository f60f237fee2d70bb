"""The rows of `benchmarks.gpu_micro`: single kernels, their inputs, and the bytes that each must move.

In: a device and how far sizes are divided (a rehearsal wants tiny ones). Out: `Row`s whose inputs are made when they
run. Invariant: `must_move` counts what any kernel has to read and write once, values that a program can keep on the
chip while it goes over them again not twice; a fraction above one would be a mistake here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import micro

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WIDE = torch.bfloat16
DROPPED = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel at one size.

    Fields:
        name, size: what it is called.
        function: what is compiled.
        inputs: makes its arguments.
        must_move: bytes.
        mode: "forward" without gradients, or "backward": forward once, then only the backward.
        check: "values", or "dropout", whose zeros are random.
    """

    name: str
    size: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    must_move: int
    mode: str = "forward"
    check: str = "values"


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.group_norm(x, 32, weight, bias)


def max_pool(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, 2, 1)


def sum_of_all(x: Tensor) -> Tensor:
    return x.sum()


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


class Sizes:
    """Makes tensors; in a rehearsal every dimension is at most `most`."""

    def __init__(self, device: str, most: int | None) -> None:
        self.device, self.most = device, most

    def __call__(self, *shape: int) -> tuple[int, ...]:
        return tuple(shape if self.most is None else (min(extent, self.most) for extent in shape))

    def random(self, *shape: int, grad: bool = False) -> Tensor:
        made = torch.randn(shape, device=self.device, dtype=torch.float32).to(WIDE)
        return made.requires_grad_(grad)

    def integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, device=self.device)


STREAMS = ((4096, 4096), (8192, 8192), (16384, 16384))
ROWS = ((8192, 1024), (16384, 4096), (4096, 32768))
NORMS = ((65536, 256), (32768, 768), (16384, 1024), (8192, 4096), (2048, 16384), (262144, 768))


def _streams(s: Sizes) -> Iterator[Row]:
    for shape in STREAMS:
        n, m = s(*shape)
        size, once = f"{n}x{m}", 2 * n * m

        def rotary(n: int = n, m: int = m) -> tuple[Tensor, ...]:
            heads = s.random(1, max(1, n * m // (64 * 128)), 64, 128)
            angles = s.random(64, 128)
            return heads, angles.cos(), angles.sin()

        def quantized(n: int = n, m: int = m) -> tuple[Tensor, ...]:
            codes = (s.integers(256, n, m) - 128).to(torch.int8)
            return codes, s.random(n, 1), s.random(n, 1)

        yield Row("add", size, add, lambda n=n, m=m: (s.random(n, m), s.random(n, m)), 3 * once)
        yield Row("gelu", size, micro.gelu, lambda n=n, m=m: (s.random(n, m),), 2 * once)
        yield Row(
            "bias, gelu, dropout", size, micro.bias_gelu_dropout,
            lambda n=n, m=m: (s.random(n, m), s.random(m)), 2 * once, check="dropout",
        )  # fmt: skip
        yield Row("rope", size, micro.rope, rotary, 2 * once)
        yield Row("int8 dequantization", size, micro.dequantize, quantized, once + n * m)


def _rows(s: Sizes) -> Iterator[Row]:
    for shape in ROWS:
        n, m = s(*shape)
        size, once = f"{n}x{m}", 2 * n * m

        def normed(n: int = n, m: int = m) -> tuple[Tensor, ...]:
            return s.random(n, m), s.random(m), s.random(m)

        yield Row("softmax", size, micro.softmax, lambda n=n, m=m: (s.random(n, m),), 2 * once)
        yield Row("layer norm", size, micro.layer_norm, normed, 2 * once)
        yield Row(
            "rms norm", size, micro.rms_norm,
            lambda n=n, m=m: (s.random(n, m), s.random(m)), 2 * once,
        )  # fmt: skip
        yield Row(
            "cross entropy", size, micro.cross_entropy,
            lambda n=n, m=m: (s.random(n, m), s.integers(m, n)), once + 8 * n,
        )  # fmt: skip
        yield Row("row sum", size, micro.row_sum, lambda n=n, m=m: (s.random(n, m),), once + 2 * n)


def _norms(s: Sizes) -> Iterator[Row]:
    for shape in NORMS:
        n, m = s(*shape)
        size, once = f"{n}x{m}", 2 * n * m

        def leaves(n: int = n, m: int = m) -> tuple[Tensor, ...]:
            return s.random(n, m, grad=True), s.random(m, grad=True), s.random(m, grad=True)

        yield Row("layer norm backward", size, micro.layer_norm, leaves, 3 * once, mode="backward")
        yield Row(
            "rms norm backward", size, micro.rms_norm,
            lambda leaves=leaves: leaves()[:2], 3 * once, mode="backward",
        )  # fmt: skip


def _images(s: Sizes) -> Iterator[Row]:
    last = torch.channels_last
    for batch, channels, side in ((64, 256, 56), (128, 64, 112)):
        n, c, h = (batch, channels, side) if s.most is None else (2, 32, 6)
        size, once = f"{n}x{c}x{h}x{h}", 2 * n * c * h * h

        def image(n: int = n, c: int = c, h: int = h, *, grad: bool = False) -> Tensor:
            return s.random(n, c, h, h).contiguous(memory_format=last).requires_grad_(grad)

        def batch_normed(image: Any = image, c: int = c) -> tuple[Tensor, ...]:
            kept = torch.zeros(c, device=s.device), torch.ones(c, device=s.device)
            return image(), *kept, s.random(c).float(), s.random(c).float()

        def group_normed(n: int = n, c: int = c, h: int = h) -> tuple[Tensor, ...]:
            return s.random(n, c, h, h), s.random(c), s.random(c)

        yield Row("batch norm, training", size, micro.batch_norm, batch_normed, 3 * once)
        yield Row("group norm", size, group_norm, group_normed, 2 * once)
        yield Row(
            "max pool, channels last", size, max_pool, lambda image=image: (image(),),
            once + once // 4,
        )  # fmt: skip
        yield Row(
            "max pool backward, channels last", size, max_pool,
            lambda image=image: (image(grad=True),), once + 3 * once // 8, mode="backward",
        )  # fmt: skip


def _others(s: Sizes) -> Iterator[Row]:
    for vocabulary, width, tokens in ((32000, 1024, 8192), (50257, 768, 65536)):
        v, w, t = s(vocabulary, width, tokens)

        def looked_up(v: int = v, w: int = w, t: int = t) -> tuple[Tensor, ...]:
            return s.integers(v, t), s.random(v, w, grad=True)

        yield Row(
            "embedding backward", f"{t} of {v}x{w}", micro.embedding, looked_up,
            2 * w * (t + v) + 8 * t, mode="backward",
        )  # fmt: skip
    for shape in ((8192, 8192), (4096, 32768)):
        n, m = s(*shape)
        once = 2 * n * m
        for name, function in (
            ("transposed copy", micro.transposed),
            ("cumulative sum", micro.cumulative_sum),
        ):
            yield Row(name, f"{n}x{m}", function, lambda n=n, m=m: (s.random(n, m),), 2 * once)


def _sums(s: Sizes) -> Iterator[Row]:
    """Reductions with fewer results than the card has multiprocessors, or columns: divided among programs."""
    for shape in ((1024, 4096), (4096, 4096), (16384, 16384)):
        n, m = s(*shape)
        yield Row(
            "sum of all", f"{n}x{m}", sum_of_all, lambda n=n, m=m: (s.random(n, m),), 2 * n * m
        )
    yield from column_sums(s, ((8192, 1024), (65536, 256), (16384, 4096)))


def column_sums(s: Sizes, shapes: Iterable[tuple[int, ...]]) -> Iterator[Row]:
    """Sums over the rows of matrices."""
    for shape in shapes:
        n, m = s(*shape)
        yield Row(
            "column sum", f"{n}x{m}", column_sum, lambda n=n, m=m: (s.random(n, m),), 2 * n * m
        )


def rows(device: str, most: int | None = None) -> list[Row]:
    """All rows, each kernel's first size before any second one: a short budget leaves out sizes, not kernels."""
    sizes = Sizes(device, most)
    found = [
        row for part in (_streams, _rows, _sums, _norms, _images, _others) for row in part(sizes)
    ]
    seen: dict[str, int] = {}
    ranked = []
    for row in found:
        seen[row.name] = seen.get(row.name, 0) + 1
        ranked.append((seen[row.name], row))
    return [row for _, row in sorted(ranked, key=lambda pair: pair[0])]
