"""Rounds under masks: the model is that of the plain mean, and every such round ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.domain.federated.messages import Receipts
from edged.errors import ConfigError
from edged.fleet.coordinator.control import exclude, instruct
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.coordinator.status import FleetReport, lines_of
from tests.fleet.coordinator.channel import Fleet
from tests.fleet.coordinator.masked import MaskedDevices
from tests.fleet.senders import SHAPES, base_weights, change_of

NAMES = [f"d{n}" for n in range(12)]
SECTIONS: dict[str, Any] = {
    "round": {"devices": 12, "quorum": 0.5, "deadline": "300s", "window": 0},
    "choose": {"everyone": True},
    "masks": {"enabled": True, "wait": "20s"},
    "gate": {"evaluate": False},
}


def fleet(folder: Path, **sections: Any) -> tuple[Fleet, MaskedDevices]:
    made = Fleet(folder, **{**SECTIONS, **sections})
    made.turns()
    return made, MaskedDevices(made)


def go_on(made: Fleet, devices: MaskedDevices, *, restart: bool = False) -> None:
    """Let both sides do what they can, until nothing more is said."""
    for _ in range(12):
        made.turns(3)
        if restart:
            made.restart()
            devices.again()
            made.turns(3)
        devices.react()


def mean(names: list[str]) -> dict[str, np.ndarray]:
    """The model of the plain mean of these devices' updates in round 1."""
    drawn = {name: change_of(name, 1, SHAPES) for name in names}
    total = sum(samples for _, samples in drawn.values())
    return {
        part: value + sum(n * change[part].astype(np.float64) for change, n in drawn.values()) / total
        for part, value in base_weights().items()
    }


def assert_model(made: Fleet, expected: dict[str, np.ndarray]) -> None:
    found = made.coordinator.journal.weights(made.coordinator.course.standing.hash)
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= 1e-6, name


def test_status_says_for_which_devices_it_waits(tmp_path: Path) -> None:
    made, devices = fleet(tmp_path, round={**SECTIONS["round"], "every": "1h"})
    devices.silent = {"d11"}
    devices.join(NAMES)
    told = []
    for seconds in (0, 21, 0, 0):
        made.turns(3)
        made.wait(seconds)
        told.append(made.coordinator._status())  # noqa: SLF001  what is written every two seconds
        devices.react()
    assert [status.masks for status in told] == [
        "joining: 11 have joined",
        "sharing: 0 of 11 have shared keys",
        "collecting: 11 have shared keys",
        "unmasking: 0 of 11 have answered",
    ]
    assert "masks collecting: 11 have shared keys" in lines_of(FleetReport(True, 1, 0.0, told[2], ()))
    made.turns(3)
    assert made.coordinator._status().masks is None  # noqa: SLF001


@pytest.mark.parametrize("restart", [False, True])
def test_the_model_is_that_of_the_plain_mean(tmp_path: Path, restart: bool) -> None:
    made, devices = fleet(tmp_path, round={**SECTIONS["round"], "rounds": 1})
    devices.join(NAMES)
    go_on(made, devices, restart=restart)
    assert made.coordinator.course.version == 1
    assert_model(made, mean(NAMES))


def test_a_model_made_under_masks_goes_to_canaries_first(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "gate": {"wait": "50s", "stages": [1.0]},
        "rollout": {"canaries": {"devices": ["d0"]}, "approval": "first"},
    }  # fmt: skip
    made, devices = fleet(tmp_path, **sections)
    for name in NAMES:
        made.state(name)
    devices.join(NAMES)
    go_on(made, devices)
    made.wait(11)
    assert (made.coordinator.course.phase, made.told and made.told.devices) == ("trial", ("d0",))
    made.report("d0", 0.9)
    made.turns()
    assert made.coordinator.course.phase == "approval"
    instruct(made.config.dir, "approve", (1, "approval"), "ada")
    made.turns()
    for name in NAMES:
        made.report(name, 0.9)
    made.turns()
    entry = read_lineage(made.config.dir)[-1]
    assert (entry.accepted, entry.approved_by) == (True, "ada")
    assert_model(made, mean(NAMES))


