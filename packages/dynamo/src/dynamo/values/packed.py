"""Packed sequences whose lengths the program has as numbers: packing, recurrent layers and padding in the graph.

How many sequences reach each step is then known while capturing. Steps of equal count are a span; a layer is called
once for each span and direction, on ordinary tensors. Lengths that vary from call to call, or stand in a tensor, are
left to torch: a graph for each would be no gain. Invariant: what is known of a packed sequence hangs on its tensor of
batch sizes, made in this capture and never written.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import rnn

from dynamo.values import attributes, iteration
from dynamo.values.rules import UNRULED, rule
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["Packing", "run_packed"]

_LAYERS: dict[str, Any] = {
    "LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu,
}  # fmt: skip
_rnn: Any = rnn


@dataclass(frozen=True, slots=True)
class Packing:
    """What is known of a packed sequence: its tensor, the lengths, longest first, and the order before."""

    batch_sizes: Any
    lengths: tuple[int, ...]
    unsorted: tuple[int, ...] | None

    def spans(self) -> list[tuple[int, int, int]]:
        """Steps of equal count: the first, how many, and how many sequences reach them."""
        found = []
        ends = sorted(set(self.lengths))
        for start, end in zip([0, *ends], ends, strict=False):
            found.append((start, end - start, sum(length > start for length in self.lengths)))
        return found

    def sizes(self) -> list[int]:
        """The number of sequences at each step."""
        return [count for _, steps, count in self.spans() for _ in range(steps)]


def _call(machine: Machine, function: Any, *args: Any, **kwargs: Any) -> Any:
    return machine.session.recorder.call(function, args, kwargs)


def _known_lengths(machine: Machine, lengths: Any) -> tuple[int, ...] | None:
    if not isinstance(lengths, list | tuple):
        return None
    found = tuple(iteration.iterate(machine, lengths))
    if not found or not all(type(length) is int and length > 0 for length in found):
        return None
    return found


def _arguments(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return dict(zip(names, args, strict=False)) | kwargs


@rule(rnn.pack_padded_sequence)
def _pack(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("input", "lengths", "batch_first", "enforce_sorted")
    given = _arguments(names, args, kwargs)
    lengths = _known_lengths(machine, given.get("lengths"))
    padded, first = given.get("input"), given.get("batch_first", False)
    fits = (
        lengths is not None
        and type(padded) is FakeTensor
        and padded.dim() >= 2
        and not machine.session.recorder.kinds
        and set(given) <= set(names)
    )
    if not fits or lengths is None:
        return UNRULED
    steps, count = (1, 0) if first else (0, 1)
    ordered, order = lengths, None
    if not given.get("enforce_sorted", True):
        order = _order(lengths)
        ordered = tuple(lengths[place] for place in order)
    descending = all(a >= b for a, b in itertools.pairwise(ordered))
    if not descending or padded.shape[count] != len(lengths) or padded.shape[steps] < ordered[0]:
        return UNRULED  # raises what eager raises
    sorted_indices = None
    if order is not None:
        sorted_indices = _call(machine, torch.tensor, order, device=padded.device)
        padded = padded.index_select(count, sorted_indices)
    if first:
        padded = padded.transpose(0, 1)
    unsorted = None if order is None else tuple(sorted(range(len(order)), key=order.__getitem__))
    packing = Packing(None, ordered, unsorted)
    rest = padded.shape[2:]
    data = torch.cat(
        [
            padded[start : start + steps, :count].reshape(steps * count, *rest)
            for start, steps, count in packing.spans()
        ]
    )
    batch_sizes = _call(machine, torch.tensor, packing.sizes())
    machine.session.packings[id(batch_sizes)] = Packing(batch_sizes, ordered, unsorted)
    indices = (
        None
        if unsorted is None
        else _call(machine, torch.tensor, list(unsorted), device=data.device)
    )
    return _sequence(machine, data, batch_sizes, sorted_indices, indices)


def _order(lengths: tuple[int, ...]) -> list[int]:
    """The order that eager finds: `torch.sort` need not keep equal ones in theirs."""
    with torch._C.DisableTorchFunction():
        found: list[int] = torch.sort(torch.tensor(lengths), descending=True)[1].tolist()
    return found


def _sequence(machine: Machine, *parts: Any) -> Any:
    return machine.session.created(tuple.__new__(rnn.PackedSequence, parts))


@rule(rnn.pack_sequence)
def _pack_several(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = _arguments(("sequences", "enforce_sorted"), args, kwargs)
    if not isinstance(given.get("sequences"), list | tuple):
        return UNRULED
    sequences = list(iteration.iterate(machine, given.get("sequences")))
    lengths = [one.shape[0] if type(one) is FakeTensor and one.dim() else None for one in sequences]
    if _known_lengths(machine, lengths) is None:
        return UNRULED
    padded = machine.inline(_rnn.pad_sequence, (sequences,), {})
    return _pack(machine, (padded, lengths, False, given.get("enforce_sorted", True)), {})


@rule(rnn.pad_packed_sequence)
def _pad(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("sequence", "batch_first", "padding_value", "total_length")
    given = _arguments(names, args, kwargs)
    sequence, first = given.get("sequence"), given.get("batch_first", False)
    packing = packing_of(machine, sequence)
    value, total = given.get("padding_value", 0.0), given.get("total_length")
    fits = (
        packing is not None
        and type(value) in (int, float)
        and (total is None or type(total) is int)
    )
    if packing is None or not fits or (total is not None and total < packing.lengths[0]):
        return UNRULED
    data, number = sequence[0], len(packing.lengths)
    rest, offset, blocks = data.shape[1:], 0, []
    for _, steps, count in packing.spans():
        block = data[offset : offset + steps * count].reshape(steps, count, *rest)
        if count < number:
            block = torch.cat([block, data.new_full((steps, number - count, *rest), value)], 1)
        blocks.append(block)
        offset += steps * count
    if total is not None and total > packing.lengths[0]:
        blocks.append(data.new_full((total - packing.lengths[0], number, *rest), value))
    padded, lengths = torch.cat(blocks), list(packing.lengths)
    if packing.unsorted is not None:
        padded = padded.index_select(1, sequence[3])
        lengths = [lengths[place] for place in packing.unsorted]
    if first:
        padded = padded.transpose(0, 1)
    return padded, _call(machine, torch.tensor, lengths)


def packing_of(machine: Machine, sequence: Any) -> Packing | None:
    """What is known of a packed sequence."""
    if not isinstance(sequence, rnn.PackedSequence):
        return None
    found: Packing | None = machine.session.packings.get(id(tuple.__getitem__(sequence, 1)))
    return found


def run_packed(machine: Machine, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A recurrent module's forward on a packed sequence; None if torch must read its lengths."""
    given = _arguments(("input", "hx"), args, kwargs)
    sequence = given.get("input")
    packing = packing_of(machine, sequence)
    kind = type(module)
    if packing is None or kind not in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
        return None
    machine.session.assumptions.class_attribute(kind, "forward", kind.forward)
    read = _Settings(machine, module)
    states = _states(read, sequence, packing, given.get("hx"))
    output, finals = _layers(read, sequence[0], states, packing)
    stacked = tuple(torch.cat(parts) for parts in zip(*finals, strict=True))
    if sequence[3] is not None:
        stacked = tuple(state.index_select(1, sequence[3]) for state in stacked)
    made = _sequence(machine, output, *sequence[1:])
    return made, stacked if len(stacked) > 1 else stacked[0]


