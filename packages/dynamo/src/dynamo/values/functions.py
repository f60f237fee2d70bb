# ruff: noqa: ARG001 - one signature for all rules
"""`torch.autograd.Function`: forward and backward are interpreted and become two nested graphs.

The forward runs without gradients on the call's fake tensors, the backward right after it on fakes of the
gradients, with the context that the forward filled. What the backward reads of the forward is what the region
saves. Without a gradient to compute, the forward is interpreted in place. Invariant: a backward that changes
anything outside is not captured, for it would run at the wrong time.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from dynamo._torch import APPLY
from dynamo.graph import carve
from dynamo.values import attributes
from dynamo.values.regions import refuse
from dynamo.values.rules import rule
from dynamo.values.shadows import Lazy, same, snapshot
from primtorch import regions
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine
    from dynamo.values.session import Session

__all__ = ["FunctionContext", "is_unchanged", "outside_now"]

_ONCE = torch.autograd.function.once_differentiable(lambda _context: None).__code__
_DEFAULT_SETUP: Any = torch.autograd.Function.setup_context


class FunctionContext:
    """What `forward` and `backward` get as `ctx`; its methods have rules."""

    __module__ = "torch.autograd.function"

    def save_for_backward(self, *tensors: Any) -> None:
        """Tensors to read as `saved_tensors`."""

    def save_for_forward(self, *tensors: Any) -> None:
        """Tensors for forward-mode differentiation, which is not captured."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Arguments that the forward changed in place."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Outputs without a gradient."""

    def set_materialize_grads(self, value: bool) -> None:
        """Whether an absent gradient is given as zeros."""


def _setting(name: str) -> None:
    @rule(getattr(FunctionContext, name))
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args[0].__dict__[f"<{name}>"] = args[1:] or tuple(kwargs.values())
        if name == "save_for_backward":
            args[0].__dict__["saved_tensors"] = args[1:]


for _name in ("save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable",
              "set_materialize_grads"):  # fmt: skip
    _setting(_name)


@rule(*APPLY)
def _apply(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    cls, *inputs = args
    if kwargs or not isinstance(cls, type):
        refuse(machine, "a torch.autograd.Function is applied in an unusual way")
    recorder = machine.session.recorder
    context = machine.session.created(FunctionContext())
    settings = context.__dict__
    settings["needs_input_grad"] = tuple(
        type(value) is FakeTensor and value.requires_grad for value in inputs
    )
    settings["saved_tensors"] = ()
    grad = torch.is_grad_enabled()
    mark = recorder.mark()
    try:
        torch._C._set_grad_enabled(False)
        result = _forward(machine, cls, context, tuple(inputs))
    except Exception as error:  # noqa: BLE001 - the program's own; eager must raise it
        refuse(machine, f"{type(error).__name__} is raised in {cls.__qualname__}.forward")
    finally:
        torch._C._set_grad_enabled(grad)
    if grad and any(settings["needs_input_grad"]):
        return _region(machine, cls, context, inputs, result, mark)
    recorder.erase(mark)
    outputs = result if isinstance(result, tuple) else (result,)
    dirty = settings.get("<mark_dirty>", ())
    for value in outputs:
        if type(value) is FakeTensor and _holds(inputs, value) and not _holds(dirty, value):
            refuse(machine, f"{cls.__qualname__}.forward returns an argument")
    return result


def _forward(machine: Machine, cls: type, context: Any, inputs: tuple[Any, ...]) -> Any:
    from dynamo.values import calls

    forward = attributes.load(machine, cls, "forward")
    setup = attributes.load(machine, cls, "setup_context")
    if setup is _DEFAULT_SETUP:
        return calls.call(machine, forward, (context, *inputs), {})
    result = calls.call(machine, forward, inputs, {})
    calls.call(machine, setup, (context, inputs, result), {})
    return result


def _holds(items: Any, value: Any) -> bool:
    return any(item is value for item in items)


def _region(
    machine: Machine,
    cls: type,
    context: Any,
    inputs: list[Any],
    result: Any,
    mark: torch.fx.Node,
) -> Any:
    """Cut forward and backward out of the graph and record the call."""
    recorder = machine.session.recorder
    settings = context.__dict__
    outputs = list(result) if isinstance(result, tuple) else [result]
    made = [value for value in outputs if type(value) is FakeTensor]
    dirty = settings.get("<mark_dirty>", ())
    plain = settings.get("<mark_non_differentiable>", ())
    materialize = bool(settings.get("<set_materialize_grads>", (True,))[0])
    if not materialize and len(outputs) > 1:
        refuse(machine, f"{cls.__qualname__} asks which gradients are absent")
    places = [i for i, value in enumerate(inputs) if type(value) is FakeTensor]
    leading = [recorder.node_of(inputs[i]) for i in places]
    made_nodes = [recorder.node_of(value) for value in made]
    middle = recorder.mark()
    stand_ins, grads = _backward(machine, cls, context, outputs, len(inputs))
    wanted = [grads[i] if grads[i] is None else recorder.node_of(grads[i]) for i in places]
    backward_nodes = [n for n in carve.nodes_since(recorder, middle) if n not in stand_ins]
    read = [node for node in wanted if node is not None]
    backward = carve.carve(recorder, backward_nodes, stand_ins, also=read, leading_last=True)
    carve.drop(recorder, backward, stand_ins)
    forward_nodes = carve.nodes_since(recorder, mark)
    forward = carve.carve(recorder, forward_nodes, leading, also=[*made_nodes, *backward.inputs])
    first = carve.close(
        recorder,
        forward,
        (
            tuple(forward.copies[node] for node in made_nodes),
            tuple(forward.copies[node] for node in backward.inputs),
        ),
    )
    second = carve.close(
        recorder, backward, tuple(None if n is None else backward.copies[n] for n in wanted)
    )
    options: dict[str, Any] = {
        "dirty": tuple(i for i, place in enumerate(places) if _holds(dirty, inputs[place])),
        "non_differentiable": tuple(i for i, value in enumerate(made) if _holds(plain, value)),
        "materialize_grads": materialize,
    }
    arguments = [*leading, *forward.inputs]
    call = carve.record_call(
        recorder, regions.autograd_function, (first, second, *arguments), options
    )
    with torch._C.DisableTorchFunction():
        values: Any = regions.autograd_function(
            lambda *_: (tuple(made), ()),
            lambda *_: (None,),
            *(node.meta["val"] for node in arguments),
            **options,
        )
    call.meta["val"] = values
    for index in options["dirty"]:
        recorder.mutated.add(id(inputs[places[index]]))
    return _results(machine, result, made, values, call, dirty)


def _results(
    machine: Machine, result: Any, made: list[Any], values: Any, call: torch.fx.Node, dirty: Any
) -> Any:
    """The call's results with their history, in the structure that `forward` returned."""
    recorder = machine.session.recorder
    replaced: dict[int, Any] = {}
    for index, (old, new) in enumerate(zip(made, values, strict=True)):
        replaced[id(old)] = new
        if _holds(dirty, new):
            continue
        item = recorder.graph.call_function(operator.getitem, (call, index))
        recorder.describe(item)
        recorder.made(new, item)
    if not isinstance(result, tuple):
        return replaced.get(id(result), result)
    return tuple(replaced.get(id(value), value) for value in result)


def _backward(
    machine: Machine, cls: type, context: Any, outputs: list[Any], count: int
) -> tuple[list[torch.fx.Node], list[Any]]:
    """Interpret the backward: the nodes that stand for the gradients, and what it returns."""
    from dynamo.values import calls

    session, recorder = machine.session, machine.session.recorder
    stand_ins: list[torch.fx.Node] = []
    given: list[Any] = []
    grad = torch.is_grad_enabled()
    before, written = outside_now(session), set(recorder.mutated)
    modes = session.grad_modes
    torch._C._set_grad_enabled(False)
    try:
        for value in outputs:
            if type(value) is not FakeTensor:
                given.append(None)
                continue
            with torch._C.DisableTorchFunction():
                gradient = torch.empty_like(value)
            session.keep(gradient)
            stand_ins.append(carve.stand_in(recorder, gradient))
            given.append(gradient)
        backward = attributes.load(machine, cls, "backward")
        result = calls.call(machine, backward, (context, *given), {})
    except Exception as error:  # noqa: BLE001 - it belongs to the backward pass
        refuse(machine, f"{type(error).__name__} is raised in {cls.__qualname__}.backward")
    finally:
        torch._C._set_grad_enabled(grad)
    own = (
        2 if getattr(backward, "__code__", None) is _ONCE else 0
    )  # its wrapper's, around the whole
    if (
        session.grad_modes - modes > own
    ):  # with `create_graph=True` autograd calls it in the other mode
        refuse(machine, f"{cls.__qualname__}.backward sets whether gradients are recorded")
    grads = list(result) if isinstance(result, tuple) else [result]
    if len(grads) < count or any(value is not None for value in grads[count:]):
        refuse(machine, f"{cls.__qualname__}.backward returns {len(grads)} gradients of {count}")
    if any(value is not None and type(value) is not FakeTensor for value in grads):
        refuse(machine, f"{cls.__qualname__}.backward returns something other than tensors")
    if not is_unchanged(before, outside_now(session)) or any(
        recorder.is_known_input(key) for key in recorder.mutated - written
    ):
        refuse(machine, f"{cls.__qualname__}.backward changes something outside")
    return stand_ins, grads


def outside_now(session: Session) -> list[list[Any]]:
    """What exists outside, as the capture sees it now."""
    seen = [snapshot(shadow.copy) for shadow in session.shadows.values()]
    seen.append([value for _, value in session.global_writes.values()])
    seen.append([value for _, value in session.state_writes.values()])
    seen.append([value for _, value in session.changed_cells()])
    seen.append([value for _, _, value in session.slot_writes.values()])
    seen.append([found.taken for found in session.ahead.values() if found.taken])
    return seen


def is_unchanged(before: list[list[Any]], after: list[list[Any]]) -> bool:
    """Whether nothing changed; containers that were first read in between count as unchanged."""
    count = len(before) - 5
    pairs = [*zip(before[:count], after[:count], strict=True),
             *zip(before[-5:], after[-5:], strict=True)]  # fmt: skip
    return all(len(a) == len(b) and all(map(_alike, a, b)) for a, b in pairs)


def _alike(first: Any, second: Any) -> bool:
    return same(first, second) or type(first) is Lazy
