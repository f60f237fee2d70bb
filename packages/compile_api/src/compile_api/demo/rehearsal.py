"""`compile-api demo --device cuda` where there is no GPU: the same road as far as it goes without one.

In: a `Request`. Out: a `Rehearsal`: each mode of a small configuration scheduled as for a GPU, its
Triton kernels run by Triton's interpreter on CPU tensors, checked against float64, and compiled to
device code for `TARGET`. Nothing is timed: the interpreter takes milliseconds a program instance.
Invariant: it runs in a process of its own, because Triton decides at its import whether it interprets.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from compile_api.api import Arguments, compile_watched
from compile_api.demo.accuracy import Error
from compile_api.demo.run import errors_of, results_of, truth_of
from compile_api.demo.subjects import Sizes, build_subject
from compile_api.errors import CompileApiError
from compile_api.explain import collect
from compile_api.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from compile_api.demo.run import Request
    from compile_api.demo.subjects import Subject

__all__ = ["TARGET", "Rehearsal", "Rehearsed", "rehearse"]

TARGET = "sm_90"


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One mode of one subject; `binaries` counts the kernels that were compiled for the target."""

    subject: str
    size: str
    mode: str
    graphs: int
    breaks: int
    kernels: int
    binaries: int
    errors: tuple[Error, Error | None]
    eager_errors: tuple[Error, Error | None]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """All modes."""

    rows: tuple[Rehearsed, ...]
    target: str
    torch: str


def rehearse(request: Request, tell: Callable[[str], None] = lambda _text: None) -> Rehearsal:
    """Runs the rehearsal in a process of its own.

    Raises:
        CompileApiError: Triton isn't installed, or that process failed; its own message is given.
    """
    if importlib.util.find_spec("triton") is None:
        raise CompileApiError(
            "there is no CUDA device here, and Triton, whose interpreter would stand in, is missing\n"
            "  try: pip install triton"
        )
    tell(f"no CUDA device: {request.model} in Triton's interpreter, compiled for {TARGET}")
    asked = {
        "model": request.model,
        "sizes": dataclasses.asdict(_small(request.sizes)),
        "training": request.training,
    }
    done = subprocess.run(  # noqa: S603 - this interpreter, this module
        [sys.executable, "-m", __name__, json.dumps(asked)],
        env={**os.environ, "TRITON_INTERPRET": "1", "COMPILE_API_STRICT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CompileApiError(f"the rehearsal without a GPU failed:\n{done.stderr.strip()}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Rehearsal(tuple(_read(row) for row in found), TARGET, str(torch.__version__))


def _small(sizes: Sizes) -> Sizes:
    """A configuration that an interpreter can run; what the user asked for stays, the length apart."""
    return dataclasses.replace(
        sizes,
        length=min(sizes.length, 16),
        layers=sizes.layers or 1,
        hidden=sizes.hidden or 64,
        vocabulary=sizes.vocabulary or 128,
    )


def _read(row: dict[str, Any]) -> Rehearsed:
    for name in ("errors", "eager_errors"):
        row[name] = tuple(None if error is None else Error(**error) for error in row[name])
    return Rehearsed(**row)


def _row(subject: Subject, *, training: bool) -> Rehearsed:
    subject.module.train(training)
    truth = truth_of(subject, training=training)
    eager = results_of(subject, subject.module, training=training)
    watch, start = Watch(record=True), time.perf_counter()
    options = {"executor": "triton_interpreter", "gpu_target": TARGET}
    compiled = compile_watched(subject.module, watch, Arguments(options=options))
    ours = results_of(subject, compiled, training=training)
    found = collect(subject.module, watch, time.perf_counter() - start)
    binaries = [
        line
        for name, stage in found.stages.items()
        if "08_kernel.binary" in name
        for line in stage.text.splitlines()
    ]
    return Rehearsed(
        subject=subject.name,
        size=subject.size,
        mode="training step" if training else "inference",
        graphs=len(found.graphs),
        breaks=len(found.graph_breaks),
        kernels=len(found.kernels),
        binaries=len(binaries),
        errors=errors_of(ours, truth),
        eager_errors=errors_of(eager, truth),
    )


def main(asked: str) -> None:
    """What the process does: prints the rows as one line of JSON."""
    request = json.loads(asked)
    subject = build_subject(request["model"], Sizes(**request["sizes"]))
    modes = (False, True) if request["training"] else (False,)
    rows = [dataclasses.asdict(_row(subject, training=training)) for training in modes]
    sys.stdout.write(f"{json.dumps(rows)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
