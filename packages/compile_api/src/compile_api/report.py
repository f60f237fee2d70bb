"""An `Explanation` as one HTML page that needs no network and no script.

In: the explanation. Out: the page's text. Invariant: everything that came from the user's program is
escaped, and the page stands alone: style inside, no link to anything elsewhere.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import torch

from compile_api.__about__ import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.fx import GraphModule

    from compile_api.explain import Explanation, Kernel, Stage
    from compile_api.timeline import Span

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mark: #b3541e; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; border-bottom: 1px solid var(--line);
  text-align: left; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; padding: .8rem; background: var(--soft); border-radius: .4rem;
  font: 13px/1.45 ui-monospace, monospace; }
details { border-bottom: 1px solid var(--line); padding: .3rem 0; } summary { cursor: pointer; }
.bar { display: inline-block; height: .6rem; background: var(--mark); border-radius: .2rem; }
.none { opacity: .65; } .break { border-left: .25rem solid var(--mark); padding-left: .8rem; }
"""
_DRAWN = 400  # a picture of more operations than this helps nobody and makes the page heavy


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(cells) + "</tr>" for cells in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return f"<td>{escape(str(value))}</td>"


def _number(value: object) -> str:
    return f'<td class="number">{escape(str(value))}</td>'


def _texts(texts: Iterable[str], nothing: str) -> str:
    blocks = [f'<div class="break"><pre>{escape(text)}</pre></div>' for text in texts]
    return "".join(blocks) or f'<p class="none">{escape(nothing)}</p>'


def _times(stages: Iterable[Stage]) -> str:
    listed = list(stages)
    longest = max((stage.seconds for stage in listed), default=0.0) or 1.0
    rows = [
        (
            _cell(stage.name),
            _number(f"{1e3 * stage.seconds:.1f} ms"),
            f'<td><span class="bar" style="width:{12 * stage.seconds / longest:.2f}rem"></span></td>',
        )
        for stage in listed
    ]
    return _table(("stage", "time", ""), rows)


def _opened(length: int) -> str:
    """Opens what is short enough to be read on the way."""
    return " open" if length <= 60 else ""


def _details(stage: Stage, *, opened: bool = False) -> str:
    lines = stage.text.count("\n") + 1
    return (
        f"<details{_opened(lines) if opened else ''}><summary><code>{escape(stage.name)}</code>, "
        f"{lines} lines</summary><pre>{escape(stage.text)}</pre></details>"
    )


def _is_source(stage: Stage) -> bool:
    return stage.name.rpartition("/")[2].startswith("08_")


def _kernels(kernels: Iterable[Kernel]) -> str:
    """Lists the kernels with what they move and the loop nodes they hold."""
    rows = [
        (
            _cell(k.schedule),
            _cell(k.name),
            _cell(k.decisions),
            _cell(k.traffic),
            _cell(k.buffers),
            _cell(", ".join(k.nodes)),
        )
        for k in kernels
    ]
    if not rows:
        return (
            '<p class="none">None: every operation is a vendor call, or nothing was captured.</p>'
        )
    head = ("schedule", "kernel", "loops", "bytes moved", "reads and writes", "nodes")
    return _table(head, rows)


def _memory(memory: Mapping[str, str]) -> str:
    """Lists the memory of each call program."""
    if not memory:
        return '<p class="none">No call program.</p>'
    rows = [(_cell(name), _number(f"{size} bytes")) for name, size in memory.items()]
    return _table(("call program", "allocated at once for what never leaves it"), rows)


def _steps(spans: Iterable[Span]) -> str:
    """Draws the steps of compiling one below the other, each as long as it took."""
    listed = list(spans)
    if not listed:
        return ""
    first = listed[0].start
    whole = max(span.start + span.length for span in listed) - first or 1.0
    rows = []
    for span in listed:
        start, length = 24 * (span.start - first) / whole, 24 * span.length / whole
        style = f"margin-left:{start:.2f}rem;width:{length:.2f}rem"
        indent = f"padding-left:{0.8 + 1.2 * span.depth:.1f}rem"
        name = f'<td style="{indent}">{escape(f"{span.name} {span.detail}")}</td>'
        bar = f'<td style="width:24rem"><span class="bar" style="{style}"></span></td>'
        rows.append((name, _number(f"{span.length / 1e3:.1f} ms"), bar))
    return _table(("step", "time", ""), rows)


