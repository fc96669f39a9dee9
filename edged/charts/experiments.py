"""Charts of a recipe report as SVG: learning curves, dots with whiskers, a confusion matrix, residuals."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from edged.charts.axes import Axis, extent, text_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Tell = Callable[[float], str]

COLOURED = 6  # recipes that have a colour and a dash of their own
WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 54, 10, 10, 40
ROW = 26  # height of a row of dots
LETTER = 7.4  # width of a letter of a name
CELL = 46


@dataclass(frozen=True)
class Curve:
    """One line: values at epochs 1, 2, ...; `place` is the rank of its recipe, counted from 0."""

    name: str
    place: int
    values: Sequence[float]
    train: bool = False

    @property
    def style(self) -> str:
        """CSS classes of the line."""
        colour = f"c{self.place}" if self.place < COLOURED else "rest"
        return f"curve {colour}{' train' if self.train else ''}"


def curves(lines: Sequence[Curve], what: str, tell: Tell) -> str:
    """Values over epochs; each epoch tells those of the coloured recipes when pointed at."""
    epochs = max(len(line.values) for line in lines)
    x = Axis(1, max(2, epochs), LEFT, WIDTH - RIGHT)
    y = Axis(*extent([v for line in lines for v in line.values if np.isfinite(v)]), HEIGHT - BOTTOM, TOP)
    parts = [_levels(y, tell, WIDTH)]
    steps = [value for value in x.ticks(8) if value == int(value)]
    parts += [text_at(x(value), HEIGHT - BOTTOM + 18, f"{value:.0f}", "middle") for value in steps]
    parts.append(text_at((LEFT + WIDTH) / 2, HEIGHT - 4, "epoch", "middle"))
    for line in sorted(lines, key=lambda line: -line.place):
        points = " ".join(f"{x(i + 1):.1f},{y(v):.1f}" for i, v in enumerate(line.values) if np.isfinite(v))
        title = f"<title>{escape(line.name)}</title>"
        parts.append(f'<polyline class="{line.style}" points="{points}">{title}</polyline>')
    parts += [_column(x, epoch, epochs, lines, tell) for epoch in range(1, epochs + 1)]
    return _picture(WIDTH, HEIGHT, f"{what} over epochs", parts)


def legend(names: Sequence[str], rest: int) -> str:
    """What the colours and dashes of the curves stand for; `rest` recipes are grey."""
    shown = [(f"curve c{i}", name) for i, name in enumerate(names[:COLOURED])]
    shown += [("curve rest", f"{rest} more")] if rest else []
    keys = (
        f'<span class="named"><svg class="swatch" viewBox="0 0 34 10" aria-hidden="true">'
        f'<line class="{style}" x1="0" x2="34" y1="5" y2="5"/></svg>{escape(name)}</span>'
        for style, name in shown
    )
    return f'<div class="legend">{"".join(keys)}</div>'


@dataclass(frozen=True)
class SeedDots:
    """One recipe: mean, interval and seeds of the validation metric, and the mean on the test part."""

    name: str
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    test: float | None


def whiskers(rows: Sequence[SeedDots], what: str, tell: Tell) -> str:
    """A dot with its interval for each recipe, one below the other."""
    left = 20 + LETTER * max(len(row.name) for row in rows)
    width, height = 960, ROW * len(rows) + 44
    values = [v for row in rows for v in (row.mean, row.low, row.high, *row.seeds) if np.isfinite(v)]
    values += [row.test for row in rows if row.test is not None and np.isfinite(row.test)]
    x = Axis(*extent(values), left + 10, width - 20)
    foot = ROW * len(rows) + 8
    parts = []
    for value in x.ticks(7):
        at = x(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{foot}"/>')
        parts.append(text_at(at, foot + 18, tell(value), "middle"))
    parts.append(f'<rect class="best" x="0" y="5" width="{width}" height="{ROW - 2}"/>')
    for i, row in enumerate(rows):
        parts.append(_dots(row, x, 4 + (i + 0.5) * ROW, left, tell))
    return _picture(width, height, f"{what} of each recipe with its interval", parts)


def confusion(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Counts, true classes down, answers across; the darker the larger a cell's share of its row."""
    table = np.asarray(counts, np.float64)
    share = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    longest = max(map(len, classes))
    left, top = 24 + LETTER * longest, 26 + (LETTER * longest if longest > 4 else 12)
    width, height = left + CELL * len(classes) + 10, top + ROW * len(classes) + 8
    parts = [text_at(0, 14, "true ↓  answer →", "start")]
    for j, name in enumerate(classes):
        at = left + (j + 0.5) * CELL
        turned = f' transform="rotate(-60 {at:.1f} {top - 6:.1f})"' if longest > 4 else ""
        anchor = "start" if turned else "middle"
        parts.append(
            f'<text class="axis" x="{at:.1f}" y="{top - 6:.1f}" text-anchor="{anchor}"{turned}>'
            f"{escape(name)}</text>"
        )
    for i, name in enumerate(classes):
        parts.append(text_at(left - 10, top + i * ROW + 17, name, "end"))
        for j in range(len(classes)):
            x, y = left + j * CELL, top + i * ROW
            title = f"<title>{escape(name)} as {escape(classes[j])}: {100 * share[i, j]:.1f} %</title>"
            parts.append(
                f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="{CELL - 2}" height="{ROW - 2}" '
                f'fill-opacity="{0.05 + 0.6 * share[i, j]:.2f}">{title}</rect>'
            )
            if table[i, j]:
                parts.append(text_at(x + CELL / 2 - 1, y + 17, f"{table[i, j]:,.0f}", "middle", "value"))
    return _picture(width, height, "confusion matrix", parts, limit=True)


