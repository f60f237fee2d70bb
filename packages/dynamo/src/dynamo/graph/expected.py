"""Branches on data of which one side only raises: captured as if it were never taken, and checked in each call.

`assert torch.isfinite(x).all()`, `if not valid.all(): raise ...`: the graph computes, beside its results, whether all
went as expected. Where it did not, or where the graph itself raised, nothing of the call is kept: what the graph wrote
is put back, the generators too, and the whole call is made again eagerly, which raises what it raises where it does.
Invariant: until the check nothing has happened outside that can't be put back; else there is a graph break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dynamo.graph.calls import draws_numbers
from dynamo.graph.stages import runs_between
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dynamo.graph.inputs import GraphInput
    from dynamo.graph.recorder import Recorder

__all__ = [
    "READ_FOR_JUMPS",
    "Before",
    "as_condition",
    "before",
    "expect",
    "generators",
    "is_ours",
    "obstacle",
    "put_back",
    "written_inputs",
]

_OURS = ("primtorch", "dynamo", "aot_autograd", "inductor", "compile_api")
READ_FOR_JUMPS = frozenset({"item", "allclose", "equal"})
_MOST = 1 << 22  # bytes that are copied in each call, in case that they must be put back
# They write to their running statistics, the sixth argument permitting; these to rows beyond a norm.
_NORMS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
_EMBEDDINGS = ("embedding", "embedding_bag")


def expect(recorder: Recorder, value: Any, *, outcome: bool) -> bool:
    """Let the graph check that `bool(value)` is what is expected; False where it can't."""
    machine = recorder.machine
    if (
        machine is None
        or recorder.known.find(value) is not None
        or any(type(size) is not int or size != 1 for size in value.shape)
        or recorder.overrides.met
        or recorder.overrides.wrappers
        or machine.in_try(everything=True)
    ):
        return False
    # A tensor of its own: the program may write to `value` later.
    fine = recorder.record(torch.ne if outcome else torch.eq, (value, 0), {})
    if value.dim():
        fine = recorder.record(torch.reshape, (fine, ()), {})
    former = recorder.expected.get(value.device)
    if former is not None:
        fine = recorder.record(torch.logical_and, (former, fine), {})
    recorder.expected[value.device] = fine
    recorder.expecting.append(machine.frames[-1].tick)
    return True


def as_condition(
    recorder: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The tensor that decides as the number would, where only a jump with a raising side reads that; else None."""
    machine = recorder.machine
    assert machine is not None, "asked while a program runs"
    first = args[0] if args else None
    if type(first) is not FakeTensor or not machine.is_read_by_jump(name):
        return None
    if name == "item":
        constant = machine.compared_with()
        if first.dtype is torch.bool or constant is None:
            return first if first.dtype is torch.bool and constant is None else None
        if first.is_floating_point():  # a number is compared in double precision
            return recorder.record(torch.Tensor.to, (first, torch.float64), {})
        return first if type(constant) is int and first.dtype is torch.int64 else None
    if name == "allclose":
        return recorder.record(torch.all, (recorder.record(torch.isclose, args, kwargs),), {})
    other: Any = args[1] if len(args) > 1 else kwargs.get("other")
    alike = type(other) is FakeTensor and other is not first and other.dtype is first.dtype
    if not alike or not all(type(n) is int for n in (*first.shape, *other.shape)):
        return None
    if first.shape != other.shape:
        return None
    return recorder.record(torch.all, (recorder.record(torch.eq, (first, other), {}),), {})


def _nodes(module: torch.nn.Module, graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The nodes of a graph and of the regions that it calls."""
    for node in graph.nodes:
        yield node
        body = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(body, torch.fx.GraphModule):
            yield from _nodes(body, body.graph)


def _written_unsaid(node: torch.fx.Node) -> Iterator[Any]:
    """The tensors that an operator may write to, though neither its name nor its result says so."""
    name = getattr(node.target, "__name__", "")
    places: Iterator[Any] = iter(())
    if name in _NORMS:
        training = node.args[5] if len(node.args) > 5 else node.kwargs.get(_NORMS[name], True)
        if training is not False:
            places = iter((*node.args[1:5], *node.kwargs.values()))
    elif name in _EMBEDDINGS and (len(node.args) > 3 or node.kwargs.get("max_norm") is not None):
        places = iter((*node.args[1:2], node.kwargs.get("weight")))
    for place in places:
        value = place.meta.get("val") if isinstance(place, torch.fx.Node) else None
        if type(value) is FakeTensor and (name in _EMBEDDINGS or not value.requires_grad):
            yield value


def written_inputs(recorder: Recorder) -> list[GraphInput]:
    """The inputs whose memory the graph writes to."""
    changed = recorder.mutated
    memory: set[int] = set()
    for node in _nodes(recorder.root, recorder.graph):
        value = node.meta.get("val")
        if type(value) is FakeTensor and id(value) in changed:
            memory.add(id(value.storage))
        memory.update(id(value.storage) for value in _written_unsaid(node))
    return [
        entry
        for entry in recorder.inputs
        if (changed if type(entry.value) is not FakeTensor else id(entry.value.storage) in memory)
    ]


def obstacle(recorder: Recorder) -> str | None:
    """Why a call can't be made again from its start, after the graph has run."""
    nodes = list(_nodes(recorder.root, recorder.graph))
    if recorder.required or any(map(runs_between, nodes)):
        return "what the program does beside it can't be undone"
    if any("c10d" in str(node.target) for node in nodes):
        return "other processes take part"
    written = written_inputs(recorder)
    with torch._C.DisableTorchFunction():
        if any(type(e.value) is not FakeTensor or e.real.requires_grad for e in written):
            return "a tensor that is written has a history"
        if sum(entry.real.nbytes for entry in written) > _MOST:
            return "more is written than a copy is kept of"
    return None


def generators(recorder: Recorder) -> tuple[torch.device, ...]:
    """The devices from whose default generators the graph may draw."""
    nodes = list(_nodes(recorder.root, recorder.graph))
    if not any(draws_numbers(node, recorder.root) for node in nodes):
        return ()
    values = [node.meta.get("val") for node in nodes]
    found = {value.device for value in values if type(value) is FakeTensor}
    return tuple(sorted(found | {torch.device("cpu")}, key=str))


@dataclass(frozen=True, slots=True)
class Before:
    """What a call may have to put back."""

    tensors: Sequence[torch.Tensor]
    copies: Sequence[torch.Tensor]
    states: Sequence[tuple[torch.device, torch.Tensor]]


def before(tensors: Sequence[torch.Tensor], devices: Sequence[torch.device]) -> Before:
    """Copies of what the graph will write to, and the states of the generators that it will draw from."""
    with torch.no_grad():
        copies = [tensor.clone() for tensor in tensors]
    states = [
        (
            device,
            torch.get_rng_state() if device.type == "cpu" else _of(device).get_rng_state(device),
        )
        for device in devices
    ]
    return Before(tensors, copies, states)


def is_ours(error: Exception) -> bool:
    """Whether an exception is one of the compiler's own: a call that is made again must not hide its faults."""
    return type(error).__module__.partition(".")[0] in _OURS


def put_back(kept: Before) -> None:
    """Everything is as it was."""
    with torch.no_grad():
        for tensor, copy in zip(kept.tensors, kept.copies, strict=True):
            tensor.copy_(copy)
    for device, state in kept.states:
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            _of(device).set_rng_state(state, device)


def _of(device: torch.device) -> Any:
    """The module of torch for devices of a type."""
    return torch.get_device_module(device)
