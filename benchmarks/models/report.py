"""The report: docs/models.md and its plots, from the committed rows.

    python -m benchmarks.models.report

In: `rows.jsonl` (`benchmarks.models.run`: right or wrong, graphs, sizes), `time_rows.jsonl` (`benchmarks.models.times`:
times, memory, torch.compile), `benchmarks/results/gpu_*.jsonl`. Losses come first: what is wrong, what breaks, what is
slower than eager or torch.compile, what compiles slower, what takes more memory, what was not measured.
"""

from __future__ import annotations

import datetime as dt
import platform
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.models.gpu_table import gpu_table
from benchmarks.models.page import PHASES, failures, plain, summary, table
from benchmarks.models.plots import Bar, bars
from benchmarks.models.registry import ALLOWED_BREAKS, MORE_MEMORY, REGISTRY, SLOWER
from benchmarks.models.run import read_rows
from benchmarks.models.sweep import LIMIT
from benchmarks.models.times import PEER, TIME_ROWS, read_times

ROOT = Path(__file__).parents[2]
ROWS = Path(__file__).parent / "rows.jsonl"
PEER_ROWS = Path(__file__).parent / "peer_rows.jsonl"  # ours, eager and torch.compile in turns
PAGE = ROOT / "docs" / "models.md"
IMAGES = ROOT / "docs" / "images"
LARGER = 1.05

Row = dict[str, Any]


def joined() -> list[Row]:
    """The rows in the registry's order; a phase holds its times beside its verdict."""
    checked, times, beside = read_rows(ROWS), read_times(TIME_ROWS), read_times(PEER_ROWS)
    rows = [
        checked[name] for name in REGISTRY if name in checked and "skipped" not in checked[name]
    ]
    for row in rows:
        for phase in PHASES:
            part = row.get(phase)
            timed = times.get((row["name"], phase), {})
            if part:
                row[phase] = {
                    **part,
                    "times_fault": timed.get("fault", ""),
                    **{key: value for key, value in timed.items() if key != "fault"},
                    **_beside(beside.get((row["name"], phase), {})),
                }
    return rows


def _beside(row: Row) -> Row:
    """What a row with torch.compile says of it; ours' first call and eager's peak of that run beside it."""
    found: Row = {"peer": row.get(PEER, {})}
    if row.get("cold_cpu_s") and found["peer"]:
        found["peer"] = {
            **found["peer"],
            "ours_cold_cpu_s": row["cold_cpu_s"],
            "eager_peak_bytes": row.get("eager_peak_bytes"),
        }
    return {**found, **{key: value for key, value in row.items() if key.startswith("torch ")}}


def _machines(path: Path) -> str:
    """On what a file's rows were measured, the commonest first."""
    rows = [row for row in read_times(path).values() if "processor" in row]
    counted = Counter(f"{row['processor']}, torch {row['times_torch']}" for row in rows)
    return "; ".join(f"{name} ({count} rows)" for name, count in counted.most_common())


def _parts(rows: list[Row], phase: str) -> list[tuple[str, Row]]:
    return [(row["name"], row[phase]) for row in rows if row.get(phase)]


def _memory(part: Row) -> float | None:
    return part["peak_bytes"] / part["eager_peak_bytes"] if part.get("eager_peak_bytes") else None


def _peers_memory(part: Row) -> float | None:
    """torch.compile's peak over eager's of the same run."""
    theirs, eager = part["peer"].get("peak_bytes"), part["peer"].get("eager_peak_bytes")
    return theirs / eager if theirs and eager else None


def _left_alone(part: Row) -> bool:
    """Whether torch.compile compiled nothing of it: its "first call" is eager's."""
    return part["peer"].get("graphs") == 0


def _colder(part: Row) -> float | None:
    """torch.compile's first call over ours, in processor time; who was stopped or made no graph has none."""
    if _left_alone(part):
        return None
    peer = part["peer"]
    theirs, ours = peer.get("cold_cpu_s"), peer.get("ours_cold_cpu_s")
    return theirs / ours if theirs and ours else None


def _ratio(part: Row, system: str) -> str:
    """The median of a system's time over ours, with its interval."""
    low, high = part[f"{system} / ours, 95%"]
    return f"{part[f'{system} / ours']:.2f} [{low:.2f}, {high:.2f}]"


def _right(rows: list[Row]) -> list[str]:
    lines = ["Wrong, or with a graph break:", ""]
    failed = [text for row in rows for text in failures(row)]
    lines += [f"- {plain(text)}" for text in dict.fromkeys(failed)] or ["- nothing"]
    allowed = ", ".join(f"{name}: {why}" for name, (_, why) in ALLOWED_BREAKS.items()) or "none"
    return [
        *lines,
        "",
        f"Breaks that a model has by its nature: {plain(allowed)}.",
        "",
        *_variants(rows),
    ]


def _variants(rows: list[Row]) -> list[str]:
    """Where the bar is one of eager's other results: how far each of them is from eager's plain one."""
    cells = []
    for phase in PHASES:
        for name, part in _parts(rows, phase):
            if "variants" not in part:
                continue
            others = part["variants"]
            cells.append([
                name, phase, f"{part['eager_error']:.1e}", f"{part['error']:.1e}, {part['past']}",
                *(f"{other['error']:.1e}, {other['past']}" for other in others.values()),
                "yes" if part["correct"] else f"**no**: {part['wrong_count']} past all",
            ])  # fmt: skip
            head = [
                "model",
                "phase",
                "eager",
                "ours, past",
                *(f"eager {other}, past" for other in others),
                "within",
            ]
    if not cells:
        return []
    return [
        (
            "Models with tensors past 1.5 times eager's plain error, whose bar is the largest of eager's own results:"
            " the greatest error of each against float64, and how many tensors miss 1.5 times the plain one's (ours,"
            " and eager run another way)."
        ),
        "",
        *table(head, cells),
        "",
    ]


def _losses(rows: list[Row]) -> list[str]:
    slow, behind, larger, colder = [], [], [], []
    for phase in PHASES:
        for name, part in _parts(rows, phase):
            if part.get("eager / ours, 95%", [1, 1])[1] < 1:
                slow.append((part["eager / ours"], [name, phase, _ratio(part, "eager")]))
            if part.get("torch / ours, 95%", [1, 1])[1] < 1:
                why = SLOWER.get((name, phase), "")
                behind.append((part["torch / ours"], [name, phase, _ratio(part, "torch"), why]))
            memory, cold = _memory(part), _colder(part)
            if memory and memory > LARGER:
                more = (part["peak_bytes"] - part["eager_peak_bytes"]) / 1e6
                why = next((why for kind, why in MORE_MEMORY.items() if kind in name), "")
                theirs = _peers_memory(part)
                beside = f"{theirs:.2f}" if theirs else "-"
                larger.append((-memory, [name, phase, f"{memory:.2f}", beside, f"{more:.2f}", why]))
            if cold and cold < 1:
                colder.append((cold, [name, phase, f"{cold:.2f}"]))
    lines = ["## What is lost", "", *_right(rows)]
    for title, found, what in (
        ("Slower than eager (the interval lies below 1)", slow, ["eager / ours"]),
        (
            "Slower than torch.compile (the interval lies below 1)",
            behind,
            ["torch.compile / ours", "because"],
        ),
        ("Compiles slower than torch.compile", colder, ["torch.compile / ours"]),
        (
            f"Higher peak memory than eager by more than {LARGER - 1:.0%}",
            larger,
            ["ours / eager", "torch.compile / eager", "MB more", "because"],
        ),
    ):
        lines += [f"{title}: {len(found) or 'none'}.", ""]
        found.sort(key=lambda pair: pair[0])
        lines += (
            [*table(["model", "phase", *what], [cells for _, cells in found]), ""] if found else []
        )
    return [*lines, *_margins(rows), *_missing(rows)]


def _margins(rows: list[Row]) -> list[str]:
    """How near the losses the rest comes: first calls and torch.compile's peaks."""
    lines = []
    for phase in PHASES:
        parts = _parts(rows, phase)
        colder = sorted((cold, name) for name, part in parts if (cold := _colder(part)))
        peaks = [theirs for _, part in parts if (theirs := _peers_memory(part))]
        above = sum(theirs > LARGER for theirs in peaks)
        nearest = ", ".join(f"{name} {cold:.1f}" for cold, name in colder[:3]) or "none"
        lines += [
            f"- {phase}, least of torch.compile's first calls over ours: {nearest}",
            (
                f"- {phase}, torch.compile's peak memory above eager's by more than {LARGER - 1:.0%}: {above} of"
                f" {len(peaks)} models, {max(peaks, default=0):.2f} at most"
            ),
        ]
    swept = [(row["name"], row["peer_sizes"]) for row in rows if row.get("peer_sizes")]
    lines += [
        f"- {name}, graphs of torch.compile (torch {found['torch']}, aot_eager) over {found['sizes']} sizes:"
        f" {found['graphs']}"
        for name, found in swept
    ]
    return ["Beside these losses:", "", *lines, ""]


