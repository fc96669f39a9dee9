"""Charts of a recipe report as SVG: learning curves, dots with whiskers, a confusion matrix, residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from edged.charts.svg import ROW, Axis, Chart, Drawing, extent

if TYPE_CHECKING:
    from edged.charts.svg import Formatter

COLOURED = 6  # recipes that have a colour and a dash of their own
HEIGHT, BELOW = 254, 34
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


def curves(lines: Sequence[Curve], what: str, formatter: Formatter) -> str:
    """Values over epochs; each epoch tells those of the coloured recipes when pointed at."""
    epochs = max(len(line.values) for line in lines)
    up = extent([v for line in lines for v in line.values if np.isfinite(v)])
    chart = Chart(480, HEIGHT, BELOW, (1, max(2, epochs)), up)
    chart.grid(formatter)
    chart.scale([v for v in chart.x.ticks(8) if v == int(v)], lambda value: f"{value:.0f}", "epoch")
    for line in sorted(lines, key=lambda line: -line.place):
        chart.curve(line.style, enumerate(line.values, 1), line.name)
    for epoch in range(1, epochs + 1):
        titles = [f"epoch {epoch} of {epochs}"]
        titles += [
            f"{line.name}: {formatter(line.values[epoch - 1])}"
            for line in lines
            if line.place < COLOURED and len(line.values) >= epoch
        ]
        chart.stretch("hover", epoch - 0.5, epoch + 0.5, "\n".join(titles))
    return chart.svg(f"{what} over epochs")


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


def whiskers(rows: Sequence[SeedDots], what: str, formatter: Formatter) -> str:
    """A dot with its interval for each recipe, one below the other."""
    left = 20 + LETTER * max(len(row.name) for row in rows)
    drawing = Drawing(960, ROW * len(rows) + 44)
    values = [v for row in rows for v in (row.mean, row.low, row.high, *row.seeds) if np.isfinite(v)]
    values += [row.test for row in rows if row.test is not None and np.isfinite(row.test)]
    x = Axis(*extent(values), left + 10, drawing.width - 20)
    foot = ROW * len(rows) + 8
    for value in x.ticks(7):
        drawing.line("grid", (x(value), 4), (x(value), foot))
        drawing.text(x(value), foot + 18, formatter(value))
    drawing.shape("rect", "best", x=0, y=5, width=drawing.width, height=ROW - 2)
    for i, row in enumerate(rows):
        _dots(drawing, row, x, 4 + (i + 0.5) * ROW, left, formatter)
    return drawing.svg(f"{what} of each recipe with its interval")


def confusion(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Counts, true classes down, answers across; the darker the larger a cell's share of its row."""
    table = np.asarray(counts, np.float64)
    share = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    longest = max(map(len, classes))
    left, top = 24 + LETTER * longest, 26 + (LETTER * longest if longest > 4 else 12)
    drawing = Drawing(left + CELL * len(classes) + 10, top + ROW * len(classes) + 8)
    drawing.text(0, 14, "true ↓  answer →", "start")
    for j, name in enumerate(classes):
        at = left + (j + 0.5) * CELL
        turned = {"transform": f"rotate(-60 {at:.1f} {top - 6:.1f})"} if longest > 4 else {}
        drawing.text(at, top - 6, name, "start" if turned else "middle", **turned)

    def cell(i: int, j: int) -> tuple[str, str]:
        count = f"{table[i, j]:,.0f}" if table[i, j] else ""
        return count, f"{classes[i]} as {classes[j]}: {100 * share[i, j]:.1f} %"

    drawing.cells(classes, share, cell, (left, top), CELL)
    return drawing.svg("confusion matrix", most=f"{drawing.width:.0f}px")


def histogram(edges: Sequence[float], counts: Sequence[int], what: str, formatter: Formatter) -> str:
    """Bars of counts between edges, with a line at 0."""
    chart = Chart(960, HEIGHT, BELOW, (edges[0], edges[-1]), (0, max(counts) * 1.05))
    chart.grid(lambda v: f"{v:,.0f}")
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        x, y = chart.x(low), chart.y(count)
        width, title = max(0.5, chart.x(high) - x - 1), f"{formatter(low)} to {formatter(high)}: {count:,}"
        chart.shape("rect", "bar", title, x=x, y=y, width=width, height=chart.y(0) - y)
    chart.scale(chart.x.ticks(8), formatter, what)
    if edges[0] < 0 < edges[-1]:
        chart.upright("zero", 0)
    return chart.svg(f"histogram of {what}")


def _dots(drawing: Drawing, row: SeedDots, x: Axis, middle: float, left: float, formatter: Formatter) -> None:
    title = f"{row.name}: {formatter(row.mean)}"
    spread, test = np.isfinite(row.low), np.nan if row.test is None else row.test
    title += f", 95 % interval {formatter(row.low)} to {formatter(row.high)}" if spread else ""
    title += f", test {formatter(test)}" if np.isfinite(test) else ""
    with drawing.group(title):
        drawing.text(left - 4, middle + 4, row.name, "end", "name")
        if spread:
            drawing.line("whisker", (x(row.low), middle), (x(row.high), middle))
            for at in (x(row.low), x(row.high)):
                drawing.line("whisker", (at, middle - 4), (at, middle + 4))
        for value in row.seeds:
            drawing.shape("circle", "seed", cx=x(value), cy=middle, r=3)
        drawing.shape("circle", "mean", cx=x(row.mean), cy=middle, r=5.5)
        if np.isfinite(test):
            drawing.shape("path", "test", d=f"M{x(test):.1f} {middle - 6}l6 6l-6 6l-6 -6z")
