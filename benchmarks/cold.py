"""Cold and warm compiles: a fresh process each, empty caches for cold, the same caches again for warm.

The clock starts after imports and one eager step, and stops at the first result (training: after the
backward). torch's precompiled header and first imports are paid before its clock starts, so that the
comparison is with what torch does for this model. Each figure is the median of three processes; beside the
seconds stands what the processor worked, compilers included, which a busy machine hardly changes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.steady import sizes_of
from compile_api.demo.subjects import SUBJECTS, build_subject
from compile_api.demo.timing import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.steady import Request

REPEATS = 3


def _processor_seconds() -> float:
    """What this process and those it waited for (compilers) took."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _child(system: str, name: str, training: bool, request: Request) -> tuple[float, float]:
    """Runs in the fresh process: seconds to the first result, and processor seconds."""
    import torch

    from benchmarks.systems import systems

    subject = build_subject(name, sizes_of(name, request)).to(
        torch.device(request.device), torch.float32
    )
    subject.module.train(training)
    make = systems("torch" if system == "torch" else "")[system]

    def call(target: Any) -> None:
        if training:
            subject.loss(target(**subject.training_inputs)).backward()
        else:
            with torch.no_grad():
                target(**subject.inputs)

    call(subject.module)
    subject.module.zero_grad(set_to_none=True)
    if system == "torch":
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(64))  # imports and the precompiled header
    compiled = make(subject.module)
    before = _processor_seconds()
    seconds = seconds_of(lambda: call(compiled))
    return seconds, _processor_seconds() - before


def _spawn(
    system: str, name: str, training: bool, request: Request, caches: str
) -> tuple[float, float]:
    asked = json.dumps([system, name, training, request.device, request.small])
    environment = {
        **os.environ,
        "COMPILE_API_CACHE_DIR": f"{caches}/ours",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch",
        "TRITON_CACHE_DIR": f"{caches}/triton",
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cold", asked],
        cwd=Path(__file__).parent.parent,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, processor = json.loads(done.stdout.splitlines()[-1])
    return seconds, processor


def run(request: Request) -> Iterator[dict[str, Any]]:
    """Yields a row for each model and mode: cold and warm seconds of each system."""
    names = ["ours", "torch"] if request.compare == "torch" else ["ours"]
    for name in SUBJECTS:
        if request.only not in name:
            continue
        for training in (False, True):
            row: dict[str, Any] = {"name": name, "mode": "training" if training else "inference"}
            samples: dict[str, list[float]] = {}
            for _ in range(1 if request.small else REPEATS):
                for system in names:  # interleaved: a busy minute hits both
                    with tempfile.TemporaryDirectory() as caches:
                        for state in ("cold", "warm"):
                            seconds, processor = _spawn(system, name, training, request, caches)
                            samples.setdefault(f"{system}_{state}_s", []).append(seconds)
                            samples.setdefault(f"{system}_{state}_cpu_s", []).append(processor)
            row |= {key: round(statistics.median(values), 3) for key, values in samples.items()}
            yield row


if __name__ == "__main__":
    from benchmarks.steady import Request as _Request

    _system, _name, _training, _device, _small = json.loads(sys.argv[1])
    print(json.dumps(_child(_system, _name, _training, _Request("", "", 0, _device, _small))))
