"""Batch normalisation with given statistics, lowered whole.

Per channel a factor and a shift, as eager's kernel has it; the scheduler computes them once a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inductor.errors import UnsupportedOperationError
from inductor.ir.operations import value_dtype
from inductor.lowering.pointwise import cost
from inductor.lowering.registry import lowers

if TYPE_CHECKING:
    from inductor.ir.recorder import Recorder, Scalar
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Coordinates, Value

aten = torch.ops.aten


@lowers(aten.native_batch_norm.default)
def batch_norm(
    builder: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """`(x - mean) / sqrt(var + eps) * weight + bias`, and the empty statistics that eager gives."""
    del momentum
    if training or running_mean is None or running_var is None:
        raise UnsupportedOperationError(
            "native_batch_norm", "in training it mutates its statistics"
        )
    facts = builder.fact
    dtype = facts[0].dtype
    wide = value_dtype(dtype)

    def channel(recorder: Recorder, value: Value, place: Coordinates) -> Scalar:
        return recorder.to_dtype(value.load(recorder, (place[1],)), wide)

    def load(recorder: Recorder, place: Coordinates) -> Scalar:
        spread = recorder.op(
            "add", channel(recorder, running_var, place), recorder.constant(eps, wide)
        )
        factor = recorder.op("div", recorder.constant(1.0, wide), recorder.op("sqrt", spread))
        if weight is not None:
            factor = recorder.op("mul", factor, channel(recorder, weight, place))
        shift = recorder.op(
            "neg", recorder.op("mul", channel(recorder, running_mean, place), factor)
        )
        if bias is not None:
            shift = recorder.op("add", shift, channel(recorder, bias, place))
        scalar = recorder.to_dtype(x.load(recorder, place), wide)
        result = recorder.op("add", recorder.op("mul", scalar, factor), shift)
        return recorder.to_dtype(result, dtype)

    operations, loads = cost((x,))
    results: list[Value] = []
    for position, fact in enumerate(facts):
        results.append(
            builder.pointwise(
                load if position == 0 else lambda recorder, _: recorder.constant(0.0, wide),
                shape=fact.shape,
                dtype=fact.dtype,
                device=fact.device,
                operations=operations + 4,
                loads=loads + 1,
                stride=fact.stride,
            )
        )
    return results[0], results[1], results[2]
