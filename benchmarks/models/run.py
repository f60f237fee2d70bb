"""The command: every model in its own process, a row of JSON each, resumable.

    python -m benchmarks.models.run                          all, into .nox/models.jsonl
    python -m benchmarks.models.run --quick                  twelve models
    python -m benchmarks.models.run --suite huggingface --only Bart --again
    python -m benchmarks.models.run --only Longformer --phases peer_sizes    torch.compile's graphs over the sizes

A model whose row in the file has all phases that are asked for is not run again unless `--again` says so. Exit
code 1: a model that could be built raised, was not right, or has more graph breaks than the registry allows it.
Times, memory and torch.compile's rows are `benchmarks.models.times`'s.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.models.check import serve
from benchmarks.models.page import failures, summary, unexpected
from benchmarks.models.registry import QUICK, REGISTRY

ROOT = Path(__file__).parents[2]
ALL_PHASES = ("inference", "training", "dynamic")
# A server that has imported everything once; each model runs in a process forked from it.
_SERVER = multiprocessing.get_context("forkserver")


def run_one(name: str, phases: str, limit: float) -> dict[str, Any]:
    """Runs the child; a crash or a timeout is a row too."""
    start = time.perf_counter()
    row: dict[str, Any] = {"name": name, "suite": REGISTRY[name].suite}
    receiver, sender = _SERVER.Pipe(duplex=False)
    arguments = (sender, name, tuple(phases.split(",")))
    child = _SERVER.Process(target=serve, args=arguments, daemon=False)
    child.start()
    sender.close()
    try:
        if receiver.poll(limit):
            row = receiver.recv()
        else:
            row["fault"] = f"no result within {limit:.0f} s"
    except EOFError:
        child.join()
        row["fault"] = f"the process ended with {child.exitcode}"
    finally:
        child.kill()
        child.join()
    row["wall_s"] = round(time.perf_counter() - start, 2)
    return row


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a file by name; a later row of a name adds its phases to an earlier one's."""
    rows: dict[str, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            before = rows.get(row["name"], {})
            kept = {key: before[key] for key in (*ALL_PHASES, "peer_sizes") if key in before}
            rows[row["name"]] = {**kept, **row}
    return rows


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--suite", "suites", multiple=True, type=click.Choice(["huggingface", "extras", "timm"])
)
@click.option("--only", default="", help="Names that contain this, or one of these (a,b,c).")
@click.option("--quick", is_flag=True, help="The twelve models of CI.")
@click.option("--phases", default="inference,training,dynamic", show_default=True)
@click.option("--limit", default=600.0, show_default=True, help="Seconds for each model.")
@click.option(
    "--jobs", default=1, show_default=True, help="Processes at a time; more disturb the times."
)
@click.option("--again", is_flag=True, help="Run models that have a row too.")
@click.option("--out", type=click.Path(path_type=Path), help="The file of rows.")
def main(
    suites: tuple[str, ...],
    only: str,
    quick: bool,
    phases: str,
    limit: float,
    jobs: int,
    again: bool,
    out: Path | None,
) -> None:
    """Run models; print what failed."""
    out = out or ROOT / ".nox" / "models.jsonl"
    names = [
        name
        for name, entry in REGISTRY.items()
        if any(part in name for part in only.split(","))
        and (not quick or name in QUICK)
        and (not suites or entry.suite in suites)
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    _SERVER.set_forkserver_preload(["benchmarks.models.preload"])
    rows = {} if again else read_rows(out)
    wanted = phases.split(",")
    todo = [
        name
        for name in names
        if name not in rows
        or not ({"skipped", "fault"} & rows[name].keys() or rows[name].keys() >= {*wanted})
    ]
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar, ThreadPoolExecutor(jobs) as pool:
        task = bar.add_task("models", total=len(todo))
        for row in pool.map(lambda name: run_one(name, phases, limit), todo):
            rows[row["name"]] = {**rows.get(row["name"], {}), **row}
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            for text in failures(row):
                bar.console.print(text, markup=False, highlight=False)
            bar.update(task, advance=1, description=row["name"])
    chosen = [rows[name] for name in names]
    console.print(summary(chosen))
    sys.exit(any(text for row in chosen for text in unexpected(row)))


if __name__ == "__main__":
    main(prog_name="benchmarks.models.run")
