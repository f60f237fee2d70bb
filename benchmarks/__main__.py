"""The benchmarks' command: suites of rows, one JSON line each, and a table at the end.

    sh ci/nox -s bench                                   the short suite, against eager
    sh ci/nox -s bench -- --suite models --compare torch --out results.jsonl
    sh ci/nox -s bench -- --report results.jsonl         the table of an earlier run

Suites: calls (overhead of a call), cold (fresh processes, fresh caches), micro (single kernels), models
(steady state), tracing (the joint graph, against make_fx), training, large_training (memory and time of a step of
BERT-base, 8 x 512: 8 GB, a quarter of an hour). A row is
written as soon as it is measured, with the commit, the day and the machine, so that an interrupted run loses one row
only.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from benchmarks import calls, capture, cold, micro, steady, tracing, training
from benchmarks.provenance import provenance
from benchmarks.report import table

SUITES = {
    "calls": calls.run,
    "capture": capture.run,
    "cold": cold.run,
    "large_training": training.run_large,
    "micro": micro.run,
    "models": steady.run,
    "tracing": tracing.run,
    "training": training.run,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--suite", "suites", multiple=True, type=click.Choice(sorted(SUITES)))
@click.option("--compare", default="", help="torch: also torch.compile.")
@click.option("--only", default="", help="Rows whose name contains this.")
@click.option("--out", type=click.Path(path_type=Path), help="Append JSON lines to this file.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--small", is_flag=True, help="Two layers, short inputs: tries the script itself.")
@click.option("--any-load", is_flag=True, help="Measure even if other work runs on the machine.")
@click.option("--report", type=click.Path(exists=True, path_type=Path), help="Show a file's table.")
def main(
    suites: tuple[str, ...],
    compare: str,
    only: str,
    out: Path | None,
    rounds: int,
    device: str,
    small: bool,
    any_load: bool,
    report: Path | None,
) -> None:
    """Measure; print a table."""
    if report is not None:
        print(table([json.loads(line) for line in report.read_text().splitlines()]))
        return
    load = os.getloadavg()[0]
    if load > 0.3 and not any_load:
        raise click.ClickException(
            f"the machine is busy (load {load:.2f}): figures would mean little; --any-load measures anyway"
        )
    request = steady.Request(compare, only, rounds, device, small)
    origin = provenance()
    rows = []
    for suite in suites or ("calls", "models"):
        for measured in SUITES[suite](request):
            row = {"suite": suite, "load": round(load, 2), **measured, **origin}
            rows.append(row)
            line = json.dumps(row)
            print(line, file=sys.stderr, flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(line + "\n")
    print(table(rows))


main(prog_name="benchmarks")
