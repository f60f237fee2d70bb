# ruff: noqa: ARG001 - one signature for all rules
"""Backward hooks of modules: the call is in the graph, the hooks run when the backward does.

`nn.Module` makes a `BackwardHook` for a call and passes arguments and results through it. Here both become nodes
(`primtorch.regions.enter_module_hooks`, `leave_module_hooks`) that do the same at run time, with the module's own
hooks: they are never interpreted, so they run as often and in the order that eager runs them. Invariant: the hooks of
an entry are guarded by identity.
"""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as _module
from torch.utils.hooks import BackwardHook

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph import carve
from dynamo.graph.tensor_classes import is_traced
from dynamo.guards import GuardKind
from dynamo.source import ItemSource
from dynamo.values import attributes
from dynamo.values.rules import rule
from primtorch import regions

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

_NODE = "<node>"


def _hooks_outside(machine: Machine, module: torch.nn.Module) -> regions.ModuleHooks:
    """The module's hooks as they are outside, each guarded.

    Raises:
        GraphBreak: the program has changed them in this call.
    """
    session = machine.session
    own = vars(module)
    full: list[Any] = []
    before: list[Any] = []
    if _module._global_is_full_backward_hook is True:
        full.append(_module._global_backward_hooks)
    if module._is_full_backward_hook is True:
        full.append(own["_backward_hooks"])
    before += [_module._global_backward_pre_hooks, own["_backward_pre_hooks"]]
    for table in (*full, *before):
        shadow = session.shadows.get(id(table))
        if not table and (shadow is None or not shadow.contents_changed):
            continue
        if shadow is None or shadow.contents_changed:
            raise _changed(module)
        for key, hook in table.items():
            session.guard(GuardKind.IDENTITY, ItemSource(shadow.source, key), hook)
    return regions.ModuleHooks(
        weakref.ref(module),
        tuple(hook for table in full for hook in table.values()),
        tuple(hook for table in before for hook in table.values()),
    )


def _changed(module: torch.nn.Module) -> GraphBreak:
    return GraphBreak(
        BreakReason.UNSUPPORTED_MUTATION,
        f"the backward hooks of {type(module).__qualname__} are changed in the call",
    )


def _through(
    machine: Machine, function: Any, first: Any, first_node: Any, values: Any
) -> tuple[Any, torch.fx.Node | None, Any]:
    """Record a call of `regions` on the tensors among `values`: its first result, its node, the values after it."""
    recorder = machine.session.recorder
    items = tuple(value if is_traced(value) else None for value in values)
    nodes = tuple(None if item is None else recorder.node_of(item) for item in items)
    with torch._C.DisableTorchFunction():
        found = function(first, items)
    entering = function is regions.enter_module_hooks
    node = carve.record_call(recorder, function, (first_node, nodes), {})
    node.meta["val"] = (None, *found[1:]) if entering else found
    after = list(values)
    places = [i for i, item in enumerate(items) if item is not None]
    for at, (place, new) in enumerate(zip(places, found[1:] if entering else found, strict=True)):
        if new is items[place]:
            continue
        taken = recorder.graph.call_function(operator.getitem, (node, at + entering))
        recorder.describe(taken)
        recorder.made(new, taken)
        cls = recorder.kinds.get(id(items[place]))
        if cls is not None:
            recorder.kinds[id(new)] = cls
        after[place] = new
    return (found[0] if entering else None), node, after


@rule(BackwardHook.setup_input_hook)
def _enter(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    seen, values = args
    if not torch.is_grad_enabled():
        return values
    session, recorder = machine.session, machine.session.recorder
    module = attributes.load(machine, seen, "module")
    if session.source_of(module) is None or session.is_created(module):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL, "a module made in the call has backward hooks"
        )
    session.guard(GuardKind.IDENTITY, session.known_source(module), module)
    hooks = _hooks_outside(machine, module)
    session.assumptions.refuse(f"{type(module).__qualname__} has backward hooks")
    empty = regions.ModuleHooks(hooks.module, (), ())
    holder = recorder.attribute(hooks, "module_hooks")
    token, node, after = _through(machine, regions.enter_module_hooks, empty, holder, tuple(values))
    taken = recorder.graph.call_function(operator.getitem, (node, 0))
    recorder.describe(taken)
    taken.meta["val"] = None
    seen.__dict__[_NODE] = (token, taken)
    return tuple(after)


@rule(BackwardHook.setup_output_hook)
def _leave(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    seen, result = args
    found = seen.__dict__.get(_NODE)
    values = result if isinstance(result, tuple) else (result,)
    if found is None or not any(map(is_traced, values)):
        return result
    token, node = found
    _, _, after = _through(machine, regions.leave_module_hooks, token, node, values)
    if not isinstance(result, tuple):
        return after[0]
    return tuple(after) if type(result) is tuple else type(result)(*after)
