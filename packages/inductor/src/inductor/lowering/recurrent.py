"""Recurrent layers: the library's, called without a detour through Python where it has one kernel for the whole layer.

`primtorch::recurrent_layer` is an operator in Python around the library's fused LSTM (or a loop over steps). Where the
fused layer is certain, its forward goes through the C ABI (inductor.codegen.direct) and its backward is the library's
own operator; both want row-major operands. Invariant: `fused` never holds where the operator would take the loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.index import contiguous_stride
from inductor.lowering.layouts import in_layout
from inductor.lowering.pointwise import convert
from inductor.lowering.registry import lowers
from primtorch import fuses_lstm
from primtorch.symbolic import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.nodes import View
    from inductor.lowering.builder import Builder
    from inductor.lowering.values import Value

__all__ = ["LAYER", "LSTM_MODE", "fused"]

LAYER = torch.ops.primtorch.recurrent_layer.default
_BACKWARD = torch.ops.primtorch.recurrent_layer_backward.default
_FUSED_BACKWARD: Any = getattr(
    getattr(torch.ops.aten, "mkldnn_rnn_layer_backward", None), "default", None
)
LSTM_MODE = 2
"""The library's number of this kind of layer."""
_REASON = (
    "the steps of a recurrent layer wait for one another: the library runs a layer in one kernel"
)


def fused(
    input: Value | View, state: Value | View, cell: Value | View | None, weights: Sequence[Any]
) -> bool:
    """Whether the layer is certainly the library's fused one: an LSTM with biases and without projection."""
    if cell is None or len(weights) != 4 or cell.shape[-1] != state.shape[-1]:
        return False
    filled = all((bounds(extent)[0] or 0) > 0 for extent in input.shape)
    return filled and fuses_lstm(input.dtype)


def _row_major(builder: Builder, values: Sequence[Value]) -> list[Value]:
    return [in_layout(builder, value, contiguous_stride(value.shape)) for value in values]


@lowers(LAYER)
def recurrent_layer(
    builder: Builder,
    input: Value,
    state: Value,
    cell: Value | None,
    weights: Sequence[Value],
    *settings: Any,
) -> Any:
    """(states of all steps, last state, last cell, workspace)."""
    given: list[Any] = [input, state, cell, *weights]
    if fused(input, state, cell, weights):
        given = _row_major(builder, given)
    arguments = (*given[:3], given[3:], *settings)
    return builder.call("vendor", LAYER, arguments, {}, _REASON)


@lowers(_BACKWARD)
def recurrent_layer_backward(
    builder: Builder,
    grad_output: Value | None,
    grad_state: Value | None,
    grad_cell: Value | None,
    input: Value,
    state: Value,
    cell: Value | None,
    weights: Sequence[Value],
    output: Value,
    last_state: Value,
    last_cell: Value,
    workspace: Value,
    kind: str,
    reverse: bool,
) -> Any:
    """Gradients of the input, the first state, the first cell, the weights."""
    grads, results = (grad_output, grad_state, grad_cell), (output, last_state, last_cell)
    if cell is None or _FUSED_BACKWARD is None or not fused(input, state, cell, weights):
        arguments = (*grads, input, state, cell, list(weights), *results, workspace, kind, reverse)
        return builder.call("vendor", _BACKWARD, arguments, {}, _REASON)
    width = state.shape[-1]
    given = _row_major(builder, (input, *weights, state, cell))
    of_input, of_state, of_cell, *of_weights = builder.fact
    promised = (of_input, *of_weights[:3], of_state, of_cell)
    # The library computes gradients of half types in float32, which autograd would narrow.
    wide = [replace(fact, dtype=torch.float32) for fact in promised]
    builder.fact = (*wide[:4], None, *wide[4:])
    settings = (reverse, LSTM_MODE, width, 1, True, True, False, (), False)
    found = builder.call(
        "vendor", _FUSED_BACKWARD, (*given, *results, *grads, *settings, workspace), {}, _REASON
    )
    made = []
    for fact, value in zip(promised, (*found[:4], *found[5:]), strict=True):
        builder.fact = fact
        made.append(value if value.dtype == fact.dtype else convert(builder, value))
    grad_input, first, second, bias, grad_first, grad_first_cell = made
    # both biases are added to the same gates: one gradient, handed out twice
    twin = builder.stored(builder.copy(bias))
    return grad_input, grad_first, grad_first_cell, first, second, bias, twin