def _names(names: list[str], of: int) -> str:
    return f"{len(names)} of {of}" + (f": {', '.join(names)}" if names else "")


def _missing(rows: list[Row]) -> list[str]:
    """What was not measured, by name."""
    lines = ["Not measured:", ""]
    for phase in PHASES:
        parts = _parts(rows, phase)
        unseen = [name for name, part in parts if "eager / ours" not in part]
        unknown = [name for name, part in parts if not part["peer"]]
        alone = [
            f"{name} (first call {part['peer']['cold_cpu_s']:.2f} s, ours"
            f" {part['peer']['ours_cold_cpu_s']:.2f})"
            for name, part in parts
            if _left_alone(part)
        ]
        over = [
            f"{name} ({plain(part['peer']['fault'].strip().splitlines()[-1])})"
            for name, part in parts
            if part["peer"].get("fault")
        ]
        lines += [
            f"- {phase}, steady time and memory beside eager's, {_names(unseen, len(parts))}",
            f"- {phase}, torch.compile, {_names(unknown, len(parts))}",
            (
                f"- {phase}, run eagerly by torch.compile, so that its first call compiles nothing and is the shorter,"
                f" {_names(alone, len(parts))}"
            ),
            f"- {phase}, torch.compile left before its first call was done, {_names(over, len(parts))}",
        ]
    swept = [row["name"] for row in rows if "dynamic" not in row]
    absent = [name for name in REGISTRY if name not in {row["name"] for row in rows}]
    lines += [
        f"- sizes that vary, {_names(swept, len(rows))}",
        f"- no row at all, {_names(absent, len(REGISTRY))}",
    ]
    return [*lines, ""]


def _geometric(values: list[float]) -> str:
    return (
        f"{statistics.geometric_mean(values):.2f} ({len(values)} models)"
        if values
        else "not measured"
    )


def headline(rows: list[Row]) -> list[str]:
    """The lines that the README shows, too."""
    lines = summary(rows).splitlines()
    for phase in PHASES:
        parts = [part for _, part in _parts(rows, phase)]
        eager, torch = (
            [part[f"{system} / ours"] for part in parts if f"{system} / ours" in part]
            for system in ("eager", "torch")
        )
        cold = [part["cold_cpu_s"] for part in parts if part.get("cold_cpu_s")]
        against = [ratio for part in parts if (ratio := _colder(part)) is not None]
        memory = [ratio for part in parts if (ratio := _memory(part)) is not None]
        peaks = (
            f"{statistics.median(memory):.2f} in the median, {max(memory):.2f} at most"
            if memory
            else "not measured"
        )
        lines += [
            (
                f"{phase}, steady: eager's time over ours, geometric mean {_geometric(eager)};"
                f" torch.compile's over ours {_geometric(torch)}"
            ),
            (
                f"{phase}, first call: {statistics.median(cold):.1f} s of processor time in the median,"
                f" torch.compile's over ours {_geometric(against)}"
            ),
            f"{phase}, peak memory over eager's: {peaks} ({len(memory)} models)",
        ]
    swept = [row["dynamic"] for row in rows if row.get("dynamic")]
    good = sum(
        not found["fault"] and not found["wrong"] and found["graphs"] <= LIMIT for found in swept
    )
    lines.append(
        f"sizes that vary (25 batch sizes and lengths, 3 batch sizes of images): {good} of {len(swept)} models right"
        f" with at most {LIMIT} compiles"
    )
    return lines


def _why_no_ratio(part: Row) -> str:
    if _left_alone(part):
        return "eager"
    return "over" if part["peer"].get("fault") else "-"


def _cells(row: Row, phase: str) -> list[str]:
    part = row.get(phase)
    if not part:
        return [""] * 7
    verdict = "yes" if part["correct"] else "**no**"
    verdict += " (unstable)" if part.get("unstable") and part["correct"] else ""
    graphs = f"{part['graphs']}" + (f" ({len(part['breaks'])} breaks)" if part["breaks"] else "")
    memory, cold = _memory(part), _colder(part)
    return [
        verdict,
        graphs,
        f"{part['cold_cpu_s']:.2f}" if part.get("cold_cpu_s") else "-",
        f"{cold:.1f}" if cold else _why_no_ratio(part),
        _ratio(part, "eager") if "eager / ours" in part else "-",
        _ratio(part, "torch") if "torch / ours" in part else "-",
        f"{memory:.2f}" if memory else "-",
    ]


