"""What is measured of a call, on a machine that others use too.

Seconds of processor time (of all threads, and of the compilers that were started and waited for) beside those of the
clock, which a busy machine stretches; memory as what torch's allocator held at most during a call above what it held
before.
"""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import profiler

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Cold", "as_row", "cold", "peak_bytes"]


@dataclass(frozen=True, slots=True)
class Cold:
    """The first call: seconds of the clock and of processors, compilers' included."""

    cold_s: float
    cold_cpu_s: float


def as_row(value: Cold) -> dict[str, Any]:
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
