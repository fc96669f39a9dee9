"""Several configurations on the same recorded stream, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from edged.charts.figures import figure, percent, plain
from edged.charts.html import document, table
from edged.charts.lines import ChartLine, LineChart, Marks
from edged.domain.judging.paired_test import block_bootstrap
from edged.errors import ConfigError
from edged.workbench.evaluation.figures import EvaluationComparison, EvaluationHistory, EvaluationReport, Gain

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTS = ("trainings", "promotions", "rejections", "rollbacks", "labels_used", "train_seconds", "peak_rss_mb")


@dataclass(frozen=True)
class EvaluationOutcome:
    """One evaluation: its report, its history, and the error of each scored row by row number."""

    name: str
    report: EvaluationReport
    history: EvaluationHistory
    rows: NDArray[np.int64]
    errors: NDArray[np.float64]


def compare(outcomes: Sequence[EvaluationOutcome]) -> EvaluationComparison:
    """Figures of all, and each against the first on the rows that both answered.

    ConfigError when the configurations are of different tasks.
    """
    first = outcomes[0]
    for other in outcomes[1:]:
        if other.history.figure != first.history.figure:
            raise ConfigError(
                f"{first.name} is judged by {first.history.figure}, {other.name} by "
                f"{other.history.figure}: they cannot be compared",
                where="stream.task",
            )
    return EvaluationComparison(
        figure=first.history.figure,
        reports={outcome.name: outcome.report for outcome in outcomes},
        against=first.name,
        gains={other.name: _gain(first, other) for other in outcomes[1:]},
    )


def _gain(first: EvaluationOutcome, other: EvaluationOutcome) -> Gain:
    _, mine, theirs = np.intersect1d(first.rows, other.rows, assume_unique=True, return_indices=True)
    difference = first.errors[mine] - other.errors[theirs]
    low, high = block_bootstrap(difference)
    better = "yes" if low > 0 else "no" if high < 0 else "not decided"
    return Gain(len(difference), float(difference.mean()), low, high, better)


def comparison_page(
    title: str, comparison: EvaluationComparison, outcomes: Sequence[EvaluationOutcome]
) -> str:
    """The comparison as one HTML page."""
    accuracy = comparison.figure == "accuracy"
    formatter = percent if accuracy else plain
    names = list(outcomes[0].report.metric)
    rows = [
        (outcome.name, *(figure(name, outcome.report.metric.get(name)) for name in names),
         *(plain(getattr(outcome.report, name)) for name in COUNTS))
        for outcome in outcomes
    ]  # fmt: skip
    head = ["", *(name.replace("_", " ") for name in (*names, *COUNTS))]
    lines = [
        ChartLine(outcome.name, f"line{i % 4}", outcome.history.curves.lines["adapted"])
        for i, outcome in enumerate(outcomes)
        if outcome.history.curves.starts == outcomes[0].history.curves.starts
    ]
    curves = outcomes[0].history.curves
    drawn = LineChart(curves.starts, curves.ends, lines, [Marks("drift")], formatter)
    chart = drawn.html() if lines else ""
    sentences = "".join(f"<p class=lead>{_sentence(name, gain, accuracy)}</p>"
                        for name, gain in comparison.gains.items())  # fmt: skip
    return document(title, f"{sentences}{table(head, rows)}<h2>Over time</h2>{chart}")


def _sentence(name: str, gain: Gain, accuracy: bool) -> str:
    scale, unit = (100, " points") if accuracy else (1, "")
    low, high = scale * gain.low, scale * gain.high
    verdict = {"yes": "is better", "no": "is worse", "not decided": "is not shown to be better or worse"}
    return (
        f"<b>{escape(name)}</b> {verdict[gain.better]}: {scale * gain.gain:+.3g}{unit}, "
        f"95 % interval {low:+.3g} to {high:+.3g}."
    )
