"""Bars as SVG, made by hand: no library, text that can be searched, the same bytes from the same numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Bar", "bars"]

ROW, LEFT, WIDTH, TOP = 14, 250, 420, 40
COLOURS = ("#2b6cb0", "#dd8a2b", "#7a7a7a")


@dataclass(frozen=True, slots=True)
class Bar:
    """A model's values, one for each series; None leaves its bar out."""

    name: str
    values: tuple[float | None, ...]


def bars(
    title: str, unit: str, series: tuple[str, ...], rows: list[Bar], line: float | None = None
) -> str:
    """A horizontal bar chart on a logarithmic axis.

    Args:
        title: what is shown.
        unit: behind each number.
        series: what the values of a bar are.
        rows: from top to bottom.
        line: a value to be marked across all rows.
    """
    known = [value for row in rows for value in row.values if value]
    low = math.log10(min([*known, *([line] if line else [])]) * 0.9)
    high = math.log10(max([*known, *([line] if line else [])]) * 1.1)

    def x(value: float) -> float:
        return LEFT + WIDTH * (math.log10(value) - low) / (high - low)

    height = TOP + ROW * len(rows) + 14
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 70}" height="{height}" '
            'font-family="sans-serif" font-size="10">'
        ),
        f'<rect width="100%" height="100%" fill="white"/><text x="8" y="14" font-size="13">{escape(title)}</text>',
    ]
    for number, name in enumerate(series):
        parts.append(
            f'<rect x="{LEFT + 110 * number}" y="22" width="9" height="9" fill="{COLOURS[number]}"/>'
            f'<text x="{LEFT + 110 * number + 13}" y="30">{escape(name)}</text>'
        )
    step = (ROW - 3) / len(series)
    for index, row in enumerate(rows):
        y = TOP + ROW * index
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 10}" text-anchor="end">{escape(row.name)}</text>'
        )
        for number, value in enumerate(row.values):
            if not value:
                continue
            start, end = sorted((x(line) if line else LEFT, x(value)))
            parts.append(
                f'<rect x="{start:.1f}" y="{y + number * step:.1f}" width="{max(end - start, 0.5):.1f}" '
                f'height="{step:.1f}" fill="{COLOURS[number]}"/>'
            )
        last = [value for value in row.values if value]
        if last:
            text = ", ".join(f"{value:.3g}" for value in last)
            parts.append(
                f'<text x="{x(max(last)) + 3:.1f}" y="{y + 10}" fill="#444">{text} {escape(unit)}</text>'
            )
    if line:
        parts.append(
            f'<line x1="{x(line):.1f}" x2="{x(line):.1f}" y1="{TOP - 4}" y2="{height - 8}" stroke="#c00"/>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
