"""Which single-precision products of a CPU go to oneDNN instead of the BLAS behind `aten.mm`.

torch's builds for x86 hold two libraries for products. MKL, which `aten.mm` calls, picks slower kernels on a processor
that isn't Intel's; oneDNN generates code for the instruction set it finds. Measured on an AVX-512 AMD processor, 2
threads, milliseconds of `aten.mm` against oneDNN (docs/performance.md): 128 x 768 x 30522 66.9 and 32.3,
128 x 768 x 3072 4.0 and 3.4, 128 x 768 x 768 equal; a left operand that lies transposed (the gradient of a weight) is
slower in oneDNN, and so are small products, whose call costs 12 us more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from inductor.ir.nodes import View
    from inductor.ir.operations import Size
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Value

__all__ = ["LINEAR", "linear", "prefers_linear"]

LINEAR: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
"""`left @ weight.T + bias` by oneDNN; None in a build of torch without it."""

FEWEST_WEIGHTS = 1 << 19
FEWEST_PRODUCTS = 1 << 22
VARYING_ROWS = 32
"""How many rows a product of varying size is taken to have."""

_REASON = (
    "matrix products run at the machine's peak in the library; oneDNN's is the faster one here"
)


def prefers_linear(builder: Builder, left: Value, right: Value) -> bool:
    """Whether `left @ right` is faster in oneDNN; see the module."""
    if builder.processor.products != "onednn" or LINEAR is None or builder.on_gpu(left.device):
        return False
    if left.dtype != torch.float32 or right.dtype != torch.float32:
        return False
    depth, columns = right.shape
    if not isinstance(depth, int) or not isinstance(columns, int):
        return False
    rows = left.shape[0] if isinstance(left.shape[0], int) else VARYING_ROWS
    return depth * columns >= FEWEST_WEIGHTS and rows * depth * columns >= FEWEST_PRODUCTS


def linear(builder: Builder, left: Value, right: Value, bias: Value | None) -> Value | None:
    """`left @ right + bias`, or None when the operands don't lie as oneDNN is fast with."""
    first, second = builder.realize(left), builder.realize(right)
    if not _rows_lie_together(first) or 1 not in second.stride:
        return None
    turned = replace(second, shape=second.shape[::-1], stride=second.stride[::-1])
    made: Value = builder.call("vendor", LINEAR, (first, turned, bias, "none", (), ""), {}, _REASON)
    return made


def _rows_lie_together(view: View) -> bool:
    step: Size = view.stride[0]
    width = view.shape[1]
    within = isinstance(step, int) and isinstance(width, int) and step >= width
    return view.stride[1] == 1 and (within or step == width)
