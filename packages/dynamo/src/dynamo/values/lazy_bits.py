"""What asks for, or takes away, the bits of lazily conjugated and negated tensors.

Those of arguments are not among what a fake tensor shows: where an argument has one, such a call runs for real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values.rules import rule

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__: list[str] = []


def _maker(function: Any) -> None:
    @rule(function)
    def ask(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch._C.DisableTorchFunction():
            lazy = any(
                isinstance(real, torch.Tensor) and (real.is_conj() or real.is_neg())
                for real in machine.session.reals.values()
            )
        if lazy:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_CALL, "an argument is lazily conjugated or negated"
            )
        return machine.session.recorder.call(function, args, kwargs)


for _name in ("resolve_conj", "resolve_neg", "is_conj", "is_neg"):
    _maker(getattr(torch, _name))
    _maker(getattr(torch.Tensor, _name))
