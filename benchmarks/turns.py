"""Several systems doing the same work in turns, burst by burst, so that a busy minute hits all of them.

In: thunks by name, ours and eager's among them. Out: `Turns`, one sample of each system a round. With one thread the
clock is this process's processor time, which leaves out what other programs take; with more it is the wall's.
Invariant: every round runs every system, forwards and backwards in order; nothing is dropped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from compile_api.demo.timing import Paired

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS = {"us": 1e6, "ms": 1e3}


@dataclass(frozen=True, slots=True)
class Turns:
    """The samples of all systems, in seconds a call."""

    paired: Paired

    def row(self, unit: str, *, interval: bool = False) -> dict[str, Any]:
        """Each system's median; the median of the others' times over ours, with its 95% interval."""
        names = list(self.paired.samples)
        row: dict[str, Any] = {
            f"{name}_{unit}": round(_UNITS[unit] * self.paired.median(name), 3) for name in names
        }
        for name in names:
            if name != "ours":
                row[f"{name} / ours"] = round(self.paired.ratio("ours", name), 3)
                if interval:
                    low, high = self.paired.interval("ours", name)
                    row[f"{name} / ours, 95%"] = [round(low, 3), round(high, 3)]
        return row


def take_turns(works: dict[str, Callable[[], object]], rounds: int, burst: float) -> Turns:
    """Times all systems; a burst repeats the call until it lasts about `burst` seconds."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def seconds(work: Callable[[], object], calls: int) -> float:
        start = clock()
        for _ in range(calls):
            work()
        return (clock() - start) / calls

    for work in works.values():
        seconds(work, 2)  # libraries are loaded, buffers allocated
    calls = max(1, int(burst / max(seconds(works["eager"], 2), 1e-6)))
    samples: dict[str, list[float]] = {name: [] for name in works}
    order = list(works)
    for _ in range(rounds):
        for name in order:
            samples[name].append(seconds(works[name], calls))
        order.reverse()
    return Turns(Paired({name: tuple(values) for name, values in samples.items()}))
