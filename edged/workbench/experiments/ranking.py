"""From single trainings to a ranking of recipes, with what is known of the spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import atan, cos, isfinite, nan, pi, sqrt
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from edged.workbench.experiments.scoring import LOWER_IS_BETTER

if TYPE_CHECKING:
    from edged.workbench.experiments.grid import Recipe
    from edged.workbench.experiments.runner import TrialOutcome

DIGITS = 9  # to which two means are the same


def ranking(
    recipes: Sequence[Recipe], outcomes: Sequence[TrialOutcome], metric: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the recipes, the best first, and of those of which a training failed.

    The rank is that of the mean validation metric over seeds; of two equal ones the smaller bundle is first.
    The test metric decides nothing. `clear` tells that the interval does not meet that of the first.
    """
    ranked, failed = [], []
    for recipe in recipes:
        its = [outcome for outcome in outcomes if outcome.order.recipe is recipe]
        reasons = _reasons(its, metric)
        if reasons:
            failed.append({"name": recipe.name, "recipe": asdict(recipe), "reasons": reasons})
        else:
            ranked.append(_row(recipe, its, metric))
    sign = 1 if metric in LOWER_IS_BETTER else -1
    ranked.sort(
        key=lambda row: (round(sign * row["validation"][metric]["mean"], DIGITS), row["bundle_bytes"])
    )
    for position, row in enumerate(ranked):
        row |= {
            "rank": position + 1,
            "clear": _apart(ranked[0]["validation"][metric], row["validation"][metric]),
        }
    return ranked, failed


def best_seed(row: dict[str, Any], metric: str) -> int:
    """The seed of a row whose training has the best validation metric, the first of equal ones."""
    values = row["validation"][metric]["seeds"]
    return int(values.index(min(values) if metric in LOWER_IS_BETTER else max(values)))


def _reasons(outcomes: Sequence[TrialOutcome], metric: str) -> list[dict[str, Any]]:
    """Why trainings of a recipe failed, each reason with its seeds; empty where none did."""
    seeds: dict[str, list[int]] = {}
    for outcome in outcomes:
        reason = outcome.problem
        if outcome.result is not None:
            if isfinite(outcome.result.validation[metric]):
                continue
            reason = f"{metric} of the validation part is no number"
        seeds.setdefault(reason, []).append(outcome.order.seed)
    return [{"seeds": its, "reason": reason} for reason, its in seeds.items()]


def _row(recipe: Recipe, outcomes: Sequence[TrialOutcome], metric: str) -> dict[str, Any]:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    row: dict[str, Any] = {"name": recipe.name, "recipe": asdict(recipe)}
    for part in ("validation", "test"):
        figures = [found for result in results if (found := getattr(result, part)) is not None]
        row[part] = {name: _spread([f[name] for f in figures]) for name in figures[0]} if figures else None
    peaks = [result.peak_bytes for result in results if result.peak_bytes is not None]
    return row | {
        "step_us": median(result.step_us for result in results),
        "peak_bytes": max(peaks, default=None),
        "bundle_bytes": max(result.bundle_bytes for result in results),
        "model_bytes": max(result.model_bytes for result in results),
        "parameters": results[0].parameters,
        "epochs": [len(result.curve) for result in results],
        "seconds": fmean(result.seconds for result in results),
        "engine": results[0].engine,
        "notes": results[0].notes,
        "curves": [[point.without("epochs") for point in result.curve] for result in results],
        "shown": results[best_seed(row, metric)].shown.to_json(),
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {**mean_interval(values)._asdict(), "seeds": values}


def _apart(first: dict[str, Any], other: dict[str, Any]) -> bool | None:
    """Whether two intervals do not meet; None for the first itself, and with a single seed."""
    if other is first or not isfinite(first["low"]):
        return None
    return bool(other["low"] > first["high"] or other["high"] < first["low"])


HALVINGS = 100


class Interval(NamedTuple):
    """A mean and the ends of its interval; NaN with a single value, and all where one is not finite."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of independent values, n > 0, with Student's t-interval (Student 1908).

    >>> interval = mean_interval([0.80, 0.82, 0.84])
    >>> [round(value, 4) for value in interval]
    [0.82, 0.7703, 0.8697]
    """
    if not all(map(isfinite, values)):
        return Interval(nan, nan, nan)
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, nan, nan)
    reach = t_quantile(0.5 + level / 2, len(values) - 1) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)


def t_quantile(share: float, freedom: int) -> float:
    """The value below which a `share` of at least one half of Student's t-distribution lies.

    >>> round(t_quantile(0.975, 2), 3)
    4.303
    """
    low, high = 0.0, 1.0
    while _below(high, freedom) < share:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _below(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _below(t: float, freedom: int) -> float:
    """The share of the t-distribution below `t` (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    square = cos(angle) ** 2
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= square * (k - 1) / k
        total += term
    sine = t / sqrt(freedom + t * t)
    within = (angle + sine * total) * 2 / pi if odd else sine * total
    return 0.5 + within / 2
