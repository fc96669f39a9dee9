"""Quality over time as SVG: the model that serves, the first one, and what happened on the same axis."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from edged.charts.axes import Axis, extent, text_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edged.device.web.page.history import Point

STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Seconds between two labels of the axis; days beyond."""
UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True)
class Size:
    """Of a picture, with room for its axes."""

    width: int
    height: int
    ticks: int
    style: str

    @property
    def left(self) -> int:
        """Where the axis of values stands."""
        return 56

    @property
    def foot(self) -> int:
        """Where the axis of time lies."""
        return self.height - 28


WIDE = Size(960, 260, 8, "wide")
NARROW = Size(320, 220, 3, "narrow")
"""For phones; the page's style shows one of them."""

TOP, RIGHT = 12, 10


def timeline(
    points: Sequence[Point],
    marks: Sequence[tuple[float, str, str]],
    now: float,
    tell: Callable[[float], str],
    size: Size,
) -> str:
    """The picture; its words are elsewhere on the page, so it is one image to screen readers."""
    first = points[0][0] if points else now - 60.0
    x = Axis(first, max(now, first + 1.0), size.left, size.width - RIGHT)
    values = [v for _, live, frozen in points for v in (live, frozen) if v is not None]
    low, high = extent(values)
    y = Axis(low, high, size.foot, TOP)
    parts = [_axes(x, y, now, tell, size)]
    parts += [_mark(x(ts), kind, text, size) for ts, kind, text in marks if ts >= first]
    thin = points[:: max(1, len(points) // (size.width // 3))]
    if points and thin[-1] != points[-1]:
        thin = [*thin, points[-1]]
    parts.append(_line("frozen", [(x(ts), y(v)) for ts, _, v in thin if v is not None]))
    parts.append(_line("live", [(x(ts), y(v)) for ts, v, _ in thin if v is not None]))
    return (
        f'<svg class="timeline {size.style}" viewBox="0 0 {size.width} {size.height}" role="img"'
        f' aria-label="Quality over time; the same in words below">{"".join(parts)}</svg>'
    )


def _axes(x: Axis, y: Axis, now: float, tell: Callable[[float], str], size: Size) -> str:
    left, right, foot = size.left, size.width - RIGHT, size.foot
    parts = []
    for value in y.ticks(4):
        at = y(value)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(text_at(left - 7, at + 4, tell(value), "end"))
    parts.append(f'<path class="axes" d="M{left} {TOP}V{foot}H{right}"/>')
    span = x.high - x.low
    step = next((s for s in STEPS if span / s <= size.ticks), 86400 * (1 + span // (86400 * size.ticks)))
    for i in range(int(span / step) + 1):
        text = "now" if i == 0 else f"−{_back(i * step, step)}"
        at, anchor = x(now - i * step) if now <= x.high else right, "end" if i == 0 else "middle"
        if i == 0 or at - left > 24:
            parts.append(text_at(at, foot + 18, text, anchor))
    return "".join(parts)


def _back(seconds: float, step: float) -> str:
    """How long ago, in the unit of the axis' step.

    >>> _back(100, 20), _back(7200, 1200), _back(172800, 43200)
    ('100 s', '120 min', '48 h')
    """
    length, unit = next(((n, u) for n, u in UNITS if step >= n), (1, "s"))
    return f"{seconds / length:g} {unit}"


def _line(style: str, at: Sequence[tuple[float, float]]) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    return f'<polyline class="line {style}" points="{points}"/>' if at else ""


def _mark(at: float, kind: str, text: str, size: Size) -> str:
    """An upright line, with a sign at its head that tells kinds apart without colour."""
    signs = {
        "drift": f"M{at - 5:.1f} {TOP - 8}h10l-5 8z",  # a triangle
        "swap": f"M{at - 4:.1f} {TOP - 8}h8v8h-8z",  # a square
        "back": f"M{at:.1f} {TOP - 9}l5 5l-5 5l-5 -5z",  # a diamond
    }
    return (
        f'<g class="mark {kind}"><title>{escape(text)}</title><path d="{signs[kind]}"/>'
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{size.foot}"/></g>'
    )
