# ruff: noqa: ARG001 - one signature for all rules
"""`Tensor.register_hook` in a captured call: the hook becomes a nested graph of the gradient.

The hook is interpreted where it is registered, on a fake of the gradient; what it reads of the forward is passed to the
nested graph. Invariant: eager runs the hook in the backward, so nothing that it reads may change in between, nor may
it change anything itself: what it captures is bound once, and is a tensor or a constant. Any other hook is a break.
"""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from dynamo.errors import BreakReason, GraphBreak, Restart
from dynamo.graph import carve
from dynamo.graph.stages import runs_between
from dynamo.values.functions import is_unchanged, outside_now
from dynamo.values.regions import refuse
from dynamo.values.rules import rule
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
    """A tensor with hooks must not leave the graph: hooks that its user registers later would run before them."""
    for value in outputs:
        tick = machine.session.recorder.hooked.get(id(value))
        if tick is not None:
            stop = _stop("its tensor leaves the graph")
            machine.break_ticks[tick] = (stop.reason, stop.why)
            raise Restart


@rule(torch.Tensor.register_post_accumulate_grad_hook)
def _after_accumulation(
    machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> NoReturn:
    raise _stop("it runs when a leaf's gradient is complete")


@rule(torch.Tensor.register_hook)
def _register_hook(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensor, hook = (*args, *kwargs.values())[:2]
    recorder, frame = machine.session.recorder, machine.frames[-1]
    if type(tensor) is not FakeTensor or recorder.kinds.get(id(tensor)):
        raise _stop("its tensor is of a class of its own")
    with torch._C.DisableTorchFunction():
        inside = not recorder.is_input(tensor) and tensor.requires_grad and not tensor.is_leaf
        if not inside or tensor._is_view():
            raise _stop("its tensor is a leaf, a view, or was made outside the function")
    if frame.ops[frame.pc].name != "POP_TOP":
        raise _stop("its handle is kept")
    if any(map(runs_between, recorder.graph.nodes)):
        raise _stop("the graph runs in several stages")
    why = _unsettled(hook, frame)
    if why:
        raise _stop(why)
    _record(machine, tensor, hook)


def _record(machine: Machine, tensor: Any, hook: Any) -> None:
    """Interpret the hook, cut what it does out of the graph, and record its registration."""
    recorder = machine.session.recorder
    owner = recorder.node_of(tensor)
    mark = recorder.mark()
    stand_in, result = _run(machine, tensor, hook)
    wanted = [] if result is None else [recorder.node_of(result)]
    nodes = [node for node in carve.nodes_since(recorder, mark) if node is not stand_in]
    body = carve.carve(recorder, nodes, [stand_in], also=wanted)
    carve.drop(recorder, body, [stand_in])
    holder = carve.close(recorder, body, body.copies[wanted[0]] if wanted else None)
    carve.record_call(recorder, regions.gradient_hook, (owner, holder, *body.inputs), {})
    recorder.hooked.setdefault(id(tensor), machine.frames[-1].tick)


def _run(machine: Machine, tensor: Any, hook: Any) -> tuple[torch.fx.Node, Any]:
    """The node that stands for the gradient, and what the hook makes of it."""
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
    except Exception as error:  # noqa: BLE001 - it belongs to the backward pass
        refuse(machine, f"a tensor hook is registered: {type(error).__name__} is raised in it")
    finally:
        torch._C._set_grad_enabled(grad)
    if result is not None and (
        type(result) is not FakeTensor
        or result.shape != tensor.shape
        or result.dtype != tensor.dtype
    ):
        refuse(machine, "a tensor hook is registered: it gives no gradient of its tensor")
    if not is_unchanged(before, outside_now(session)) or recorder.mutated - written:
        refuse(machine, "a tensor hook is registered: it changes something")
    return stand_in, result


def _unsettled(hook: Any, frame: Frame) -> str:
    """Why what a hook reads may be another thing in the backward; empty if it can't be."""
    if type(hook) is not types.FunctionType:
        return "it is no plain function"
    values = [*(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values()]
    for name, cell in zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=True):
        if not _is_bound_once(name, frame):
            return f"{name} may be bound again before the backward"
        values.append(cell.cell_contents)
    if not all(type(one) is FakeTensor or isinstance(one, _CONSTANTS) for one in values):
        return "it captures something other than tensors and constants"
    return _unsettled_global(hook, {hook})


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


def _unsettled_global(function: Any, seen: set[Any]) -> str:
    """The name of a global that is neither torch's nor a function of such globals."""
    from dynamo.bytecode import decode

    for one in decode(function.__code__):
        if one.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        name = one.argval
        value = function.__globals__.get(name, getattr(builtins, name, None))
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in _MODULES:
                return f"it reads the module {name}"
        elif type(value) is types.FunctionType and not value.__module__.startswith("torch."):
            if value.__closure__:
                return f"it calls {name}, which captures something"
            if value not in seen:
                seen.add(value)
                why = _unsettled_global(value, seen)
                if why:
                    return why
        elif not callable(value):
            return f"it reads the global {name}"
    return ""
