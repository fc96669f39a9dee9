"""Rounds without end: devices die and lie, the coordinator restarts, its configuration changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.domain.federated.messages import Receipts
from edged.fleet.coordinator.control import exclude, instruct
from edged.fleet.coordinator.journal import REMEMBERED, read_lineage
from tests.fleet.coordinator.channel import Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edged.domain.federated.messages import RoundAnnouncement

NAMES = [f"d{n}" for n in range(20)]
PACE = {"devices": 10, "deadline": "100s", "window": 0}
CALM = {"patience": "1s", "max_age": "1000h"}
CONFIGURATIONS: list[dict[str, Any]] = [
    {"round": PACE, "choose": CALM, "gate": {"wait": "50s"}},
    {"round": PACE, "choose": CALM, "reduce": {"how": "trimmed_mean"}, "gate": {"wait": "50s"}},
    {"round": PACE | {"quorum": 1.0}, "choose": CALM | {"everyone": True}, "gate": {"evaluate": False}},
    {"round": PACE, "choose": CALM, "gate": {"wait": "50s"}, "rollout": {"canaries": {"devices": ["d1*"]}}},
]
LONGEST = 3 * 100 + 3 * 50 + 20.0  # seconds that a round may take, with a turn for each step


class Life:
    """A fleet with a number drawn for everything that happens to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.fleet = Fleet(folder, **CONFIGURATIONS[0])
        self.dead: dict[str, float] = {}  # until when
        self.answers: dict[tuple[str, str], str] = {}  # by round and device
        self.begun: dict[int, float] = {}
        self.refusals = self.restarts = self.accepted = 0
        self.summary = ""
        self._heard: tuple[object, int] = (None, 0)
        for name in NAMES:
            self.fleet.state(name)

    def step(self) -> None:
        """Something happens, and everybody does what is theirs to do."""
        self._happen()
        now = self.fleet.clock.now()
        for name in [name for name, until in self.dead.items() if until <= now]:
            del self.dead[name]
            self.fleet.state(name)
        self.fleet.turns()
        self._take_part()
        self._hear()
        self.fleet.wait(self.draw.choice([1.0, 5.0, 10.0]))
        self._watch()

    def _happen(self) -> None:
        draw, fleet = self.draw, self.fleet
        if draw.random() < 0.3:
            self.dead[draw.choice(NAMES)] = fleet.clock.now() + draw.choice([10.0, 100.0, 1000.0])
        if draw.random() < 0.1:
            fleet.state(draw.choice(NAMES), ready=False, why_not="flash budget used")
        if draw.random() < 0.2:
            fleet.state(draw.choice(NAMES))
        if draw.random() < 0.03:
            self.restarts += 1
            if draw.random() < 0.5:
                fleet.configure(**draw.choice(CONFIGURATIONS))
            fleet.restart()
            for name in NAMES:
                if name not in self.dead:
                    fleet.state(name)
        if draw.random() < 0.05:
            self._operate()

    def _operate(self) -> None:
        draw, course = self.draw, self.fleet.coordinator.course
        folder, excluded = self.fleet.config.dir, self.fleet.coordinator._control.excluded  # noqa: SLF001
        what = draw.choice(["abandon", "resume", "exclude", "include"])
        if what == "exclude" and len(excluded) < 4:
            exclude(folder, draw.choice(NAMES))
        elif what == "include" and excluded:
            exclude(folder, draw.choice(excluded), include=True)
        elif what == "resume":
            instruct(folder, "resume", (course.number, course.phase))
        elif what == "abandon" and course.phase in ("open", "trial"):
            instruct(folder, what, (course.number, course.phase))  # type: ignore[arg-type]

    def _take_part(self) -> None:
        told = self.fleet.told
        there = [name for name in NAMES if name not in self.dead]
        if told is None:
            return
        if told.state == "open":
            self._send(told, there)
        elif told.state == "closed":
            for name in there:
                if told.names(name) and self.draw.random() < 0.7:
                    self.fleet.report(name, self.draw.choice([0.9, 0.95, 1.0, 1e30]))
        self.fleet.turns()

    def _send(self, told: RoundAnnouncement, there: list[str]) -> None:
        for name in there:
            if told.names(name) and (told.id, name) not in self.answers and self.draw.random() < 0.7:
                for topic, payload in self._messages(name):
                    self.fleet.line.say(topic, payload)

    def _messages(self, name: str) -> Iterator[tuple[str, bytes]]:
        samples = 0 if self.draw.random() < 0.1 else 100  # a lie, now and then
        yield from self.fleet.update_of(name, samples)

    def _hear(self) -> None:
        """Receipts: what became of each update, in words where it was refused."""
        line = self.fleet.line
        at = self._heard[1] if self._heard[0] is line else 0
        for topic, payload in line.sent[at:]:
            if "/ack/" in topic:
                found = Receipts.read(payload)
                self.answers |= {(found.id, name): "accepted" for name in found.accepted}
                self.answers |= {(found.id, name): reason for name, reason in found.refused.items()}
                self.refusals += len(found.refused)
                assert all(found.refused.values())
        self._heard = line, len(line.sent)

    def _watch(self) -> None:
        """No round lasts too long, and each device that takes no part has a reason that is told."""
        course, now = self.fleet.coordinator.course, self.fleet.clock.now()
        if course.phase in ("open", "trial"):
            assert now - self.begun.setdefault(course.number, now) <= LONGEST, course
        reasons = self.fleet.coordinator._devices.reasons(self.fleet.coordinator.course, now)  # noqa: SLF001  what `edged fleet status` tells
        assert all(reasons.values())
        for state in self.fleet.coordinator._devices.states:  # noqa: SLF001
            assert state.ready or reasons[state.device] in (state.why_not, "excluded")


def lived(folder: Path, rounds: int, seed: int) -> Life:
    """The fleet after so many rounds."""
    life, steps = Life(folder, seed), 0
    while life.fleet.coordinator.course.number < rounds:
        life.step()
        steps += 1
        assert steps < 60 * rounds, life.fleet.coordinator.course
    lineage = read_lineage(life.fleet.config.dir)
    ended = [entry.round for entry in lineage]
    assert ended == list(range(ended[0], ended[0] + len(ended)))
    assert ended[-1] >= rounds - 1
    assert all(entry.reason for entry in lineage)
    life.accepted = sum(entry.accepted for entry in lineage)
    life.summary = (
        f"{life.accepted} of {len(lineage)} accepted, {life.refusals} refusals, {life.restarts} restarts"
    )
    assert life.accepted  # how many is chance: a model that a quarter of the devices slander seldom passes
    life.fleet.coordinator.close()
    return life


@pytest.mark.parametrize("seed", range(2))
def test_dozens_of_rounds_end(tmp_path: Path, seed: int) -> None:
    lived(tmp_path, 40, seed)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_two_thousand_rounds_end(tmp_path: Path) -> None:
    life = lived(tmp_path, 2000, 7)
    assert life.accepted >= 0.2 * min(2000, REMEMBERED)
    assert life.refusals > 100
    assert life.restarts > 100
