"""Rows as tables, one a suite, and the geometric means and losses that sum them up."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.provenance import PROVENANCE

NOT_SLOWER = 0.97
"""Below this a row is a loss."""

_APART = {"suite", "load", *PROVENANCE}
"""What is the same in all rows of a run: told once, above the table."""


def _flat(row: dict[str, Any]) -> dict[str, str]:
    """Gives the cells of a row."""
    cells: dict[str, str] = {}
    for key, value in row.items():
        match value:
            case float():
                cells[key.replace("_", " ")] = f"{value:.3g}"
            case [low, high]:
                cells[key] = f"{low:.2f}-{high:.2f}"
            case str() | int():
                cells[key] = str(value)
    return {key: text for key, text in cells.items() if key not in _APART}


def _geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _summary(suite: str, rows: list[dict[str, Any]]) -> list[str]:
    ratios: dict[str, list[float]] = {}
    losses: dict[str, list[str]] = {}
    for row in rows:
        mode = f", {row['mode']}" if "mode" in row else ""
        for key, value in row.items():
            ours = f"ours_{key[6:]}"
            if key.startswith("torch_") and ours in row:
                if "torch / ours" not in row or key == "torch_cold_s":
                    what = f"torch / ours, {key[6:]}{mode}"
                    ratios.setdefault(what, []).append(value / row[ours])
            elif key.endswith(" / ours"):
                ratios.setdefault(f"{key}{mode}", []).append(value)
                if value < NOT_SLOWER:
                    losses.setdefault(key, []).append(f"{row['name']}{mode} ({value:.2f})")
    lines = [
        f"{suite}: {what}: geometric mean {_geometric_mean(values):.2f} of {len(values)}"
        for what, values in ratios.items()
    ]
    faults = [f"{row['name']}: {row['fault']}" for row in rows if "fault" in row]
    lines += [f"{suite}: failed: {'; '.join(faults)}"] if faults else []
    lines += [
        f"{suite}: {what} below {NOT_SLOWER}: {'; '.join(names)}" for what, names in losses.items()
    ]
    return lines


def table(rows: list[dict[str, Any]]) -> str:
    """Lays rows out as Markdown, one table a suite."""
    text: list[str] = []
    for suite in dict.fromkeys(row["suite"] for row in rows):
        chosen = [row for row in rows if row["suite"] == suite]
        cells = [_flat(row) for row in chosen]
        head = list(dict.fromkeys(key for row in cells for key in row))
        origins = dict.fromkeys(
            ", ".join(str(row[key]) for key in PROVENANCE if key in row) for row in chosen
        )
        text += [f"### {suite}", "", *(f"commit {told} threads" for told in origins if told), ""]
        text += [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
        text += [f"| {' | '.join(row.get(key, '') for key in head)} |" for row in cells]
        text += ["", *_summary(suite, chosen), ""]
    return "\n".join(text)
