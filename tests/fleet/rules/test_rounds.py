"""The course of rounds, who takes part in them, and what becomes of their models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edged.domain.federated.messages import (
    BaseModelInfo,
    DeviceState,
    Evaluation,
    Quality,
    RoundAnnouncement,
    RoundSettings,
)
from edged.fleet.config import ChooseSection, GateSection, RoundSection
from edged.fleet.coordinator.devices import choose, share_of, why_not
from edged.fleet.rules.rounds import FleetState, due, ended, extended, finished, opened, trial
from edged.fleet.rules.verdict import judge

OLD, NEW = BaseModelInfo("0" * 64, 10, 1), BaseModelInfo("1" * 64, 10, 1)
PACE = RoundSection(devices=4, deadline=100.0, quorum=0.5, every=10.0, rounds=2)
STATE = DeviceState("a", 1000.0, "f00", "1", 50, True, "", True, 0)


def told(number: int, devices: tuple[str, ...] | None = ("a", "b", "c", "d", "e")) -> RoundAnnouncement:
    return RoundAnnouncement(
        "plant", number, f"{number:032x}", "open", "f00", OLD, 0.0, 100.0, 5.0, devices, RoundSettings()
    )


def test_a_round_closes_with_all_that_were_wanted_or_a_quorum_at_its_deadline() -> None:
    course = opened(FleetState(OLD), told(1), PACE)
    assert due(course, 3, PACE, 50.0) is None
    assert due(course, 4, PACE, 50.0) == "close"
    assert due(course, 1, PACE, 100.0) == "extend"
    assert due(course, 2, PACE, 100.0) == "close"


def test_a_round_that_nobody_helps_is_given_up() -> None:
    course = opened(FleetState(OLD), told(1), PACE)
    for number in (1, 2):
        assert due(course, 1, PACE, course.until) == "extend"
        course = extended(course, (), PACE, course.until)
        assert course.extensions == number
    assert due(course, 1, PACE, course.until - 1) is None
    assert due(course, 1, PACE, course.until) == "abandon"
    assert due(course, 2, PACE, course.until) == "close"
    assert opened(course, told(2), PACE).extensions == 0


def test_fewer_chosen_than_wanted_are_all_that_can_come() -> None:
    course = opened(FleetState(OLD), told(1, ("a", "b", "c")), PACE)
    assert due(course, 3, PACE, 1.0) == "close"


def test_a_round_that_goes_on_has_more_time_and_devices() -> None:
    course = extended(opened(FleetState(OLD), told(1), PACE), ("x",), PACE, 100.0)
    assert (course.until, course.asked) == (200.0, ("a", "b", "c", "d", "e", "x"))
    assert course.round is not None
    assert (course.round.deadline, course.round.id) == (200.0, told(1).id)
    assert course.round.names("x")


def test_from_open_to_done() -> None:
    course = opened(FleetState(OLD), told(1), PACE)
    course = trial(course, NEW, ("a",), 0, 60.0, course.asked)
    assert course.round is not None
    assert (course.round.state, course.round.base, course.round.devices) == ("closed", NEW, ("a",))
    assert (course.number, course.standing) == (1, OLD)
    course = trial(course, NEW, None, 1, 60.0, course.asked)
    done = ended(course, NEW, PACE, 70.0)
    assert done.round is not None
    assert (done.round.state, done.standing, done.version, done.until) == ("done", NEW, 1, 80.0)
    back = ended(course, OLD, PACE, 70.0)
    assert (back.standing, back.version) == (OLD, 0)
    assert not finished(done, PACE)
    assert finished(ended(opened(done, told(2), PACE), NEW, PACE, 0.0), PACE)


def test_a_course_survives_a_restart() -> None:
    course = trial(opened(FleetState(OLD), told(1), PACE), NEW, ("a",), 0, 60.0, ("a", "b"))
    for made in (FleetState(OLD), course, opened(FleetState(OLD), told(1, None), PACE)):
        assert FleetState.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"ready": False, "why_not": "flash budget used"}, "flash budget used"),
        ({"ready": False}, "says that it is not ready"),
        ({"bundle": "other"}, "has bundle other, the fleet f00"),
        ({"samples": 9}, "fewer than 10 new labelled samples"),
        ({"at": 0.0}, "not heard for 900 s"),
        ({"idle": False}, "trains for itself"),
    ],
)
def test_who_would_do_and_why_not(changed: dict[str, object], reason: str) -> None:
    state, wanted = replace(STATE, **changed), ChooseSection(min_samples=10, max_age=900.0)  # type: ignore[arg-type]
    assert why_not(wanted, state, "f00", 1100.0) == reason


def test_more_are_chosen_than_are_needed_and_the_lot_is_the_same_again() -> None:
    names = [f"d{n}" for n in range(50)]
    assert len(choose(names, 20, "x")) == 25
    assert choose(names, 20, "x") == choose(names[::-1], 20, "x")
    assert choose(names, 20, "x") != choose(names, 20, "y")
    assert set(choose(names, 100, "x")) == set(names)


def test_stages_contain_each_other() -> None:
    names = [f"d{n}" for n in range(50)]
    few, many = share_of(names, 0.1, "x"), share_of(names, 0.5, "x")
    assert (len(few), len(many), set(few) <= set(many)) == (5, 25, True)
    assert len(share_of(names, 0.02, "x", 5)) == 5
    assert share_of(["a", "b"], 0.02, "x", 5) == ("a", "b")


def reports(losses: list[float], standing: float | None = 1.0) -> list[Evaluation]:
    return [
        Evaluation(
            f"d{n}", 1, "0" * 32, NEW.hash, 10, Quality(1.0, 0.5), Quality(loss, 0.5),
            None if standing is None else Quality(standing, 0.5), True, "",
        )
        for n, loss in enumerate(losses)
    ]  # fmt: skip


def test_a_model_that_is_better_goes_on() -> None:
    verdict = judge(reports([0.9] * 10), 10, GateSection())
    assert verdict.accepted
    assert verdict.numbers["change_mean"] == pytest.approx(-0.1)
    assert verdict.numbers["global_loss_mean"] == pytest.approx(0.9)


def test_a_model_that_is_worse_in_the_mean_goes_back() -> None:
    assert not judge(reports([1.1] * 10), 10, GateSection()).accepted


def test_a_model_that_is_bad_for_some_goes_back() -> None:
    assert not judge(reports([0.7] * 16 + [1.9] * 4), 20, GateSection()).accepted


@pytest.mark.parametrize(("honest", "lie"), [(0.9, 1e30), (1.1, -1e30)])
def test_a_tenth_of_liars_decides_nothing(honest: float, lie: float) -> None:
    given = reports([honest] * 19 + [lie])
    assert judge(given, 20, GateSection()).accepted == (honest < 1.0)


@pytest.mark.parametrize("n", [2, 10, 11, 20, 21, 31, 50])
def test_a_stage_bears_exactly_as_many_false_reports_as_promised(n: int) -> None:
    borne = max((n - 1) // 10, int(n > 2))  # docs/promises.md
    for liars in (borne, borne + 1):
        veto = judge(reports([0.9] * (n - liars) + [1e30] * liars), n, GateSection())
        assert veto.accepted == (liars == borne)
        assert not judge(reports([2.0] * (n - borne) + [-1e30] * borne), n, GateSection()).accepted


def test_a_liar_among_six_cannot_veto_and_is_named() -> None:
    verdict = judge(reports([0.9] * 5 + [1e30]), 6, GateSection())
    assert (verdict.accepted, verdict.dissenters) == (True, ("d5",))


def test_too_few_reports_decide_nothing() -> None:
    verdict = judge(reports([0.9] * 4), 10, GateSection())
    assert (verdict.accepted, verdict.reason) == (False, "4 of 10 devices have reported")
    assert not judge([], 0, GateSection()).accepted


def test_a_device_that_does_not_know_the_model_before_is_not_compared() -> None:
    verdict = judge(reports([1.1] * 10, standing=None), 10, GateSection())
    assert (verdict.accepted, verdict.reason) == (True, "no device knows the model before")