def _levels(graph: GraphModule) -> dict[str, int]:
    """Gives each operation the length of the longest road to it from an input."""
    levels: dict[str, int] = {}
    for node in graph.graph.nodes:
        above = [levels[source.name] for source in node.all_input_nodes]
        levels[node.name] = 1 + max(above, default=-1)
    return levels


def _picture(graph: GraphModule) -> str:
    """Draws a graph from top to bottom: one box an operation, one line a value."""
    nodes = list(graph.graph.nodes)
    if len(nodes) > _DRAWN:
        return f'<p class="none">{len(nodes)} operations: too many to draw; see the text.</p>'
    levels = _levels(graph)
    columns: dict[int, int] = {}
    place: dict[str, tuple[int, int]] = {}
    for node in nodes:
        level = levels[node.name]
        column = columns.get(level, 0)
        columns[level] = column + 1
        place[node.name] = (20 + 190 * column, 20 + 54 * level)
    width = 20 + 190 * max(columns.values(), default=1)
    height = 20 + 54 * (max(levels.values(), default=0) + 1)
    drawn = []
    for node in nodes:
        x, y = place[node.name]
        for source in node.all_input_nodes:
            from_x, from_y = place[source.name]
            drawn.append(
                f'<path d="M{from_x + 85} {from_y + 30} C{from_x + 85} {from_y + 42}, {x + 85} '
                f'{y - 12}, {x + 85} {y}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
            )
    for node in nodes:
        x, y = place[node.name]
        meaning = (
            node.target
            if isinstance(node.target, str)
            else getattr(node.target, "__name__", str(node.target))
        )
        label = escape(f"{node.name}"[:24])
        drawn.append(
            f'<g><title>{escape(str(meaning))}</title><rect x="{x}" y="{y}" width="170" height="30" '
            f'rx="6" fill="Canvas" stroke="currentColor" stroke-opacity=".5"/><text x="{x + 85}" '
            f'y="{y + 20}" text-anchor="middle" font-size="12" fill="currentColor">{label}</text></g>'
        )  # fmt: skip
    return (
        f'<div style="overflow:auto"><svg role="img" aria-label="graph of {len(nodes)} operations" '
        f'width="{width}" height="{height}">{"".join(drawn)}</svg></div>'
    )


def page(explanation: Explanation) -> str:
    """Lays an explanation out as a page."""
    stages = [stage for _name, stage in sorted(explanation.stages.items())]
    counts = (
        ("graphs", len(explanation.graphs)),
        ("graph breaks", len(explanation.graph_breaks)),
        ("recompiles", len(explanation.recompiles)),
        ("guards", len(explanation.guards)),
        ("kernels", len(explanation.kernels)),
        ("seconds, compiled and run", f"{explanation.seconds:.2f}"),
        ("versions", f"compile-api {__version__}, torch {torch.__version__}"),
    )
    pictures = "".join(
        f"<details{_opened(len(graph.graph.nodes))}><summary>graph {index}, "
        f"{len(graph.graph.nodes)} nodes</summary>{_picture(graph)}"
        "</details>"
        for index, graph in enumerate(explanation.graphs)
    )
    parts = [
        f"<h1>{escape(explanation.what)}</h1>",
        _table((), ((_cell(name), _number(value)) for name, value in counts)),
        "<h2>Graph breaks</h2>",
        _texts(explanation.graph_breaks, "None: the whole call was captured."),
        "<h2>Recompiles</h2>",
        _texts(explanation.recompiles, "None in this call."),
        "<h2>Graphs</h2>",
        pictures or '<p class="none">Nothing was captured.</p>',
        "<h2>Kernels</h2>",
        _kernels(explanation.kernels),
        *(_details(stage, opened=True) for stage in stages if _is_source(stage)),
        "<h2>Memory</h2>",
        _memory(explanation.memory),
        "<h2>Artifacts</h2>",
        _texts(explanation.cache, "Nothing was kept for processes to come."),
        "<h2>Where the time went</h2>",
        _steps(explanation.spans),
        _times(stages),
        "<h2>Stages</h2>",
        "".join(_details(stage) for stage in stages if not _is_source(stage)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(explanation.what)}: compile_api</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )
