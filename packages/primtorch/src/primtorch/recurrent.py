"""Recurrent layers that stay calls: `recurrent_layer` puts operators in the place of a loop over time steps.

ATen writes `torch.lstm`, `gru` and `rnn_*` as a loop over time steps; a graph of a long sequence would have thousands
of nodes. `substitute` gives whoever runs a captured graph on fakes operators instead. On a CPU that is one
`primtorch::recurrent_layer` for each layer and direction, with dropout and concatenation between them as in eager. On a
GPU it is `primtorch::recurrent`, the library's own call for all layers, whose gradient runs it again with gradients on
(in time and memory what a checkpoint costs). Short sequences stay loops, which fuse. Invariant: the results of both
operators are contiguous, time first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.meta import TensorMeta
from primtorch.fake.registry import RULES
from primtorch.fake.tensor import FakeTensor
from primtorch.library import _LIBRARY
from primtorch.recurrent_layer import RecurrentLayer
from primtorch.symbolic.layout import contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primtorch.symbolic.layout import Sizes

__all__ = ["recurrent_layer"]

_FUNCTIONS: dict[Any, str] = {
    torch._VF.lstm: "lstm",
    torch._VF.gru: "gru",
    torch._VF.rnn_tanh: "rnn_tanh",
    torch._VF.rnn_relu: "rnn_relu",
}
_SHORT = 16  # time steps times layers that are written as a loop
_SHORT_UNFUSED = 64  # the same where the library has no fused layer: the loop's kernels win by more

_ARGUMENTS = (
    "Tensor input, Tensor[] states, Tensor[] weights, str kind, bool has_biases, int layers, "
    "bool bidirectional"
)
_LIBRARY.define(f"recurrent({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"recurrent_backward(Tensor grad_output, Tensor grad_state, Tensor grad_cell, {_ARGUMENTS}) "
    "-> Tensor[]"
)


def _run(
    input: torch.Tensor,
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    kind: str,
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    function: Any = getattr(torch._VF, kind)
    given = states if kind == "lstm" else states[0]
    # As in training whatever the mode: cudnn keeps what its backward needs.
    training = torch.is_grad_enabled()
    found = function(input, given, weights, has_biases, layers, 0.0, training, bidirectional, False)
    output, state, *cell = found
    return output, state, cell[0] if cell else state.new_empty(0)


def _forward(input: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return tuple(result.contiguous() for result in _run(input, *rest))


def _backward(
    grad_output: torch.Tensor,
    grad_state: torch.Tensor,
    grad_cell: torch.Tensor,
    input: torch.Tensor,
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    *rest: Any,
) -> list[torch.Tensor]:
    leaves = [value.detach().requires_grad_() for value in (input, *states, *weights)]
    count = len(states)
    with torch.enable_grad():
        results = _run(leaves[0], leaves[1 : 1 + count], leaves[1 + count :], *rest)
    pairs = list(zip(results, (grad_output, grad_state, grad_cell), strict=True))
    pairs = pairs if count == 2 else pairs[:2]
    found = torch.autograd.grad(
        [result for result, _ in pairs], leaves, [grad for _, grad in pairs], allow_unused=True
    )
    return [
        torch.zeros_like(leaf) if grad is None else grad.contiguous()
        for grad, leaf in zip(found, leaves, strict=True)
    ]


for _backend in ("CPU", "CUDA"):
    _LIBRARY.impl("recurrent", _forward, _backend)
    _LIBRARY.impl("recurrent_backward", _backward, _backend)


def _contiguous(like: TensorMeta, shape: tuple[Any, ...]) -> TensorMeta:
    return TensorMeta(shape, contiguous_strides(shape), like.dtype, like.device)


def _meta(
    _sizes: Sizes,
    input: TensorMeta,
    states: Sequence[TensorMeta],
    weights: Sequence[TensorMeta],
    kind: str,
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """Shape rule: (time, batch, width of the state), the last states, the last cells (or nothing)."""
    del weights, has_biases, layers
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    output = _contiguous(input, (input.shape[0], input.shape[1], width))
    cell = states[1].shape if kind == "lstm" else (0,)
    return output, _contiguous(input, states[0].shape), _contiguous(input, cell)


def _meta_backward(
    _sizes: Sizes, _output: Any, _state: Any, _cell: Any, input: TensorMeta,
    states: Sequence[TensorMeta], weights: Sequence[TensorMeta], *_: Any,
) -> list[TensorMeta]:  # fmt: skip
    """Shape rule: a gradient for the input, each state, each weight."""
    return [_contiguous(value, value.shape) for value in (input, *states, *weights)]


RULES[torch.ops.primtorch.recurrent.default] = _meta
RULES[torch.ops.primtorch.recurrent_backward.default] = _meta_backward


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    del output
    ctx.inputs = inputs


def _gradient(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
    input, states, weights, *rest = ctx.inputs  # noqa: A001
    found = torch.ops.primtorch.recurrent_backward(*grads, input, states, weights, *rest)
    count = len(states)
    return found[0], list(found[1 : 1 + count]), list(found[1 + count :]), *([None] * len(rest))


torch.library.register_autograd("primtorch::recurrent", _gradient, setup_context=_save)


def recurrent_layer(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> Callable[..., Any] | None:
    """What runs in place of a recurrent layer of torch on fakes; None where it is a loop."""
    kind = _FUNCTIONS.get(function)
    if kind is None or len(args) != 9 or not isinstance(args[2], tuple | list):
        return None  # packed sequences have their batch sizes second
    values = args[0]
    _, _, _, _, layers, dropout, train, bidirectional, batch_first = args
    if not isinstance(values, FakeTensor) or values.dim() != 3:
        return None
    on_cpu = values.device.type == "cpu"
    if dropout and train and layers > 1 and not on_cpu:
        return None
    if torch.is_autocast_enabled(values.device.type):
        return _narrowed if on_cpu and _is_narrowed(kind, args) else None
    steps = values.shape[1 if batch_first else 0]
    rows = layers * (2 if bidirectional else 1)
    fused = kind == "lstm" and values.dtype in {torch.float32, torch.bfloat16}
    short = _SHORT if fused or not on_cpu else _SHORT_UNFUSED
    if isinstance(steps, int) and steps * rows <= short:
        return None
    return lambda *given: (_layers if on_cpu else _whole)(_Call(kind, *given))


@dataclass(frozen=True, slots=True)
class _Call:
    """What torch's functions are called with, in their order; `states` are a pair for an LSTM."""

    kind: str
    values: Any
    states: Any
    weights: Any
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def firsts(self) -> list[Any]:
        """The first states, a list of one or two."""
        return list(self.states) if self.kind == "lstm" else [self.states]

    def turned(self, sequence: Any) -> Any:
        """Between the caller's order of time and batch and time first."""
        return sequence.transpose(0, 1) if self.batch_first else sequence


