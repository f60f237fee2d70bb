"""One direction of one layer of a recurrent network on a CPU, forward and backward: `primtorch::recurrent_layer`.

In: a sequence with time first, the first states, the layer's weights. Out: the states of all steps, the last ones,
and a workspace that only the operator's own backward understands. An LSTM is the library's fused layer; the others (a
GRU, a plain recurrent network, an LSTM with a projection) run step by step, their products with the input and their
weights' gradients as one product over all steps. Invariant: the workspace's promised shape is (0,); at run time its
size is the kernel's own business, and without `keep` it is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.meta import TensorMeta
from primtorch.fake.registry import RULES
from primtorch.library import _LIBRARY
from primtorch.recurrent_cells import cells_backward, cells_forward, cells_inference
from primtorch.symbolic.layout import contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from primtorch.symbolic.layout import Sizes

__all__ = ["RecurrentLayer", "fuses_lstm"]

_SETTINGS = "str kind, bool reverse"
_LIBRARY.define(
    f"recurrent_layer(Tensor input, Tensor state, Tensor? cell, Tensor[] weights, {_SETTINGS}, bool keep) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "recurrent_layer_backward(Tensor? grad_output, Tensor? grad_state, Tensor? grad_cell, Tensor input, "
    "Tensor state, Tensor? cell, Tensor[] weights, Tensor output, Tensor last_state, Tensor last_cell, "
    f"Tensor workspace, {_SETTINGS}) -> Tensor[]"
)

_LSTM = 2  # the library's number of the kind


def fuses_lstm(dtype: torch.dtype) -> bool:
    """Whether eager runs the library's fused layer for an LSTM without projection in `dtype`, on a CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def _is_fused(input: Tensor, state: Tensor, cell: Tensor | None) -> bool:
    return (
        cell is not None
        and cell.shape[-1] == state.shape[-1]
        and input.numel() != 0
        and fuses_lstm(input.dtype)
    )


def _four(weights: Sequence[Tensor]) -> list[Tensor]:
    """The weights with biases; those that a layer lacks are zeros, as in eager."""
    if len(weights) == 4:
        return list(weights)
    return [*weights, *(weights[0].new_zeros(weights[0].shape[0]) for _ in range(2))]


def _fused_settings(weights: Sequence[Tensor]) -> tuple[int, int, bool]:
    """Hidden size, number of layers, whether there are biases."""
    return weights[1].shape[1], 1, len(weights) == 4


