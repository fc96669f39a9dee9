import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.judging.gate import Earlier, Evidence, GateRules, Probation, judge
from edged.domain.judging.verdict import Verdict

Errors = np.ndarray[tuple[int], np.dtype[np.float64]]


def wrong(share: float, n: int = 200) -> Errors:
    """Errors at every place in turn, so that every part has the same share."""
    return ((np.arange(n) * 7919 % n) < share * n).astype(np.float64)


def random_errors(share: float, n: int, seed: int) -> Errors:
    return (np.random.default_rng(seed).random(n) < share).astype(np.float64)


def test_a_better_candidate_is_accepted_with_its_numbers() -> None:
    verdict = judge("classify", Evidence(wrong(0.1), wrong(0.2)), None, GateRules(significance=0.0001))
    assert verdict.accepted
    assert abs(verdict.numbers["gain"] - 0.1) < 1e-9
    assert (verdict.numbers["wins"], verdict.numbers["losses"], verdict.numbers["both"]) == (20, 0, 180)
    assert verdict.reasons == ("right in 180 of 200 held-back cases, the current model in 160",)
    assert (verdict.numbers["wins"], verdict.numbers["losses"], verdict.numbers["p_worse"]) == (20, 0, 1.0)


def test_a_worse_candidate_is_refused() -> None:
    verdict = judge("classify", Evidence(wrong(0.3), wrong(0.2)), None, GateRules())
    assert not verdict.accepted
    assert not verdict.forgets
    assert verdict.numbers["p_worse"] < 0.1


def test_one_sample_is_no_plural() -> None:
    verdict = judge("classify", Evidence(wrong(0.3, 1), wrong(0.2, 1)), None, GateRules())
    assert verdict.reasons == ("only 1 labelled held-back case, 5 needed",)


def test_a_verdict_is_read_as_it_was_stored() -> None:
    verdict = judge("classify", Evidence(wrong(0.1), wrong(0.2)), None, GateRules())
    stored = json.loads(json.dumps(verdict.to_json()))
    assert list(stored) == ["accepted", "reasons", "numbers", "forgets"]
    assert Verdict.from_json(stored) == verdict


def test_what_chance_explains_refuses_nobody() -> None:
    assert judge("classify", Evidence(wrong(0.21), wrong(0.2)), None, GateRules()).accepted


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_as_good_a_candidate_is_seldom_refused_and_one_that_guesses_almost_always(share: float) -> None:
    def accepted(candidate: float, seed: int) -> bool:
        evidence = Evidence(random_errors(candidate, 60, 2 * seed), random_errors(share, 60, 2 * seed + 1))
        return judge("classify", evidence, None, GateRules()).accepted

    assert np.mean([accepted(share, seed) for seed in range(200)]) > 0.8
    assert np.mean([accepted(0.83, seed) for seed in range(200)]) < 0.01


def test_an_adapting_candidate_passes_soon_after_an_abrupt_change() -> None:
    """Before the change the champion was right and the candidate is not any more; then they change places."""
    then, since = 45, 15
    candidate = np.concatenate([random_errors(0.4, then, 1), random_errors(0.1, since, 2)])
    champion = np.concatenate([random_errors(0.1, then, 3), random_errors(0.9, since, 4)])
    verdict = judge("classify", Evidence(candidate, champion), None, GateRules())
    assert verdict.accepted
    assert verdict.numbers["holdout"] == 30, "the newer half decided"


def test_a_minimum_gain_is_kept() -> None:
    evidence = Evidence(wrong(0.15), wrong(0.2))
    assert judge("classify", evidence, None, GateRules(min_gain=0.04)).accepted
    assert not judge("classify", evidence, None, GateRules(min_gain=0.06)).accepted


def test_a_loss_can_be_allowed() -> None:
    evidence = Evidence(wrong(0.3), wrong(0.2))
    assert judge("classify", evidence, None, GateRules(min_gain=-0.15)).accepted
    assert not judge("classify", evidence, None, GateRules(min_gain=-0.05)).accepted


def test_too_little_evidence_is_a_refusal() -> None:
    verdict = judge("classify", Evidence(wrong(0, 19), wrong(1, 19)), None, GateRules(min_holdout=20))
    assert not verdict.accepted
    assert "19" in verdict.reasons[0]


def test_a_candidate_that_forgets_more_than_it_gains_is_refused() -> None:
    recent = Evidence(wrong(0.18), wrong(0.2))
    kept = Earlier(Evidence(wrong(0.13), wrong(0.1)))
    assert judge("classify", recent, kept, GateRules()).accepted
    lost = Earlier(Evidence(wrong(0.3), wrong(0.1)))
    refused = judge("classify", recent, lost, GateRules())
    assert not refused.accepted
    assert refused.forgets
    assert (
        refused.reasons[1]
        == "forgets earlier data: right in 140 of 200 earlier held-back cases, the current model in 180"
    )
    assert refused.numbers["older_gain"] == pytest.approx(-0.2)