def _is_narrowed(kind: str, args: tuple[Any, ...]) -> bool:
    """Whether eager gives the layer to oneDNN on a CPU, whose operands autocast makes bfloat16."""
    values, states = args[:2]
    return (
        kind == "lstm"
        and torch.get_autocast_dtype("cpu") is torch.bfloat16
        and values.dtype is torch.float32
        and bool(states[0].shape[-1] == states[1].shape[-1])
    )


def _narrowed(values: Any, states: Any, weights: Any, *rest: Any) -> Any:
    """An LSTM under autocast on a CPU: all of it in bfloat16, results too."""
    narrow = torch.bfloat16
    states, weights = [one.to(narrow) for one in states], [one.to(narrow) for one in weights]
    return _layers(_Call("lstm", values.to(narrow), states, weights, *rest))


def _whole(call: _Call) -> Any:
    """All layers in the library's one call."""
    output, state, cell = torch.ops.primtorch.recurrent(
        call.turned(call.values), call.firsts, list(call.weights),
        call.kind, call.has_biases, call.layers, call.bidirectional,
    )  # fmt: skip
    output = call.turned(output)
    return (output, state, cell) if call.kind == "lstm" else (output, state)


def _layers(call: _Call) -> Any:
    """Layer by layer and direction by direction, as ATen does it on a CPU."""
    kind, weights, layers, given = call.kind, call.weights, call.layers, call.firsts
    keep = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (call.values, *given, *weights)
    )
    projected = kind == "lstm" and given[0].shape[-1] != given[1].shape[-1]
    each = (4 if call.has_biases else 2) + projected
    output = call.turned(call.values).contiguous()
    last: list[list[Any]] = [[], []]
    directions = 2 if call.bidirectional else 1
    for layer in range(layers):
        found = []
        for number in range(layer * directions, (layer + 1) * directions):
            firsts = [tensor[number] for tensor in given]
            state, cell = firsts if len(firsts) == 2 else (firsts[0], None)
            own = list(weights[number * each : (number + 1) * each])
            reverse = number % directions == 1
            result, *lasts, _ = RecurrentLayer.apply(output, state, cell, kind, reverse, keep, *own)
            found.append(result)
            for kept, tensor in zip(last, lasts, strict=True):
                kept.append(tensor)
        output = torch.cat(found, -1) if call.bidirectional else found[0]
        if call.dropout and call.train and layer < layers - 1:
            output = torch.dropout(output, call.dropout, True)
    return (call.turned(output), *(torch.stack(kept) for kept in last[: len(given)]))
