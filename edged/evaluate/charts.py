"""Charts of a report as SVG: lines over the stream with marks, and a matrix of skills."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 960, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 46
CELL_WIDTH, CELL_HEIGHT = 62, 26


@dataclass(frozen=True)
class Line:
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
    lines: Sequence[Line],
    marks: Sequence[Marks],
    tell: Callable[[float], str],
    threshold: float | None = None,
    bands: Sequence[Bands] = (),
) -> str:
    """Lines over windows `starts` to `ends` of the stream; each window tells its values when pointed at."""
    x = _Axis(starts[0], max(ends[-1], starts[0] + 1), LEFT, WIDTH - RIGHT)
    values = [v for line in lines for v in line.values if np.isfinite(v)]
    values += [threshold] if threshold is not None else []
    y = _Axis(*_range(values), HEIGHT - BOTTOM, TOP)
    parts = [_band(band.style, x, span) for band in bands for span in band.spans]
    parts.append(_grid(x, y, tell))
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
            f'height="{HEIGHT - BOTTOM - TOP}"><title>samples {start:,} to {end:,}\n{escape(told)}</title>'
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
    parts = [_text(LEFT + 34 + (j + 0.5) * CELL_WIDTH, 14, name, "middle") for j, name in enumerate(columns)]
    for i, name in enumerate(rows):
        top = 22 + i * CELL_HEIGHT
        parts.append(_text(LEFT + 26, top + 18, name, "end"))
        for j, value in enumerate(table[i]):
            left = LEFT + 34 + j * CELL_WIDTH
            parts.append(
                f'<rect class="cell" x="{left}" y="{top}" width="{CELL_WIDTH - 2}" '
                f'height="{CELL_HEIGHT - 2}" fill-opacity="{0.08 + 0.62 * shade[i, j]:.2f}"/>'
            )
            middle = left + CELL_WIDTH / 2 - 1
            parts.append(_text(middle, top + 17, tell(float(value)), "middle", "value"))
    width, height = LEFT + 40 + len(columns) * CELL_WIDTH, 26 + len(rows) * CELL_HEIGHT
    frame = f'viewBox="0 0 {width} {height}" style="max-width:{width}px"'
    return f'<svg class="matrix" {frame}>{"".join(parts)}</svg>'


class _Axis:
    """Maps values to positions in the picture."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high, self._first, self._last = low, high, first, last

    def __call__(self, value: float) -> float:
        return self._first + (value - self.low) / (self.high - self.low) * (self._last - self._first)

    def ticks(self, most: int) -> list[float]:
        """Round numbers within the axis, at most about `most`."""
        rough = (self.high - self.low) / most
        power = 10.0 ** np.floor(np.log10(rough))
        step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * (1 - 1e-9))
        first = np.ceil(self.low / step - 1e-9)
        return [float(first + i) * step for i in range(int((self.high - first * step) / step + 1e-9) + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = max((high - low) * 0.06, abs(high) * 1e-3, 1e-9)
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


def _grid(x: _Axis, y: _Axis, tell: Callable[[float], str]) -> str:
    parts = []
    for value in y.ticks(5):
        at = y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 8, at + 4, tell(value), "end"))
    parts += [_text(x(value), HEIGHT - BOTTOM + 30, f"{value:,.0f}", "middle") for value in x.ticks(8)]
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 2, "sample", "middle"))
    return "".join(parts)


def _band(style: str, x: _Axis, span: tuple[int, int, str]) -> str:
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


def _text(x: float, y: float, text: str, anchor: str, style: str = "axis") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
