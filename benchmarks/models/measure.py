"""What is measured of a call, on a machine that others use too.

Seconds of processor time (of all threads, and of the compilers that were started and waited for) rather than of the
clock, which a busy machine stretches; steady times in pairs, so that a slow minute hits both sides; memory as what
torch's allocator held at most during a call above what it held before.
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import profiler

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Cold", "Steady", "as_row", "cold", "peak_bytes", "steady"]


@dataclass(frozen=True, slots=True)
class Cold:
    """The first call: seconds of the clock and of processors, compilers' included."""

    cold_s: float
    cold_cpu_s: float


@dataclass(frozen=True, slots=True)
class Steady:
    """Later calls beside eager's: milliseconds (medians), and eager's time over this one's with its 95% interval."""

    eager_ms: float
    compiled_ms: float
    speedup: float
    interval: tuple[float, float]


def as_row(value: Cold | Steady) -> dict[str, Any]:
    return asdict(value)


def _processor() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def cold(run: Callable[[], Any]) -> tuple[Any, Cold]:
    """Runs once; the result and what it took."""
    clock, processor = time.perf_counter(), _processor()
    result = run()
    return result, Cold(round(time.perf_counter() - clock, 3), round(_processor() - processor, 3))


def _sample(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def steady(compiled: Callable[[], Any], eager: Callable[[], Any], seconds: float) -> Steady:
    """Calls both in turns for about so many seconds: five rounds at least, two hundred at most.

    Both have been called before.
    """
    compiled()
    pairs: list[tuple[float, float]] = []
    stop = time.perf_counter() + seconds
    while len(pairs) < 5 or (time.perf_counter() < stop and len(pairs) < 200):
        first, second = (eager, compiled) if len(pairs) % 2 else (compiled, eager)
        one, two = _sample(first), _sample(second)
        pairs.append((one, two) if first is eager else (two, one))
    ratios = sorted(a / b for a, b in pairs)
    # the binomial interval of a median: no distribution is assumed
    reach = int(0.98 * len(ratios) ** 0.5) + 1
    middle = len(ratios) // 2
    low, high = ratios[max(middle - reach, 0)], ratios[min(middle + reach, len(ratios) - 1)]
    return Steady(
        round(1e3 * statistics.median(a for a, _ in pairs), 4),
        round(1e3 * statistics.median(b for _, b in pairs), 4),
        round(statistics.median(ratios), 4),
        (round(low, 3), round(high, 3)),
    )


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most that torch's allocator held during a call, above what it held before."""
    run()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events: Any = seen.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak
