"""Hooks that are registered on the tensors themselves, for real, when the graph has run.

Comes in: the registrations of a captured call. Goes out: for each the place in the graph behind which its tensor's
gradient begins, and whether the graph computes anything from the tensor behind it. If so the tensor is one between two
stages, and the hook's place is reserved there. Invariant: a hook sees what eager's hook sees, the whole gradient.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dynamo.graph import calls
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.graph.recorder import Recorder

_PLAIN = (torch.Tensor, torch.nn.Parameter)

__all__ = ["LateHook", "begins_behind", "is_used_behind", "obstacle", "reserve", "version"]


@dataclass(slots=True, eq=False)
class LateHook:
    """One registration.

    Attributes:
        tensor: The fake of whose gradient it is.
        method: The method of the tensor that registers it.
        hook: What is registered; None for `retain_grad`.
        handle: What the program got; None for `retain_grad`.
        tick: The instruction that registered it.
        after: The graph's last node by then.
        version: How often the tensor had been written by then.
        leaf: Whether it had no history then.
        removed: Whether the program took it back.
    """

    tensor: Any
    method: str
    hook: Any
    handle: Any
    tick: int
    after: torch.fx.Node
    version: int
    leaf: bool
    removed: bool = False


def version(tensor: Any) -> int:
    """How often a fake tensor has been written in the call."""
    with torch._C.DisableTorchFunction():
        return int(tensor._version)


def lost_its_history(late: LateHook) -> bool:
    """Whether the tensor was detached after the registration: then there is nothing left to register on."""
    with torch._C.DisableTorchFunction():
        tensor = late.tensor
        return not tensor.requires_grad or (tensor.is_leaf and not late.leaf)


def written_through_another(recorder: Recorder, tensor: Any) -> bool:
    """Whether the tensor's memory came in by two arguments and the call writes to it by the other one.

    Each argument's fake has memory of its own: what the other one's history becomes, only autograd knows.
    """
    if not recorder.mutated or type(tensor) is not FakeTensor:
        return False
    with torch._C.DisableTorchFunction():
        memory = {
            id(entry.value.storage): entry.real.untyped_storage()._cdata
            for entry in recorder.inputs
            if type(entry.value) is FakeTensor and type(entry.real) in _PLAIN
        }
        written = {
            id(node.meta["val"].storage)
            for node in recorder.graph.nodes
            if id(node.meta.get("val")) in recorder.mutated
        }
    own = memory.pop(id(tensor.storage), None)
    return any(fake in written and real == own for fake, real in memory.items())


def stays_as_it_came(recorder: Recorder, tensor: Any) -> bool:
    """Whether a tensor comes in and the call does not change what its gradient is of."""
    if not recorder.is_input(tensor):
        return False
    with torch._C.DisableTorchFunction():
        return bool(tensor.is_leaf) or version(tensor) == _version_at_first(recorder, tensor)


def _version_at_first(recorder: Recorder, tensor: Any) -> int:
    with torch._C.DisableTorchFunction():  # an input that is no leaf has been made so by a write
        return int(recorder.is_input(tensor) and not tensor.is_leaf)


def begins_behind(
    recorder: Recorder, tensor: Any, until: torch.fx.Node, written: int
) -> torch.fx.Node | None:
    """The node that made a tensor what it was behind the node `until`: its own, or the last write to its memory.

    None where the graph does not show as many writes to it as its version, `written`, counts.
    """
    own = recorder.node_of(tensor)
    written -= _version_at_first(recorder, tensor)
    if not written and recorder.is_input(tensor):
        return recorder.last_input
    if own.graph is not recorder.graph:
        return None
    writes: list[torch.fx.Node] = []
    own_seen = False
    last = own
    for node in recorder.graph.nodes:
        own_seen = own_seen or node is own
        if _writes_to(node, tensor):
            writes.append(node)
            last = node if own_seen else last
        if node is until:
            break
    while last.next.target is operator.getitem and isinstance(last.next.args[0], torch.fx.Node):
        if not isinstance(last.next.args[0].meta.get("val"), tuple | list):
            break
        last = last.next  # results of one call are taken out of it in one stage
    return last if len(writes) == written else None


def _writes_to(node: torch.fx.Node, tensor: Any) -> bool:
    first = node.args[0] if node.args else None
    if not node.op.startswith("call") or not isinstance(first, torch.fx.Node):
        return False
    name = node.target if isinstance(node.target, str) else node.target.__name__
    target = first.meta.get("val")
    if type(target) is not FakeTensor or target.storage is not tensor.storage:
        return False
    return calls.writes(name) or name in calls.EFFECTS or name in ("setitem", "__setitem__")


def is_used_behind(recorder: Recorder, tensor: Any, begin: torch.fx.Node) -> bool:
    """Whether a gradient of the tensor may come from within the graph, from nodes behind `begin`."""
    own = recorder.node_of(tensor)
    node = begin.next
    while node.op not in ("root", "output"):
        if own in node.all_input_nodes and _is_differentiable(node):
            return True
        node = node.next
    return False


def _is_differentiable(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return value.requires_grad
    if isinstance(value, tuple | list) and value:
        with torch._C.DisableTorchFunction():
            return any(isinstance(v, torch.Tensor) and v.requires_grad for v in value)
    return value is None or value == ()  # called for what it does to an argument


def obstacle(recorder: Recorder, late: LateHook) -> str:
    """Why no place can be reserved for a hook of a tensor that the graph uses; empty if one can."""
    if id(late.tensor) in recorder.leaves:
        return "its tensor is a leaf that is made and used in the call"
    with torch._C.DisableTorchFunction():
        if late.tensor._is_view() and version(late.tensor) != late.version:
            return "its tensor is a view of memory that is written later"
    if any(node.target is torch.autograd.grad for node in recorder.graph.nodes):
        return "gradients are computed in the same call"
    return ""


def reserve(
    recorder: Recorder,
    late: LateHook,
    function: Callable[..., Any],
    begin: torch.fx.Node,
    options: tuple[Any, ...],
) -> torch.fx.Node:
    """A node behind `begin`, where `function` is called with the tensor itself and options; gives the node."""
    with recorder.graph.inserting_after(begin):
        node = recorder.graph.call_function(function, (recorder.node_of(late.tensor), *options))
    if begin is recorder.last_input:
        recorder.begins_with(node)
    node.meta = {name: found for name, found in begin.meta.items() if name != "input"}
    node.meta["val"] = None
    assert recorder.machine is not None, "a program runs"
    recorder.machine.session.assumptions.refuse("a tensor inside a graph has hooks")
    return node
