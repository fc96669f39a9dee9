import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.gate import Evidence, GateRules, Probation, judge


def wrong(share: float, n: int = 200) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return (np.arange(n) < share * n).astype(np.float64)


def test_a_better_candidate_is_accepted_with_its_numbers() -> None:
    verdict = judge("classify", Evidence(wrong(0.1), wrong(0.2)), None, GateRules())
    assert verdict.accepted
    assert abs(verdict.numbers["gain"] - 0.1) < 1e-9
    assert "+0.1000" in verdict.reasons[0]


def test_a_worse_candidate_is_refused() -> None:
    assert not judge("classify", Evidence(wrong(0.21), wrong(0.2)), None, GateRules()).accepted


def test_a_minimum_gain_is_kept() -> None:
    evidence = Evidence(wrong(0.15), wrong(0.2))
    assert judge("classify", evidence, None, GateRules(min_gain=0.04)).accepted
    assert not judge("classify", evidence, None, GateRules(min_gain=0.06)).accepted


def test_too_little_evidence_is_a_refusal() -> None:
    verdict = judge("classify", Evidence(wrong(0, 19), wrong(1, 19)), None, GateRules(min_holdout=20))
    assert not verdict.accepted
    assert "19" in verdict.reasons[0]


def test_a_candidate_that_forgets_more_than_it_gains_is_refused() -> None:
    recent = Evidence(wrong(0.18), wrong(0.2))
    assert judge("classify", recent, Evidence(wrong(0.13), wrong(0.1)), GateRules()).accepted
    refused = judge("classify", recent, Evidence(wrong(0.3), wrong(0.1)), GateRules())
    assert not refused.accepted
    assert "older" in refused.reasons[1]


def test_errors_of_values_are_compared_relative() -> None:
    evidence = Evidence(np.full(50, 900.0), np.full(50, 1000.0))
    assert abs(judge("regress", evidence, None, GateRules()).numbers["gain"] - 0.1) < 1e-9


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