def test_a_gain_of_now_is_set_against_a_loss_of_then() -> None:
    lost = Earlier(Evidence(wrong(0.3), wrong(0.1)))
    assert judge("classify", Evidence(wrong(0.2), wrong(0.5)), lost, GateRules()).accepted


def test_chance_on_few_older_samples_refuses_nobody() -> None:
    lost = Earlier(Evidence(wrong(0.2, 30), wrong(0.1, 30)))
    assert judge("classify", Evidence(wrong(0.2), wrong(0.2)), lost, GateRules()).accepted


def test_too_few_earlier_samples_are_not_asked() -> None:
    lost = Earlier(Evidence(wrong(1.0, 4), wrong(0.0, 4)))
    assert judge("classify", Evidence(wrong(0.2), wrong(0.2)), lost, GateRules()).accepted


def test_answers_that_have_changed_since_are_not_defended() -> None:
    """The same inputs as now, and a champion that errs more now than then."""
    evidence = Evidence(wrong(0.3), wrong(0.1))
    still_good, bad_now = Evidence(wrong(0.1), wrong(0.1)), Evidence(wrong(0.4), wrong(0.4))
    same = Earlier(evidence, elsewhere=False)
    assert not judge("classify", still_good, same, GateRules()).accepted
    assert judge("classify", bad_now, same, GateRules()).accepted
    other = Earlier(evidence, elsewhere=True)
    assert not judge("classify", bad_now, other, GateRules()).accepted, "other inputs: nothing contradicts"


def test_errors_of_values_are_compared_relative() -> None:
    evidence = Evidence(np.full(50, 900.0), np.full(50, 1000.0))
    assert abs(judge("regress", evidence, None, GateRules()).numbers["gain"] - 0.1) < 1e-9


def test_values_that_are_worse_beyond_chance_are_refused() -> None:
    rng = np.random.default_rng(0)
    champion = rng.exponential(1.0, 60)
    assert not judge("regress", Evidence(champion * 1.3, champion), None, GateRules()).accepted
    other = np.random.default_rng(1).permutation(champion)
    assert judge("regress", Evidence(other, champion), None, GateRules()).accepted


@given(st.integers(0, 2**32 - 1))
def test_probation_fails_a_model_that_is_clearly_worse_and_only_that(seed: int) -> None:
    rng = np.random.default_rng(seed)
    same, worse = Probation("classify", 200, 0.1), Probation("classify", 200, 0.1)
    while (kept := same.outcome()) is None:
        errors = (rng.random(10) < 0.3).astype(float)
        same.add(errors, errors)
    while (lost := worse.outcome()) is None:
        worse.add((rng.random(10) < 0.9).astype(float), (rng.random(10) < 0.1).astype(float))
    assert kept is True
    assert lost is False
    assert worse.count <= 40


def test_without_a_probation_everything_passes() -> None:
    assert Probation("classify", 0, 0.1).outcome() is True


def test_a_world_that_gets_harder_for_both_is_no_failure() -> None:
    probation = Probation("classify", 100, 0.1)
    probation.add(np.ones(100), np.ones(100))
    assert probation.outcome() is True


def of_classes(lost: int, won: int, rows: int = 200) -> Evidence:
    """A candidate that loses so many rows of class 1 and wins so many of class 0, each a fifth of all."""
    said = np.arange(rows) % 5
    candidate, champion = np.zeros(rows), np.zeros(rows)
    candidate[np.flatnonzero(said == 1)[:lost]] = 1.0
    champion[np.flatnonzero(said == 0)[:won]] = 1.0
    return Evidence(candidate, champion, said)


def test_who_loses_a_class_is_refused_though_as_good_on_the_whole() -> None:
    verdict = judge("classify", of_classes(lost=12, won=12), None, GateRules())
    assert not verdict.accepted
    assert verdict.numbers["lost_class"] == 1.0
    assert verdict.reasons[-1] == "finds 28 of 40 held-back cases of class 1, the current model 40"


def test_a_few_rows_of_a_class_decide_nothing() -> None:
    assert judge("classify", of_classes(lost=8, won=8), None, GateRules()).accepted


def test_who_is_better_on_the_whole_may_be_worse_on_a_class() -> None:
    assert judge("classify", of_classes(lost=12, won=30), None, GateRules()).accepted


def test_where_chance_decides_about_every_class_hardly_anyone_is_refused_for_one() -> None:
    refused = 0
    for seed in range(500):
        evidence = Evidence(
            random_errors(0.2, 200, 2 * seed), random_errors(0.2, 200, 2 * seed + 1), np.arange(200) % 5
        )
        refused += "lost_class" in judge("classify", evidence, None, GateRules()).numbers
    assert refused <= 5
