"""What the rows say: one line for each failure, a summary, and the page docs/models.md.

python -m benchmarks.models.page .nox/models.jsonl > docs/models.md
"""

from __future__ import annotations

import json
import platform
import re
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.models.registry import ALLOWED_BREAKS, REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["failures", "page", "summary", "unexpected"]

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


def _cell(row: dict[str, Any], phase: str) -> list[str]:
    part = row.get(phase)
    if part is None:
        return ["", "", "", ""]
    verdict = "yes" if part["correct"] else "**no**"
    graphs = f"{part['graphs']}" if part["graphs"] is not None else "-"
    if part["breaks"]:
        graphs += f" ({len(part['breaks'])} breaks)"
    cold = f"{part['cold_s']:.1f}" if "cold_s" in part else "-"
    ratio = f"{part['eager_s'] / part['ours_s']:.2f}" if "ours_s" in part else "-"
    return [verdict, graphs, cold, ratio]


def page(rows: list[dict[str, Any]]) -> str:
    """The page: failures first, then every model, then the names that were replaced."""
    import torch
    import transformers

    lines = [
        "# The models people run",
        "",
        (
            "Made by `python -m benchmarks.models.page` from the rows of `sh ci/nox -s models`; not edited by hand."
            f" torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()},"
            f" {platform.machine()}."
        ),
        "",
        (
            "Each model is built from its configuration with two layers, narrow widths, batch 2 and short sequences."
            " Right means: outputs, loss and every gradient are as near to float64 as eager's (1.5 times its error,"
            " or 2e-5). Cold is the first call with empty caches; speed-up is eager's steady time over ours at these"
            " tiny sizes, where the overhead of a call decides; the machine was not idle."
        ),
        "",
        *(f"- {line}" for line in summary(rows).splitlines()),
        *(f"- {line}" for line in _speed(rows)),
        "",
        "## What fails",
        "",
    ]
    failed = [text for row in rows for text in failures(row)]
    lines += [
        f"- {_escape(text)}" + (f" ({count} times)" if count > 1 else "")
        for text, count in Counter(failed).items()
    ] or ["Nothing."]
    head = [
        "model",
        *(
            f"{phase}: {what}"
            for phase in PHASES
            for what in ("right", "graphs", "cold s", "speed-up")
        ),
    ]
    lines += ["", "## Every model", "", _line(head), _line(["---"] * len(head))]
    ran = [row for row in rows if "skipped" not in row]
    lines += [
        _line([row["name"], *_cell(row, "inference"), *_cell(row, "training")]) for row in ran
    ]
    lines += [
        "",
        "## Names that are built under another name",
        "",
        _line(["listed", "built", "why"]),
        _line(["---"] * 3),
    ]
    lines += [_line([e.name, e.built, e.reason]) for e in REGISTRY.values() if e.built]
    return "\n".join(lines) + "\n"


def _speed(rows: list[dict[str, Any]]) -> list[str]:
    found = []
    for phase in PHASES:
        parts = [row[phase] for row in rows if "ours_s" in row.get(phase, {})]
        if parts:
            ratios = [part["eager_s"] / part["ours_s"] for part in parts]
            cold = statistics.median(part["cold_s"] for part in parts)
            slower = sum(ratio < 1 for ratio in ratios)
            found.append(
                f"{phase}: geometric mean of the speed-up {statistics.geometric_mean(ratios):.2f}, slower than"
                f" eager {slower} of {len(ratios)}; median cold compile {cold:.1f} s"
            )
    return found


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "/").replace("*", "\\*").replace("`", "")


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    seen = {}
    for text in Path(sys.argv[1]).read_text().splitlines():
        row = json.loads(text)
        seen[row["name"]] = row
    print(page([seen[name] for name in REGISTRY if name in seen]), end="")
