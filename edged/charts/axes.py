"""Axes of a chart: values to positions, round numbers to label them with, and text in the picture."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


class Axis:
    """Maps values to positions in the picture."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high, self._first, self._last = low, high, first, last

    def __call__(self, value: float) -> float:
        """Where `value` lies in the picture."""
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


def text_at(x: float, y: float, text: str, anchor: str, style: str = "axis") -> str:
    """One piece of text; `anchor` is start, middle or end."""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
