"""Steady state of whole models: eager, ours and torch.compile on the same weights, in the same rounds.

Results are compared with float64 before anything is timed. The statistics are the demo's: medians, the median of
paired ratios, its 95% bootstrap interval. Training is forward, backward and fresh gradients.
"""

from __future__ import annotations

import copy
import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.models.check import RUN, errors
from benchmarks.subjects import SUBJECTS, build
from benchmarks.systems import reset, systems
from benchmarks.turns import take_turns
from compile_api.demo.subjects import Sizes
from compile_api.demo.timing import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.models.subject import Subject

SAMPLE_SECONDS = 0.05
FACTOR, TOLERANCE = 4.0, 5e-5  # other algorithms round elsewhere; a mean near zero shows it


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


def _work(subject: Subject, target: Any, *, training: bool) -> Callable[[], object]:
    if not training:

        def infer() -> object:
            with torch.no_grad():
                return subject.infer(target, subject.inputs)

        return infer

    def step() -> None:
        subject.module.zero_grad(set_to_none=True)
        subject.loss(target, subject.training_inputs or {}).backward()

    return step


def _row(name: str, request: Request, *, training: bool) -> dict[str, Any]:
    """Checks and times one model in one mode."""
    subject = build(name)
    subject.module.train(training)
    run = RUN["training" if training else "inference"]
    state = copy.deepcopy(subject.module.state_dict())
    double = subject.double()
    reference = run(double, double.module)
    del double
    row: dict[str, Any] = {"name": name, "mode": "training" if training else "inference"}
    reset(request.compare)
    targets = {system: make(subject.module) for system, make in systems(request.compare).items()}
    row["threads"] = torch.get_num_threads()
    found = {}
    for system, target in targets.items():
        seconds = seconds_of(_work(subject, target, training=training))
        if system != "eager":
            row[f"{system}_cold_s"] = round(seconds, 3)
        subject.module.load_state_dict(state)  # running statistics
        found[system] = errors(run(subject, target), reference)
        subject.module.load_state_dict(state)
    del reference
    for what, error in found["ours"].items():
        if not error <= max(FACTOR * found["eager"][what], TOLERANCE):
            text = f"{name}, {row['mode']}: {what}: error {error:.1e}, eager's {found['eager'][what]:.1e}"
            raise AssertionError(text)
    gc.collect()
    works = {
        system: _work(subject, target, training=training) for system, target in targets.items()
    }
    return row | take_turns(works, request.rounds, SAMPLE_SECONDS).row("ms", interval=True)


def run(request: Request) -> Iterator[dict[str, Any]]:
    """Yields a row for each model and mode; one that fails says why and leaves the others to be measured."""
    for name in SUBJECTS:
        for mode in ("inference", "training"):
            if request.only not in f"{name}, {mode}":
                continue
            try:
                yield _row(name, request, training=mode == "training")
            except Exception as fault:  # noqa: BLE001 - whatever a system raises is the row
                yield {
                    "name": name,
                    "mode": mode,
                    "fault": f"{type(fault).__name__}: {fault}"[:300],
                }
