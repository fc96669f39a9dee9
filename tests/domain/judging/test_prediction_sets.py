"""Sets of classes and intervals of values contain the truth as often as promised, however late labels are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from edged.domain.judging.prediction_sets import FEWEST, MOST, PART, PARTS, PredictionSets, Promise
from edged.domain.stream.schema import Schema
from edged.errors import CorruptError

Array = np.ndarray[Any, Any]
VALUES = Schema((), 2, "regress", (), 2)


def classes(count: int) -> Schema:
    return Schema((), 2, "classify", tuple(f"c{i}" for i in range(count)))


class Outcome(NamedTuple):
    """Which sets contained the truth `(n, targets)`, and what was promised."""

    covered: Array
    promise: Promise

    @property
    def size(self) -> float:
        """Mean number of classes."""
        return float(self.promise.sets.sum(axis=1).mean())

    def extremes(self, window: int = 2000) -> tuple[float, float]:
        """Smallest and largest share in any `window` consecutive rows."""
        sums = np.concatenate([np.zeros((1, self.covered.shape[1])), np.cumsum(self.covered, axis=0)])
        shares = (sums[window:] - sums[:-window]) / window
        return float(shares.min()), float(shares.max())


def follow(
    sets: PredictionSets, output: Array, y: Array, *, delay: int = 150, block: int = 40, rate: float = 1.0
) -> Outcome:
    """Promise block by block; labels `y` `(n, targets)` come `delay` rows late, a share of them."""
    output, y = output.astype(np.float32), y.astype(np.float32)
    arrives = np.random.default_rng(9).random(len(y)) < rate
    one = sets.promise(output[:0])
    made = Promise(
        sets.coverage,
        np.zeros((len(y), *one.sets.shape[1:]), one.sets.dtype),
        np.zeros((len(y), *one.expected.shape[1:]), np.float32),
    )
    known = 0
    for start in range(0, len(output), block):
        part = sets.promise(output[start : start + block])
        made.sets[start : start + block], made.expected[start : start + block] = part.sets, part.expected
        late = max(known, min(start + block, len(output)) - delay)
        rows = np.arange(known, late)[arrives[known:late]]
        sets.learn(made.rows(rows), output[rows], y[rows])
        known = late
    return Outcome(made.covers(y), made)


def stream(n: int, k: int, right: Array, seed: int = 0, *, too_sure: float = 1.0) -> tuple[Array, Array]:
    """Probabilities `(n, k)` and classes `(n, 1)` that follow them, but for `too_sure`, a factor of logits.

    `right` `(n,)` is how far apart the classes are.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * right[:, None]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1, keepdims=True)
    said = np.exp(too_sure * (logits - logits.max(axis=1, keepdims=True)))
    return said / said.sum(axis=1, keepdims=True), np.minimum(y, k - 1)


