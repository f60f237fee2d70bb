"""Tensors that begin to require a gradient in a captured call, and gradients that are computed and kept in it.

A leaf that the call makes is one in the graph, too; an argument is made one before the graph runs. What `backward`
adds to outside tensors is assigned when the call is over. Invariant: no result is connected with a leaf that leaves the
call as well (`tangled`), for backends hand out results, not the leaves that they were computed from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.tensor_classes import is_traced
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dynamo.graph.recorder import Recorder
    from dynamo.values.session import Session

__all__ = [
    "as_dead_end",
    "as_leaf",
    "as_parameter",
    "assign_gradient",
    "beyond",
    "is_dead_end",
    "leaves_behind",
    "made_in_call",
    "new_parameter",
    "require_gradient",
    "tangled",
]


def as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A result that the program made a leaf, whatever the backend gives."""
    if tensor.is_leaf and tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_()


def as_parameter(tensor: torch.Tensor, cls: Any) -> torch.Tensor:
    """A result that the program made a parameter."""
    made: torch.Tensor = cls(tensor.detach(), tensor.requires_grad)
    return made


def new_parameter(recorder: Recorder, cls: type, data: Any, wanted: bool) -> Any:
    """`nn.Parameter(data, wanted)`: the same memory, a leaf."""
    made = recorder.record(torch.Tensor.detach, (data,), {})
    if wanted:
        require_gradient(recorder, made, wanted)
    recorder.parameters[id(made)] = cls
    return made


def require_gradient(recorder: Recorder, owner: Any, wanted: bool) -> Any:
    """`owner.requires_grad_(wanted)`.

    Raises:
        GraphBreak: it is switched off, refused, or switched on for an argument that was detached or has views.
    """
    with torch._C.DisableTorchFunction():
        now = owner.requires_grad
    if now is wanted:
        return owner
    if not wanted or type(owner) is not FakeTensor or recorder.kinds.get(id(owner)):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "requires_grad is changed")
    node = recorder.nodes.get(id(owner))
    outside = recorder.is_input(owner)
    if outside and _has_views(recorder, owner):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            "requires_grad is changed after views of the tensor were made",
        )
    if outside and _came_with_gradient(recorder, owner):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            "requires_grad is changed after the tensor was detached in place",
        )
    with torch._C.DisableTorchFunction():
        former = owner.detach()
    try:
        with torch._C.DisableTorchFunction():
            owner.requires_grad_()
    except RuntimeError as error:  # of integers
        recorder.failed(torch.Tensor.requires_grad_, error)
    if outside:
        if node is not None and node.users:
            _used_without_history(recorder, node, former)
        recorder.required.append(owner)
        return owner
    made = recorder.new_node(torch.Tensor.requires_grad_, (recorder.node_of(owner),), {})
    made.meta["val"] = owner
    assert recorder.machine is not None, "a program runs"
    recorder.leaves[id(owner)] = (owner, recorder.machine.frames[-1].tick)
    return owner


def _came_with_gradient(recorder: Recorder, owner: Any) -> bool:
    """Whether an argument required a gradient when the call began."""
    assert recorder.machine is not None, "a program runs"
    with torch._C.DisableTorchFunction():
        return bool(recorder.machine.session.reals[id(owner)].requires_grad)


def _has_views(recorder: Recorder, owner: Any) -> bool:
    """Whether other tensors on its memory are there, which would require gradients with it."""
    values = [node.meta.get("val") for node in recorder.graph.nodes]
    items = [item for v in values for item in (v if isinstance(v, tuple | list) else (v,))]
    return any(
        type(item) is FakeTensor and item is not owner and item.storage is owner.storage
        for item in items
    )


