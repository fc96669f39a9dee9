"""Every round ends, whatever devices, coordinator, configuration and operator do."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edged.fleet.coordinator.control import exclude, instruct
from edged.fleet.coordinator.journal import read_lineage
from tests.fleet.coordinator.channel import Fleet

NAMES = [f"d{n}" for n in range(7)]
devices = strategies.sampled_from(NAMES)
CONFIGURATIONS = [
    {"round": {"devices": wanted, "quorum": quorum, "deadline": "100s", "window": 0},
     "choose": {"patience": "1s", "everyone": everyone}, "gate": gate} | rollout
    for wanted, quorum, everyone, gate, rollout in (
        (4, 0.5, False, {"wait": "50s"}, {}),
        (20, 0.1, False, {"wait": "50s", "stages": [0.3, 1.0]}, {}),
        (2, 1.0, True, {"evaluate": False}, {}),
        (3, 0.4, True, {"wait": "10s", "reports": 1.0}, {}),
        (3, 0.4, False, {"wait": "10s", "reports": 1.0},
         {"rollout": {"canaries": {"devices": ["d0", "d9"]}, "device_bytes": "1MiB"}}),
    )
]  # fmt: skip
LONGEST = 3 * 100 + 2 * 50 + 10.0  # seconds that the slowest of them may take, with a turn for each step


class Rounds(RuleBasedStateMachine):
    """A fleet whose devices come, go, lie and fall silent, and whose coordinator is restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.fleet = Fleet(self.folder, **CONFIGURATIONS[0])
        self.under_way: tuple[int, float] | None = None

    @initialize()
    def some_are_there(self) -> None:
        for name in NAMES[:4]:
            self.fleet.state(name)

    @rule(device=devices, ready=strategies.booleans(), bundle=strategies.sampled_from(["f00", "f00", "old"]))
    def a_device_says_how_it_is(self, device: str, ready: bool, bundle: str) -> None:
        self.fleet.state(device, ready=ready, why_not="" if ready else "busy", bundle=bundle)

    @rule(device=devices)
    def a_device_stops(self, device: str) -> None:
        self.fleet.state(device, ready=False, why_not="the daemon has stopped")

    @rule(device=devices, samples=strategies.sampled_from([0, 1, 100, 10_001, 10**9]))
    def an_update_comes(self, device: str, samples: int) -> None:
        self.fleet.update(device, samples)
        self.fleet.turns()

    @rule(device=devices, loss=strategies.sampled_from([0.5, 1.0, 1e30]))
    def a_report_comes(self, device: str, loss: float) -> None:
        self.fleet.report(device, loss)
        self.fleet.turns()

    @rule(seconds=strategies.sampled_from([0.0, 2.0, 60.0, 101.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.wait(seconds)

    @rule()
    def the_coordinator_restarts(self) -> None:
        self.fleet.restart()

    @rule(sections=strategies.sampled_from(CONFIGURATIONS))
    def the_configuration_changes(self, sections: dict[str, dict[str, object]]) -> None:
        self.fleet.configure(**sections)
        self.fleet.restart()

    @rule(device=devices, include=strategies.booleans())
    def a_device_is_excluded(self, device: str, include: bool) -> None:
        folder = self.fleet.config.dir
        if not include:
            exclude(folder, device)
        elif device in status(self.fleet):
            exclude(folder, device, include=True)

    @rule(what=strategies.sampled_from(["pause", "resume", "abandon"]))
    def the_operator_orders(self, what: str) -> None:
        course = self.fleet.coordinator.course
        if what != "abandon" or course.phase in ("open", "trial"):
            instruct(self.fleet.config.dir, what, (course.number, course.phase))  # type: ignore[arg-type]
        self.fleet.turns()

    @invariant()
    def no_round_is_under_way_for_longer_than_it_may(self) -> None:
        course, now = self.fleet.coordinator.course, self.fleet.clock.now()
        if course.phase not in ("open", "trial"):
            self.under_way = None
        elif self.under_way is None or self.under_way[0] != course.number:
            self.under_way = course.number, now
        # What passes between two turns is at most 101 s.
        assert self.under_way is None or now - self.under_way[1] <= LONGEST + 6 * 101

    def teardown(self) -> None:
        """Left alone, it ends the round that is under way."""
        number = self.fleet.coordinator.course.number
        instruct(self.fleet.config.dir, "pause", (number, self.fleet.coordinator.course.phase))
        for _ in range(10):
            self.fleet.wait(101)
        assert self.fleet.coordinator.course.phase in ("waiting", "done")
        ended = [entry.round for entry in read_lineage(self.fleet.config.dir)]
        assert ended == list(range(1, self.fleet.coordinator.course.number + 1))
        self.fleet.coordinator.close()
        shutil.rmtree(self.folder)


def status(fleet: Fleet) -> tuple[str, ...]:
    return fleet.coordinator._control.excluded  # noqa: SLF001  what it knows now


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