def _fused(
    input: Tensor,
    state: Tensor,
    cell: Tensor,
    weights: Sequence[Tensor],
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    width, layers, biased = _fused_settings(weights)
    # The library keeps what its backward needs exactly where gradients are on.
    with torch.set_grad_enabled(keep):
        given = [tensor.contiguous() for tensor in (input, *_four(weights), state, cell)]
        if keep:
            given = [tensor.detach() for tensor in given]
        output, last, last_cell, workspace = torch.ops.aten.mkldnn_rnn_layer(
            *given, reverse, [], _LSTM, width, layers, biased, False, False, keep
        )
    if workspace is None:
        workspace = input.new_empty(0, dtype=torch.uint8)
    return output, last, last_cell, workspace


def _fused_backward(
    grads: Sequence[Tensor | None],
    input: Tensor,
    state: Tensor,
    cell: Tensor,
    weights: Sequence[Tensor],
    results: Sequence[Tensor],
    workspace: Tensor,
    reverse: bool,
) -> list[Tensor]:
    width, layers, biased = _fused_settings(weights)
    given = [tensor.contiguous() for tensor in (input, *_four(weights), state, cell)]
    found = torch.ops.aten.mkldnn_rnn_layer_backward(
        *given, *results, *grads, reverse, _LSTM, width, layers, biased, True, False, [], False, workspace
    )  # fmt: skip
    # The library computes gradients of half types in float32, which autograd would narrow.
    found = [one.to(input.dtype) for one in found]
    grad_input, *grad_weights, grad_state, grad_cell = found
    if biased:  # both biases are added to the same gates: one gradient, handed out twice
        grad_weights[3] = grad_weights[3].clone()
    return [grad_input, grad_state, grad_cell, *grad_weights[: len(weights)]]


def _forward(
    input: Tensor,
    state: Tensor,
    cell: Tensor | None,
    weights: list[Tensor],
    kind: str,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if cell is not None and _is_fused(input, state, cell):
        return _fused(input, state, cell, weights, reverse, keep)
    with torch.no_grad():
        if keep:
            *made, workspace = cells_forward(input, state, cell, weights, kind, reverse)
            return *made, workspace.flatten().view(torch.uint8)
        results = cells_inference(input, state, cell, weights, kind, reverse)
    return *results, input.new_empty(0, dtype=torch.uint8)


def _backward(
    grad_output: Tensor | None,
    grad_state: Tensor | None,
    grad_cell: Tensor | None,
    input: Tensor,
    state: Tensor,
    cell: Tensor | None,
    weights: list[Tensor],
    output: Tensor,
    last_state: Tensor,
    last_cell: Tensor,
    workspace: Tensor,
    kind: str,
    reverse: bool,
) -> list[Tensor]:
    grads = (grad_output, grad_state, grad_cell)
    with torch.no_grad():
        if cell is not None and _is_fused(input, state, cell):
            results = (output, last_state, last_cell)
            return _fused_backward(grads, input, state, cell, weights, results, workspace, reverse)
        kept = workspace.view(input.dtype)
        return cells_backward(grads, input, state, cell, weights, output, kept, kind, reverse)


_LIBRARY.impl("recurrent_layer", _forward, "CPU")
_LIBRARY.impl("recurrent_layer_backward", _backward, "CPU")

LAYER = torch.ops.primtorch.recurrent_layer.default


def _contiguous(like: TensorMeta, shape: tuple[Any, ...]) -> TensorMeta:
    return TensorMeta(shape, contiguous_strides(shape), like.dtype, like.device)


def _meta(
    _sizes: Sizes,
    input: TensorMeta,
    state: TensorMeta,
    cell: TensorMeta | None,
    weights: Sequence[TensorMeta],
    kind: str,
    reverse: bool,
    keep: bool,
) -> tuple[TensorMeta, ...]:
    """Shape rule: (time, batch, width of the state), the last state, the last cell or nothing, a workspace."""
    del weights, kind, reverse, keep
    output = _contiguous(input, (input.shape[0], input.shape[1], state.shape[-1]))
    last_cell = _contiguous(input, (0,) if cell is None else cell.shape)
    workspace = TensorMeta((0,), (1,), torch.uint8, input.device)
    return output, _contiguous(input, state.shape), last_cell, workspace


def _meta_backward(
    _sizes: Sizes, _output: Any, _state: Any, _cell: Any, input: TensorMeta, state: TensorMeta,
    cell: TensorMeta | None, weights: Sequence[TensorMeta], *_: Any,
) -> list[TensorMeta]:  # fmt: skip
    """Shape rule: a gradient for the input, the state, the cell if there is one, each weight."""
    given = [input, state, *([] if cell is None else [cell]), *weights]
    return [_contiguous(value, value.shape) for value in given]


RULES[LAYER] = _meta
RULES[torch.ops.primtorch.recurrent_layer_backward.default] = _meta_backward


class RecurrentLayer(torch.autograd.Function):
    """The operator with its gradient.

    A function of its own, not the operator's registered derivative: that would be a layer of Python around each call
    of a compiled program, too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        state: Tensor,
        cell: Tensor | None,
        kind: str,
        reverse: bool,
        keep: bool,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `primtorch::recurrent_layer`."""
        results: tuple[Tensor, Tensor, Tensor, Tensor] = LAYER(
            input, state, cell, list(weights), kind, reverse, keep
        )
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(results[3])
        ctx.settings, ctx.has_cell = (kind, reverse), cell is not None
        cells = [] if cell is None else [cell]
        ctx.save_for_backward(*results, input, state, *cells, *weights)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """As `primtorch::recurrent_layer_backward`."""
        if all(grad is None for grad in grads[:3]):
            return (None,) * (6 + len(ctx.saved_tensors) - 6 - ctx.has_cell)
        saved = list(ctx.saved_tensors)
        results, given, weights = saved[:4], saved[4:6], saved[6 + ctx.has_cell :]
        cell = saved[6] if ctx.has_cell else None
        found = torch.ops.primtorch.recurrent_layer_backward(
            *grads[:3], *given, cell, weights, *results, *ctx.settings
        )
        of_cell = found[2] if ctx.has_cell else None
        return found[0], found[1], of_cell, None, None, None, *found[2 + ctx.has_cell :]