def _used_without_history(recorder: Recorder, argument: torch.fx.Node, former: Any) -> None:
    """What was computed of an argument until now has no gradient of it: it was another tensor on its memory."""
    users = list(argument.users)
    with recorder.graph.inserting_after(recorder.last_input):
        made = recorder.graph.call_method("detach", (argument,))
    recorder.begins_with(made)
    made.meta = {name: found for name, found in argument.meta.items() if name != "input"}
    recorder.made(former, made)
    for user in users:
        user.replace_input_with(argument, made)


def assign_gradient(recorder: Recorder, session: Session, owner: Any, value: Any) -> None:
    """`owner.grad = value`; of an outside tensor when the call is over."""
    if value is not None:
        fits = type(value) is FakeTensor and type(owner) is FakeTensor
        if not fits or value.dtype is not owner.dtype or value.shape != owner.shape:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_MUTATION, "the tensor attribute grad is assigned"
            )
        recorder.node_of(value)
    # Until it is written the attribute is read from here.
    recorder.tensor_attributes.setdefault(id(owner), {})["grad"] = value
    if id(owner) in session.reals:
        recorder.assigned[id(owner)] = owner
    session.keep(owner)


# -- autograd's own graph of the fakes ------------------------------------------------------------------


def _behind(tensors: Iterable[Any]) -> Iterator[Any]:
    """The nodes of autograd that a backward of these tensors visits."""
    with torch._C.DisableTorchFunction():
        pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def leaves_behind(tensors: Iterable[Any]) -> list[Any]:
    """The leaves that a backward of these tensors adds to, themselves included."""
    given = list(tensors)
    with torch._C.DisableTorchFunction():
        found = {id(t): t for t in given if t.requires_grad and t.grad_fn is None}
        for node in _behind(given):
            leaf = getattr(node, "variable", None)
            if leaf is not None and is_traced(leaf):
                found[id(leaf)] = leaf
    return list(found.values())


def beyond(tensors: Iterable[Any]) -> set[Any]:
    """Where a backward of these tensors leaves the captured call, as nodes of autograd."""
    return {node for node in _behind(tensors) if _is_beyond(node)}


def made_in_call(tensor: Any) -> bool:
    """Whether the last step of a tensor's history belongs to the captured call."""
    with torch._C.DisableTorchFunction():
        return tensor.grad_fn is not None and not _is_beyond(tensor.grad_fn)


def _is_beyond(node: Any) -> bool:
    return type(node).__name__ == "_GrownBackward"


def _made_behind(recorder: Recorder, value: Any) -> tuple[list[Any], bool]:
    """The leaves made in the call that a result depends on, and whether it depends on others."""
    with torch._C.DisableTorchFunction():
        if not is_traced(value) or not value.requires_grad or value.grad_fn is None:
            return [], True
    behind = leaves_behind([value])
    made = [leaf for leaf in behind if id(leaf) in recorder.leaves]
    return made, len(made) < len(behind) or bool(beyond([value]))


def tangled(recorder: Recorder, outputs: list[Any], escaping: set[int]) -> int | None:
    """The instruction that made a leaf which leaves the call beside a result that depends on it; or None."""
    for value in outputs:
        for leaf in _made_behind(recorder, value)[0]:
            if id(leaf) in escaping:
                return recorder.leaves[id(leaf)][1]
    return None


def is_dead_end(recorder: Recorder, value: Any) -> bool:
    """Whether a result has a history that ends at leaves which nobody can reach: no backend knows of it."""
    made, connected = _made_behind(recorder, value)
    return bool(made) and not connected


class _DeadEnd(torch.autograd.Function):
    """Gives a tensor a history that leads nowhere."""

    @staticmethod
    def forward(context: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        del context, anchor
        return value.detach()  # a view would not take `detach_`

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[None, ...]:
        del context, gradients
        return None, None


def as_dead_end(tensor: torch.Tensor) -> torch.Tensor:
    """Such a result, whatever the backend gives."""
    if tensor.requires_grad:
        return tensor
    with torch.enable_grad():
        made: torch.Tensor = _DeadEnd.apply(torch.empty((), requires_grad=True), tensor)
    return made
