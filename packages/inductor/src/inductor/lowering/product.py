"""Matrix products whose bias the library would add the slow way.

The library's product with a bias in its epilogue writes contiguous results only. Where rows are padded to an aligned
stride (`aligned_rows`), the product runs without the bias, which the kernel that reads the result adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from inductor.lowering.builder import TensorFact, aligned_rows
from inductor.lowering.pointwise import elementwise
from inductor.lowering.registry import VENDOR, lowers

if TYPE_CHECKING:
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Value

aten = torch.ops.aten
_REASON = VENDOR.pop(aten.addmm.default)


@lowers(aten.addmm.default)
def addmm(builder: Builder, bias: Value, left: Value, right: Value, **scales: Any) -> Any:
    """`beta * bias + alpha * left @ right`."""
    fact = builder.fact
    assert isinstance(fact, TensorFact)
    plain = scales.get("beta", 1) == 1 and scales.get("alpha", 1) == 1
    if not plain or aligned_rows(fact.shape, fact.stride, fact.dtype, fact.device) == fact.stride:
        return builder.call("vendor", aten.addmm.default, (bias, left, right), scales, _REASON)
    product = builder.call("vendor", aten.mm.default, (left, right), {}, _REASON)
    return elementwise(builder, (product, bias), _add)


def _add(recorder: Recorder, product: Scalar, bias: Scalar) -> Scalar:
    return recorder.op("add", product, bias)
