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
from dynamo.graph.written import writes_outside
from dynamo.values.functions import is_unchanged, outside_now
from dynamo.values.regions import refuse
from dynamo.values.rules import rule
from primtorch import regions

if TYPE_CHECKING:
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
    before = outside_now(machine.session)
    try:
        result = calls.call(machine, function, tuple(rest), named)
    except Exception as error:  # noqa: BLE001 - the program's own; it must be raised by eager
        refuse(machine, f"{type(error).__name__} is raised in a checkpoint")
    nodes = carve.nodes_since(recorder, mark)
    if not is_unchanged(before, outside_now(machine.session)) or writes_outside(recorder, nodes):
        # Eager does it twice, the second time while the backward runs.
        refuse(machine, "a function that is checkpointed changes something outside")
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
