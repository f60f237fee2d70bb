"""`torch.manual_seed` in a captured call: generators are seeded at run time, between compiled stages.

What is drawn behind it follows from the seed as it does where the compiled program begins. Invariant: capture seeds
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values.states import NAMED_RULES
from primtorch import regions

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine


def _manual_seed(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    seed = args[0] if args else kwargs["seed"]
    recorder = machine.session.recorder
    if type(seed) is not int:
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "the seed is set to what run time tells")
    recorder.effects += 1
    recorder.state_call(regions.seed_generators, (seed,))
    return machine.session.created(_Generator())


# By name, for torch's own compiler puts another function there.
NAMED_RULES["torch.random", "manual_seed"] = _manual_seed


class _Generator:
    """What `manual_seed` returns: nothing may be asked of it."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, f"a random generator's {name} is read")
