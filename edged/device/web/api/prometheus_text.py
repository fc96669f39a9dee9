"""Writer for the text format of Prometheus (exposition format 0.0.4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edged.device.web.api.histograms import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge"]


class PrometheusText:
    r"""Families of metrics as lines of text; families without a value are left out.

    >>> page = PrometheusText(); page.one("gauge", "edged_rows", "Rows.", 3); page.text()
    '# HELP edged_rows Rows.\n# TYPE edged_rows gauge\nedged_rows 3\n'
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    def one(self, kind: Kind, name: str, about: str, value: float | None) -> None:
        """Add a family of one number without labels."""
        if value is not None:
            self.many(kind, name, about, [({}, value)])

    def many(
        self, kind: Kind, name: str, about: str, samples: Iterable[tuple[Mapping[str, str], float]]
    ) -> None:
        """Add a family of numbers with labels."""
        lines = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if lines:
            self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *lines]

    def histograms(
        self, name: str, about: str, samples: Iterable[tuple[Mapping[str, str], Histogram]]
    ) -> None:
        """Add a family of histograms with labels."""
        lines: list[str] = []
        for labels, histogram in samples:
            counts = histogram.cumulative()
            for bound, count in zip((*histogram.bounds, math.inf), counts, strict=True):
                lines.append(f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {count}")
            lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.total)}")
            lines.append(f"{name}_count{_labels(labels)} {counts[-1]}")
        if lines:
            self._lines += [f"# HELP {name} {about}", f"# TYPE {name} histogram", *lines]

    def text(self) -> str:
        """Return all families as one text."""
        return "\n".join([*self._lines, ""])


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