def histogram(edges: Sequence[float], counts: Sequence[int], what: str, tell: Tell) -> str:
    """Bars of counts between edges, with a line at 0."""
    width = 960
    x = Axis(edges[0], edges[-1], LEFT, width - RIGHT)
    y = Axis(0, max(counts) * 1.05, HEIGHT - BOTTOM, TOP)
    parts = [_levels(y, lambda v: f"{v:,.0f}", width)]
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        bar = f'x="{x(low):.1f}" y="{y(count):.1f}" width="{max(0.5, x(high) - x(low) - 1):.1f}"'
        title = f"<title>{tell(low)} to {tell(high)}: {count:,}</title>"
        parts.append(f'<rect class="bar" {bar} height="{y(0) - y(count):.1f}">{title}</rect>')
    parts += [text_at(x(v), HEIGHT - BOTTOM + 18, tell(v), "middle") for v in x.ticks(8)]
    parts.append(text_at((LEFT + width) / 2, HEIGHT - 4, what, "middle"))
    if edges[0] < 0 < edges[-1]:
        at = x(0)
        parts.append(f'<line class="zero" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    return _picture(width, HEIGHT, f"histogram of {what}", parts)


def _picture(width: float, height: float, what: str, parts: Sequence[str], *, limit: bool = False) -> str:
    style = f' style="max-width:{width:.0f}px"' if limit else ""
    frame = f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(what)}"{style}'
    return f"<svg {frame}>{''.join(parts)}</svg>"


def _levels(y: Axis, tell: Tell, width: float) -> str:
    parts = []
    for value in y.ticks(5):
        at = y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(text_at(LEFT - 6, at + 4, tell(value), "end"))
    return "".join(parts)


def _column(x: Axis, epoch: int, epochs: int, lines: Sequence[Curve], tell: Tell) -> str:
    """The stretch of one epoch, which tells its values when pointed at."""
    half = (x(2) - x(1)) / 2
    first, last = max(LEFT, x(epoch) - half), min(WIDTH - RIGHT, x(epoch) + half)
    told = [
        f"{line.name}: {tell(line.values[epoch - 1])}"
        for line in lines
        if line.place < COLOURED and len(line.values) >= epoch
    ]
    title = escape("\n".join([f"epoch {epoch} of {epochs}", *told]))
    return (
        f'<rect class="hover" x="{first:.1f}" y="{TOP}" width="{last - first:.1f}" '
        f'height="{HEIGHT - BOTTOM - TOP}"><title>{title}</title></rect>'
    )


def _dots(row: SeedDots, x: Axis, middle: float, left: float, tell: Tell) -> str:
    told = f"{row.name}: {tell(row.mean)}"
    parts = [text_at(left - 4, middle + 4, row.name, "end", "name")]
    if np.isfinite(row.low):
        told += f", 95 % interval {tell(row.low)} to {tell(row.high)}"
        low, high = x(row.low), x(row.high)
        parts.append(f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
        parts += [
            f'<line class="whisker" x1="{at:.1f}" x2="{at:.1f}" y1="{middle - 4}" y2="{middle + 4}"/>'
            for at in (low, high)
        ]
    parts += [f'<circle class="seed" cx="{x(v):.1f}" cy="{middle}" r="3"/>' for v in row.seeds]
    parts.append(f'<circle class="mean" cx="{x(row.mean):.1f}" cy="{middle}" r="5.5"/>')
    if row.test is not None and np.isfinite(row.test):
        told += f", test {tell(row.test)}"
        at = x(row.test)
        diamond = f"{at:.1f},{middle - 6} {at + 6:.1f},{middle} {at:.1f},{middle + 6} {at - 6:.1f},{middle}"
        parts.append(f'<polygon class="test" points="{diamond}"/>')
    return f"<g>{''.join(parts)}<title>{escape(told)}</title></g>"
