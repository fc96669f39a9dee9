"""Several configurations on the same recorded stream: their ranking, and its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.charts.figures import change, figure, percent, plain
from edged.charts.html import document, table
from edged.charts.lines import ChartLine, LineChart, Marks
from edged.config import Config
from edged.domain.json_fields import JsonObject
from edged.domain.judging.paired_test import block_bootstrap
from edged.errors import ConfigError
from edged.workbench.evaluation.figures import (
    EvaluationComparison,
    EvaluationHistory,
    EvaluationReport,
    RankedConfiguration,
)
from edged.workbench.evaluation.page import sections
from edged.workbench.evaluation.stream import Stream

COUNTS = ("trainings", "promotions", "rejections", "rollbacks", "labels_used", "train_seconds", "peak_rss_mb")
HIGHER_IS_BETTER = ("accuracy", "auroc")
DRAWN = 4  # lines of a chart that have colours of their own
ASPECTS: dict[str, Callable[[Any], object]] = {
    "task": lambda schema: schema.task,
    "features": lambda schema: list(schema.names) or schema.channels,
    "classes": lambda schema: list(schema.known_classes),
}


@dataclass(frozen=True)
class EvaluationOutcome:
    """One evaluation: report, history, and `values` `(n,)` of the scored rows: their mean is the metric."""

    name: str
    report: EvaluationReport
    history: EvaluationHistory
    values: NDArray[np.float64]

    def to_json(self) -> JsonObject:
        """Return the fields of the report, with the history beside them."""
        return {**self.report.to_json(), "history": self.history.to_json()}


def check_same_stream(configs: Sequence[tuple[str, Config, Callable[[], Stream]]]) -> None:
    """Raise ConfigError when the configurations cannot be compared row by row.

    Each comes with its name, and a function that reads its stream from the data.
    """
    name, config, read = configs[0]
    schema = config.stream.to_schema()
    for other, theirs, _ in configs[1:]:
        for aspect, value_of in ASPECTS.items():
            ours, found = value_of(schema), value_of(theirs.stream.to_schema())
            if ours != found:
                raise ConfigError(
                    f"{name} has {ours}, {other} has {found}: they cannot be compared",
                    where=f"stream.{aspect}",
                    remedy="compare configurations of the same features, classes and task",
                )
    stream = read()
    for other, _, read_theirs in configs[1:]:
        if not _same_targets(stream, read_theirs()):
            raise ConfigError(
                f"{name} and {other} read different samples or labels from the data",
                where="stream",
                remedy="give them the same section stream",
            )
    if stream.truth is not None and len(np.unique(stream.truth != 0)) < 2:
        raise ConfigError("the data marks no anomalies, or nothing else", where="--data")


def _same_targets(one: Stream, other: Stream) -> bool:
    return np.array_equal(one.y, other.y) and np.array_equal(one.known, other.known)


def ranked(outcomes: Sequence[EvaluationOutcome]) -> EvaluationComparison:
    """Rank by the first metric; the interval of each is that of its difference to the best."""
    metric = next(iter(outcomes[0].report.metric))
    sign = -1 if metric in HIGHER_IS_BETTER else 1
    order = sorted(outcomes, key=lambda outcome: sign * outcome.report.metric[metric])
    best = order[0]
    rows = []
    for rank, outcome in enumerate(order, 1):
        difference = outcome.values - best.values
        low, high = block_bootstrap(difference)
        found = "worse" if low > 0 or high < 0 else "no difference found"
        rows.append(
            RankedConfiguration(
                rank,
                outcome.name,
                outcome.report.metric[metric],
                float(difference.mean()),
                low,
                high,
                "best" if outcome is best else found,
            )
        )
    reports = {outcome.name: outcome.report for outcome in outcomes}
    return EvaluationComparison(metric, metric in HIGHER_IS_BETTER, tuple(rows), reports)


# ---- the page ------------------------------------------------------------------------------------


def comparison_page(
    title: str, comparison: EvaluationComparison, outcomes: Sequence[EvaluationOutcome]
) -> str:
    """The comparison as one HTML page: ranking, quality over time, and the report of each configuration."""
    by_name = {outcome.name: outcome for outcome in outcomes}
    order = [by_name[row.name] for row in comparison.ranking]
    names = list(order[0].report.metric)
    rows = [
        (
            row.name,
            *(figure(name, outcome.report.metric.get(name)) for name in names),
            _interval(comparison.metric, row),
            row.found,
            *(plain(getattr(outcome.report, name)) for name in COUNTS),
        )
        for row, outcome in zip(comparison.ranking, order, strict=True)
    ]
    head = ["", *names, "difference to the best, 95 % interval", "found", *COUNTS]
    note = "The intervals cover chance in the samples, not in training: repeat with another --seed."
    parts = [
        f"<p class=lead>{escape(summary(comparison))}</p>",
        table([name.replace("_", " ") for name in head], rows),
        f"<p class=note>{note}</p>",
        _over_time(order),
        *(
            f"<details><summary>{escape(outcome.name)}</summary>{sections(outcome.report, outcome.history)}"
            "</details>"
            for outcome in order
        ),
    ]
    return document(title, "".join(parts))


def summary(comparison: EvaluationComparison) -> str:
    """The result in one sentence, which admits what chance can explain.

    >>> rows = [RankedConfiguration(1, "a", 0.9, 0.0, 0.0, 0.0, "best"),
    ...         RankedConfiguration(2, "b", 0.89, -0.01, -0.03, 0.01, "no difference found")]
    >>> summary(EvaluationComparison("accuracy", True, tuple(rows), {}))
    'a has the best accuracy, 90.0 %; no difference found to b.'
    """
    best = comparison.ranking[0]
    text = f"{best.name} has the best {comparison.metric}, {figure(comparison.metric, best.value)}"
    equal = [row.name for row in comparison.ranking[1:] if row.found != "worse"]
    return f"{text}; no difference found to {', '.join(equal)}." if equal else f"{text}."


def _interval(metric: str, row: RankedConfiguration) -> str:
    if row.rank == 1:
        return ""
    return f"{change(metric, row.difference)} ({change(metric, row.low)} to {change(metric, row.high)})"


def _over_time(order: Sequence[EvaluationOutcome]) -> str:
    """Quality of the best configurations in windows of the stream."""
    curves, shown = order[0].history.curves, order[:DRAWN]
    if not curves.starts:
        return ""
    lines = [
        ChartLine(outcome.name, f"line{i}", outcome.history.curves.lines["adapted"])
        for i, outcome in enumerate(shown)
    ]
    formatter = percent if order[0].history.figure == "accuracy" else plain
    chart = LineChart(curves.starts, curves.ends, lines, [Marks("drift")], formatter).html()
    return f"<h2>{order[0].history.figure.replace('_', ' ').capitalize()} over time</h2>{chart}"
