"""The seeds of one graph's random numbers, and how a repeated draw is told from a second one.

Comes in: the recorder at each random operator. Goes out: the seed of its device, the operator's number, a ticket.
Invariant: two operators of one graph never share a number; the default generator is left as it was found.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aot_autograd.recorder import Recorder
    from primtorch.fake import FakeTensor


def generator_states(devices: Sequence[str]) -> dict[str, torch.Tensor]:
    """The states of the default generators of devices."""
    return {
        device: torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state(device)
        for device in devices
    }


@contextmanager
def generators_as(states: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Inside, default generators go on from these states; afterwards from where they were."""
    before = generator_states(tuple(states))
    _set(states)
    try:
        yield
    finally:
        _set(before)


def _set(states: Mapping[str, torch.Tensor]) -> None:
    for device, state in states.items():
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


class Seeds:
    """The seeds of one graph, and which random operators it has had so far.

    A program that runs a part of itself again with the generator's old state (activation
    checkpointing) must get the same numbers. So that it does, each random operator takes a ticket:
    a number that is really drawn from the default generator. A ticket seen before means that the
    state was set back, and the operator's first result is given again.
    """

    __slots__ = ("_before", "count", "drawn", "given", "results")

    def __init__(self) -> None:
        self.drawn: list[FakeTensor] = []
        self.given: list[FakeTensor] = []
        self.count = 0
        self.results: dict[Any, Any] = {}
        self._before: torch.Tensor | None = None

    def ticket(self) -> int:
        """Draw from the default generator of the CPU; `restore` takes all draws back."""
        if self._before is None:
            self._before = torch.get_rng_state()
        return int(torch.randint(2**62, (1,)).item())

    def restore(self) -> None:
        """Put the generator back to where it was before the first ticket."""
        if self._before is not None:
            torch.set_rng_state(self._before)

    def seed(self, context: Recorder, device: torch.device) -> FakeTensor:
        """The seed of a device: drawn at its first use, or given by the trace that is repeated."""
        for seed in self.drawn:
            if seed.meta.device == device:
                return seed
        for seed in self.given:
            if seed.meta.device == device:
                return seed
        operator = torch.ops.primtorch.draw_seed.default
        seed = context.record(operator, (device,), {}, impure=True)
        self.drawn.append(seed)
        return seed

    def offset(self) -> int:
        """A number that no other random operator of the graph has."""
        self.count += 1
        return self.count - 1
