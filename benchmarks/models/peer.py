"""torch.compile on the same models, measured once for a version and kept: hours on two cores.

    python -m benchmarks.models.run --system torch --phases inference,training [--only NAME]

The rows are in `benchmarks/models/peer_rows/`, a file for each torch version, and are added to: a model that has its
row isn't run again. The first call is measured with empty caches, in a process forked from one in which torch has
compiled something else (`preload_peer`): its imports and its precompiled header aren't counted.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.models.check import RUN, reference_of, step_alone, verdict

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["rows_file", "serve_peer"]


def rows_file() -> Path:
    """Where the rows of the installed torch are kept."""
    version = importlib.metadata.version("torch").split("+")[0]
    return Path(__file__).parent / "peer_rows" / f"torch_{version}.jsonl"


def _phase(name: str, phase: str, seconds: float) -> dict[str, Any]:
    import torch

    from benchmarks.models import measure
    from benchmarks.models.registry import build

    subject = build(name)
    if phase == "training" and subject.training_inputs is None:
        return {}
    run = RUN[phase]
    row: dict[str, Any] = {"correct": False, "fault": ""}
    try:
        reference, eager_errors, state = reference_of(subject, phase)
        torch._dynamo.reset()
        compiled = torch.compile(subject.module)
        found, first = measure.cold(lambda: run(subject, compiled))
        row.update(measure.as_row(first))
        subject.module.load_state_dict(state)
        row.update(verdict(subject, phase, found, reference, eager_errors))
        if seconds:
            timed = (lambda: run(subject, compiled)), (lambda: run(subject, subject.module))
            row.update(measure.as_row(measure.steady(*timed, seconds)))
            subject.module.zero_grad(set_to_none=True)
            alone = step_alone if phase == "training" else run
            row["peak_bytes"] = measure.peak_bytes(lambda: alone(subject, compiled))
    except BaseException as error:  # noqa: BLE001 - whatever torch raises is the row
        row["fault"] = traceback.format_exc(limit=-6)
        row["fault_type"] = type(error).__name__
    return row


def serve_peer(answers: Connection, name: str, phases: tuple[str, ...], seconds: float) -> None:
    """Sends torch.compile's row of one model."""
    import torch

    row: dict[str, Any] = {"name": name, "torch": torch.__version__}
    for phase in phases:
        if phase in RUN:
            with tempfile.TemporaryDirectory() as cache:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
                found = _phase(name, phase, seconds)
            row[phase] = found or None
    answers.send(row)
    answers.close()
