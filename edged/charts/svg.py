"""SVG for the charts of reports and of the device's page: axes, shapes, and the picture around them.

Positions are in the picture's own units, from its upper left corner; floats are written with one digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape

import numpy as np

Formatter = Callable[[float], str]

LEFT, RIGHT, TOP = 56, 10, 12


class Axis:
    """Maps values to positions in the picture."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high, self._first, self._last = low, high, first, last

    def __call__(self, value: float) -> float:
        """Return the position of `value` in the picture."""
        return self._first + (value - self.low) / (self.high - self.low) * (self._last - self._first)

    def ticks(self, most: int) -> list[float]:
        """Round numbers within the axis, at most about `most`."""
        rough = (self.high - self.low) / most
        power = 10.0 ** np.floor(np.log10(rough))
        step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * (1 - 1e-9))
        first = np.ceil(self.low / step - 1e-9)
        return [float(first + i) * step for i in range(int((self.high - first * step) / step + 1e-9) + 1)]


def extent(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis that holds all of `values` with a little room; not below 0 where none is."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = max((high - low) * 0.06, abs(high) * 1e-3, 1e-9)
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


class Chart:
    """A picture with axes; what is drawn later lies above.

    `width` and `height` are those of the whole picture, of which `below` is below the horizontal axis;
    `across` and `up` are the ends of the axes `x` and `y`.
    """

    def __init__(
        self, width: int, height: int, below: int, across: tuple[float, float], up: tuple[float, float]
    ) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []
        self.right, self.foot = width - RIGHT, height - below
        self.x = Axis(*across, LEFT, self.right)
        self.y = Axis(*up, self.foot, TOP)

    def shape(self, tag: str, style: str, title: str = "", text: str = "", **attributes: float | str) -> None:
        """One element of CSS class `style`; `title` is its tooltip."""
        named = {"class": style} if style else {}
        inside = (f"<title>{escape(title)}</title>" if title else "") + escape(text)
        end = f">{inside}</{tag}>" if inside else "/>"
        self._parts.append(f"<{tag}{_attributes(named | attributes)}{end}")

    def text(self, x: float, y: float, text: str, anchor: str = "middle", **more: str) -> None:
        """One piece of text; `anchor` is start, middle or end."""
        self.shape("text", "axis", text=text, x=float(x), y=float(y), **{"text-anchor": anchor}, **more)

    def line(
        self, style: str, first: tuple[float, float], last: tuple[float, float], title: str = ""
    ) -> None:
        """A straight line between two points."""
        self.shape("line", style, title, x1=first[0], x2=last[0], y1=first[1], y2=last[1])

    @contextmanager
    def group(self, title: str, style: str = "") -> Iterator[None]:
        """Group what is drawn meanwhile under one tooltip, `title`."""
        self._parts.append(f'<g class="{style}">' if style else "<g>")
        yield
        self._parts.append(f"<title>{escape(title)}</title></g>")

    def svg(self, label: str, style: str) -> str:
        """The whole picture, one image to screen readers."""
        named = {"class": style, "viewBox": f"0 0 {self.width} {self.height}", "role": "img"}
        return f"<svg{_attributes(named | {'aria-label': label})}>{''.join(self._parts)}</svg>"

    def grid(self, formatter: Formatter, most: int = 5) -> None:
        """Lines across at round values, which stand beside them."""
        for value in self.y.ticks(most):
            self.level("grid", value)
            self.text(LEFT - 7, self.y(value) + 4, formatter(value), "end")

    def level(self, style: str, value: float) -> None:
        """A line across at a value."""
        self.line(style, (LEFT, self.y(value)), (self.right, self.y(value)))

    def upright(self, style: str, at: float, title: str = "") -> None:
        """A line from top to foot."""
        self.line(style, (self.x(at), TOP), (self.x(at), self.foot), title)

    def scale(self, ticks: Iterable[float], formatter: Formatter, name: str) -> None:
        """Draw the labels below the horizontal axis."""
        for value in ticks:
            self.text(self.x(value), self.height - 16, formatter(value))
        self.text((LEFT + self.width) / 2, self.height - 2, name)

    def curve(self, style: str, points: Iterable[tuple[float, float | None]]) -> None:
        """A line through points; those that are None, NaN or infinite are left out."""
        there = [(self.x(at), self.y(v)) for at, v in points if v is not None and np.isfinite(v)]
        if there:
            self.shape("polyline", style, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in there))

    def stretch(
        self, style: str, first: float, last: float, title: str, height: float = 0, least: float = 1.0
    ) -> None:
        """A part of the horizontal axis, from the top down to the foot unless it has a `height`."""
        start, end = max(LEFT, self.x(first)), min(self.right, self.x(last))
        width, height = max(least, end - start), height or self.foot - TOP
        self.shape("rect", style, title, x=start, y=TOP, width=width, height=height)


def _attributes(values: dict[str, float | str] | dict[str, str]) -> str:
    texts = {name: f"{v:.1f}" if isinstance(v, float) else escape(str(v)) for name, v in values.items()}
    return "".join(f' {name}="{text}"' for name, text in texts.items())
