"""From single trainings to a ranking of recipes, with what is known of the spread of their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import atan, cos, isfinite, nan, pi, sqrt
from statistics import fmean, median, variance
from typing import TYPE_CHECKING, NamedTuple

from edged.domain.training.message import Message
from edged.workbench.experiments.grid import Recipe
from edged.workbench.experiments.job import EpochDone, Shown
from edged.workbench.experiments.scoring import BLOCKS, LOWER_IS_BETTER

if TYPE_CHECKING:
    from edged.domain.json_fields import JsonObject
    from edged.workbench.experiments.runner import TrialOutcome

DIGITS = 9  # to which two means are the same


@dataclass(frozen=True)
class MetricSpread(Message):
    """The mean of a metric, the ends of its 95 % interval, and the value of each seed."""

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]

    @property
    def known(self) -> bool:
        """Whether there is an interval: the test part and one seed have none."""
        return isfinite(self.low)

    def clear_of(self, other: MetricSpread) -> bool:
        """Return whether the two intervals do not meet."""
        return self.low > other.high or self.high < other.low


Spreads = Mapping[str, MetricSpread]
"""By metric."""


@dataclass(frozen=True)
class FailureReason(Message):
    """Why trainings from these seeds failed."""

    seeds: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class FailedRecipe(Message):
    """A recipe of which a training failed."""

    recipe: Recipe
    reasons: tuple[FailureReason, ...]

    def to_json(self) -> JsonObject:
        """Return the fields, with the recipe's name."""
        return {"name": self.recipe.name, **super().to_json()}


@dataclass(frozen=True)
class RankedRecipe(Message):
    """A recipe with its rank, from 1, and its figures; `test` is None without a test part.

    `clear` says that its interval does not meet that of the first; None for the first, and where there is no
    interval.
    """

    recipe: Recipe
    validation: Spreads
    test: Spreads | None
    step_us: float
    peak_bytes: int | None
    bundle_bytes: int
    model_bytes: int
    parameters: int
    epochs: tuple[int, ...]
    seconds: float
    engine: str
    notes: tuple[str, ...]
    curves: tuple[tuple[EpochDone, ...], ...]
    shown: Shown
    rank: int = 0
    clear: bool | None = None

    def to_json(self) -> JsonObject:
        """Return the fields, with the recipe's name; points of curves are in the order of epochs."""
        curves = [[point.without("epochs") for point in curve] for curve in self.curves]
        return {"name": self.recipe.name, **super().to_json(), "curves": curves}


def ranking(
    recipes: Sequence[Recipe], outcomes: Sequence[TrialOutcome], metric: str
) -> tuple[tuple[RankedRecipe, ...], tuple[FailedRecipe, ...]]:
    """Rank the recipes, the best first, and list those of which a training failed.

    The rank is that of the mean validation metric over seeds; of two equal ones the smaller bundle is first.
    The test metric decides nothing.
    """
    rows, failed = [], []
    for recipe in recipes:
        its = [outcome for outcome in outcomes if outcome.order.recipe is recipe]
        reasons = _reasons(its, metric)
        if reasons:
            failed.append(FailedRecipe(recipe, reasons))
        else:
            rows.append(_row(recipe, its, metric))
    sign = 1 if metric in LOWER_IS_BETTER else -1
    rows.sort(key=lambda row: (round(sign * row.validation[metric].mean, DIGITS), row.bundle_bytes))
    ranked = []
    for rank, row in enumerate(rows, 1):
        first, own = rows[0].validation[metric], row.validation[metric]
        clear = None if rank == 1 or not first.known else own.clear_of(first)
        ranked.append(replace(row, rank=rank, clear=clear))
    return tuple(ranked), tuple(failed)


def best_seed(row: RankedRecipe, metric: str) -> int:
    """Return the seed whose training has the best validation metric, the first of equal ones."""
    return _best(row.validation[metric].seeds, metric)


def _best(values: Sequence[float], metric: str) -> int:
    return values.index(min(values) if metric in LOWER_IS_BETTER else max(values))


def _reasons(outcomes: Sequence[TrialOutcome], metric: str) -> tuple[FailureReason, ...]:
    """Why trainings of a recipe failed, each reason with its seeds; empty where none did."""
    seeds: dict[str, list[int]] = {}
    for outcome in outcomes:
        reason = outcome.problem
        if outcome.result is not None:
            if isfinite(outcome.result.validation[metric]):
                continue
            reason = f"{metric} of the validation part is no number"
        seeds.setdefault(reason, []).append(outcome.order.seed)
    return tuple(FailureReason(tuple(its), reason) for reason, its in seeds.items())


def _row(recipe: Recipe, outcomes: Sequence[TrialOutcome], metric: str) -> RankedRecipe:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    validation = _spreads([result.validation for result in results], [result.errors for result in results])
    tests = [result.test for result in results if result.test is not None]
    peaks = [result.peak_bytes for result in results if result.peak_bytes is not None]
    return RankedRecipe(
        recipe=recipe,
        validation=validation,
        test=_spreads(tests) if tests else None,
        step_us=median(result.step_us for result in results),
        peak_bytes=max(peaks, default=None),
        bundle_bytes=max(result.bundle_bytes for result in results),
        model_bytes=max(result.model_bytes for result in results),
        parameters=results[0].parameters,
        epochs=tuple(len(result.curve) for result in results),
        seconds=fmean(result.seconds for result in results),
        engine=results[0].engine,
        notes=results[0].notes,
        curves=tuple(result.curve for result in results),
        shown=results[_best(validation[metric].seeds, metric)].shown,
    )


def _spreads(figures: Sequence[Mapping[str, float]], errors: Sequence[Mapping[str, float]] = ()) -> Spreads:
    return {
        name: _spread([found[name] for found in figures], [found[name] for found in errors])
        for name in figures[0]
    }


def _spread(values: Sequence[float], errors: Sequence[float]) -> MetricSpread:
    return MetricSpread(*mean_interval(values, errors), tuple(values))


HALVINGS = 100


class Interval(NamedTuple):
    """A mean and the ends of its interval; NaN where it has none, and all where a value is not finite."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], errors: Sequence[float] = (), level: float = 0.95) -> Interval:
    """The mean of n > 0 values with Student's t-interval (Student 1908).

    `errors` are their standard errors, which have a common cause: they do not become smaller with n, and are
    known from `BLOCKS` blocks. Degrees of freedom are those of Welch and Satterthwaite. Without them the
    values are independent, and a single one has no interval.

    >>> [round(value, 4) for value in mean_interval([0.80, 0.82, 0.84])]
    [0.82, 0.7703, 0.8697]
    >>> [round(value, 4) for value in mean_interval([0.96, 0.96], [0.01, 0.01])]
    [0.96, 0.9391, 0.9809]
    """
    if not all(map(isfinite, values)):
        return Interval(nan, nan, nan)
    n, mean = len(values), fmean(values)
    between = variance(values) / n if n > 1 else 0.0
    common = fmean(error * error for error in errors) if errors else 0.0
    if not isfinite(common) or (n < 2 and not errors):
        return Interval(mean, nan, nan)
    total = between + common
    doubt = between**2 / max(1, n - 1) + common**2 / (BLOCKS - 1)
    freedom = int(total**2 / doubt) if doubt > 0 else 1
    reach = t_quantile(0.5 + level / 2, max(1, freedom)) * sqrt(total)
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
