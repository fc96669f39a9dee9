"""Which labels are asked for: within the budget, and where they teach most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edged.domain.judging.prediction_sets import Promise
from edged.domain.judging.predictions import Predictions
from edged.domain.labels.label_requests import DAY, LabelRequests
from edged.domain.seeded_rng import is_holdout

Array = np.ndarray[Any, Any]


def said(probabilities: Array, first: int = 0) -> Predictions:
    """What a classifier answered to a batch that begins at this offset."""
    output = np.asarray(probabilities, np.float32)
    answers = output.argmax(axis=1).astype(np.float32).reshape(-1, 1)
    return Predictions(1, first + np.arange(len(output)), answers, output, output.max(axis=1))


def stream(n: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Inputs, probabilities of two classes, and which rows the model is unsure of: every 20th."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    unsure = np.arange(n) % 20 == 0
    sure = rng.uniform(0.9, 1.0, n)
    p = np.where(unsure, 0.52, sure) * np.where(rng.random(n) < 0.5, 1, 0) + 0.0
    p = np.where(p == 0, 1 - np.where(unsure, 0.52, sure), p)
    return x, np.stack([p, 1 - p], axis=1), unsure


def ask(requests: LabelRequests, x: Array, p: Array, block: int, now: float = 0.0) -> Array:
    """Which rows are asked for."""
    chosen = np.zeros(len(x), np.bool_)
    for i in range(0, len(x), block):
        for row in requests.choose(said(p[i : i + block], i), x[i : i + block], now):
            chosen[row] = True
    return chosen


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("block", [1, 100])
def test_the_budget_is_spent_and_never_passed(share: float, block: int) -> None:
    x, p, _ = stream(5000)
    asked = ask(LabelRequests(share), x, p, block)
    assert abs(asked.sum() - share * len(x)) <= 1
    gaps = np.diff(np.flatnonzero(asked))
    assert gaps.max() < 2 / share, "the budget is spent evenly"


def test_no_budget_no_requests() -> None:
    x, p, _ = stream(500)
    assert not ask(LabelRequests(0.0), x, p, 50).any()


def test_unsure_samples_are_asked_for_first() -> None:
    x, p, unsure = stream(10_000)
    asked = ask(LabelRequests(0.05, random=0.2), x, p, 50)
    assert asked[unsure].mean() > 8 * asked[~unsure].mean()


def test_samples_whose_set_is_not_a_single_class_are_asked_for_before_all_others() -> None:
    x, p, unsure = stream(2000)
    undecided = (np.arange(len(x)) % 10 == 7) & ~unsure
    sets = np.stack([undecided, np.ones(len(x), bool)], axis=1)
    made = replace(said(p), promise=Promise(0.9, sets, np.full((len(x), 1), 0.1, np.float32)))
    requests = LabelRequests(0.05, random=0.0)
    asked = requests.choose(made, x, 0.0)
    assert len(asked) == 100
    chosen = np.isin(np.arange(len(x)), asked)
    kept = is_holdout(np.arange(len(x)), 0.1)
    slots = (undecided & ~kept).reshape(100, 20).any(axis=1)
    assert chosen[undecided].sum() == slots.sum() > 80


def test_no_holdout_sample_is_asked_for_because_it_stands_out() -> None:
    x, p, unsure = stream(20_000)
    asked = ask(LabelRequests(0.05, random=0.5, holdout=0.2), x, p, 50)
    kept = is_holdout(np.arange(len(x)), 0.2)
    assert asked[kept & unsure].mean() < 2 * asked[kept & ~unsure].mean() + 0.01
    assert asked[kept].sum() > 0.03 * asked.sum()


def test_random_requests_are_never_starved() -> None:
    """Half of the budget goes to rows that are no different from the others."""
    x, p, unsure = stream(20_000)
    asked = ask(LabelRequests(0.1, random=0.5), x, p, 50)
    assert 0.04 < asked[~unsure].mean() < 0.1


def test_a_new_region_is_asked_about_before_the_old_one() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    x = rng.normal(0, 0.1, (n, 2)).astype(np.float32)
    new = np.arange(n) % 10 == 3
    new[: n // 2] = False
    x[new] += 3.0
    p = np.full((n, 2), 0.5)
    asked = ask(LabelRequests(0.05, random=0.0), x, p, 40)
    late = np.arange(n) >= n // 2
    assert asked[new].mean() > 2 * asked[late & ~new].mean()


def test_a_rare_answer_is_asked_about_more_often() -> None:
    n = 6000
    rng = np.random.default_rng(0)
    rare = rng.random(n) < 0.05
    p = np.where(rare[:, None], [0.4, 0.6], [0.6, 0.4])
    asked = ask(LabelRequests(0.1, random=0.2), rng.normal(size=(n, 2)).astype(np.float32), p, 50)
    assert asked[rare].mean() > 1.5 * asked[~rare].mean()


def test_a_day_has_a_limit_and_the_next_one_begins_anew() -> None:
    x, p, _ = stream(2000)
    requests = LabelRequests(0.5, per_day=30)
    assert ask(requests, x, p, 50, now=5.0).sum() == 30
    assert ask(requests, x, p, 50, now=DAY).sum() == 0
    assert ask(requests, x, p, 50, now=DAY + 5.0).sum() == 30
    assert requests.requested == 60


def test_values_without_confidence_are_asked_about_too() -> None:
    x = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32)
    values = Predictions(1, np.arange(2000), x[:, :1], x[:, :1], None)
    assert len(LabelRequests(0.1).choose(values, x, 0.0)) in (199, 200)


def test_readings_that_are_no_numbers_do_no_harm() -> None:
    x, p, _ = stream(1000)
    x[::7] = np.nan
    p[::5] = np.nan
    assert ask(LabelRequests(0.1), x, p, 50).sum() in (99, 100)
