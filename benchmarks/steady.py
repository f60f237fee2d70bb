"""Steady state of whole models: eager, ours and torch.compile on the same weights, interleaved.

Results are checked against float64 before anything is timed. The statistics are the demo's: medians,
the median of paired ratios, its 95% bootstrap interval.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compile_api.demo.run import Request as DemoRequest
from compile_api.demo.run import run_demo
from compile_api.demo.subjects import SUBJECTS, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Request:
    """What the benchmarks' command was asked for."""

    compare: str
    only: str
    rounds: int
    device: str
    small: bool


def sizes_of(name: str, request: Request) -> Sizes:
    """Gives full size, or with `small` what tries the script in seconds."""
    if not request.small:
        return Sizes()
    return Sizes(length=16, layers=2, hidden=64)


def run(request: Request) -> Iterator[dict[str, Any]]:
    """Yields a row for each model and mode."""
    for name in SUBJECTS:
        if request.only not in name:
            continue
        asked = DemoRequest(
            model=name,
            device=request.device,
            sizes=sizes_of(name, request),
            compare=request.compare or None,
            rounds=request.rounds,
        )
        for row in run_demo(asked).rows:
            yield {"name": name, **dataclasses.asdict(row)}
