# ruff: noqa: ARG001 - one signature for all rules
"""`torch.utils.checkpoint`: a region whose values the backward computes again.

Comes in: the call of a checkpoint. Goes out: a call of `primtorch.regions.checkpoint` with what the function did as a
graph of its own. Invariant: such a function changes nothing but its own values. Eager calls it once more in the
backward, so that each of its other effects happens twice; the graph breaks there, and the checkpoint is eager's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph import carve
from dynamo.values.functions import is_unchanged, outside_now
from dynamo.values.regions import refuse
from dynamo.values.rules import rule
from primtorch import regions
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dynamo.graph.recorder import Recorder
    from dynamo.machine.interpreter import Machine

_SETTINGS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop",
             "preserve_rng_state")  # fmt: skip


@rule(torch.utils.checkpoint.checkpoint)
def _checkpoint(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from dynamo.values import calls  # it imports the rules

    function, *rest = args
    named = {name: value for name, value in kwargs.items() if name not in _SETTINGS}
    recorder = machine.session.recorder
    if not torch.is_grad_enabled():
        return calls.call(machine, function, tuple(rest), named)
    if kwargs.get("use_reentrant") is not False and not any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in rest
    ):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            "a reentrant checkpoint without an input that needs a gradient runs",
        )
    context = kwargs.get("context_fn", torch.utils.checkpoint.noop_context_fn)
    mark = recorder.mark()
    before, written = outside_now(machine.session), recorder.mutated
    recorder.mutated = set()
    try:
        result = calls.call(machine, function, tuple(rest), named)
    except Exception as error:  # noqa: BLE001 - the program's own; it must be raised by eager
        refuse(machine, f"{type(error).__name__} is raised in a checkpoint")
    nodes = carve.nodes_since(recorder, mark)
    if not is_unchanged(before, outside_now(machine.session)) or _writes_outside(recorder, nodes):
        # Eager does it twice, the second time while the backward runs.
        refuse(machine, "a function that is checkpointed changes something outside")
    recorder.mutated |= written
    if not nodes:
        return result
    region = carve.carve(recorder, nodes)
    body = carve.close(recorder, region, ())
    options: dict[str, Any] = {
        "preserve_rng_state": bool(kwargs.get("preserve_rng_state", True)),
    }
    if context is not torch.utils.checkpoint.noop_context_fn:
        options["context_fn"] = recorder.attribute(context, "contexts")
    carve.called(recorder, region, regions.checkpoint, (body, *region.inputs), options)
    return result


@rule(torch.utils.checkpoint.noop_context_fn)
def _no_contexts(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return torch.utils.checkpoint.noop_context_fn()


def _writes_outside(recorder: Recorder, nodes: Iterable[torch.fx.Node]) -> bool:
    """Whether one of these calls writes a tensor that none of them made; `recorder.mutated` are what they wrote."""
    inside = set(nodes)
    seen = {
        id(value): value
        for node in inside
        for value in (node.meta.get("val"), *(one.meta.get("val") for one in node.all_input_nodes))
        if type(value) is FakeTensor
    }
    written = (value for key, value in seen.items() if key in recorder.mutated)
    return any(not _made_by(recorder, value, inside) for value in written) or any(
        map(_moves_statistics, inside)
    )


def _made_by(recorder: Recorder, value: FakeTensor, nodes: set[torch.fx.Node]) -> bool:
    with torch._C.DisableTorchFunction():
        base = value._base
    made = recorder.nodes.get(id(value if base is None else base))
    while made is not None and made in nodes and _name(made) == "detach":
        made = made.all_input_nodes[0]  # of which autograd knows no base
    return made in nodes


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _moves_statistics(node: torch.fx.Node) -> bool:
    """Whether a normalisation writes its running statistics, which no version counter tells."""
    name = _name(node)
    if name not in _NORMALISATIONS:
        return False
    found = dict(zip(_NORMALISATIONS[name], node.args[: len(_NORMALISATIONS[name])], strict=False))
    found.update(node.kwargs)
    training = found.get("training", found.get("use_input_stats", name == "instance_norm"))
    return bool(training) and found.get("running_mean") is not None


_NORMALISATIONS = {
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training"),
    "instance_norm": ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats"),
}
