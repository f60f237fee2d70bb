"""`torch.autograd.grad` and `backward` in a captured call, and tensors that begin to require a gradient in it.

The fakes have autograd's graph, so a gradient is computed on them as eager computes it, and `torch.autograd.grad` is
one node. `backward` is that, for the leaves that it would reach, and what it adds to each. Invariant: where the way
from results to inputs may lead through what was computed before the call, the statement runs for real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph import gradients
from dynamo.guards import Guard, GuardKind
from dynamo.values import attributes, iteration
from dynamo.values.rules import rule
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo.machine.interpreter import Machine

_GRAD = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs",
         "allow_unused", "is_grads_batched", "materialize_grads")  # fmt: skip
_BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
_METHOD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "inputs")


def _stop(why: str) -> GraphBreak:
    return GraphBreak(BreakReason.UNSUPPORTED_CALL, why)


def _several(machine: Machine, value: Any, what: str, *, absent: bool = False) -> list[Any]:
    """One or many tensors as a list; only plain ones."""
    if type(value) is FakeTensor:
        found = [value]
    elif isinstance(value, tuple | list):
        found = list(iteration.iterate(machine, value))
    else:
        raise _stop(f"{what} has a {type(value).__qualname__}")
    kinds = machine.session.recorder.kinds
    for item in found:
        if absent and item is None:
            continue
        if type(item) is not FakeTensor or kinds.get(id(item)):
            raise _stop(f"{what} has a {type(item).__qualname__}")
    return found


def _weights(machine: Machine, value: Any, what: str) -> list[Any] | None:
    return None if value is None else _several(machine, value, what, absent=True)


@rule(torch.nn.Parameter)
def _parameter(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data, wanted = given.get("data"), given.get("requires_grad", True)
    recorder = machine.session.recorder
    if data is None:
        data = recorder.call(torch.empty, (0,), {})
    if type(data) is not FakeTensor or recorder.kinds.get(id(data)) or type(wanted) is not bool:
        raise _stop("a Parameter is made of something other than a plain tensor")
    return gradients.new_parameter(recorder, torch.nn.Parameter, data, wanted)


@rule(torch.Tensor.requires_grad_)
def _requires_grad(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner, wanted = (*args, kwargs.get("requires_grad", True))[:2]
    return gradients.require_gradient(machine.session.recorder, owner, bool(wanted))


@rule(torch.autograd.grad)
def _grad(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(_GRAD, args, strict=False)) | kwargs
    what = "torch.autograd.grad"
    if given.get("is_grads_batched"):
        raise _stop(f"{what} is called with is_grads_batched")
    _require_none_late(machine, what)
    recorder = machine.session.recorder
    outputs = _several(machine, given["outputs"], what)
    inputs = _several(machine, given["inputs"], what)
    weights = _weights(machine, given.get("grad_outputs"), what)
    passed = gradients.beyond(outputs)
    # What was computed before the call does not lead to one that the call has changed since.
    outside = [
        value for value in inputs if recorder.is_input(value) and not gradients.made_in_call(value)
    ]
    with torch._C.DisableTorchFunction():
        itself = len(outside) == 1 and passed == {outside[0].grad_fn}
    unused = given.get("allow_unused") or given.get("materialize_grads")
    if outside and ((passed and not itself) or (unused and _grown_inputs(machine))):
        raise _stop(f"{what} goes through what was computed before the call")
    names = ("retain_graph", "create_graph", "allow_unused", "materialize_grads")
    options = {name: given[name] for name in names if given.get(name) is not None}
    if weights is not None:
        options["grad_outputs"] = weights
    return recorder.record(torch.autograd.grad, (outputs, inputs), options)


def _grown_inputs(machine: Machine) -> bool:
    """Whether a tensor from outside has a history there."""
    with torch._C.DisableTorchFunction():
        return any(
            isinstance(real, torch.Tensor) and real.requires_grad and not real.is_leaf
            for real in machine.session.reals.values()
        )


@rule(torch.Tensor.backward)
def _method(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    named = {"gradient": "grad_tensors", "self": "tensors"}
    given = {named.get(name, name): value for name, value in kwargs.items()}
    _run_backward(machine, dict(zip(_METHOD, args, strict=False)) | given, "Tensor.backward")


@rule(torch.autograd.backward)
def _function(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = dict(zip(_BACKWARD, args, strict=False)) | kwargs
    if given.get("grad_variables") is not None:
        raise _stop("torch.autograd.backward is called with grad_variables")
    _run_backward(machine, given, "torch.autograd.backward")


def _run_backward(machine: Machine, given: dict[str, Any], what: str) -> None:
    retained = [] if given.get("inputs") else _retained(machine)
    _require_none_late(machine, what, retained)
    recorder = machine.session.recorder
    tensors = _several(machine, given["tensors"], what)
    weights = _weights(machine, given.get("grad_tensors"), what)
    if gradients.beyond(tensors):
        raise _stop("a backward pass goes through what was computed before the call")
    wanted = given.get("inputs")
    leaves = gradients.leaves_behind(tensors)
    if wanted is not None:
        chosen = {id(value) for value in _several(machine, wanted, what)}
        if chosen - {id(leaf) for leaf in leaves}:
            raise _stop("a backward pass is run for a tensor that is no leaf of it")
        leaves = [leaf for leaf in leaves if id(leaf) in chosen]
    for leaf in leaves:
        _require_unhooked(machine, leaf)
    options: dict[str, Any] = {
        "allow_unused": True,
        "create_graph": bool(given.get("create_graph")),
    }
    if given.get("retain_graph") is not None:
        options["retain_graph"] = given["retain_graph"]
    if weights is not None:
        options["grad_outputs"] = weights
    if not leaves:
        raise _stop("a backward pass reaches no leaf")  # eager says what it thinks of that
    found = recorder.record(torch.autograd.grad, (tensors, [*leaves, *retained]), options)
    for leaf, gradient in zip(leaves, found, strict=False):
        if gradient is not None:
            _add(machine, leaf, gradient, create=options["create_graph"])
    for tensor, gradient in zip(retained, found[len(leaves) :], strict=True):
        if gradient is not None:
            _keep(machine, tensor, gradient)


def _add(machine: Machine, leaf: Any, gradient: Any, *, create: bool) -> None:
    """What autograd does with a leaf's gradient."""
    session = machine.session
    recorder = session.recorder
    before = attributes.load(machine, leaf, "grad")
    if before is None:
        with torch._C.DisableTorchFunction():
            alike = gradient.stride() == leaf.stride()
        if alike:
            new = gradient if create else recorder.record(torch.clone, (gradient,), {})
        else:
            room = recorder.record(torch.empty_like, (leaf,), {"requires_grad": False})
            new = recorder.record(torch.Tensor.copy_, (room, gradient), {})
    elif create:
        new = recorder.record(torch.add, (before, gradient), {})
    else:
        recorder.record(torch.Tensor.add_, (before, gradient), {})
        return
    gradients.assign_gradient(recorder, session, leaf, new)


