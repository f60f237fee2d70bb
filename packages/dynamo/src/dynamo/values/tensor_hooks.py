# ruff: noqa: ARG001 - one signature for all rules
"""Tensor hooks and `retain_grad` in a captured call.

The hook of a tensor that stays inside the graph becomes a nested graph of the gradient: it is interpreted where it is
registered, on a fake of the gradient, and what it reads of the forward is passed to it. Eager runs it in the backward,
so nothing that it reads may change in between, nor may it change anything itself: what it captures is bound once, and
is a tensor or a constant. Any other hook, and any of a tensor from outside or of a result, is never interpreted: it is
registered for real when the graph has run (`emit.hooks`). Invariant: hooks of one tensor run in the program's order.
"""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from dynamo.emit.hooks import postpone
from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph import carve
from dynamo.graph.late_hooks import LateHook, version
from dynamo.graph.stages import runs_between
from dynamo.graph.tensor_classes import is_traced
from dynamo.values import attributes
from dynamo.values.functions import is_unchanged, outside_now
from dynamo.values.rules import UNRULED, rule
from primtorch import regions
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine

_CONSTANTS = (
    *(int, float, bool, complex, str, type(None), torch.dtype, torch.device),
    *(torch.SymInt, torch.SymFloat),  # sizes and numbers of the call
)
_MODULES = ("torch", "math")


def _stop(why: str) -> GraphBreak:
    return GraphBreak(BreakReason.UNSUPPORTED_CALL, f"a tensor hook is registered: {why}")


def require_private(machine: Machine, outputs: list[Any]) -> None:
    """A tensor with hooks in the graph must not leave it: hooks that its user registers later would run before them."""
    for value in outputs:
        tick = machine.session.recorder.hooked.get(id(value))
        if tick is not None:
            postpone(machine, tick)


