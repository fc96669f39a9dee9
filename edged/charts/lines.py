"""Charts of a report as SVG: lines over the stream with marks, and a matrix of skills."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from edged.charts.axes import Axis, extent, text_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 960, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 46
CELL_WIDTH, CELL_HEIGHT = 62, 26


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
    at: Sequence[tuple[int, str]] = field(default_factory=tuple)


@dataclass(frozen=True)
class Bands:
    """Stretches of the horizontal axis: over the whole height (`alarm`) or at the top (`known`)."""

    style: str
    spans: Sequence[tuple[int, int, str]] = field(default_factory=tuple)


def line_chart(
    starts: Sequence[int],
    ends: Sequence[int],
    lines: Sequence[ChartLine],
    marks: Sequence[Marks],
    tell: Callable[[float], str],
    threshold: float | None = None,
    bands: Sequence[Bands] = (),
    unit: str = "sample",
) -> str:
    """Lines over windows `starts` to `ends` of the stream; each window tells its values when pointed at.

    `unit` is what the horizontal axis counts.
    """
    x = Axis(starts[0], max(ends[-1], starts[0] + 1), LEFT, WIDTH - RIGHT)
    values = [v for line in lines for v in line.values if np.isfinite(v)]
    values += [threshold] if threshold is not None else []
    y = Axis(*extent(values), HEIGHT - BOTTOM, TOP)
    parts = [_band(band.style, x, span) for band in bands for span in band.spans]
    parts.append(_grid(x, y, tell, unit))
    for mark in marks:
        parts += [_mark(mark.style, x(at), text) for at, text in mark.at]
    if threshold is not None:
        at = y(threshold)
        parts.append(
            f'<line class="threshold" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
    centres = [(start + end) / 2 for start, end in zip(starts, ends, strict=True)]
    for line in lines:
        points = " ".join(
            f"{x(at):.1f},{y(value):.1f}"
            for at, value in zip(centres, line.values, strict=True)
            if np.isfinite(value)
        )
        parts.append(f'<polyline class="line {line.style}" points="{points}"/>')
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        told = "\n".join(f"{line.name}: {tell(line.values[i])}" for line in lines)
        parts.append(
            f'<rect class="hover" x="{x(start):.1f}" y="{TOP}" width="{max(1.0, x(end) - x(start)):.1f}" '
            f'height="{HEIGHT - BOTTOM - TOP}"><title>{unit}s {start:,} to {end:,}\n{escape(told)}</title>'
            "</rect>"
        )
    legend = "".join(f'<span class="key {line.style}">{escape(line.name)}</span>' for line in lines)
    used = [mark.style for mark in marks if mark.at] + [band.style for band in bands if band.spans]
    legend += "".join(f'<span class="key {style}">{style}</span>' for style in used)
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
    return f'<div class="legend">{legend}</div>{picture}'


def matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    tell: Callable[[float], str],
) -> str:
    """A table of cells that are the darker the higher their value within its column."""
    table = np.asarray(values, np.float64)
    low, high = table.min(axis=0), table.max(axis=0)
    shade = (table - low) / np.where(high > low, high - low, 1.0)
    shade[:, high <= low] = 0.5
    parts = [
        text_at(LEFT + 34 + (j + 0.5) * CELL_WIDTH, 14, name, "middle") for j, name in enumerate(columns)
    ]
    for i, name in enumerate(rows):
        top = 22 + i * CELL_HEIGHT
        parts.append(text_at(LEFT + 26, top + 18, name, "end"))
        for j, value in enumerate(table[i]):
            left = LEFT + 34 + j * CELL_WIDTH
            parts.append(
                f'<rect class="cell" x="{left}" y="{top}" width="{CELL_WIDTH - 2}" '
                f'height="{CELL_HEIGHT - 2}" fill-opacity="{0.08 + 0.62 * shade[i, j]:.2f}"/>'
            )
            middle = left + CELL_WIDTH / 2 - 1
            parts.append(text_at(middle, top + 17, tell(float(value)), "middle", "value"))
    width, height = LEFT + 40 + len(columns) * CELL_WIDTH, 26 + len(rows) * CELL_HEIGHT
    frame = f'viewBox="0 0 {width} {height}" style="max-width:{width}px"'
    return f'<svg class="matrix" {frame}>{"".join(parts)}</svg>'


def _grid(x: Axis, y: Axis, tell: Callable[[float], str], unit: str) -> str:
    parts = []
    for value in y.ticks(5):
        at = y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(text_at(LEFT - 8, at + 4, tell(value), "end"))
    parts += [text_at(x(value), HEIGHT - BOTTOM + 30, f"{value:,.0f}", "middle") for value in x.ticks(8)]
    parts.append(text_at((LEFT + WIDTH) / 2, HEIGHT - 2, unit, "middle"))
    return "".join(parts)


def _band(style: str, x: Axis, span: tuple[int, int, str]) -> str:
    first, last, text = span
    height = HEIGHT - BOTTOM - TOP if style == "alarm" else 6
    width = max(1.5, x(last) - x(first))
    return (
        f'<rect class="band {style}" x="{x(first):.1f}" y="{TOP}" width="{width:.1f}" height="{height}">'
        f"<title>{escape(text)}</title></rect>"
    )


def _mark(style: str, at: float, text: str) -> str:
    top, foot = (TOP, HEIGHT - BOTTOM) if style == "drift" else (HEIGHT - BOTTOM + 3, HEIGHT - BOTTOM + 13)
    return (
        f'<line class="mark {style}" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{foot}">'
        f"<title>{escape(text)}</title></line>"
    )
