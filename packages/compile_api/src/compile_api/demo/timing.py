"""Paired timing: several systems doing the same work, interleaved, so that a busy machine hits all.

In: named thunks. Out: a `Paired` of samples per system and ratios per round with a bootstrap
interval. Invariant: every round runs every system, in rotated order; a sample is long enough for the
clock; nothing is dropped.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Paired", "seconds_of", "time_paired"]


@dataclass(frozen=True, slots=True)
class Paired:
    """Seconds per call of each system, one sample a round, in the same rounds."""

    samples: dict[str, tuple[float, ...]]

    def median(self, system: str) -> float:
        """Gives the median of a system's samples, in seconds a call."""
        return statistics.median(self.samples[system])

    def ratio(self, system: str, base: str) -> float:
        """Gives the median over the rounds of base's time by the system's: above 1 is faster."""
        return statistics.median(self._ratios(system, base))

    def interval(self, system: str, base: str, *, draws: int = 1000) -> tuple[float, float]:
        """Gives the 95% bootstrap interval of `ratio`."""
        ratios = self._ratios(system, base)
        random_source = random.Random(0)  # noqa: S311 - resampling, not secrets
        medians = sorted(
            statistics.median(random_source.choices(ratios, k=len(ratios))) for _ in range(draws)
        )
        return medians[int(0.025 * draws)], medians[int(0.975 * draws)]

    def _ratios(self, system: str, base: str) -> list[float]:
        pairs = zip(self.samples[base], self.samples[system], strict=True)
        return [slow / quick for slow, quick in pairs]


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], calls: int = 1) -> float:
    """Times `calls` runs of `work`; returns seconds a run."""
    _synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    _synchronize()
    return (time.perf_counter() - start) / calls


def time_paired(
    systems: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    sample_seconds: float = 0.1,
    warm_up: int = 3,
) -> Paired:
    """Times every system in every round.

    Args:
        systems: what to time, by name; each thunk does one whole call.
        rounds: how many samples of each.
        sample_seconds: a sample repeats the call until it lasts about this long.
        warm_up: calls of each before anything is measured.
    """
    names = list(systems)
    for name in names:
        for _ in range(warm_up):
            systems[name]()
    calls = {
        name: max(1, round(sample_seconds / max(seconds_of(systems[name]), 1e-7))) for name in names
    }
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name].append(seconds_of(systems[name], calls[name]))
    return Paired({name: tuple(values) for name, values in samples.items()})
