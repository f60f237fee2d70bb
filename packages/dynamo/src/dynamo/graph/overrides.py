"""Overrides of torch's functions while capturing: `__torch_function__` of classes, and modes of the program.

Comes in: a call of torch with its arguments. Goes out: what the first override that answers gives, interpreted like any
function of the program; `NotImplemented` where nobody overrides the call. Invariant: order, types and arguments are
those that eager hands to an override.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from dynamo._torch import function_mode_stack
from dynamo.graph.tensor_classes import has_overrides
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["Overrides", "overriding"]


class Overrides:
    """Who overrides torch's functions at this place of the program.

    Attributes:
        met: Whether anybody does; nothing is looked for before.
        off: How many blocks that switch the classes' overrides off are open.
        modes: The program's torch-function modes that are on, outermost first.
        subclasses: Whether a tensor whose class isn't torch's own takes part.
        wrappers: Whether a tensor made of tensors does.
        resolved: Whether the program's modes outside of the call took part: graph and backend must
            not see them.
    """

    __slots__ = ("met", "modes", "off", "resolved", "subclasses", "wrappers")

    def __init__(self) -> None:
        self.met = False
        self.subclasses = False
        self.wrappers = False
        self.off = 0 if torch._C._is_torch_function_enabled() else 1
        self.modes: list[Any] = []
        self.resolved = False

    def dispatch(
        self, machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The call as its overrides make it; NotImplemented if there is none."""
        owners = [] if self.off else overriding(machine, args, kwargs)
        if not owners and not self.modes:
            return NotImplemented
        kinds = tuple(kind for _, kind in owners)
        mode = machine.session.recorder.mode
        # Called from within a call of torch, capture's mode is off until that call is over.
        with nullcontext() if mode in function_mode_stack() else mode:
            if self.modes:
                own = self.modes.pop()
                try:
                    result = machine.override(own, function, kinds, args, kwargs)
                finally:
                    self.modes.append(own)
                if result is not NotImplemented:
                    return result
            for owner, kind in owners:
                holder = kind if isinstance(owner, torch.Tensor) else owner
                result = machine.override(holder, function, kinds, args, kwargs)
                if result is not NotImplemented:
                    return result
        name = getattr(function, "__qualname__", repr(function))
        names = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"Multiple dispatch failed for '{name}'; all __torch_function__ handlers returned "
            f"NotImplemented: {names}"
        )


def overriding(
    machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[Any, type]]:
    """The arguments with overrides and their classes, in eager's order: subclasses before their bases."""
    found: list[tuple[Any, type]] = []
    kinds = machine.session.recorder.kinds
    for value in (*args, *kwargs.values()):
        for item in value if type(value) in (list, tuple) else (value,):
            kind = type(item)
            if kind is FakeTensor:
                tagged = kinds.get(id(item))
                if tagged is None or not has_overrides(tagged):
                    continue
                kind = tagged
            elif isinstance(item, type) or not has_overrides(kind):
                continue
            if any(kind is other for _, other in found):
                continue
            place = next(
                (n for n, (_, other) in enumerate(found) if issubclass(kind, other)), len(found)
            )
            found.insert(place, (item, kind))
    return found
