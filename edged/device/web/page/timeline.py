"""Chart of quality over time as SVG: the current model, the initial model, drifts and promotions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.charts.svg import LEFT, TOP, Chart, extent
from edged.device.web.page.history import Mark, Point

if TYPE_CHECKING:
    from edged.charts.svg import Formatter

STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Seconds between two labels of the axis; days beyond."""
UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True)
class Size:
    """Size of a chart in pixels, with room for its axes."""

    width: int
    height: int
    ticks: int
    style: str


WIDE = Size(960, 260, 8, "wide")
NARROW = Size(320, 220, 3, "narrow")
"""For phones; the page's style shows one of them."""


def measured(points: Sequence[Point]) -> list[Point]:
    """Return the points that have live quality: what was measured before the first label says nothing.

    >>> measured([(1.0, None, 0.5), (2.0, 0.9, 0.5), (3.0, None, None)])
    [(2.0, 0.9, 0.5)]
    """
    return [point for point in points if point[1] is not None]


def timeline(
    points: Sequence[Point], marks: Sequence[Mark], now: float, formatter: Formatter, size: Size
) -> str:
    """Return the chart; it is one image to screen readers."""
    first = points[0][0] if points else now - 60.0
    values = [v for _, live, frozen in points for v in (live, frozen) if v is not None]
    chart = Chart(size.width, size.height, 28, (first, max(now, first + 1.0)), extent(values))
    _draw_axes(chart, now, formatter, size.ticks)
    for ts, kind, text in marks:
        if ts >= first:
            _draw_mark(chart, ts, kind, text)
    thin = points[:: max(1, len(points) // (size.width // 3))]
    if points and thin[-1] != points[-1]:
        thin = [*thin, points[-1]]
    chart.curve("line frozen", [(ts, v) for ts, _, v in thin])
    chart.curve("line live", [(ts, v) for ts, v, _ in thin])
    return chart.svg("Quality over time", f"timeline {size.style}")


def _draw_axes(chart: Chart, now: float, formatter: Formatter, ticks: int) -> None:
    chart.grid(formatter, 4)
    chart.shape("path", "axes", d=f"M{LEFT} {TOP}V{chart.foot}H{chart.right}")
    x, span = chart.x, chart.x.high - chart.x.low
    step = next((s for s in STEPS if span / s <= ticks), 86400 * (1 + span // (86400 * ticks)))
    for i in range(int(span / step) + 1):
        text = "now" if i == 0 else f"−{_back(i * step, step)}"
        at, anchor = x(now - i * step) if now <= x.high else chart.right, "end" if i == 0 else "middle"
        if i == 0 or at - LEFT > 24:
            chart.text(at, chart.foot + 18, text, anchor)


def _back(seconds: float, step: float) -> str:
    """Format how long ago, in the unit of the axis' step.

    >>> _back(100, 20), _back(7200, 1200), _back(172800, 43200)
    ('100 s', '120 min', '48 h')
    """
    length, unit = next(((n, u) for n, u in UNITS if step >= n), (1, "s"))
    return f"{seconds / length:g} {unit}"


def _draw_mark(chart: Chart, ts: float, kind: str, text: str) -> None:
    """Draw a vertical line, with a shape at its top that tells kinds apart without colour."""
    at = chart.x(ts)
    signs = {
        "drift": f"M{at - 5:.1f} {TOP - 8}h10l-5 8z",  # a triangle
        "swap": f"M{at - 4:.1f} {TOP - 8}h8v8h-8z",  # a square
        "back": f"M{at:.1f} {TOP - 9}l5 5l-5 5l-5 -5z",  # a diamond
    }
    with chart.group(text, f"mark {kind}"):
        chart.shape("path", "", d=signs[kind])
        chart.upright("", ts)
