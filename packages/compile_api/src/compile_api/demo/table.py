"""The demo's report as a table for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from compile_api.demo.accuracy import Error
    from compile_api.demo.run import Measured, Report, Row

__all__ = ["report_json", "report_table"]


def _error(ours: Error | None, eager: Error | None) -> str:
    if ours is None or eager is None:
        return ""
    return f"{ours.value:.1e} / {eager.value:.1e}"


def _seconds(measured: Measured | None) -> str:
    return "" if measured is None else f"{measured.cold_seconds:.2f}"


def _milliseconds(measured: Measured | None) -> str:
    return "" if measured is None else f"{measured.milliseconds:.1f}"


def _cells(row: Row) -> list[str]:
    low, high = row.interval
    cells = [
        row.subject,
        f"{row.mode}, {row.size}",
        str(row.graphs),
        str(row.breaks),
        str(row.kernels),
        _seconds(row.ours),
        _milliseconds(row.eager),
        _milliseconds(row.ours),
        f"{row.speedup:.2f} [{low:.2f}-{high:.2f}]",
        _error(row.ours.output_error, row.eager.output_error),
        _error(row.ours.gradient_error, row.eager.gradient_error),
    ]
    if row.peer is not None:
        cells += [_seconds(row.peer), _milliseconds(row.peer)]
    return cells


def report_table(report: Report, peer: str | None = None) -> Table:
    """Lays the report out; with a peer, two columns more."""
    table = Table(
        title=f"compile_api on {report.machine}, {report.threads} threads, torch {report.torch}",
        caption=(
            "errors: largest relative error against float64 eager, ours / eager's own; "
            "dropout is off; times: medians of paired rounds"
        ),
    )
    for name in ("model", "mode"):
        table.add_column(name, no_wrap=True)
    names = ["graphs", "breaks", "kernels", "cold s", "eager ms", "ours ms", "speed-up [95%]",
             "output err", "gradient err"]  # fmt: skip
    if peer is not None:
        names += [f"{peer} cold s", f"{peer} ms"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(*_cells(row))
    return table


def report_json(report: Report) -> str:
    """Gives the report as one JSON object, every field by its name."""
    return json.dumps(dataclasses.asdict(report), indent=2)