def _retained(machine: Machine) -> list[Any]:
    """The tensors made in the call that keep their gradients."""
    recorder = machine.session.recorder
    kept = [late.tensor for late in recorder.late if late.hook is None]
    if any(id(tensor) in recorder.hooked for tensor in kept):
        raise _stop(
            "a tensor keeps its gradient behind a hook"
        )  # asked for it, autograd gives the one before
    return list({id(one): one for one in kept if not recorder.is_input(one)}.values())


def _keep(machine: Machine, tensor: Any, gradient: Any) -> None:
    """What autograd does with the gradient of a tensor that keeps it."""
    session = machine.session
    recorder = session.recorder
    before = recorder.tensor_attributes.get(id(tensor), {}).get("grad")
    if before is None:
        layout = {"memory_format": torch.contiguous_format}
        new = recorder.record(torch.clone, (gradient,), layout)
    else:
        new = recorder.record(torch.add, (before, gradient), {})
    gradients.assign_gradient(recorder, session, tensor, new)


def _require_none_late(machine: Machine, what: str, dealt_with: Sequence[Any] = ()) -> None:
    """Hooks of tensors that the call has registered get their place when it is over: too late for its own gradients."""
    live = [late for late in machine.session.recorder.late if not late.removed]
    known = {id(tensor) for tensor in dealt_with}
    if any(late.hook is not None or id(late.tensor) not in known for late in live):
        raise _stop(f"{what} is called after a tensor hook was registered")


def _require_unhooked(machine: Machine, leaf: Any) -> None:
    """Hooks of an outside leaf would run with its gradient."""
    session = machine.session
    real = session.reals.get(id(leaf))
    if real is None:
        return
    source = session.known_source(leaf)

    def unhooked(found: Any) -> bool:
        return not found._backward_hooks and not getattr(found, "_post_accumulate_grad_hooks", None)

    with torch._C.DisableTorchFunction():
        free = unhooked(real)
    if not free:
        raise _stop("a backward pass calls hooks of a tensor")
    session.guards.setdefault(
        (GuardKind.PREDICATE, source, "<hooks>"),
        Guard(
            source,
            GuardKind.PREDICATE,
            (unhooked, f"{source.name()} has no hooks"),
            session.source_line,
        ),
    )
