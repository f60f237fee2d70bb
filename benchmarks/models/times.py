"""A model's times and memory alone: eager, ours and torch.compile in one process, without a float64 run.

    python -m benchmarks.models.times --phases inference,training [--compare torch] [--only NAME] [--jobs N]

In: names of the registry. Out: a row of JSON for each name and phase, added to `time_rows.jsonl`: the first call of
both compilers, later calls of all systems in turns, peak memory of each. Whether the results are right is
`benchmarks.models.run`'s business. Invariant: a row that was left at the limit says so and how far it came.

The first calls are measured with empty caches in a process forked from one that has imported everything and in which
torch has compiled something else: imports and torch's precompiled header aren't counted. With `--jobs` each process
and all it starts has one core of its own, so that several models at once compete for caches and memory alone.
"""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import platform
import queue
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.models.registry import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess

__all__ = ["PEER", "TIME_ROWS", "read_times", "write_times"]

TIME_ROWS = Path(__file__).parent / "time_rows.jsonl"
_SERVER = multiprocessing.get_context("forkserver")
_PATIENCE = 5.0  # seconds of the clock for each second of the limit, on a machine that others use
_PATIENCE_ALONE = 1.3  # the same with a core of its own: a child that waits for ever keeps it
PEER = "torch_compile"


def _work(subject: Any, phase: str, target: Any) -> Callable[[], Any]:
    """One call, without the copies that a comparison needs."""
    import torch

    from benchmarks.models.check import step_alone

    def infer() -> Any:
        with torch.no_grad():
            return subject.infer(target, subject.inputs)

    return infer if phase == "inference" else lambda: step_alone(subject, target)


def _steady(works: dict[str, Callable[[], Any]], seconds: float) -> dict[str, Any]:
    """Medians, and the other systems' times over ours with their intervals."""
    from benchmarks.turns import take_turns

    start = time.perf_counter()
    works["ours"]()
    works["eager"]()
    round_seconds = (time.perf_counter() - start) * len(works) / 2
    rounds = max(7, min(41, int(seconds / max(round_seconds, 1e-6))))
    return take_turns(works, rounds, min(0.01, seconds / rounds)).row("ms", interval=True)


def _peers_graphs() -> int:
    """How many graphs torch.compile has made in this process; it leaves some models to eager."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _measure(answers: Connection, name: str, phase: str, seconds: float, *, peer: bool) -> None:
    import torch

    import compile_api
    from benchmarks.models import measure
    from benchmarks.models.registry import build

    subject = build(name)
    if phase == "training" and subject.training_inputs is None:
        answers.send(None)
        return
    subject.module.train(phase == "training")
    works = {"eager": _work(subject, phase, subject.module)}
    works["eager"]()
    works["ours"] = _work(subject, phase, compile_api.compile(subject.module))
    row = measure.as_row(measure.cold(works["ours"])[1])
    row.update(_steady(works, seconds))
    row["peak_bytes"] = measure.peak_bytes(works["ours"])
    row["eager_peak_bytes"] = measure.peak_bytes(works["eager"])
    answers.send(row)
    if not peer:
        return
    torch._dynamo.reset()
    before = _peers_graphs()
    works["torch"] = _work(subject, phase, torch.compile(subject.module))
    found = measure.as_row(measure.cold(works["torch"])[1])
    found["graphs"] = _peers_graphs() - before
    row.update(_steady(works, seconds))
    found["peak_bytes"] = measure.peak_bytes(works["torch"])
    answers.send({**row, PEER: found})


def serve(
    answers: Connection, name: str, phase: str, seconds: float, core: int | None, *, peer: bool
) -> None:
    """Sends the row without the peer, then with it; a fault is sent as text."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        os.environ["COMPILE_API_CACHE_DIR"] = ours
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = theirs
        try:
            _measure(answers, name, phase, seconds, peer=peer)
        except BaseException:  # noqa: BLE001 - whatever a system raises is the row
            answers.send(traceback.format_exc(limit=-8))
        answers.close()


