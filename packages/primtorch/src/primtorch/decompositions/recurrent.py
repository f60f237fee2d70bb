"""Cells of recurrent networks, as a GPU's fused kernels compute them; elsewhere ATen takes the cells apart itself.

Gates lie side by side along the last dimension: input, forget, cell, output of an LSTM; reset, update, new of a GRU.
What a cell keeps for its backward lies in one workspace: an LSTM's four activated gates; a GRU's three, the old state
and the hidden part of the new gate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from primtorch.promotion import cast, computation_dtype
from primtorch.registry import decomposes

aten = torch.ops.aten


def _parts(gates: Tensor, count: int) -> list[Tensor]:
    """The gates, each (batch, hidden)."""
    width = gates.shape[1] // count
    return [aten.slice.Tensor(gates, 1, n * width, (n + 1) * width) for n in range(count)]


def _wide(tensor: Tensor, bias: Tensor | None = None) -> Tensor:
    """The gates in their computation dtype, the bias added."""
    computation = computation_dtype(tensor.dtype)
    wide = cast(tensor, computation)
    return wide if bias is None else wide + cast(bias, computation)


@decomposes("aten._thnn_fused_lstm_cell.default")
def _thnn_fused_lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(new hidden state, new cell state, activated gates)."""
    gates = _wide(input_gates, input_bias) + _wide(hidden_gates, hidden_bias)
    opened, forgotten, candidate, shown = _parts(gates, 4)
    opened, forgotten = aten.sigmoid.default(opened), aten.sigmoid.default(forgotten)
    candidate, shown = aten.tanh.default(candidate), aten.sigmoid.default(shown)
    cell = forgotten * _wide(cx) + opened * candidate
    hidden = shown * aten.tanh.default(cell)
    workspace = aten.cat.default([opened, forgotten, candidate, shown], 1)
    dtype = input_gates.dtype
    return cast(hidden, dtype), cast(cell, dtype), cast(workspace, dtype)


@decomposes("aten._thnn_fused_lstm_cell_backward_impl.default")
def _thnn_fused_lstm_cell_backward_impl(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the gates, of the old cell state, and of the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    opened, forgotten, candidate, shown = _parts(_wide(workspace), 4)
    new = aten.tanh.default(_wide(cy))
    grad_hidden = aten.full_like.default(new, 0) if grad_hy is None else _wide(grad_hy)
    grad_cell = grad_hidden * shown * (1 - new * new)
    if grad_cy is not None:
        grad_cell = grad_cell + _wide(grad_cy)
    grads = [
        grad_cell * candidate * (1 - opened) * opened,
        grad_cell * _wide(cx) * (1 - forgotten) * forgotten,
        grad_cell * opened * (1 - candidate * candidate),
        grad_hidden * new * (1 - shown) * shown,
    ]
    gates = cast(aten.cat.default(grads, 1), workspace.dtype)
    bias = aten.sum.dim_IntList(gates, [0]) if has_bias else None
    return gates, cast(grad_cell * forgotten, cx.dtype), bias


@decomposes("aten._thnn_fused_gru_cell.default")
def _thnn_fused_gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(new hidden state, what the backward reads)."""
    from_input = _parts(_wide(input_gates, input_bias), 3)
    from_hidden = _parts(_wide(hidden_gates, hidden_bias), 3)
    reset = aten.sigmoid.default(from_input[0] + from_hidden[0])
    update = aten.sigmoid.default(from_input[1] + from_hidden[1])
    new = aten.tanh.default(from_input[2] + reset * from_hidden[2])
    old = _wide(hx)
    hidden = new + update * (old - new)
    workspace = aten.cat.default([reset, update, new, old, from_hidden[2]], 1)
    return cast(hidden, hx.dtype), cast(workspace, hx.dtype)


@decomposes("aten._thnn_fused_gru_cell_backward.default")
def _thnn_fused_gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of both gates, of the old state, and of both biases."""
    reset, update, new, old, from_hidden = _parts(_wide(workspace), 5)
    grad = _wide(grad_hy)
    grad_update = grad * (old - new) * (1 - update) * update
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_reset = grad_new * from_hidden * (1 - reset) * reset
    dtype = workspace.dtype
    of_input = cast(aten.cat.default([grad_reset, grad_update, grad_new], 1), dtype)
    of_hidden = cast(aten.cat.default([grad_reset, grad_update, grad_new * reset], 1), dtype)
    of_state = cast(grad * update, dtype)
    if not has_bias:
        return of_input, of_hidden, of_state, None, None
    biases = [aten.sum.dim_IntList(gates, [0]) for gates in (of_input, of_hidden)]
    return of_input, of_hidden, of_state, biases[0], biases[1]
