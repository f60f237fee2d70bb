"""What the rows say: one line for each failure, and a summary; tables of Markdown."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarks.models.registry import ALLOWED_BREAKS
from benchmarks.models.sweep import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PHASES", "failures", "plain", "summary", "table", "unexpected"]

PHASES = ("inference", "training")


def _first(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _cause(fault: str) -> str:
    """The line of a traceback that names the error."""
    named = [
        line for line in fault.splitlines() if line and not line.startswith((" ", "Traceback"))
    ]
    return next(
        (line for line in reversed(named) if "Error" in line or ":" in line), _first(fault)
    )[:300]


def failures(row: dict[str, Any]) -> list[str]:
    """What is wrong with a model, a line each; empty when all is right or it couldn't be built."""
    if "skipped" in row:
        return []
    name = row["name"]
    found = [f"{name}: {_first(row['fault'])}"] if row.get("fault") else []
    for phase in PHASES:
        part = row.get(phase)
        if part is None:
            continue
        if part["fault"]:
            found.append(f"{name}, {phase}: {_cause(part['fault'])}")
        elif not part["correct"]:
            found.append(f"{name}, {phase}: {part['wrong_count']} wrong; {part['wrong'][0]}")
        found += [f"{name}, {phase}: graph break: {_one_line(text)}" for text in part["breaks"]]
        if not part["breaks"] and (part["graphs"] or 0) > row.get("expected_graphs", 1):
            found.append(
                f"{name}, {phase}: {part['graphs']} graphs, {row['expected_graphs']} expected"
            )
    return found + _sweep_failures(row)


def _sweep_failures(row: dict[str, Any]) -> list[str]:
    """What is wrong with the sweep over sizes; a model with graph breaks has more graphs by its nature."""
    swept, name = row.get("dynamic"), row["name"]
    if not swept:
        return []
    if swept["fault"]:
        return [f"{name}, sizes: {_cause(swept['fault'])}"]
    found = (
        [f"{name}, sizes: {len(swept['wrong'])} wrong; {swept['wrong'][0]}"]
        if swept["wrong"]
        else []
    )
    limit = LIMIT * (1 + 2 * ALLOWED_BREAKS.get(name, (0, ""))[0])
    if swept["graphs"] > limit:
        found.append(
            f"{name}, sizes: {swept['graphs']} compiles (at {', '.join(swept['compiled_at'])})"
        )
    return found


def unexpected(row: dict[str, Any]) -> list[str]:
    """The failures beyond the graph breaks that the registry allows, with its reason, to this model."""
    allowed = ALLOWED_BREAKS.get(row["name"], (0, ""))[0]
    few = all(len((row.get(phase) or {"breaks": []})["breaks"]) <= allowed for phase in PHASES)
    return [text for text in failures(row) if not (few and ": graph break: " in text)]


def _one_line(text: str) -> str:
    """A message on one line, without what differs from machine to machine and from run to run."""
    line = " | ".join(line.strip() for line in text.splitlines() if line.strip())
    line = re.sub(r"\S*/site-packages/", "", line)
    return re.sub(r" at 0x[0-9a-f]+", "", line)[:300]


def _counts(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        if "skipped" in row:
            counts["skipped"] += 1
            continue
        counts["models"] += 1
        for phase in PHASES:
            part = row.get(phase)
            if part is None and "fault" not in row:
                continue
            counts[f"{phase}"] += 1
            counts[f"{phase} correct"] += bool(part and part["correct"])
            counts[f"{phase} whole"] += bool(
                part
                and not part["breaks"]
                and part["graphs"]
                and part["graphs"] <= row["expected_graphs"]
            )
    return counts


def summary(rows: list[dict[str, Any]]) -> str:
    """Three lines of text."""
    counts = _counts(rows)
    lines = [f"{counts['models']} models run, {counts['skipped']} not built here"]
    lines += [
        f"{phase}: {counts[phase + ' correct']} of {counts[phase]} right,"
        f" {counts[phase + ' whole']} captured without a break"
        for phase in PHASES
        if counts[phase]
    ]
    return "\n".join(lines)


def plain(text: str) -> str:
    """A text without what Markdown would read as its own."""
    return text.replace("<", "&lt;").replace("|", "/").replace("*", "\\*").replace("`", "")


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of Markdown; none without rows."""
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)] if rows else []
