"""Models that spread stage by stage: canaries by name or tag, shares, approval, a budget of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from edged.errors import ConfigError, RefusedError
from edged.fleet.coordinator.control import instruct
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.coordinator.status import FleetReport, lines_of, status_of
from tests.fleet.coordinator.channel import Fleet

NAMES = [f"d{n:02}" for n in range(20)]
ROUND = {"devices": 4, "quorum": 0.5, "deadline": "100s", "window": 0}
CANARIES = {"devices": ["d00", "d01"]}
HOUR = 3600.0


def made(folder: Path, rollout: dict[str, Any], **more: Any) -> Fleet:
    """A fleet whose first round is closed, so that its model begins to spread."""
    sections: dict[str, Any] = {
        "round": ROUND, "choose": {"patience": "1s", "max_age": "10d"},
        "gate": {"wait": "50s", "stages": [1.0]}, "rollout": rollout,
    }  # fmt: skip
    fleet = Fleet(folder, **(sections | more))
    for name in NAMES:
        fleet.state(name)
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
    fleet.coordinator._publish_status(again=True)  # noqa: SLF001  else every two seconds of the real clock
    return status_of(fleet.config.dir)


def test_canaries_try_a_model_first_and_then_all_that_are_there(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": CANARIES})
    assert asked(fleet) == ["d00", "d01"]
    fleet.state("d07", ready=False, why_not="flash budget used")  # it does not train, but gets the model
    report(fleet, ["d00", "d01"])
    assert asked(fleet) == []  # all
    rollout = status(fleet).status.rollout
    assert rollout is not None
    assert rollout.name == "100 % of devices"
    report(fleet, NAMES)
    assert (phase(fleet), read_lineage(fleet.config.dir)[0].accepted) == ("done", True)


def test_a_model_that_is_worse_for_canaries_goes_no_further(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": CANARIES})
    report(fleet, ["d00", "d01"], 2.0)
    assert (phase(fleet), read_lineage(fleet.config.dir)[0].accepted) == ("done", False)


def test_an_operator_approves_what_follows_the_canaries_whenever_that_is(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": CANARIES, "approval": "first"})
    with pytest.raises(RefusedError, match="no rollout waits for approval"):
        order(fleet, "approve")
    report(fleet, ["d00", "d01"])
    assert phase(fleet) == "approval"
    fleet.wait(100 * HOUR)
    restart(fleet)
    assert phase(fleet) == "approval"
    assert "  waits for approval: `edged fleet round approve CONFIG`, or abandon" in lines_of(status(fleet))
    order(fleet, "approve")
    assert (phase(fleet), asked(fleet)) == ("trial", [])
    report(fleet, NAMES)
    (entry,) = read_lineage(fleet.config.dir)
    assert (entry.accepted, entry.approved_by) == (True, "ada")


def test_an_operator_aborts_what_waits(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": CANARIES, "approval": "each"})
    report(fleet, ["d00", "d01"])
    order(fleet, "abandon")
    assert (phase(fleet), read_lineage(fleet.config.dir)[0].reason) == (
        "done",
        "abandoned by ada",
    )
    assert status(fleet).status.rollout is None


def test_canaries_stay_named_while_shares_try_the_model(tmp_path: Path) -> None:
    gate = {"wait": "50s", "stages": [0.3, 1.0]}
    fleet = made(tmp_path, {"canaries": CANARIES}, gate=gate)
    report(fleet, ["d00", "d01"])
    few = asked(fleet)
    assert {"d00", "d01"} < set(few)
    assert len(few) in (6, 7, 8)
    report(fleet, few)
    assert (phase(fleet), asked(fleet)) == ("trial", [])


def test_canaries_are_chosen_by_tag_from_those_that_are_there(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": {"devices": ["d0*"], "tags": ["test"]}})
    assert asked(fleet) == []  # none has the tag: the stage is left out
    for name, fields in {
        "d03": {}, "d04": {"bundle": "other"}, "d05": {"why_not": "the daemon has stopped", "ready": False},
        "d13": {},
    }.items():  # fmt: skip
        fleet.state(name, tags=("test", "spare"), **fields)  # type: ignore[arg-type]
    report(fleet, [name for name in NAMES if name != "d05"])
    assert phase(fleet) == "done"
    fleet.wait(2)
    train(fleet)
    assert asked(fleet) == ["d03"]


def test_a_dead_canary_ends_its_stage_with_a_reason(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": CANARIES})
    fleet.wait(51)
    (entry,) = read_lineage(fleet.config.dir)
    assert (entry.accepted, entry.reason) == (False, "0 of 2 devices have reported")


def test_devices_are_told_their_budget_of_bytes(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"device_bytes": "1MiB"})
    assert fleet.told is not None
    assert fleet.told.daily_bytes == 1024**2


def test_no_stage_begins_before_the_devices_are_known_again_after_a_restart(tmp_path: Path) -> None:
    fleet = made(tmp_path, {"canaries": CANARIES, "approval": "first"})
    report(fleet, ["d00", "d01"])
    fleet.restart()
    order(fleet, "approve")
    fleet.turns()
    assert phase(fleet) == "approval"
    for name in NAMES:
        fleet.state(name)
    fleet.turns()
    fleet.wait(11)
    assert (phase(fleet), asked(fleet)) == ("trial", [])


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"rollout": {"approval": "first"}, "gate": {"stages": [1.0]}}, "needs a stage before the last"),
        (
            {"rollout": {"canaries": CANARIES}, "gate": {"evaluate": False}},
            "rollout.canaries needs devices that try models",
        ),
        ({"rollout": {"device_bytes": 10}}, "10 bytes a day, but the model has"),
        ({"rollout": {"canaries": {}}}, "a group of all devices is the fleet"),
    ],
)
def test_a_rollout_that_cannot_work_is_an_error_at_once(
    tmp_path: Path, sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Fleet(tmp_path, **sections)
