"""The demo's report as a table for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from compile_api.demo.accuracy import Error
    from compile_api.demo.rehearsal import Rehearsal
    from compile_api.demo.run import Measured, Report, Row

__all__ = ["rehearsal_table", "report_json", "report_markdown", "report_table"]


def _error(ours: Error | None, eager: Error | None) -> str:
    if ours is None or eager is None:
        return ""
    return f"{ours.value:.1e} / {eager.value:.1e}"


def _seconds(measured: Measured | None) -> str:
    return "" if measured is None else f"{measured.cold_seconds:.2f}"


def _milliseconds(measured: Measured | None) -> str:
    return "" if measured is None else f"{measured.milliseconds:.1f}"


def _ratio(value: float | None, interval: tuple[float, float] | None) -> str:
    return (
        ""
        if value is None or interval is None
        else f"{value:.2f} [{interval[0]:.2f}-{interval[1]:.2f}]"
    )


def _cells(row: Row) -> list[str]:
    cells = [
        row.subject,
        f"{row.mode}, {row.size}",
        str(row.graphs),
        str(row.breaks),
        str(row.kernels),
        _seconds(row.ours),
        _milliseconds(row.eager),
        _milliseconds(row.ours),
        _ratio(row.speedup, row.interval),
        _error(row.ours.output_error, row.eager.output_error),
        _error(row.ours.gradient_error, row.eager.gradient_error),
    ]
    if row.peer is not None:
        over = _ratio(row.over_peer, row.over_peer_interval)
        cells += [_seconds(row.peer), _milliseconds(row.peer), over]
    return cells


def _heads(peer: str | None) -> list[str]:
    names = ["graphs", "breaks", "kernels", "cold s", "eager ms", "ours ms", "speed-up [95%]",
             "output err", "gradient err"]  # fmt: skip
    return (
        names if peer is None else [*names, f"{peer} cold s", f"{peer} ms", f"{peer} / ours [95%]"]
    )


def _title(report: Report) -> str:
    return f"compile_api on {report.machine}, {report.threads} threads, torch {report.torch}"


_CAPTION = (
    "errors: largest relative error against float64 eager, ours / eager's own; "
    "dropout is off; times: medians of paired rounds"
)


def _table(title: str, caption: str, heads: list[str], rows: list[list[str]]) -> Table:
    table = Table(title=title, caption=caption)
    for name in ("model", "mode"):
        table.add_column(name, no_wrap=True)
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def report_table(report: Report, peer: str | None = None) -> Table:
    """Lays the report out; with a peer, three columns more."""
    rows = [_cells(row) for row in report.rows]
    return _table(_title(report), _CAPTION, _heads(peer), rows)


def report_markdown(report: Report, peer: str | None = None) -> str:
    """Gives the same table as the README shows it."""
    heads = ["model", "mode", *_heads(peer)]
    lines = [heads, ["---"] * len(heads), *(_cells(row) for row in report.rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{_title(report)}:\n\n{table}\n\n({_CAPTION}.)"


def rehearsal_table(rehearsal: Rehearsal) -> Table:
    """Lays out what was done for a GPU that isn't here."""
    rows = [
        [
            row.subject,
            f"{row.mode}, {row.size}",
            str(row.graphs),
            str(row.breaks),
            str(row.kernels),
            str(row.binaries),
            _error(row.errors[0], row.eager_errors[0]),
            _error(row.errors[1], row.eager_errors[1]),
        ]
        for row in rehearsal.rows
    ]
    heads = ["graphs", "breaks", "kernels", f"for {rehearsal.target}", "output err", "gradient err"]
    return _table(
        f"no CUDA device here: a small configuration in Triton's interpreter, torch {rehearsal.torch}",
        f"for {rehearsal.target}: kernels compiled to device code; "
        "errors: largest relative error against float64 eager, ours / eager's own",
        heads,
        rows,
    )


def report_json(report: Report | Rehearsal) -> str:
    """Gives the report as one JSON object, every field by its name."""
    return json.dumps(dataclasses.asdict(report), indent=2)
