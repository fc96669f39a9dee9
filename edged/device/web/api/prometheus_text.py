"""Histograms of durations, and the text format of Prometheus (exposition format 0.0.4)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["counter", "gauge", "histogram"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREDICTION = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
TRAINING = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class Histogram:
    """Counts of values up to each bound, and their sum; one thread writes, any thread reads.

    >>> histogram = Histogram((0.1, 1.0)); histogram.add(0.05); histogram.add_many(np.array([0.5, 7.0]))
    >>> histogram.cumulative(), histogram.total
    ([1, 2, 3], 7.55)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._edges = np.asarray(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value in its bucket."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_many(self, values: NDArray[np.float64]) -> None:
        """Count values `(n,)` in their buckets."""
        for place, more in enumerate(np.bincount(np.searchsorted(self._edges, values)).tolist()):
            self._counts[place] += more
        self.total += float(values.sum())

    def cumulative(self) -> list[int]:
        """Return the number of values up to each bound, and of all values."""
        return list(accumulate(self._counts))


Sample = tuple[Mapping[str, str], float | Histogram | None]
"""A value of a family, with its labels."""


class PrometheusText:
    r"""Families of metrics as lines of text; families without a value are left out.

    >>> page = PrometheusText(); page.family("gauge", "edged_rows", "Rows.", [({}, 3)]); page.text()
    '# HELP edged_rows Rows.\n# TYPE edged_rows gauge\nedged_rows 3\n'
    """

    def __init__(self, **labels: str) -> None:
        self._labels = labels  # of all of them
        self._families: dict[str, list[str]] = {}

    def family(self, kind: Kind, name: str, about: str, samples: Iterable[Sample]) -> None:
        """Add numbers or histograms with their labels; a value that is None is left out."""
        lines: list[str] = []
        for own, value in samples:
            labels = {**self._labels, **own}
            if isinstance(value, Histogram):
                lines += _histogram(name, labels, value)
            elif value is not None:
                lines.append(f"{name}{_labels(labels)} {_number(value)}")
        if lines:
            heads = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            self._families.setdefault(name, heads).extend(lines)

    def add(self, page: PrometheusText) -> None:
        """Add the families of another page, to those of the same name."""
        for name, lines in page._families.items():
            self._families.setdefault(name, lines[:2]).extend(lines[2:])

    def text(self) -> str:
        """Return all families as one text."""
        return "\n".join([*(line for lines in self._families.values() for line in lines), ""])


def _histogram(name: str, labels: Mapping[str, str], histogram: Histogram) -> Iterator[str]:
    counts = histogram.cumulative()
    for bound, count in zip((*histogram.bounds, math.inf), counts, strict=True):
        yield f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {count}"
    yield f"{name}_sum{_labels(labels)} {_number(histogram.total)}"
    yield f"{name}_count{_labels(labels)} {counts[-1]}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
