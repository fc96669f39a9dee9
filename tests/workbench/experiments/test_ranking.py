"""The ranking is that of the validation part, and says how sure it is."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.training.batch_pool import LabelForm
from edged.workbench.experiments.config import RecipeFile
from edged.workbench.experiments.grid import Recipe, expand
from edged.workbench.experiments.job import Data, EpochDone, Shown, TrialOrder, TrialResult
from edged.workbench.experiments.loading import Split
from edged.workbench.experiments.ranking import best_seed, mean_interval, ranking, t_quantile
from edged.workbench.experiments.runner import TrialOutcome
from edged.workbench.experiments.scoring import Judge

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE = RecipeFile.model_validate(
    {"stream": {"features": 2, "classes": 2}, "recipes": [{"batch": [1, 2, 3], "name": "r"}]}
)
RECIPES = expand(FILE, Path())


def outcome(
    recipe: Recipe, seed: int, value: float, test: float = 0.5, size: int = 10, error: float = 0.0
) -> TrialOutcome:
    order = TrialOrder(recipe, FILE.stream.to_schema(), seed, "auto", 1, "accuracy", *[Path()] * 3)
    result = TrialResult(
        {"accuracy": value}, {"accuracy": error}, {"accuracy": test},
        curve=(EpochDone(1, 1, 0.5, 0.5, 0.5, 0.5),), best_epoch=1, shown=Shown("test", seed),
        step_us=1.0, peak_bytes=100 + seed, bundle_bytes=size, model_bytes=size, parameters=3,
        engine="portable", notes=(), seconds=1.0,
    )  # fmt: skip
    return TrialOutcome(order, result)


def test_the_test_part_decides_nothing_and_size_where_means_are_the_same() -> None:
    a, b, c = RECIPES
    ranked, failed = ranking(
        RECIPES,
        [outcome(a, 0, 0.7, test=0.99), outcome(b, 0, 0.8, size=50), outcome(c, 0, 0.8, test=0.1, size=40)],
        "accuracy",
    )
    assert [(row.rank, row.recipe.name) for row in ranked] == [(1, c.name), (2, b.name), (3, a.name)]
    assert failed == ()
    assert [row.clear for row in ranked] == [None, False, True]


def test_equal_seeds_are_no_certainty() -> None:
    made = [
        outcome(r, s, v, error=0.01)
        for r, v in zip(RECIPES, (0.9608, 0.9596, 0.8), strict=True)
        for s in (0, 1)
    ]
    ranked, _ = ranking(RECIPES, made, "accuracy")
    found = ranked[0].validation["accuracy"]
    assert found.seeds == (0.9608, 0.9608)
    assert (found.low, found.high) == pytest.approx((0.9399, 0.9817), abs=1e-4)
    assert [row.clear for row in ranked] == [None, False, True]


def test_an_interval_holds_also_what_other_samples_would_change() -> None:
    """Neighbours that are alike: the sampling error is that of stretches, not of single samples."""
    rng, held = np.random.default_rng(1), []
    schema = FILE.stream.to_schema()
    rows = np.arange(600)
    for _ in range(300):
        right = np.repeat(rng.random(60) < 0.8, 10)
        y = np.zeros((600, 1), np.float32)
        data = Data(
            np.where(right, -1.0, 1.0).astype(np.float32)[:, None], y, None, Split(rows, rows, rows, 0)
        )
        error = Judge(schema, data, LabelForm("cross_entropy", 2), None).standard_errors(_Sign(), rows)
        low, high = mean_interval([float(right.mean())], [error["accuracy"]])[1:]
        held.append(low <= 0.8 <= high)
    assert np.mean(held) == pytest.approx(0.94, abs=0.03)


class _Sign:
    """Answers the second class for positive inputs."""

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.concatenate([-x, x], axis=1)


def test_intervals_that_do_not_meet_are_clear() -> None:
    a, b, c = RECIPES
    values = {a: (0.80, 0.81, 0.82), b: (0.79, 0.80, 0.83), c: (0.10, 0.11, 0.12)}
    made = [outcome(recipe, seed, value) for recipe in RECIPES for seed, value in enumerate(values[recipe])]
    ranked, _ = ranking(RECIPES, made, "accuracy")
    assert [row.clear for row in ranked] == [None, False, True]
    found = ranked[0].validation["accuracy"]
    assert (found.mean, found.low, found.high) == pytest.approx((0.81, 0.78516, 0.83484), abs=1e-4)
    assert ranked[0].peak_bytes == 102
    assert ranked[0].to_json()["shown"] == {"part": "test", "rows": 2}
    assert best_seed(ranked[1], "accuracy") == 2


def test_errors_rank_the_other_way_round() -> None:
    made = []
    for recipe, value in zip(RECIPES, (0.3, 0.1, 0.2), strict=True):
        one = outcome(recipe, 0, value)
        assert one.result is not None
        figures = {"mae": value}
        made.append(
            replace(one, result=replace(one.result, validation=figures, errors=figures, test=figures))
        )
    ranked, _ = ranking(RECIPES, made, "mae")
    assert [row.recipe.name for row in ranked] == [RECIPES[i].name for i in (1, 2, 0)]


def test_a_recipe_that_failed_for_one_seed_has_no_rank() -> None:
    a, b, c = RECIPES
    lost = replace(outcome(b, 1, 0.9), result=None, problem="the disk is full")
    made = [
        outcome(a, 0, 0.1),
        outcome(a, 1, 0.2),
        outcome(b, 0, 0.9),
        lost,
        outcome(c, 0, nan),
        outcome(c, 1, 1),
    ]
    ranked, failed = ranking(RECIPES, made, "accuracy")
    assert [row.recipe.name for row in ranked] == [a.name]
    assert [(row["name"], row["reasons"]) for row in (one.to_json() for one in failed)] == [
        (b.name, [{"seeds": [1], "reason": "the disk is full"}]),
        (c.name, [{"seeds": [0], "reason": "accuracy of the validation part is no number"}]),
    ]


# Two-sided 95 % and 99 % points as printed in tables of Student's distribution.
TABLE = [(1, 12.706, 63.657), (2, 4.303, 9.925), (3, 3.182, 5.841), (4, 2.776, 4.604), (9, 2.262, 3.250),
         (10, 2.228, 3.169), (30, 2.042, 2.750), (99, 1.984, 2.626)]  # fmt: skip


@pytest.mark.parametrize(("freedom", "at_95", "at_99"), TABLE)
def test_quantiles_are_those_of_the_tables(freedom: int, at_95: float, at_99: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(at_95, abs=6e-4)
    assert t_quantile(0.995, freedom) == pytest.approx(at_99, abs=6e-4)


def test_an_interval_holds_the_mean_in_as_many_cases_as_it_says() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(3.0, 2.0, (4000, 4))
    intervals = [mean_interval(row.tolist()) for row in draws]
    held = np.mean([interval.low <= 3.0 <= interval.high for interval in intervals])
    assert held == pytest.approx(0.95, abs=0.015)


def test_one_value_has_no_interval_and_equal_ones_a_narrow_one() -> None:
    single = mean_interval([0.7])
    assert single.mean == 0.7
    assert isnan(single.low)
    assert isnan(single.high)
    assert all(map(isnan, mean_interval([0.7, float("nan")])))
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
