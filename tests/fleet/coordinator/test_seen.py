"""The status of a coordinator at the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.coordinator.channel import TOPICS, Fleet

NAMES = ["a", "b", "c", "d"]
SECTIONS: dict[str, Any] = {
    "round": {"devices": 3, "quorum": 0.5, "deadline": "100s", "window": 0},
    "choose": {"patience": "1s"},
    "gate": {"wait": "50s", "stages": [1.0]},
    "rollout": {"canaries": {"devices": ["a"]}},
}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path / "fleet", **SECTIONS)
    for name in NAMES:
        made.state(name)
    made.state("e", samples=7)
    made.turns()
    made.wait(11)
    return made


def told(fleet: Fleet) -> dict[str, Any]:
    fleet.coordinator._publish_status(again=True)  # noqa: SLF001  else every two seconds of the real clock
    return dict(json.loads(fleet.line.retained[TOPICS.status]))


def test_the_broker_keeps_a_status_for_all_that_counts_no_ones_samples(fleet: Fleet) -> None:
    status = told(fleet)
    assert (status["phase"], status["round"], status["updates"]) == ("open", 1, 0)
    assert status["why_not"] == {"e": "fewer than 50 new labelled samples"}
    assert "samples" not in json.dumps(status).replace("labelled samples", "")
    for name in NAMES:
        fleet.update(name)
    fleet.turns()
    status = told(fleet)
    assert (status["rollout"]["name"], status["rollout"]["named"]) == ("canaries", 1)
    fleet.report("a", 5.0)
    fleet.turns()
    (entry,) = told(fleet)["rounds"]
    assert (entry["accepted"], entry["dissenters"]) == (False, ["a"])


def test_a_status_is_published_when_it_changes_and_now_and_then(fleet: Fleet) -> None:
    def count() -> int:
        fleet.coordinator._publish_status(again=True)  # noqa: SLF001  else every two seconds of the real clock
        return sum(topic == TOPICS.status for topic, _ in fleet.line.sent)

    before = count()
    assert count() == before
    fleet.clock.seconds += 61
    assert count() == before + 1
    fleet.update(fleet.told.devices[0])  # type: ignore[union-attr,index]
    fleet.turns()
    assert count() == before + 2
