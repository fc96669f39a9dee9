"""Line charts of reports as SVG, with marks and bands over the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from edged.charts.svg import Chart, Formatter, extent


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


@dataclass(frozen=True)
class LineChart:
    """Lines over windows `starts` to `ends` of the stream; `unit` is what the horizontal axis counts.

    `threshold` is a dashed line across.
    """

    starts: Sequence[int]
    ends: Sequence[int]
    lines: Sequence[ChartLine]
    marks: Sequence[Marks]
    formatter: Formatter
    threshold: float | None = None
    bands: Sequence[Bands] = ()
    unit: str = "sample"

    def html(self) -> str:
        """The legend and the chart, once for wide screens and once for phones: CSS shows one of them.

        On a wide screen each window tells its values when pointed at.
        """
        legend = "".join(f'<span class="key {one.style}">{escape(one.name)}</span>' for one in self.lines)
        used = [mark.style for mark in self.marks if mark.at]
        used += [band.style for band in self.bands if band.spans]
        legend += "".join(f'<span class="key {style}">{style}</span>' for style in used)
        wide, narrow = self._draw(960, 300, 8), self._draw(360, 240, 3)
        self._hover(wide)
        label = f"{', '.join(line.name for line in self.lines)} by {self.unit}"
        pictures = wide.svg(label, "desk") + narrow.svg(label, "phone")
        return f'<div class="legend">{legend}</div>{pictures}'

    def _draw(self, width: int, height: int, ticks: int) -> Chart:
        values = [v for line in self.lines for v in line.values if np.isfinite(v)]
        values += [self.threshold] if self.threshold is not None else []
        across = self.starts[0], max(self.ends[-1], self.starts[0] + 1)
        chart = Chart(width, height, 46, across, extent(values))
        for band in self.bands:
            for first, last, text in band.spans:
                tall = 0 if band.style == "alarm" else 6
                chart.stretch(f"band {band.style}", first, last, text, tall, least=1.5)
        chart.grid(self.formatter)
        chart.scale(chart.x.ticks(ticks), lambda value: f"{value:,.0f}", self.unit)
        self._mark(chart)
        if self.threshold is not None:
            chart.level("threshold", self.threshold)
        centres = [(start + end) / 2 for start, end in zip(self.starts, self.ends, strict=True)]
        for line in self.lines:
            chart.curve(f"line {line.style}", zip(centres, line.values, strict=True))
        return chart

    def _mark(self, chart: Chart) -> None:
        for mark in self.marks:
            for at, text in mark.at:
                if mark.style == "drift":
                    chart.upright("mark drift", at, text)
                else:
                    x, foot = chart.x(at), chart.foot
                    chart.line(f"mark {mark.style}", (x, foot + 3), (x, foot + 13), text)

    def _hover(self, chart: Chart) -> None:
        for i, (start, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            titles = [f"{self.unit}s {start:,} to {end:,}"]
            titles += [f"{line.name}: {self.formatter(line.values[i])}" for line in self.lines]
            chart.stretch("hover", start, end, "\n".join(titles))
