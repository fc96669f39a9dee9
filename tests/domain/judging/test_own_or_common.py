"""Which of two models answers, by labels that both have answered."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from edged.domain.judging.own_or_common import ContestState, OwnOrCommon
from edged.errors import CorruptError, TrainingError

RNG = np.random.default_rng(1)


def wrong(share: float, n: int) -> np.ndarray:
    """Errors of a model that is wrong in a share of cases."""
    return (RNG.random(n) < share).astype(np.float64)


def test_the_better_model_comes_to_answer_and_stays() -> None:
    contest = OwnOrCommon()
    contest.begin()
    owns = []
    for shares in ((0.3, 0.1), (0.05, 0.3)):
        contest.add(*(wrong(share, 450) for share in shares))
        owns.append(contest.own)
    assert owns == [False, True]
    assert contest.labels == 900


def test_models_that_say_the_same_change_nothing() -> None:
    contest, errors = OwnOrCommon(), wrong(0.2, 500)
    contest.begin()
    assert not contest.add(errors, errors)
    assert contest.own


def test_whether_another_answers_is_told_once() -> None:
    contest = OwnOrCommon()
    contest.begin()
    told = [contest.add(np.ones(1), np.zeros(1)) for _ in range(20)]
    assert sum(told) == 1
    assert not contest.own


def test_it_goes_on_from_what_was_stored() -> None:
    contest, other = OwnOrCommon(), OwnOrCommon()
    contest.begin()
    contest.add(wrong(0.1, 50), wrong(0.2, 50))
    other.restore(contest.state())
    assert other.state() == contest.state()
    for damaged in (replace(contest.state(), spread=-1.0), replace(contest.state(), lead=float("nan"))):
        with pytest.raises(CorruptError):
            other.restore(damaged)
    assert ContestState.from_json(contest.state().to_json()) == contest.state()
    for nothing in ("{}", "null"):
        with pytest.raises(TrainingError):
            ContestState.from_json(json.loads(nothing))