def _processor(child: ForkServerProcess) -> float:
    """Seconds of processor time of a running process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _answer(child: ForkServerProcess, receiver: Connection, limit: float, patience: float) -> Any:
    """What the child sends next; text where it ends or comes to the limit."""
    before, start = _processor(child), time.perf_counter()
    while not receiver.poll(0.5):
        spent, clock = _processor(child) - before, time.perf_counter() - start
        if spent > limit or clock > patience * limit:
            return f"over {spent:.0f} s of processor time, {clock:.0f} s of the clock"
    try:
        return receiver.recv()
    except EOFError:
        child.join()
        return f"the process ended with {child.exitcode}"


def _processor_name() -> str:
    """What the kernel calls the processor; the architecture where it has no name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def run_one(
    name: str, phase: str, seconds: float, limit: float, core: int | None, *, peer: bool
) -> dict[str, Any]:
    """Runs the child; `limit` holds for ours and for the peer each."""
    receiver, sender = _SERVER.Pipe(duplex=False)
    child = _SERVER.Process(
        target=serve, args=(sender, name, phase, seconds, core), kwargs={"peer": peer}
    )
    child.start()
    sender.close()
    patience = _PATIENCE if core is None else _PATIENCE_ALONE
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    row: dict[str, Any] = {"name": name, "phase": phase, "date": date}
    row |= {"times_torch": version("torch"), "processor": _processor_name()}
    try:
        found = _answer(child, receiver, limit, patience)
        row.update({"fault": found} if isinstance(found, str) else found or {"none": True})
        if peer and isinstance(found, dict):
            more = _answer(child, receiver, limit, patience)
            row.update({PEER: {"fault": more}} if isinstance(more, str) else more)
    finally:
        child.kill()
        child.join()
    return row


def read_times(path: Path = TIME_ROWS) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows by name and phase; a later row without the peer leaves the peer's numbers as they were."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            key = row["name"], row["phase"]
            kept = {
                field: value
                for field, value in rows.get(key, {}).items()
                if field.startswith("torch")
            }
            rows[key] = {**kept, **row}
    return rows


def write_times(rows: dict[tuple[str, str], dict[str, Any]], path: Path = TIME_ROWS) -> None:
    """One line for each name and phase, in the registry's order."""
    order = {name: index for index, name in enumerate(REGISTRY)}
    chosen = sorted(rows.values(), key=lambda row: (order.get(row["name"], 0), row["phase"]))
    path.write_text("".join(json.dumps(row) + "\n" for row in chosen))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--suite", "suites", multiple=True, type=click.Choice(["huggingface", "extras", "timm"])
)
@click.option("--only", default="", help="Names that contain this, or one of these (a,b,c).")
@click.option("--phases", default="inference,training", show_default=True)
@click.option(
    "--compare",
    default="",
    type=click.Choice(["", "torch"]),
    help="torch: torch.compile in the same turns.",
)
@click.option("--seconds", default=0.6, show_default=True, help="Steady measuring for each.")
@click.option(
    "--limit", default=60.0, show_default=True, help="Seconds of processor time for each system."
)
@click.option(
    "--minutes",
    default=0.0,
    show_default=True,
    help="Begin no further model after so many; 0: no end.",
)
@click.option(
    "--jobs", default=0, help="Models at once, each on a core of its own; 0: one, on all cores."
)
@click.option("--again", is_flag=True, help="Measure models that have a row too.")
@click.option("--out", type=click.Path(path_type=Path), default=TIME_ROWS, help="The file of rows.")
def main(
    suites: tuple[str, ...], only: str, phases: str, compare: str, seconds: float, limit: float,
    minutes: float, jobs: int, again: bool, out: Path,
) -> None:  # fmt: skip
    """Measure the models one after the other; resumable."""
    _SERVER.set_forkserver_preload(["benchmarks.models.preload", "benchmarks.models.preload_peer"])
    rows, peer = read_times(out), compare == "torch"
    todo = [
        (name, phase)
        for phase in phases.split(",")
        for name, entry in REGISTRY.items()
        if any(part in name for part in only.split(","))
        and (not suites or entry.suite in suites)
        and (again or not {"fault", "none", PEER if peer else "peak_bytes"} & rows.get((name, phase), {}).keys())
    ]  # fmt: skip
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    start = time.perf_counter()
    cores: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:jobs] if jobs else [None]:
        cores.put(core)

    def measured(name: str, phase: str) -> dict[str, Any] | None:
        """A row, where time is left to begin one."""
        core = cores.get()
        try:
            if minutes and time.perf_counter() - start > 60 * minutes:
                return None
            return run_one(name, phase, seconds, limit, core, peer=peer)
        finally:
            cores.put(core)

    with (
        Progress(*columns, console=Console(stderr=True)) as bar,
        ThreadPoolExecutor(max(1, jobs)) as pool,
    ):
        task = bar.add_task("times", total=len(todo))
        for done in as_completed([pool.submit(measured, *item) for item in todo]):
            row = done.result()
            if row is not None:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                bar.update(task, advance=1, description=f"{row['name']}, {row['phase']}")
    write_times(read_times(out), out)


if __name__ == "__main__":
    sys.exit(main(prog_name="benchmarks.models.times"))