class _Settings:
    """A module's attributes, read as the program would."""

    def __init__(self, machine: Machine, module: Any) -> None:
        self._machine, self._module = machine, module
        self.directions = 2 if self("bidirectional") else 1

    def __call__(self, name: str) -> Any:
        return attributes.load(self._machine, self._module, name)

    def weights(self, layer: int, direction: int) -> list[Any]:
        """The weights of one layer in one direction."""
        names = ["weight_ih", "weight_hh"]
        names += ["bias_ih", "bias_hh"] if self("bias") else []
        names += ["weight_hr"] if self("proj_size") else []
        return [self(f"{name}_l{layer}" + ("_reverse" if direction else "")) for name in names]


def _states(read: _Settings, sequence: Any, packing: Packing, given: Any) -> tuple[Any, ...]:
    """The states at the start, sorted as the sequences are."""
    data, several = sequence[0], read("mode") == "LSTM"
    if given is None:
        count = read("num_layers") * read.directions
        sizes = [read("proj_size") or read("hidden_size"), read("hidden_size")]
        return tuple(
            data.new_zeros((count, len(packing.lengths), size)) for size in sizes[: 1 + several]
        )
    states = tuple(given) if several else (given,)
    if sequence[2] is None:
        return states
    return tuple(state.index_select(1, sequence[2]) for state in states)


def _layers(
    read: _Settings, data: Any, states: tuple[Any, ...], packing: Packing
) -> tuple[Any, list[Any]]:
    finals: list[Any] = []
    for layer in range(read("num_layers")):
        outputs = []
        for direction in range(read.directions):
            row = layer * read.directions + direction
            before = tuple(state[row : row + 1] for state in states)
            output, after = _run(read, layer, direction, data, before, packing)
            outputs.append(output)
            finals.append(after)
        data = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        if read("dropout") and read("training") and layer < read("num_layers") - 1:
            data = torch.nn.functional.dropout(data, read("dropout"), True)
    return data, finals


def _run(
    read: _Settings,
    layer: int,
    direction: int,
    data: Any,
    states: tuple[Any, ...],
    packing: Packing,
) -> tuple[Any, tuple[Any, ...]]:
    """One layer in one direction: all spans, backwards if `direction`."""
    run, weights, several = _LAYERS[read("mode")], read.weights(layer, direction), len(states) > 1
    outputs: list[Any] = []
    ended: list[tuple[Any, ...]] = []
    spans = packing.spans()
    ends = [sum(s * c for _, s, c in spans[: i + 1]) for i in range(len(spans))]
    order = list(zip(spans, ends, strict=True))
    now = tuple(state[:, :0] for state in states) if direction else states
    for (_, steps, count), end in reversed(order) if direction else order:
        block = data[end - steps * count : end].reshape(steps, count, data.shape[1])
        reached = now[0].shape[1]
        if direction and count > reached:
            now = tuple(
                torch.cat([one, state[:, reached:count]], 1) if reached else state[:, :count]
                for one, state in zip(now, states, strict=True)
            )
        elif count < reached:
            ended.append(tuple(one[:, count:] for one in now))
            now = tuple(one[:, :count] for one in now)
        block = block.flip(0) if direction else block
        given = now if several else now[0]
        output, *after = run(
            block, given, weights, read("bias"), 1, 0.0, read("training"), False, False
        )
        now = tuple(after)
        output = output.flip(0) if direction else output
        outputs.append(output.reshape(steps * count, output.shape[2]))
    last = tuple(
        torch.cat([one, *rest], 1) for one, *rest in zip(now, *reversed(ended), strict=True)
    )
    return torch.cat(outputs[::-1] if direction else outputs), last