def changing(n: int) -> Array:
    """Hard and easy parts of a stream, 1,500 rows each."""
    return np.where(np.arange(n) // 1500 % 2 == 0, 2.0, 5.0)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
@pytest.mark.parametrize(("k", "block"), [(2, 1), (2, 256), (6, 40), (12, 40)])
def test_every_window_is_covered_as_promised_while_the_stream_changes(
    coverage: float, k: int, block: int
) -> None:
    p, y = stream(6_000, k, changing(6_000))
    lowest, highest = follow(PredictionSets(coverage, classes(k)), p, y, block=block).extremes()
    assert coverage - 0.015 <= lowest <= highest <= coverage + 0.015


@pytest.mark.parametrize("too_sure", [0.3, 3.0])
def test_a_model_that_is_too_sure_or_too_unsure_is_seen_through(too_sure: float) -> None:
    p, y = stream(10_000, 3, changing(10_000), too_sure=too_sure)
    outcome = follow(PredictionSets(0.9, classes(3)), p, y)
    lowest, highest = Outcome(outcome.covered[1000:], outcome.promise).extremes()
    assert 0.875 <= lowest <= highest <= 0.925
    assert outcome.covered[1000:].mean() == pytest.approx(0.9, abs=0.004)


def test_a_model_that_knows_nothing_is_covered_by_large_sets() -> None:
    rng = np.random.default_rng(1)
    p, _ = stream(6_000, 4, np.ones(6_000))
    outcome = follow(PredictionSets(0.9, classes(4)), p, rng.integers(0, 4, (6_000, 1)))
    assert outcome.covered[500:].mean() == pytest.approx(0.9, abs=0.01)
    assert outcome.size > 3


def test_where_the_model_is_right_more_often_than_promised_the_unsure_rows_have_no_class() -> None:
    p, y = stream(6_000, 2, np.full(6_000, 12.0))
    assert (p.argmax(axis=1) == y[:, 0]).mean() > 0.93
    outcome = follow(PredictionSets(0.9, classes(2)), p, y)
    empty = outcome.promise.sets.sum(axis=1) == 0
    assert 0.02 < empty.mean() < 0.1
    assert p[empty].max(axis=1).mean() < p[~empty].max(axis=1).mean() - 0.1
    assert (outcome.promise.undecided == (outcome.promise.sets.sum(axis=1) != 1)).all()


def test_sets_are_no_larger_than_those_of_a_fixed_threshold_that_knows_the_labels() -> None:
    p, y = stream(10_000, 6, np.full(10_000, 3.0))
    outcome = follow(PredictionSets(0.9, classes(6)), p, y)
    limit = np.quantile(p[np.arange(len(y)), y[:, 0]], 0.1)
    assert outcome.size < 1.05 * float((p >= limit).sum(axis=1).mean())


def test_with_few_labels_the_shares_hold_too_and_without_any_as_far_as_the_model_knows_itself() -> None:
    p, y = stream(12_000, 3, changing(12_000))
    few = follow(PredictionSets(0.9, classes(3)), p, y, rate=0.1)
    none = follow(PredictionSets(0.9, classes(3)), p, y, rate=0.0)
    assert few.covered.mean() == pytest.approx(0.9, abs=0.01)
    assert none.covered.mean() == pytest.approx(0.9, abs=0.01)


def test_what_counts_is_the_set_of_prediction_time() -> None:
    """Twice the same predictions and labels; the model in between is another, and its sets are."""
    p, y = stream(400, 2, np.full(400, 3.0))
    sets, same = PredictionSets(0.9, classes(2)), PredictionSets(0.9, classes(2))
    made = sets.promise(p[:200].astype(np.float32))
    same.promise(p[:200].astype(np.float32))
    sets.promise(p[200:].astype(np.float32)[:, ::-1])
    same.promise(p[200:].astype(np.float32)[:, ::-1])
    covered = sets.learn(made, made.expected, y[:200].astype(np.float32))
    assert covered[:, 0].tolist() == made.sets[np.arange(200), y[:200, 0]].tolist()
    right = (~covered[:, 0]).sum() - made.expected.sum()
    ours: Mapping[str, Any] = sets.state()
    theirs: Mapping[str, Any] = same.state()
    assert np.sum(ours["misses"]) - np.sum(theirs["misses"]) == pytest.approx(right, abs=1e-3)


def test_misses_that_nobody_foresaw_are_made_up_for_while_they_are_recent() -> None:
    p, y = stream(4_000, 3, np.full(4_000, 3.0))
    wrong, surprise = y.copy(), slice(500, 600)
    wrong[surprise] = p[surprise].argmin(axis=1)[:, None]
    usual, surprised = (follow(PredictionSets(0.9, classes(3)), p, labels) for labels in (y, wrong))
    known = 600 + 150  # rows
    soon, later = slice(known, known + PART * PARTS), slice(known + PART * PARTS, None)
    assert 0.05 < surprised.covered[soon].mean() - usual.covered[soon].mean() < 0.15
    assert surprised.covered[later].mean() == pytest.approx(usual.covered[later].mean(), abs=0.02)


def test_labels_count_however_late_they_come() -> None:
    p, y = stream(14_000, 3, np.full(14_000, 3.0), too_sure=3.0)
    outcome = follow(PredictionSets(0.9, classes(3)), p, y, delay=3 * PART * PARTS)
    assert outcome.covered[6_000:].mean() == pytest.approx(0.9, abs=0.01)


def test_rows_without_an_answer_have_no_set_and_change_nothing() -> None:
    p, _ = stream(50, 2, np.full(50, 3.0))
    sets, beside = PredictionSets(0.9, classes(2)), PredictionSets(0.9, classes(2))
    gaps = p.astype(np.float32)
    gaps[[3, 20]] = np.nan
    made, whole = sets.promise(gaps), beside.promise(np.delete(gaps, [3, 20], axis=0))
    assert np.flatnonzero(~made.made).tolist() == [3, 20]
    assert (np.delete(made.sets, [3, 20], axis=0) == whole.sets).all()
    assert sets.state() == beside.state()
    assert not made.undecided[[3, 20]].any()


def test_a_class_that_came_after_the_prediction_is_in_no_set() -> None:
    p, _ = stream(30, 2, np.full(30, 3.0))
    made = PredictionSets(0.9, classes(2)).promise(p.astype(np.float32))
    assert not made.covers(np.full((30, 1), 2, np.float32)).any()
    assert (made.covers(np.full((30, 1), 1, np.float32))[:, 0] == made.sets[:, 1]).all()


# ---- values ----------------------------------------------------------------------------------


def noisy(n: int) -> tuple[Array, Array]:
    """Values and labels `(n, 2)`; errors of the first target grow and shrink, some of the second are huge."""
    rng = np.random.default_rng(5)
    wide = np.stack([2 - np.cos(np.arange(n) / 1600), np.where(rng.random(n) < 0.05, 50, 0.1)], axis=1)
    values = rng.normal(size=(n, 2))
    return values, values + rng.normal(size=(n, 2)) * wide


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_intervals_of_each_target_are_covered_by_themselves(coverage: float) -> None:
    values, y = noisy(10_000)
    outcome = follow(PredictionSets(coverage, VALUES), values, y)
    covered = outcome.covered[500:]
    lowest, highest = Outcome(covered, outcome.promise).extremes()
    assert coverage - 0.02 <= lowest <= highest <= coverage + 0.02
    assert covered.mean(axis=0) == pytest.approx([coverage, coverage], abs=0.01)
    low, high = outcome.promise.sets[500:, :, 0], outcome.promise.sets[500:, :, 1]
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    np.testing.assert_allclose((low + high) / 2, values[500:], atol=1e-4)
    width = (high - low)[:, 0]
    assert width[4500:4700].mean() > 2 * width[9300:].mean(), "wide where errors are large"


def test_values_have_no_interval_before_some_labels() -> None:
    sets = PredictionSets(0.9, VALUES)
    values, y = (part.astype(np.float32) for part in noisy(FEWEST))
    made = sets.promise(values)
    assert not made.made.any()
    assert not made.undecided.any()
    assert len(sets.learn(made, values, y)) == 0
    assert sets.promise(values).made.all()


# ---- restarts --------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [classes(3), VALUES], ids=["classes", "values"])
def test_after_a_restart_the_same_is_promised(schema: Schema) -> None:
    if schema.task == "classify":
        output, y = stream(600, 3, np.full(600, 3.0))
    else:
        output, y = noisy(600)
    sets, again = PredictionSets(0.9, schema), PredictionSets(0.9, schema)
    follow(sets, output[:500], y[:500])
    again.restore(sets.state())
    ours, theirs = (one.promise(output[500:].astype(np.float32)) for one in (sets, again))
    assert (ours.sets == theirs.sets).all()
    assert (ours.expected == theirs.expected).all()


@pytest.mark.parametrize("schema", [classes(2), VALUES], ids=["classes", "values"])
def test_rows_are_forgotten_and_the_account_is_not(schema: Schema) -> None:
    output, y = noisy(500) if schema is VALUES else stream(500, 2, np.full(500, 3.0))
    sets = PredictionSets(0.9, schema)
    follow(sets, output, y)
    before = sets.state()
    sets.forget_rows()
    assert sets.state() == {**before, "newest": None}
    assert sets.promise(output.astype(np.float32)).made.all() == (schema is not VALUES)
    follow(sets, output, y)
    assert sets.promise(output.astype(np.float32)).made.all()


def test_another_promise_begins_anew() -> None:
    p, y = stream(500, 2, np.full(500, 3.0))
    sets, other, fresh = (PredictionSets(share, classes(2)) for share in (0.9, 0.8, 0.8))
    follow(sets, p, y)
    other.restore(sets.state())
    assert other.state() == fresh.state()


@pytest.mark.parametrize(
    "state",
    [
        None, [], {}, {"misses": ["x"]}, {"misses": [0.0]}, {"misses": [0.0, MOST + 1]},
        {"misses": [0.0, float("nan")]}, {"misses": [[0.0] * PARTS] * 2},
        {"trust": [30.0]}, {"trust": [0.0, 30.0]}, {"newest": [[1.0]]},
        {"newest": [[1.0, float("inf")]]}, {"newest": [1.0, 2.0]},
    ],
)  # fmt: skip
def test_what_is_no_state_is_damage(state: Any) -> None:
    sets = PredictionSets(0.9, VALUES)
    whole = sets.state()
    with pytest.raises(CorruptError, match="account of misses"):
        sets.restore(whole | state if state else state)
    assert sets.state() == whole