def test_devices_may_fall_silent_in_every_step(tmp_path: Path) -> None:
    made, devices = fleet(tmp_path, round={**SECTIONS["round"], "rounds": 1})
    devices.silent = {"d11"}
    devices.join(NAMES)
    made.turns()
    made.wait(21)  # for d11
    devices.silent.add("d10")
    devices.react()
    made.turns(3)
    made.wait(21)  # for the shares of d10
    devices.silent |= {"d9", "d8"}
    devices.react()
    made.turns(3)
    made.wait(301)  # for the updates of d8 and d9
    devices.silent.add("d7")
    devices.react()
    made.turns(3)
    assert made.coordinator.course.version == 1
    assert_model(made, mean(NAMES[:8]))


@pytest.mark.parametrize(
    ("silent", "told"),
    [
        ({"join": NAMES[5:]}, "too few have joined: 5 of 6"),
        ({"roster": NAMES[5:]}, "too few have shared keys"),
        ({"shares": NAMES[5:]}, "too few updates: 5 of 6"),
        ({"shares": NAMES[6:]}, "the masks cannot be taken off"),
        ({"unmask": NAMES[6:]}, "too few answers to take off the masks: 6"),
    ],
)
def test_a_round_with_too_few_ends(tmp_path: Path, silent: dict[str, list[str]], told: str) -> None:
    made, devices = fleet(tmp_path, round={**SECTIONS["round"], "every": "1h"})
    step, names = next(iter(silent.items()))
    react = devices._answer  # noqa: SLF001

    def answer(masks: Any, asked: str, payload: bytes) -> None:
        if asked != step or masks.name not in names:
            react(masks, asked, payload)

    devices._answer = answer  # type: ignore[method-assign,assignment]  # noqa: SLF001
    devices.join([name for name in NAMES if step != "join" or name not in names])
    for _ in range(18):
        for _ in range(4):
            made.turns(3)
            devices.react()
        made.wait(21)
    entry = read_lineage(made.config.dir)[-1]
    assert told in entry.reason
    assert made.coordinator.course.phase == "done"


def test_a_device_that_gives_false_shares_ends_the_round_with_a_reason(tmp_path: Path) -> None:
    made, devices = fleet(tmp_path, round={**SECTIONS["round"], "every": "1h", "deadline": "60s"})
    devices.join(NAMES)
    made.turns(3)
    devices.react()
    made.turns(3)
    devices.silent = {"d11"}  # its key is looked for
    devices.react()
    for name in NAMES[:11]:
        held = devices._devices[name]._held  # noqa: SLF001
        assert held is not None
        held["d11"] = held["d11"][0], bytes(33)
    made.turns(3)
    made.wait(61)
    devices.react()
    made.turns(3)
    entry = read_lineage(made.config.dir)[-1]
    assert "the masks cannot be taken off: the shares of the key of d11 are false" in entry.reason
    assert made.coordinator.course.phase == "done"


def test_an_operator_may_skip_a_step_and_exclude_a_device(tmp_path: Path) -> None:
    made, devices = fleet(tmp_path, round={**SECTIONS["round"], "rounds": 1})
    devices.silent = {"d11"}
    devices.join(NAMES)
    made.turns()
    instruct(made.config.dir, "skip", (1, "open"))  # what has not joined is not waited for
    exclude(made.config.dir, "d3")  # what it sends counts no more: it has fallen silent
    go_on(made, devices)
    made.wait(21)
    go_on(made, devices)
    made.wait(301)
    go_on(made, devices)
    assert made.coordinator.course.version == 1
    assert_model(made, mean([name for name in NAMES if name not in ("d3", "d11")]))


def test_who_has_not_joined_is_refused_and_told_why(tmp_path: Path) -> None:
    made, devices = fleet(tmp_path)
    devices.join(NAMES[:6])
    made.turns()
    made.wait(21)
    made.update("d9")  # in the clear
    devices.join(["d9"])  # too late
    made.turns(3)
    refused: dict[str, str] = {}
    for topic, payload in made.line.sent:
        if "/ack/" in topic:
            refused |= Receipts.read(payload).refused
    assert refused == {"d9": "masks"}
    assert made.coordinator.admission.refused == {"masks": 2}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"reduce": {"how": "trimmed_mean"}}, "looks at each update"),
        ({"reduce": {"how": "median"}}, "looks at each update"),
        ({"round": {"devices": 3, "quorum": 0.5}}, "hides no device"),
    ],
)
def test_what_needs_each_update_is_an_error_at_once(
    tmp_path: Path, sections: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        fleet(tmp_path, **sections)
