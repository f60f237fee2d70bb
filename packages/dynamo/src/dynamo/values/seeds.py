# ruff: noqa: ARG001 - one signature for all rules
"""`torch.manual_seed` and `fork_rng` in a captured call: done to the generators at run time, between compiled stages.

What is drawn behind it follows from the seed as it does where the compiled program begins. Invariant: capture seeds
nothing.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import operators
from dynamo.values.regions import enter_state, leave_state
from dynamo.values.rules import rule
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


class ForkedGenerators:
    """What `torch.random.fork_rng` returns, with its arguments."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def __enter__(self) -> None:
        """Remember the generators' states."""
        self.context = torch.random.fork_rng(**self.settings)
        self.context.__enter__()

    def __exit__(self, *raised: object) -> None:
        """Restore them."""
        self.context.__exit__(None, None, None)


def _fork(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = inspect.signature(torch.random.fork_rng).bind(*args, **kwargs).arguments
    return machine.session.created(ForkedGenerators(dict(bound)))


NAMED_RULES["torch.random", "fork_rng"] = _fork


@rule(ForkedGenerators.__enter__)
def _enter_fork(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (manager,) = args
    settings = tuple(operators.plain_numbers(manager.settings).items())
    do, undo = regions.fork_generators, regions.join_generators
    machine.session.recorder.effects += 1
    enter_state(machine, manager, do, undo, (settings,), once=True)


@rule(ForkedGenerators.__exit__)
def _exit_fork(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leave_state(machine, args[0], "a fork_rng block")


class _Generator:
    """What `manual_seed` returns: nothing may be asked of it."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, f"a random generator's {name} is read")
