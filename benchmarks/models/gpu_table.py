"""The GPU's part of the models page: the rows of `benchmarks.gpu` as one table.

In: `benchmarks/results/gpu_inference.jsonl` and `gpu_training.jsonl`, where a line with a card names the machine of
the lines after it. Out: lines of Markdown, one row for each model with both phases.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.models.page import table

__all__ = ["gpu_table"]

RESULTS = Path(__file__).parents[1] / "results"
PHASES = ("inference", "training")
COLUMNS = ("eager / ours", "torch / ours", "cold torch / ours", "peak / eager")


def _read(phase: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The machine, and the rows by model; a later row of a name replaces an earlier one."""
    machine: dict[str, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    for line in (RESULTS / f"gpu_{phase}.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "card" in row:
            machine = row
        else:
            rows[row["name"]] = row
    return machine, rows


def _over(row: dict[str, Any], above: str, below: str) -> float | None:
    return row[above] / row[below] if row.get(above) and row.get(below) else None


def _ratios(row: dict[str, Any]) -> list[float | None]:
    return [
        row.get("ours_over_eager"),
        row.get("ours_over_torch"),
        _over(row, "torch_cold_s", "ours_cold_s"),
        _over(row, "ours_peak_mb", "eager_peak_mb"),
    ]


def gpu_table() -> list[str]:
    """The section."""
    found = {phase: _read(phase) for phase in PHASES}
    names = list(dict.fromkeys(name for _, rows in found.values() for name in rows))
    lines = ["## On a GPU", ""]
    for phase, (machine, rows) in found.items():
        numbers = [_ratios(row) for row in rows.values()]
        means = [
            f"{title} {statistics.geometric_mean([value for value in values if value]):.2f}"
            for title, values in zip(COLUMNS, zip(*numbers, strict=True), strict=True)
        ]
        lines.append(
            f"- {phase}: {machine['card']}, torch {machine['torch_version']}, {machine['date']}; {len(rows)} models,"
            f" geometric means: {', '.join(means)}"
        )
    lines += [
        "",
        "bfloat16, each row's systems in one process; the sizes are in the names (docs/performance.md).",
        "",
    ]
    cells = []
    for name in names:
        values = [ratio for phase in PHASES for ratio in _ratios(found[phase][1].get(name, {}))]
        cells.append([name, *("-" if value is None else f"{value:.2f}" for value in values)])
    head = ["model", *(f"{phase}: {column}" for phase in PHASES for column in COLUMNS)]
    return [*lines, *table(head, cells), ""]
