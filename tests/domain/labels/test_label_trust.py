"""Labels that no model can explain: refused, then rested from; a change that can be learned is neither."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.labels.label_trust import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    NEEDED,
    PATIENCE,
    REMEMBERED,
    LabelTrust,
)


def verdict(candidate: float, champion: float | None = None, n: float = 200.0) -> Verdict:
    champion = candidate if champion is None else champion
    numbers = {
        "candidate_error": candidate, "champion_error": champion, "gain": champion - candidate, "holdout": n,
    }  # fmt: skip
    return Verdict(True, ("not worse",), numbers)


def experienced(error: float = 0.1, verdicts: int = NEEDED) -> LabelTrust:
    trust = LabelTrust("classify")
    for _ in range(verdicts):
        assert trust.review(verdict(error)).accepted
    return trust


def test_noise_is_refused_and_after_some_verdicts_training_rests() -> None:
    trust = experienced()
    for number in range(PATIENCE):
        assert trust.pause() is None
        reviewed = trust.review(verdict(0.35))
        assert not reviewed.accepted
        assert reviewed.numbers["usual_limit"] == pytest.approx(0.2)
        assert "the newest labels look wrong" in reviewed.reasons[-1], number
    assert trust.pause() == FIRST_PAUSE


def test_pauses_become_longer_and_end_with_the_first_verdict_that_can_be_explained() -> None:
    trust = experienced(verdicts=REMEMBERED)
    pauses = []
    for _ in range(PATIENCE + 7):
        trust.review(verdict(0.5))
        pauses.append(trust.pause())
    assert pauses[: PATIENCE - 1] == [None] * (PATIENCE - 1)
    rests = [pause for pause in pauses if pause is not None]
    assert rests == sorted(rests)
    assert (rests[0], rests[1], rests[-1]) == (FIRST_PAUSE, 2 * FIRST_PAUSE, LONGEST_PAUSE)
    assert trust.review(verdict(0.12)).accepted
    assert trust.pause() is None
    assert (trust.suspicious, trust.pauses) == (0, 0)


def test_a_change_that_is_being_learned_is_not_noise() -> None:
    trust = experienced()
    assert trust.review(verdict(0.4, champion=0.6)).accepted


def test_a_level_that_lasts_becomes_the_usual_one() -> None:
    trust = experienced()
    accepted = 0
    for _ in range(REMEMBERED):
        accepted = accepted + 1 if trust.review(verdict(0.4)).accepted else 0
        trust.pause()
    assert accepted > 10


@pytest.mark.parametrize("seed", range(5))
def test_chance_alone_pauses_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trust = LabelTrust("classify")
    accepted = 0
    for _ in range(1000):
        accepted += trust.review(verdict(float(rng.binomial(200, 0.2)) / 200)).accepted
        assert trust.pause() is None
    assert accepted >= 998


def test_values_are_compared_with_their_usual_error() -> None:
    trust = LabelTrust("regress")

    def of(candidate: float, champion: float) -> Verdict:
        gain = (champion - candidate) / champion
        numbers = {"candidate_error": candidate, "champion_error": champion, "gain": gain, "holdout": 200.0}
        return Verdict(True, (), numbers)

    assert all(trust.review(of(0.3, 0.3)).accepted for _ in range(NEEDED))
    assert trust.review(of(0.5, 0.5)).accepted
    assert not trust.review(of(0.9, 0.9)).accepted
    assert trust.review(of(0.9, 1.1)).accepted


@pytest.mark.parametrize("task", ["reconstruct", "forecast"])
def test_streams_that_label_themselves_are_not_suspected(task: str) -> None:
    trust = LabelTrust(task)  # type: ignore[arg-type]
    assert all(trust.review(verdict(error)).accepted for error in [0.1] * 20 + [0.9] * 20)


def test_a_verdict_without_a_comparison_says_nothing_about_labels() -> None:
    trust = experienced()
    told = refuse("verification failed")
    assert trust.review(told) is told
    assert trust.suspicious == 0


def test_it_survives_a_restart() -> None:
    trust = experienced()
    for _ in range(PATIENCE):
        trust.review(verdict(0.5))
    trust.pause()
    again = LabelTrust.load("classify", json.loads(json.dumps(trust.dump())))
    assert (again.usual, again.suspicious, again.pauses) == (trust.usual, trust.suspicious, trust.pauses)
    assert not again.review(verdict(0.5)).accepted
    assert LabelTrust.load("classify", None) == LabelTrust("classify")
