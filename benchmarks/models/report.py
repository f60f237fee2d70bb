"""The report: docs/models.md and its plots, from the rows of a run and torch.compile's.

    python -m benchmarks.models.report [ROWS]      default: the committed rows

Losses come first: what is wrong, what breaks, what is slower than eager, what compiles slower than torch.compile.
"""

from __future__ import annotations

import datetime as dt
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.models.page import PHASES, failures, plain, summary
from benchmarks.models.plots import Bar, bars
from benchmarks.models.registry import ALLOWED_BREAKS, EXPLAINED, REGISTRY
from benchmarks.models.run import read_rows
from benchmarks.models.sweep import LIMIT

ROOT = Path(__file__).parents[2]
ROWS = Path(__file__).parent / "rows.jsonl"
PEERS = Path(__file__).parent / "peer_rows"
PAGE = ROOT / "docs" / "models.md"
IMAGES = ROOT / "docs" / "images"

Row = dict[str, Any]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)] if rows else []


def _part(row: Row, phase: str) -> Row:
    return row.get(phase) or {}


def _number(part: Row, key: str, form: str = "{:.2f}") -> str:
    return form.format(part[key]) if part.get(key) is not None else ""


def _ratio(part: Row, over: Row, key: str) -> str:
    return f"{over[key] / part[key]:.1f}" if part.get(key) and over.get(key) else ""


def _form(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _steady(part: Row, peer: Row) -> float | None:
    """torch.compile's steady time over ours: each was paired with eager's, in its own process."""
    ours, theirs = part.get("speedup"), peer.get("speedup")
    return ours / theirs if ours and theirs else None


def _losses(rows: list[Row], peers: dict[str, Row]) -> list[str]:
    lines = ["## What is lost", ""]
    failed = [text for row in rows for text in failures(row)]
    lines += ["Wrong, or with a graph break:", ""]
    lines += [f"- {plain(text)}" for text in dict.fromkeys(failed)] or ["- nothing"]
    wrong = {
        row["name"]
        for row in rows
        for phase in PHASES
        if not _part(row, phase).get("correct", True)
    }
    known = [f"- {name}: {plain(why)}." for name, why in EXPLAINED.items() if name in wrong]
    if known:
        lines += ["", "Why those that are wrong are, where no operator is to blame:", "", *known]
    allowed = ", ".join(f"{name}: {why}" for name, (_, why) in ALLOWED_BREAKS.items())
    lines += ["", f"Breaks that a model has by its nature: {plain(allowed)}.", ""]
    slow, behind, larger, colder = [], [], [], []
    for row in rows:
        for phase in PHASES:
            part, peer = _part(row, phase), _part(peers.get(row["name"], {}), phase)
            if part.get("interval") and part["interval"][1] < 1:
                low, high = part["interval"]
                slow.append([row["name"], phase, f"{part['speedup']:.2f} [{low:.2f}, {high:.2f}]"])
            ratio = _steady(part, peer)
            if ratio is not None and part["interval"][1] < peer["interval"][0]:
                behind.append([row["name"], phase, f"{ratio:.2f}"])
            if part.get("peak_bytes") and part["peak_bytes"] > 1.05 * part["eager_peak_bytes"]:
                larger.append(
                    [row["name"], phase, f"{part['peak_bytes'] / part['eager_peak_bytes']:.2f}"]
                )
            if peer.get("cold_cpu_s", 1e9) < part.get("cold_cpu_s", 0):
                colder.append(
                    [row["name"], phase, f"{part['cold_cpu_s']} s, torch {peer['cold_cpu_s']} s"]
                )
    for title, found, what in (
        (
            "Slower than eager (the interval of eager's time over ours lies below 1)",
            slow,
            "eager / ours",
        ),
        (
            "Slower than torch.compile (eager's time over each: the intervals lie apart)",
            behind,
            "torch.compile / ours",
        ),
        ("Compiles slower than torch.compile", colder, "processor time"),
        ("Higher peak memory than eager by more than 5%", larger, "ours / eager"),
    ):
        lines += [f"{title}: {len(found) or 'none'}.", ""]
        found.sort(key=lambda cells: cells[2], reverse="memory" in title)
        lines += [*_table(["model", "phase", what], found), ""] if found else []
    return lines


def _geometric(values: list[float]) -> str:
    return (
        f"{statistics.geometric_mean(values):.2f} ({len(values)} models)"
        if values
        else "not measured"
    )


def _measured(rows: list[Row], peers: dict[str, Row]) -> list[str]:
    """How many models torch.compile was measured on; what it didn't do."""
    counts = [
        sum(bool(_part(peers.get(row["name"], {}), phase).get("cold_cpu_s")) for row in rows)
        for phase in PHASES
    ]
    lines = [
        f"torch.compile was measured on {counts[0]} of these models in inference and on {counts[1]} in training"
    ]
    failed = [
        f"{name} ({plain((row.get('fault') or _part(row, 'inference').get('fault', '')).strip().splitlines()[-1])})"
        for name, row in peers.items()
        if row.get("fault") or _part(row, "inference").get("fault")
    ]
    return lines + ([f"torch.compile gave no result: {', '.join(failed)}"] if failed else [])


def headline(rows: list[Row], peers: dict[str, Row]) -> list[str]:
    """The lines that the README shows, too."""
    lines = summary(rows).splitlines()
    for phase in PHASES:
        parts = [_part(row, phase) for row in rows]
        speed = [part["speedup"] for part in parts if part.get("speedup")]
        cold = [part["cold_cpu_s"] for part in parts if part.get("cold_cpu_s")]
        ratios = (
            _steady(_part(row, phase), _part(peers.get(row["name"], {}), phase)) for row in rows
        )
        steady = [ratio for ratio in ratios if ratio is not None]
        against = [
            _part(peers[row["name"]], phase)["cold_cpu_s"] / _part(row, phase)["cold_cpu_s"]
            for row in rows
            if _part(peers.get(row["name"], {}), phase).get("cold_cpu_s")
            and _part(row, phase).get("cold_cpu_s")
        ]
        lines.append(
            f"{phase}: eager's time over ours, geometric mean {_geometric(speed)}; torch.compile's over ours"
            f" {_geometric(steady)}; first call {statistics.median(cold):.1f} s of processor time in the median,"
            f" torch.compile's over ours {_geometric(against)}"
        )
    swept = [row["dynamic"] for row in rows if row.get("dynamic")]
    good = sum(
        not found["fault"] and not found["wrong"] and found["graphs"] <= LIMIT for found in swept
    )
    lines.append(
        f"sizes that vary (25 batch sizes and lengths, 3 batch sizes of images): {good} of {len(swept)} models right"
        f" with at most {LIMIT} compiles"
    )
    return lines + _measured(rows, peers)


def _models(rows: list[Row], peers: dict[str, Row]) -> list[str]:
    lines = ["## Every model", ""]
    columns = (
        "right", "graphs", "cold s", "cold torch / ours", "eager / ours", "torch / ours", "peak / eager",
    )  # fmt: skip
    head = [
        "model",
        *(f"{phase}: {column}" for phase in PHASES for column in columns),
        "compiles of the sweep",
    ]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        cells = []
        for row in rows:
            if row["suite"] != suite:
                continue
            found = [row["name"]]
            for phase in PHASES:
                part, peer = _part(row, phase), _part(peers.get(row["name"], {}), phase)
                verdict = "" if not part else "yes" if part["correct"] else "**no**"
                verdict += " (unstable)" if part.get("unstable") and part["correct"] else ""
                graphs = "" if not part else f"{part['graphs']}"
                graphs += f" ({len(part['breaks'])} breaks)" if part.get("breaks") else ""
                peak = (
                    f"{part['peak_bytes'] / part['eager_peak_bytes']:.2f}"
                    if part.get("peak_bytes")
                    else ""
                )
                found += [
                    verdict, graphs, _number(part, "cold_cpu_s"), _ratio(part, peer, "cold_cpu_s"),
                    _number(part, "speedup"), _form(_steady(part, peer)), peak,
                ]  # fmt: skip
            swept = row.get("dynamic") or {}
            wrong = (
                " (fault)"
                if swept.get("fault")
                else f" ({len(swept['wrong'])} wrong)"
                if swept.get("wrong")
                else ""
            )
            cells.append([*found, f"{swept['graphs']}{wrong}" if swept else ""])
        lines += [f"### {suite}", "", *_table(head, cells), ""]
    return lines


def _missing(rows: list[Row]) -> list[str]:
    """Names of the registry without a row."""
    names = [name for name in REGISTRY if name not in {row["name"] for row in rows}]
    return ["## Not in this run", "", ", ".join(names) + ".", ""] if names else []


def _plots(rows: list[Row], peers: dict[str, Row]) -> dict[str, str]:
    """File names and contents; what was not measured has no plot."""
    found: dict[str, list[Bar]] = {"speed": [], "cold": [], "memory": []}
    for row in rows:
        parts = [_part(row, phase) for phase in PHASES]
        found["speed"].append(Bar(row["name"], tuple(part.get("speedup") for part in parts)))
        memory = tuple(
            part["peak_bytes"] / part["eager_peak_bytes"] if part.get("eager_peak_bytes") else None
            for part in parts
        )
        found["memory"].append(Bar(row["name"], memory))
        peer = _part(peers.get(row["name"], {}), "training")
        found["cold"].append(Bar(row["name"], (parts[1].get("cold_cpu_s"), peer.get("cold_cpu_s"))))
    titles = {
        "speed": ("Eager's time over ours", "", PHASES, 1.0),
        "cold": (
            "First call of a training step, processor time",
            "s",
            ("ours", "torch.compile"),
            None,
        ),
        "memory": ("Peak memory over eager's", "", PHASES, 1.0),
    }
    drawn = {}
    for name, chart in found.items():
        title, unit, series, line = titles[name]
        shown = [bar for bar in chart if any(bar.values)]
        shown.sort(
            key=lambda bar: next(value for value in bar.values if value), reverse=name != "speed"
        )
        if shown:
            drawn[f"models_{name}.svg"] = bars(title, unit, series, shown, line)
    return drawn


def report(rows: list[Row], peers: dict[str, Row], date: str, plots: list[str]) -> str:
    """The page."""
    torch = sorted({row["torch"] for row in rows if "torch" in row})
    lines = [
        "# The models people run",
        "",
        (f"Made by `sh ci/nox -s report` on {date} from the rows of `sh ci/nox -s models`; not edited by hand."
        f" torch {' and '.join(torch)}, versions as in `ci/constraints-models.txt`, {platform.machine()}, one thread."),
        "",
        ("Each model is built offline with random weights, made small for a CPU (two layers or blocks, narrow widths or"
        " small images, batch 2; the structure unchanged). Right means: outputs, loss, every gradient and buffer are as"
        " near to float64 as eager's (1.5 times its error, or 2e-5); *unstable* where a tensor meets that only beside"
        " how far eager's own result moves when weights and inputs move by half a unit in their last place. Cold is the"
        " first call with empty caches, seconds of processor time with all compilers' (the machine was shared); eager /"
        " ours is measured in pairs; at these sizes the overhead of calls weighs much."),
        "",
        *(f"- {line}" for line in headline(rows, peers)),
        "",
        *_losses(rows, peers),
        *(f"![{name}](images/{name})\n" for name in plots),
        *_models(rows, peers),
        *_missing(rows),
        "## Names that are built under another name",
        "",
        *_table(["listed", "built", "why"], [[e.name, e.built, e.reason] for e in REGISTRY.values() if e.built]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page and the plots."""
    by_name = read_rows(Path(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
    rows = [
        by_name[name] for name in REGISTRY if name in by_name and "skipped" not in by_name[name]
    ]
    peers: dict[str, Row] = {}
    for path in sorted(PEERS.glob("*.jsonl")):
        peers.update(read_rows(path))
    plots = _plots(rows, peers)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, drawing in plots.items():
        (IMAGES / name).write_text(drawing)
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    PAGE.write_text(report(rows, peers, date, list(plots)))
    print("\n".join(headline(rows, peers)))


if __name__ == "__main__":
    main()
