"""Two coordinators that differ in one key of their configurations do different things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fleet.coordinator.channel import Fleet, Time

NAMES = ["a", "b", "c", "d", "e", "f"]
ROUND = {"devices": 6, "quorum": 0.5, "deadline": "100s", "window": 0}
USUAL: dict[str, dict[str, Any]] = {
    "round": ROUND, "choose": {"patience": "1s"}, "gate": {"wait": "50s", "stages": [1.0]},
}  # fmt: skip


def made(folder: Path, key: str, value: Any) -> Fleet:
    """A coordinator with this value of a key, such as `gate.wait`."""
    sections, (section, _, name) = {**USUAL}, key.partition(".")
    changed = {section: sections.get(section, {}) | {name: value} if name else value}
    return Fleet(folder / f"{value}".replace("/", "-"), **(sections | changed))


def opened(fleet: Fleet, **fields: Any) -> Fleet:
    """The coordinator, with its first round open if the devices will do."""
    for name in NAMES:
        fleet.state(name, **fields)
    fleet.turns()
    fleet.wait(2)
    return fleet


def tried(fleet: Fleet) -> Fleet:
    """The coordinator, with the model of its first round on trial."""
    opened(fleet)
    assert fleet.told is not None
    for name in fleet.told.devices or ():
        fleet.update(name)
    fleet.turns()
    assert fleet.coordinator.course.phase == "trial"
    return fleet


@pytest.mark.parametrize(
    ("key", "strict", "lenient", "fields"),
    [
        ("choose.max_age", "1min", "1h", {"at": Time().now() - 100}),
        ("choose.idle", True, False, {"idle": False}),
        ("choose.min_samples", 1001, 1000, {}),
    ],
)
def test_a_round_waits_for_devices_as_configured(
    tmp_path: Path, key: str, strict: Any, lenient: Any, fields: dict[str, Any]
) -> None:
    phases = [opened(made(tmp_path, key, v), **fields).coordinator.course.phase for v in (strict, lenient)]
    assert phases == ["waiting", "open"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("train.clip_norm", 0.25), ("train.learning_rate", 0.5), ("train.steps", 7)],
)
def test_devices_are_told_how_to_train(tmp_path: Path, key: str, value: float) -> None:
    told = opened(made(tmp_path, key, value)).told
    usual = opened(made(tmp_path / "usual", "keep", 8)).told
    assert told is not None
    assert usual is not None
    name = key.partition(".")[2]
    assert getattr(told.config, name) == value != getattr(usual.config, name)


@pytest.mark.parametrize("keep", [2, 4])
def test_as_many_models_are_kept_as_configured(tmp_path: Path, keep: int) -> None:
    fleet = made(tmp_path, "keep", keep)
    for _ in range(5):
        opened(fleet)
        assert fleet.told is not None
        for name in fleet.told.devices or ():
            fleet.update(name)
        fleet.turns()
        for name in NAMES:
            fleet.report(name, 0.9)
        fleet.turns()
    assert fleet.coordinator.course.version == 5
    assert len(fleet.coordinator.journal.models()) == keep
