"""Models that spread stage by stage: canaries, a rate, an abort, approval, hours, and budgets of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from edged.errors import ConfigError, RefusedError
from edged.fleet.coordinator.control import instruct
from edged.fleet.coordinator.history import HISTORY, line_of, read_history
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.coordinator.status import FleetReport, lines_of, rollout_lines, status_of
from tests.fleet.coordinator.channel import Fleet

NAMES = [f"d{n:02}" for n in range(20)]
ROUND = {"devices": 4, "quorum": 0.5, "deadline": "100s", "window": 0, "over": 1}
CANARIES = {"canaries": {"devices": ["d00", "d01"]}}
HOUR = 3600.0


def made(folder: Path, rollout: dict[str, Any], **more: Any) -> Fleet:
    """A fleet whose first round is closed, so that its model begins to spread."""
    sections: dict[str, Any] = {
        "round": ROUND, "choose": {"patience": "1s", "max_age": "10d"}, "groups": CANARIES,
        "gate": {"wait": "50s", "stages": [1.0]}, "rollout": rollout,
    }  # fmt: skip
    fleet = Fleet(folder, **(sections | more))
    for number, name in enumerate(NAMES):
        fleet.state(name, offset=60 * number)
    fleet.turns()
    fleet.wait(10)
    train(fleet)
    return fleet


def train(fleet: Fleet) -> None:
    for name in asked(fleet):
        fleet.update(name)
    fleet.turns()


def asked(fleet: Fleet) -> list[str]:
    assert fleet.told is not None
    return list(fleet.told.devices or ())


def phase(fleet: Fleet) -> str:
    return fleet.coordinator.course.phase


def report(fleet: Fleet, names: Iterable[str], loss: float = 0.9) -> None:
    for name in names:
        fleet.report(name, loss)
    fleet.turns()


def restart(fleet: Fleet) -> None:
    """Another process, which hears the states of all devices within some seconds."""
    fleet.restart()
    fleet.turns()
    for name in NAMES:
        fleet.state(name)
    fleet.wait(5)
    fleet.wait(5)


def order(fleet: Fleet, what: str) -> None:
    course = fleet.coordinator.course
    instruct(fleet.config.dir, what, (course.number, course.phase), "ada")  # type: ignore[arg-type]
    fleet.turns(1)


def status(fleet: Fleet) -> FleetReport:
    fleet.coordinator._publish_status(anew=True)  # noqa: SLF001  else every two seconds of the real clock
    return status_of(fleet.config)


def test_canaries_try_a_model_first_and_then_all_that_are_there(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": "canaries"})
    assert asked(fleet) == ["d00", "d01"]
    fleet.state("d07", ready=False, why_not="flash budget used")  # it does not train, but gets the model
    report(fleet, ["d00", "d01"])
    assert asked(fleet) == NAMES
    rollout = status(fleet).status.rollout
    assert rollout is not None
    assert rollout.name == "100 % of devices"
    report(fleet, NAMES)
    assert (phase(fleet), read_lineage(fleet.config.dir)[0].accepted) == ("done", True)


def test_a_model_that_is_worse_for_canaries_goes_no_further(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": "canaries"})
    report(fleet, ["d00", "d01"], 2.0)
    assert (phase(fleet), read_lineage(fleet.config.dir)[0].accepted) == ("done", False)


def test_an_operator_approves_what_follows_the_canaries_whenever_that_is(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": "canaries", "approval": "first"})
    with pytest.raises(RefusedError, match="no rollout waits for approval"):
        order(fleet, "approve")
    report(fleet, ["d00", "d01"])
    assert phase(fleet) == "approval"
    fleet.wait(100 * HOUR)
    restart(fleet)
    assert phase(fleet) == "approval"
    assert "  waits for approval: `edged fleet rollout approve CONFIG`, or abort" in lines_of(status(fleet))
    order(fleet, "approve")
    assert (phase(fleet), asked(fleet)) == ("trial", NAMES)
    report(fleet, NAMES)
    (entry,) = read_lineage(fleet.config.dir)
    assert (entry.accepted, entry.approved_by) == (True, "ada")


def test_an_operator_aborts_what_waits(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": "canaries", "approval": "each"})
    report(fleet, ["d00", "d01"])
    order(fleet, "abandon")
    assert (phase(fleet), read_lineage(fleet.config.dir)[0].reason) == (
        "done",
        "abandoned by the operator",
    )
    assert rollout_lines(status(fleet).status.rollout) == ["no rollout is under way"]
    assert line_of(list(read_history(fleet.config.dir))[-1]).endswith("abandon round 1, by ada")


def test_so_many_devices_an_hour(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"rate": 120})
    assert len(asked(fleet)) == 2
    fleet.wait(30)
    assert len(asked(fleet)) == 2
    for minutes in range(1, 10):
        fleet.wait(60 if minutes > 1 else 31)
        assert len(asked(fleet)) == 2 * (minutes + 1)
    assert phase(fleet) == "trial"
    restart(fleet)
    assert len(asked(fleet)) == 20
    fleet.wait(51)
    assert read_lineage(fleet.config.dir)[0].reason == "0 of 20 devices have reported"


def test_a_rate_is_kept_by_fractions_and_not_caught_up(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"rate": 40})
    counts = []
    for _ in range(9):
        fleet.wait(60)
        counts.append(len(asked(fleet)))
    assert counts == [1, 2, 3, 3, 4, 5, 5, 6, 7]


def test_too_many_for_which_it_is_worse_end_it_before_others_have_it(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"rate": 300, "abort": 0.3})
    first = asked(fleet)
    assert len(first) == 5
    report(fleet, first[:3])
    report(fleet, first[3:4], 2.0)
    assert phase(fleet) == "trial"
    report(fleet, first[4:], 2.0)
    (entry,) = read_lineage(fleet.config.dir)
    assert entry.reason == "worse for 2 of 5 devices, more than 30 %"
    assert list(entry.dissenters) == first[3:]


def test_devices_without_a_report_count_as_failed_at_the_end(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"abort": 0.2})
    report(fleet, NAMES[:15])
    assert phase(fleet) == "trial"
    fleet.wait(51)
    (entry,) = read_lineage(fleet.config.dir)
    assert entry.reason == "worse for 0 and no report from 5 of 20 devices, more than 20 %"


def test_each_device_gets_it_at_night_of_its_own_zone(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, round=ROUND, choose={"patience": "1s", "max_age": "10d"},
                  gate={"wait": "50s", "stages": [1.0]}, rollout={"hours": "22:00-02:00"})  # fmt: skip
    fleet.clock.seconds = 86400.0 * 20000 + 12 * HOUR  # noon in UTC
    for number, name in enumerate(NAMES):
        fleet.state(name, offset=60 * (number - 10))
    fleet.turns()
    assert status(fleet).status.why_not["d10"] == "outside of the hours 22:00-02:00 of its day"
    assert phase(fleet) == "waiting"
    fleet.wait(10 * HOUR)  # d06 to d11 have from 18 to 23 o'clock; d10 to d13 have night
    fleet.wait(2)
    assert set(asked(fleet)) == {"d10", "d11", "d12", "d13"}
    assert fleet.told is not None
    assert fleet.told.audience is not None
    assert str(fleet.told.audience.hours) == "22:00-02:00"
    train(fleet)
    assert asked(fleet) == ["d10", "d11", "d12", "d13"]
    report(fleet, asked(fleet))
    seen = {len(asked(fleet))}
    for _ in range(24):
        fleet.wait(HOUR)
        seen.add(len(asked(fleet)))
        report(fleet, asked(fleet))
    assert len(seen) > 10
    assert read_lineage(fleet.config.dir)[0].numbers["devices"] == 20


def test_a_stage_does_not_wait_for_ever_for_a_device_that_has_no_bytes_left(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"rate": 600, "device_bytes": "1MiB"})
    fleet.state("d19", ready=False, why_not="budget of bytes for today used")
    fleet.turns()
    fleet.wait(60)
    assert asked(fleet) == NAMES[:19]
    report(fleet, NAMES[:19])
    fleet.wait(40 * HOUR)
    assert phase(fleet) == "trial"
    fleet.wait(9 * HOUR)
    assert read_lineage(fleet.config.dir)[0].accepted is True


def test_no_stage_begins_before_the_devices_are_known_again_after_a_restart(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": "canaries", "approval": "first"})
    report(fleet, ["d00", "d01"])
    fleet.restart()
    order(fleet, "approve")
    fleet.turns()
    assert phase(fleet) == "approval"
    for name in NAMES:
        fleet.state(name)
    fleet.turns()
    fleet.wait(11)
    assert (phase(fleet), asked(fleet)) == ("trial", NAMES)


def test_the_fleets_budget_of_bytes_is_kept_each_day(tmp_path: Path) -> None:
    model = Fleet(tmp_path / "size").coordinator.course.standing.bytes
    update = 96 + 12 + 4 * 13
    budget = 4 * (model + update) + 6 * model
    fleet = made(tmp_path / "fleet", {"fleet_bytes": budget}, choose={"patience": "1s", "max_age": "10d"})
    course = fleet.coordinator.course
    assert course.round is not None
    assert len(asked(fleet)) in (5, 6)  # the model of the round may have some bytes more or less
    assert course.traffic <= budget
    fleet.wait(60)
    assert len(asked(fleet)) in (5, 6)
    restart(fleet)
    fleet.wait(24 * HOUR)
    assert len(asked(fleet)) > 10
    assert fleet.coordinator.course.traffic <= budget


def test_no_round_is_opened_while_the_budget_is_used(tmp_path: Path) -> None:
    size = Fleet(tmp_path / "size").coordinator.course.standing.bytes
    fleet = Fleet(
        tmp_path / "fleet", round=ROUND, choose={"patience": "1s"}, rollout={"fleet_bytes": size + 300}
    )
    for name in NAMES:
        fleet.state(name)
    fleet.turns()
    fleet.wait(2)
    assert fleet.told is None
    assert status(fleet).status.waits_for == "the budget of bytes of the fleet for today is used"


def test_history_has_who_took_what_when_and_survives_a_torn_line(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": "canaries", "approval": "first"})
    assert fleet.told is not None
    digest = fleet.told.base.hash
    report(fleet, ["d00", "d01"])
    fleet.state("d00", model=digest)
    fleet.turns()
    order(fleet, "approve")
    fleet.state("d05", model=digest)
    fleet.state("d00", model=digest)
    fleet.turns()
    with (fleet.config.dir / HISTORY).open("ab") as file:
        file.write(b'{"at": 1')
    fleet.restart()
    fleet.state("d05", model=digest)
    fleet.state("d06", model=digest)
    fleet.turns()
    told = [(entry.what, entry.device, entry.by) for entry in read_history(fleet.config.dir)]
    assert told == [
        ("taken", "d00", ""), ("approve", "", "ada"), ("taken", "d05", "ada"), ("taken", "d06", "ada"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"rollout": {"canaries": "none"}}, "no group none in groups"),
        ({"rollout": {"approval": "first"}, "gate": {"stages": [1.0]}}, "needs a stage before the last"),
        ({"rollout": {"rate": 3}, "gate": {"evaluate": False}}, "rollout.rate needs devices that try models"),
        ({"rollout": {"hours": "22-6"}}, "is not a time span"),
        ({"rollout": {"device_bytes": 10}}, "10 bytes a day, but the model has"),
        ({"rollout": {"fleet_bytes": "1MiB"}, "choose": {"everyone": True}}, "choose.everyone to false"),
        ({"groups": {"all": {}}}, "a group of all devices is the fleet"),
        (
            {"groups": {"a": {"tags": ["x"], "own_model": True}}, "rollout": {"canaries": "a"}},
            "group a has a model of its own",
        ),
    ],
)
def test_a_rollout_that_cannot_work_is_an_error_at_once(
    tmp_path: Path, sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Fleet(tmp_path, **sections)