@rule(torch.Tensor.register_post_accumulate_grad_hook)
def _after_accumulation(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, hook = (*args, *kwargs.values())[:2]
    if not _is_leaf(machine, tensor):
        raise _stop("it runs when a leaf's gradient is complete, and its tensor is no leaf")
    return _register_late(machine, tensor, "register_post_accumulate_grad_hook", hook)


@rule(torch.Tensor.register_hook, FakeTensor.register_hook)
def _register_hook(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, hook = (*args, *kwargs.values())[:2]
    recorder, frame = machine.session.recorder, machine.frames[-1]
    if (
        not machine.late_hooks.isdisjoint((0, frame.tick))
        or frame.ops[frame.pc].name != "POP_TOP"
        or not _is_inside(machine, tensor)
        or any(late.tensor is tensor for late in recorder.late)
        or any(map(runs_between, recorder.graph.nodes))
        or not _is_settled(hook, frame)
    ):
        return _register_late(machine, tensor, "register_hook", hook)
    _record(machine, tensor, hook)
    return None  # dropped


@rule(torch.Tensor.retain_grad)
def _retain_grad(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    (tensor,) = args
    _require_gradient(machine, tensor, "a gradient is retained")
    with torch._C.DisableTorchFunction():
        leaf = tensor.is_leaf
        tensor.retain_grad()
    if not leaf:
        _keep_late(machine, tensor, "retain_grad", None, None)


def _register_late(machine: Machine, tensor: Any, method: str, hook: Any) -> Any:
    """The tensor itself gets the hook when the graph has run."""
    recorder = machine.session.recorder
    _require_gradient(machine, tensor, "a tensor hook is registered")
    nested = recorder.hooked.get(id(tensor))
    if nested is not None:  # hooks of one tensor run in their order
        postpone(machine, nested)
    handle = machine.session.created(object.__new__(RemovableHandle))
    _keep_late(machine, tensor, method, hook, handle)
    return handle


def _keep_late(machine: Machine, tensor: Any, method: str, hook: Any, handle: Any) -> None:
    recorder, frame = machine.session.recorder, machine.frames[-1]
    machine.session.keep(hook)
    after, written = recorder.graph._root.prev, version(tensor)
    with torch._C.DisableTorchFunction():
        leaf = tensor.is_leaf
    recorder.late.append(LateHook(tensor, method, hook, handle, frame.tick, after, written, leaf))


def _require_gradient(machine: Machine, tensor: Any, what: str) -> None:
    recorder = machine.session.recorder
    if not is_traced(tensor) or (
        not recorder.is_input(tensor)
        and (type(tensor) is not FakeTensor or recorder.kinds.get(id(tensor)))
    ):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL, f"{what}: its tensor is of a class of its own"
        )
    with torch._C.DisableTorchFunction():
        if not tensor.requires_grad:  # eager raises
            raise GraphBreak(BreakReason.UNSUPPORTED_CALL, f"{what}: its tensor has no gradient")
    if recorder.is_input(tensor):
        _is_leaf(machine, tensor)


def _is_leaf(machine: Machine, tensor: Any) -> bool:
    """Whether autograd has no history of a tensor; guarded for one from outside."""
    if not is_traced(tensor):
        return False
    return bool(attributes.load(machine, tensor, "is_leaf"))


def _is_inside(machine: Machine, tensor: Any) -> bool:
    """Whether a tensor is computed in the call, of no class of its own, in no other's memory."""
    recorder = machine.session.recorder
    if type(tensor) is not FakeTensor or recorder.kinds.get(id(tensor)):
        return False
    with torch._C.DisableTorchFunction():
        inside = not recorder.is_input(tensor) and tensor.requires_grad and not tensor.is_leaf
        return inside and not tensor._is_view()


# -- handles -------------------------------------------------------------------------------------------


def _late_of(machine: Machine, handle: Any) -> LateHook | None:
    late = machine.session.recorder.late
    return next((one for one in late if one.handle is handle), None)


@rule(RemovableHandle.remove, RemovableHandle.__exit__)
def _remove(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    late = _late_of(machine, args[0])
    if late is None:
        return UNRULED
    late.removed = True
    return None


def _handle(machine: Machine, owner: Any, name: str) -> Any:
    """An attribute of a handle; which number its hook has is known when it is registered."""
    if name in ("id", "hooks_dict_ref", "extra_dict_ref", "__dict__") and _late_of(machine, owner):
        raise _stop(f"the {name} of its handle is read")
    return attributes.object_attribute(machine, owner, name)


attributes.register_loader(RemovableHandle, _handle)


# -- hooks in the graph --------------------------------------------------------------------------------


def _record(machine: Machine, tensor: Any, hook: Any) -> None:
    """Interpret the hook, cut what it does out of the graph, and record its registration."""
    recorder = machine.session.recorder
    owner, tick = recorder.node_of(tensor), machine.frames[-1].tick
    mark = recorder.mark()
    found = _run(machine, tensor, hook)
    if found is None:
        postpone(machine, tick)
    stand_in, result = found
    wanted = [] if result is None else [recorder.node_of(result)]
    nodes = [node for node in carve.nodes_since(recorder, mark) if node is not stand_in]
    body = carve.carve(recorder, nodes, [stand_in], also=wanted)
    carve.drop(recorder, body, [stand_in])
    holder = carve.close(recorder, body, body.copies[wanted[0]] if wanted else None)
    carve.record_call(recorder, regions.gradient_hook, (owner, holder, *body.inputs), {})
    recorder.hooked.setdefault(id(tensor), tick)


def _run(machine: Machine, tensor: Any, hook: Any) -> tuple[torch.fx.Node, Any] | None:
    """The node that stands for the gradient, and what the hook makes of it; None if no graph can hold it."""
    from dynamo.values import calls

    session, recorder = machine.session, machine.session.recorder
    grad = torch.is_grad_enabled()
    before, written = outside_now(session), set(recorder.mutated)
    torch._C._set_grad_enabled(False)
    try:
        with torch._C.DisableTorchFunction():
            gradient = torch.empty_like(tensor)
        session.keep(gradient)
        stand_in = carve.stand_in(recorder, gradient)
        result = calls.call(machine, hook, (gradient,), {})
    except (Exception, GraphBreak):  # noqa: BLE001 - it belongs to the backward pass
        return None
    finally:
        torch._C._set_grad_enabled(grad)
    fits = result is None or (
        type(result) is FakeTensor and result.shape == tensor.shape and result.dtype == tensor.dtype
    )
    changed = not is_unchanged(before, outside_now(session)) or recorder.mutated - written
    return (stand_in, result) if fits and not changed else None


def _is_settled(hook: Any, frame: Frame) -> bool:
    """Whether what a hook reads is the same in the backward."""
    if type(hook) is not types.FunctionType:
        return False
    values = [*(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values()]
    for name, cell in zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=True):
        if not _is_bound_once(name, frame):
            return False
        values.append(cell.cell_contents)
    if not all(type(one) is FakeTensor or isinstance(one, _CONSTANTS) for one in values):
        return False
    return _reads_settled_globals(hook, {hook})


def _is_bound_once(name: str, frame: Frame) -> bool:
    """Whether a variable that the frame shares with functions gets one value in its life."""
    code = frame.code
    if name not in code.co_cellvars or any(_binds(one, name) for one in code.co_consts):
        return False
    stores = [op.index for op in frame.ops if "DEREF" in op.name and _stores(op, name)]
    if code.co_varnames[: code.co_argcount + code.co_kwonlyargcount].count(name):
        return not stores
    loops = [(op.target, op.index) for op in frame.ops if 0 <= op.target <= op.index]
    return len(stores) == 1 and not any(low <= stores[0] <= high for low, high in loops)


def _stores(op: Any, name: str) -> bool:
    return op.name in ("STORE_DEREF", "DELETE_DEREF") and op.instruction.argval == name


def _binds(code: Any, name: str) -> bool:
    """Whether a function inside says `nonlocal` of a variable, or may."""
    if not isinstance(code, types.CodeType) or name not in code.co_freevars:
        return False
    from dynamo.bytecode import decode

    return any(
        one.opname in ("STORE_DEREF", "DELETE_DEREF") and one.argval == name for one in decode(code)
    ) or any(_binds(one, name) for one in code.co_consts)


def _reads_settled_globals(function: Any, seen: set[Any]) -> bool:
    """Whether its globals are torch's, or functions of such globals."""
    from dynamo.bytecode import decode

    for one in decode(function.__code__):
        if one.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        name = one.argval
        value = function.__globals__.get(name, getattr(builtins, name, None))
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in _MODULES:
                return False
        elif type(value) is types.FunctionType and not value.__module__.startswith("torch."):
            if value.__closure__:
                return False
            if value not in seen:
                seen.add(value)
                if not _reads_settled_globals(value, seen):
                    return False
        elif not callable(value):
            return False
    return True
