"""Charts of a report as SVG: lines over the stream with marks, and a matrix of skills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from edged.charts.svg import LEFT, ROW, Chart, Drawing, extent

if TYPE_CHECKING:
    from edged.charts.svg import Tell

CELL_WIDTH = 62


@dataclass(frozen=True)
class ChartLine:
    """One line: its name in the legend, its CSS class, one value a window."""

    name: str
    style: str
    values: Sequence[float]


@dataclass(frozen=True)
class Marks:
    """Moments on the horizontal axis: upright lines (`drift`) or ticks at the foot (`swap`)."""

    style: str
    at: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True)
class Bands:
    """Stretches of the horizontal axis: over the whole height (`alarm`) or at the top (`known`)."""

    style: str
    spans: Sequence[tuple[int, int, str]] = ()


def line_chart(
    starts: Sequence[int],
    ends: Sequence[int],
    lines: Sequence[ChartLine],
    marks: Sequence[Marks],
    tell: Tell,
    threshold: float | None = None,
    bands: Sequence[Bands] = (),
    unit: str = "sample",
) -> str:
    """Lines over windows `starts` to `ends` of the stream; each window tells its values when pointed at.

    `unit` is what the horizontal axis counts.
    """
    values = [v for line in lines for v in line.values if np.isfinite(v)]
    values += [threshold] if threshold is not None else []
    chart = Chart(960, 300, 46, (starts[0], max(ends[-1], starts[0] + 1)), extent(values))
    for band in bands:
        for first, last, text in band.spans:
            height = 0 if band.style == "alarm" else 6
            chart.stretch(f"band {band.style}", first, last, text, height, least=1.5)
    chart.grid(tell)
    chart.scale(chart.x.ticks(8), lambda value: f"{value:,.0f}", unit)
    for mark in marks:
        for at, text in mark.at:
            if mark.style == "drift":
                chart.upright("mark drift", at, text)
            else:
                x, foot = chart.x(at), chart.foot
                chart.line(f"mark {mark.style}", (x, foot + 3), (x, foot + 13), text)
    if threshold is not None:
        chart.level("threshold", threshold)
    centres = [(start + end) / 2 for start, end in zip(starts, ends, strict=True)]
    for line in lines:
        chart.curve(f"line {line.style}", zip(centres, line.values, strict=True))
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        told = [f"{unit}s {start:,} to {end:,}", *(f"{line.name}: {tell(line.values[i])}" for line in lines)]
        chart.stretch("hover", start, end, "\n".join(told))
    legend = "".join(f'<span class="key {line.style}">{escape(line.name)}</span>' for line in lines)
    used = [mark.style for mark in marks if mark.at] + [band.style for band in bands if band.spans]
    legend += "".join(f'<span class="key {style}">{style}</span>' for style in used)
    return f'<div class="legend">{legend}</div>{chart.svg()}'


def matrix(rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], tell: Tell) -> str:
    """A table of cells that are the darker the higher their value within its column."""
    table = np.asarray(values, np.float64)
    low, high = table.min(axis=0), table.max(axis=0)
    shade = (table - low) / np.where(high > low, high - low, 1.0)
    shade[:, high <= low] = 0.5
    left = LEFT + 34
    width = left + 6 + len(columns) * CELL_WIDTH
    drawing = Drawing(width, 26 + len(rows) * ROW)
    for j, name in enumerate(columns):
        drawing.text(left + (j + 0.5) * CELL_WIDTH, 14, name)
    drawing.cells(rows, shade, lambda i, j: (tell(float(table[i, j])), ""), (left, 22), CELL_WIDTH)
    return drawing.svg(style="matrix", most=f"{width}px")