def _models(rows: list[Row]) -> list[str]:
    lines = [
        "## Every model",
        "",
        "`-`: not measured; `over`: torch.compile was left at the limit; `eager`: it compiled nothing.",
        "",
    ]
    columns = (
        "right",
        "graphs",
        "cold s",
        "cold torch / ours",
        "eager / ours",
        "torch / ours",
        "peak / eager",
    )
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
            swept = row.get("dynamic")
            sizes = f"{swept['graphs']}" if swept else "-" if "dynamic" not in row else ""
            if swept and (swept["fault"] or swept["wrong"]):
                sizes += " (fault)" if swept["fault"] else f" ({len(swept['wrong'])} wrong)"
            cells.append([row["name"], *_cells(row, "inference"), *_cells(row, "training"), sizes])
        lines += [f"### {suite}", "", *table(head, cells), ""]
    return lines


def _plots(rows: list[Row]) -> dict[str, str]:
    """File names and contents; what was not measured has no plot."""
    found: dict[str, list[Bar]] = {name: [] for name in ("speed", "torch", "cold", "memory")}
    for row in rows:
        parts = [row.get(phase) or {"peer": {}} for phase in PHASES]
        found["speed"].append(Bar(row["name"], tuple(part.get("eager / ours") for part in parts)))
        found["torch"].append(Bar(row["name"], tuple(part.get("torch / ours") for part in parts)))
        found["cold"].append(Bar(row["name"], tuple(map(_colder, parts))))
        found["memory"].append(Bar(row["name"], tuple(map(_memory, parts))))
    titles = {
        "speed": "Eager's time over ours",
        "torch": "torch.compile's time over ours",
        "cold": "torch.compile's first call over ours, processor time",
        "memory": "Peak memory over eager's",
    }
    drawn = {}
    for name, chart in found.items():
        shown = [bar for bar in chart if any(bar.values)]
        if shown:
            drawn[f"models_{name}.svg"] = bars(titles[name], "", PHASES, shown, 1.0)
    return drawn


def report(rows: list[Row], date: str, plots: list[str]) -> str:
    """The page."""
    torch = sorted({row["torch"] for row in rows if "torch" in row})
    lines = [
        "# The models people run",
        "",
        (f"Made by `sh ci/nox -s report` on {date} from the rows of `sh ci/nox -s models` (right or wrong) and"
        f" `sh ci/nox -s model_times` (times, memory); not edited by hand. torch {' and '.join(torch)}, versions as in"
        f" `ci/constraints-models.txt`, {platform.machine()}, one thread."),
        "",
        ("Each model is built offline with random weights, made small for a CPU (two layers or blocks, narrow widths or"
        " small images, batch 2; the structure unchanged). Right means: outputs, loss, every gradient and buffer are as"
        " near to float64 as eager's (1.5 times its error, or 2e-5); *unstable* where a tensor meets that only beside"
        " eager's own other results: without oneDNN, on two threads, with channels last, and with weights and inputs"
        " moved by half a unit in their last place. Cold is the first call with empty caches, seconds of processor time"
        " with all compilers'; the steady times are processor time, taken in turns in one process; at these sizes the"
        f" overhead of calls weighs much. Beside eager alone, and memory: {_machines(TIME_ROWS)}; other jobs ran there."
        f" Beside torch.compile, several models at once, a core each: {_machines(PEER_ROWS)}. What is told of"
        " torch.compile is paired with ours of that run. A training step is forward, backward"
        " and fresh gradients."),
        "",
        *(f"- {line}" for line in headline(rows)),
        "",
        *_losses(rows),
        *gpu_table(),
        *(f"![{name}](images/{name})\n" for name in plots),
        *_models(rows),
        "## Names that are built under another name",
        "",
        *table(["listed", "built", "why"], [[e.name, e.built, e.reason] for e in REGISTRY.values() if e.built]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page and the plots."""
    rows = joined()
    plots = _plots(rows)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, drawing in plots.items():
        (IMAGES / name).write_text(drawing)
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    PAGE.write_text(report(rows, date, list(plots)))
    print("\n".join(headline(rows)))


if __name__ == "__main__":
    main()
