"""Recurrent layers that the library has no fused kernel for, step by step, with a backward by hand.

In: one direction of one layer, time first. Out: as `primtorch::recurrent_layer`. Only what depends on the step before
is done in steps: the products with the input, the gradients of weights and of the input are one product over all steps.
Invariant: gates lie side by side as ATen orders them; the workspace holds the activated gates, behind them an LSTM's
cells or a GRU's hidden part of the new gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    _Step = Callable[[int, Tensor, Tensor, Tensor | None, Tensor], Tensor | None]
    """(step, the state's part of the gates, the old state, the old cell, where the new state goes) -> the new cell."""
    _Back = Callable[[int, Tensor, Tensor | None], tuple[Tensor | None, Tensor | None]]
    """(step, the state's gradient, the cell's) -> (what of the old state's passes no gate, the old cell's)."""

__all__ = ["cells_backward", "cells_forward", "cells_inference"]

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _taken_apart(
    weights: Sequence[Tensor], projected: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(of the input, of the state, their biases, of the projection)."""
    given = list(weights)
    projection = given.pop() if projected else None
    biases = given[2:] or [None, None]
    return given[0], given[1], biases[0], biases[1], projection


def _is_projected(state: Tensor, cell: Tensor | None) -> bool:
    return cell is not None and cell.shape[-1] != state.shape[-1]


def cells_inference(
    input: Tensor, state: Tensor, cell: Tensor | None, weights: Sequence[Tensor], kind: str, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(states of all steps, last state, last cell) by ATen's own loop."""
    function: Any = getattr(torch._VF, kind)
    first = state.unsqueeze(0)
    given = first if cell is None else [first, cell.unsqueeze(0)]
    ordered = input.flip(0) if reverse else input
    biased = len(weights) - _is_projected(state, cell) == 4
    output, last, *rest = function(
        ordered, given, list(weights), biased, 1, 0.0, False, False, False
    )
    output = output.flip(0) if reverse else output
    last_cell = rest[0].squeeze(0) if rest else input.new_empty(0)
    return output.contiguous(), last.squeeze(0).contiguous(), last_cell.contiguous()


def cells_forward(
    input: Tensor, state: Tensor, cell: Tensor | None, weights: Sequence[Tensor], kind: str, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(states of all steps, last state, last cell, workspace)."""
    of_input, of_state, bias, state_bias, projection = _taken_apart(
        weights, _is_projected(state, cell)
    )
    steps, batch = input.shape[:2]
    width = of_state.shape[0] // _GATES[kind]
    wide = torch.nn.functional.linear(input, of_input, bias)
    parts = _GATES[kind] + (kind in {"lstm", "gru"})
    workspace = input.new_empty((steps, batch, parts * width))
    output = input.new_empty((steps, batch, state.shape[-1]))
    turned = of_state.t()
    outputs = output.unbind()
    step_of = {"lstm": _lstm_steps, "gru": _gru_steps}.get(kind, _plain_steps)(
        wide, workspace, width, kind
    )
    last, last_cell = state, cell
    for step in reversed(range(steps)) if reverse else range(steps):
        add = state_bias is not None
        hidden = torch.addmm(state_bias, last, turned) if add else torch.mm(last, turned)
        out = outputs[step]
        if projection is None:
            last_cell = step_of(step, hidden, last, last_cell, out)
        else:
            unprojected = input.new_empty((batch, width))
            last_cell = step_of(step, hidden, last, last_cell, unprojected)
            torch.mm(unprojected, projection.t(), out=out)
        last = out
    last_cell = input.new_empty(0) if last_cell is None else last_cell.clone()
    return output, last.clone(), last_cell, workspace


def _parts(values: Tensor, *bounds: tuple[int, int]) -> list[tuple[Tensor, ...]]:
    """For each pair of bounds the columns between them, step by step: views made at once, not in the loop."""
    return [values[..., low:high].unbind() for low, high in bounds]


def _lstm_steps(wide: Tensor, workspace: Tensor, width: int, kind: str) -> _Step:
    """A step: the state before its projection goes to `out`, the cell is returned; gates and cell are kept."""
    del kind
    wides = wide.unbind()
    gates, sigmoids, opened, forgotten, candidates, shown, cells = _parts(
        workspace, (0, 4 * width), (0, 2 * width), (0, width), (width, 2 * width),
        (2 * width, 3 * width), (3 * width, 4 * width), (4 * width, 5 * width),
    )  # fmt: skip

    def run(
        step: int, hidden: Tensor, state: Tensor, cell: Tensor | None, out: Tensor
    ) -> Tensor | None:
        del state
        assert cell is not None
        torch.add(wides[step], hidden, out=gates[step])
        sigmoids[step].sigmoid_()
        candidate, new = candidates[step].tanh_(), cells[step]
        torch.mul(forgotten[step], cell, out=new).addcmul_(opened[step], candidate)
        torch.tanh(new, out=out).mul_(shown[step].sigmoid_())
        return new

    return run


def _gru_steps(wide: Tensor, workspace: Tensor, width: int, kind: str) -> _Step:
    """A step: the new state goes to `out`; gates and the hidden part of the new one are kept."""
    del kind
    wide_gates, wide_new = _parts(wide, (0, 2 * width), (2 * width, 3 * width))
    gates, resets, updates, news, hiddens = _parts(
        workspace, (0, 2 * width), (0, width), (width, 2 * width), (2 * width, 3 * width),
        (3 * width, 4 * width),
    )  # fmt: skip

    def run(
        step: int, hidden: Tensor, state: Tensor, cell: Tensor | None, out: Tensor
    ) -> Tensor | None:
        of_gates, of_new = hidden.split((2 * width, width), 1)
        torch.add(wide_gates[step], of_gates, out=gates[step]).sigmoid_()
        kept = hiddens[step].copy_(of_new)
        new = torch.addcmul(wide_new[step], resets[step], kept, out=news[step]).tanh_()
        torch.lerp(new, state, updates[step], out=out)
        return cell

    return run


def _plain_steps(wide: Tensor, workspace: Tensor, width: int, kind: str) -> _Step:
    """A step: the new state goes to `out`, and is kept."""
    del width
    wides, kept = wide.unbind(), workspace.unbind()

    def run(
        step: int, hidden: Tensor, state: Tensor, cell: Tensor | None, out: Tensor
    ) -> Tensor | None:
        del state
        new = torch.add(wides[step], hidden, out=kept[step])
        out.copy_(new.tanh_() if kind == "rnn_tanh" else new.relu_())
        return cell

    return run


def cells_backward(
    grads: Sequence[Tensor | None], input: Tensor, state: Tensor, cell: Tensor | None,
    weights: Sequence[Tensor], output: Tensor, workspace: Tensor, kind: str, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the input, the first state, the first cell if there is one, the weights."""
    grad_output, grad_state, of_cell = grads
    of_input, of_state, bias, _, projection = _taken_apart(weights, _is_projected(state, cell))
    steps, batch = input.shape[:2]
    width = of_state.shape[0] // _GATES[kind]
    kept = workspace.view(steps, batch, -1)
    states = torch.cat([output[1:], state[None]] if reverse else [state[None], output[:-1]])
    of_gates = input.new_empty((steps, batch, _GATES[kind] * width))
    of_hidden = torch.empty_like(of_gates) if kind == "gru" else of_gates
    if kind == "lstm":
        assert cell is not None
        cells = kept[..., 4 * width :]
        old = torch.cat([cells[1:], cell[None]] if reverse else [cell[None], cells[:-1]])
        step_of = _lstm_steps_backward(kept, old, of_gates, width)
    elif kind == "gru":
        step_of = _gru_steps_backward(kept, states, of_gates, of_hidden, width)
    else:
        step_of = _plain_steps_backward(kept, of_gates, kind)
    hiddens = of_hidden.unbind()
    grad_outputs = None if grad_output is None else grad_output.unbind()
    shown = None if projection is None else torch.empty_like(output)
    grad = torch.zeros_like(state) if grad_state is None else grad_state
    for step in range(steps) if reverse else reversed(range(steps)):
        if grad_outputs is not None:
            grad = grad + grad_outputs[step]
        if projection is not None and shown is not None:
            shown[step] = grad
            grad = torch.mm(grad, projection)
        direct, of_cell = step_of(step, grad, of_cell)
        made = hiddens[step]
        grad = torch.mm(made, of_state) if direct is None else torch.addmm(direct, made, of_state)
    flat, flat_hidden = of_gates.flatten(0, 1), of_hidden.flatten(0, 1)
    found = [torch.matmul(of_gates, of_input), grad]
    if cell is not None:
        found.append(torch.zeros_like(cell) if of_cell is None else of_cell)
    found += [
        torch.mm(flat.t(), input.reshape(steps * batch, -1)),
        torch.mm(flat_hidden.t(), states.flatten(0, 1)),
    ]
    if bias is not None:
        found += [flat.sum(0), flat_hidden.sum(0)]
    if shown is not None:
        hidden = kept[..., 4 * width :].tanh().mul_(kept[..., 3 * width : 4 * width])
        found.append(torch.mm(shown.flatten(0, 1).t(), hidden.flatten(0, 1)))
    return found


def _lstm_steps_backward(kept: Tensor, old: Tensor, made: Tensor, width: int) -> _Back:
    """The slopes of all steps at once: a step only multiplies them by the gradients that reach it."""
    opened, forgotten, candidate, shown, cell = kept.split(width, -1)
    new = cell.tanh()
    to_cell = (shown * (1 - new * new)).unbind()
    slopes = torch.stack(
        (
            candidate * opened * (1 - opened),
            old * forgotten * (1 - forgotten),
            opened * (1 - candidate * candidate),
        ),
        2,
    ).unbind()
    to_shown = (new * shown * (1 - shown)).unbind()
    steps, batch = kept.shape[:2]
    inner = made[..., : 3 * width].view(steps, batch, 3, width).unbind()
    outer, forgets = made[..., 3 * width :].unbind(), forgotten.unbind()

    def run(
        step: int, grad: Tensor, grad_cell: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        of_cell = grad * to_cell[step]
        if grad_cell is not None:
            of_cell += grad_cell
        torch.mul(of_cell[:, None], slopes[step], out=inner[step])
        torch.mul(grad, to_shown[step], out=outer[step])
        return None, of_cell.mul_(forgets[step])

    return run


def _gru_steps_backward(
    kept: Tensor, old: Tensor, made: Tensor, hidden: Tensor, width: int
) -> _Back:
    """As for an LSTM; the gates' gradients differ in the new gate's hidden part."""
    reset, update, new, of_hidden = kept.split(width, -1)
    to_new = (1 - update) * (1 - new * new)
    slopes = torch.stack(
        (to_new * of_hidden * reset * (1 - reset), (old - new) * update * (1 - update), to_new), 2
    )
    hidden_slopes = slopes.clone()
    hidden_slopes[:, :, 2] *= reset
    steps, batch = kept.shape[:2]
    shape = (steps, batch, 3, width)
    gates, hiddens = made.view(shape).unbind(), hidden.view(shape).unbind()
    ours, theirs, updates = slopes.unbind(), hidden_slopes.unbind(), update.unbind()

    def run(
        step: int, grad: Tensor, grad_cell: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        wide = grad[:, None]
        torch.mul(wide, ours[step], out=gates[step])
        torch.mul(wide, theirs[step], out=hiddens[step])
        return grad * updates[step], grad_cell

    return run


def _plain_steps_backward(kept: Tensor, made: Tensor, kind: str) -> _Back:
    """The slopes of all steps at once."""
    slopes = (1 - kept * kept if kind == "rnn_tanh" else (kept > 0).to(kept.dtype)).unbind()
    gates = made.unbind()

    def run(
        step: int, grad: Tensor, grad_cell: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        torch.mul(grad, slopes[step], out=gates[step])
        return None, grad_cell

    return run
