"""Registers hooks of tensors when the graph has run, in the program's order, before anything else is rebuilt.

An argument and a result that the graph uses no further get the hook themselves. Another tensor gets a place for it
where the graph makes it (`graph.late_hooks`), which is filled here, where what the hook captures is there. Invariant:
the hook is the program's own function; it runs as often as in eager, and never while capturing.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from dynamo.errors import BreakReason, Restart
from dynamo.graph import late_hooks
from primtorch import regions
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dynamo.emit.reconstruct import Emitter
    from dynamo.graph.late_hooks import LateHook
    from dynamo.machine.interpreter import Machine

__all__ = [
    "make_histories",
    "postpone",
    "register",
    "register_late",
    "removed_handle",
    "retain_late",
    "where_given",
]


def where_given(hook: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor | None], Any]:
    """A hook of a graph's result or argument: autograd also calls it where only another one has a gradient."""

    def run(gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else hook(gradient)

    return run


def register(tensor: torch.Tensor, method: str, hook: Callable[..., Any]) -> Any:
    """The handle of a hook of a real tensor."""
    # A view whose base was written gets its history anew when asked; autograd dies where that is while it takes a hook.
    _ = tensor.grad_fn
    return getattr(tensor, method)(hook)


def postpone(machine: Machine, tick: int) -> NoReturn:
    """Capture starts over; the hook of an instruction (0: each) is registered when the graph has run."""
    first = min(machine.session.recorder.hooked.values(), default=tick) if tick == 0 else tick
    machine.late_hooks.add(tick)
    for late in [one for one in machine.late_hooks if one > first]:
        machine.late_hooks.discard(late)  # the instructions behind are counted anew
    for later in [one for one in machine.break_ticks if one > first]:
        del machine.break_ticks[later]
    raise Restart


def register_late(machine: Machine, emitter: Emitter) -> None:
    """Append the registrations to the entry.

    Raises:
        Restart: one must be made by eager, or all of them together.
    """
    from dynamo.emit.reconstruct import CannotReconstruct  # it imports this module

    behind: dict[torch.fx.Node, torch.fx.Node] = {}
    live = [
        late for late in machine.session.recorder.late if late.hook is not None and not late.removed
    ]
    for late in sorted(live, key=_made_last_first):
        _require_history(machine, late)
        try:
            name = emitter.name(_registration(machine, emitter, late, behind))
        except CannotReconstruct as error:
            _leave_to_eager(machine, late, f"it captures {error}")
        emitter.remember(late.handle, name)


def make_histories(emitter: Emitter, values: Iterable[Any]) -> None:
    """Ask the views among what an instruction that runs for real takes for their histories.

    One whose base was written gets its history anew when asked. The program may have done so where capture knew the
    answer (`is_leaf`), and autograd dies where `register_hook` is the first to ask.
    """
    for value in values:
        owner = getattr(value, "__self__", value)
        if type(owner) is FakeTensor and owner.requires_grad:
            emitter.line(f"{emitter.value(owner)}.grad_fn")


def _made_last_first(late: LateHook) -> int:
    """The order among tensors: eager's backward begins with what was made last; a graph's results have one node."""
    with torch._C.DisableTorchFunction():
        function = late.tensor.grad_fn
    return 0 if function is None else -int(function._sequence_nr())


def _registration(
    machine: Machine, emitter: Emitter, late: LateHook, behind: dict[Any, Any]
) -> str:
    recorder = machine.session.recorder
    if late_hooks.stays_as_it_came(recorder, late.tensor):
        hook = emitter.value(late.hook)
        if late.method == "register_hook":
            hook = f"{emitter.constant(where_given)}({hook})"
        return _registered(emitter, _argument(emitter, late.tensor), late, hook)
    begin = late_hooks.begins_behind(recorder, late.tensor, late.after, late.version)
    if begin is None:
        _leave_to_eager(machine, late, "its tensor is written in several ways")
    used = late_hooks.is_used_behind(recorder, late.tensor, begin)
    with torch._C.DisableTorchFunction():
        function = late.tensor.grad_fn
    several = function is not None and len(function._input_metadata) > 1
    if used or late_hooks.version(late.tensor) != late.version:
        node = _reserve(machine, late, regions.reserve_hook, begin, behind, (several,))
        recorder.nodes[id(late)] = node
        return f"{emitter.output(late)}.fill({emitter.value(late.hook)})"
    hook = emitter.value(late.hook)
    if function is not None and not several:
        hook = f"{emitter.constant(where_given)}({hook})"
    return _registered(emitter, emitter.value(late.tensor), late, hook)


def _registered(emitter: Emitter, tensor: str, late: LateHook, hook: str) -> str:
    return f"{emitter.constant(register)}({tensor}, {late.method!r}, {hook})"


def _argument(emitter: Emitter, tensor: Any) -> str:
    name = emitter.value(tensor)
    if any(tensor is required for required in emitter.recorder.required):
        emitter.line(f"{name}.requires_grad_()")
    return name


def _reserve(
    machine: Machine,
    late: LateHook,
    function: Callable[..., Any],
    begin: torch.fx.Node,
    behind: dict[Any, Any],
    options: tuple[Any, ...] = (),
) -> torch.fx.Node:
    """A place for a hook; places behind one node are in the order of the program."""
    recorder = machine.session.recorder
    why = late_hooks.obstacle(recorder, late)
    if why:
        _leave_to_eager(machine, late, why)
    if recorder.hooked:  # hooks that are part of a graph would be parted from their tensors
        postpone(machine, 0)
    made = late_hooks.reserve(recorder, late, function, behind.get(begin, begin), options)
    behind[begin] = made
    return made


def _require_history(machine: Machine, late: LateHook) -> None:
    if late_hooks.lost_its_history(late):
        _leave_to_eager(machine, late, "its tensor is detached in place afterwards")
    if late_hooks.written_through_another(machine.session.recorder, late.tensor):
        _leave_to_eager(machine, late, "its memory is written through another argument")


def _leave_to_eager(machine: Machine, late: LateHook, why: str) -> NoReturn:
    what = "a gradient is retained" if late.hook is None else "a tensor hook is registered"
    machine.break_ticks[late.tick] = (BreakReason.UNSUPPORTED_CALL, f"{what}: {why}")
    raise Restart


def retain_late(machine: Machine, emitter: Emitter) -> None:
    """Append what makes results keep their gradients; of other tensors nobody could read one."""
    recorder = machine.session.recorder
    for late in recorder.late:
        if late.hook is not None:
            continue
        _require_history(machine, late)
        if late_hooks.stays_as_it_came(recorder, late.tensor):
            emitter.line(f"{_argument(emitter, late.tensor)}.retain_grad()")
            continue
        if not (emitter.is_output(late.tensor) or recorder.is_input(late.tensor)):
            continue
        end = next(iter(reversed(recorder.graph.nodes)))
        begin = late_hooks.begins_behind(
            recorder, late.tensor, end, late_hooks.version(late.tensor)
        )
        if begin is None:
            _leave_to_eager(machine, late, "its tensor is written in several ways")
        if late_hooks.is_used_behind(recorder, late.tensor, begin):
            _reserve(machine, late, regions.retain_gradient, begin, {})
        else:
            emitter.line(f"{emitter.value(late.tensor)}.retain_grad()")


def removed_handle(emitter: Emitter, handle: Any) -> str:
    """The handle of a hook that the program has removed again."""
    made = emitter.name(
        f"{emitter.constant(RemovableHandle)}({emitter.constant(collections.OrderedDict)}())"
    )
    return emitter.remember(handle, made)
