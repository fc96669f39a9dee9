"""The devices of a fleet: their states, which of them a round or a stage selects, and why not the others.

A device that trains should have nothing better to do and enough to learn from (Bonawitz et al., "Towards
federated learning at scale", 2019). Whether it has power and is cool, its own guards decide. Of the devices
that are ready, chance takes some, so that no group of devices makes the model alone.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection

from edged.domain.federated.messages import STOPPED, DeviceState
from edged.errors import RejectedUpdateError
from edged.fleet.config import ChooseSection, CoordinatorConfig
from edged.fleet.coordinator.control import ControlReader
from edged.fleet.rules.rounds import FleetState
from edged.logs import get_logger

WAITING_SECONDS = 30.0
OVER = 1.25  # times as many devices as wanted updates are asked, since some will be silent
STAGE_DEVICES = 5  # in a stage at least, as far as there are so many

log = get_logger("edged.fleet")


def why_not(wanted: ChooseSection, state: DeviceState, bundle: str, now: float) -> str:
    """Return why a device takes no part in rounds that need this bundle, in words; empty if it does."""
    reasons = (
        (now - state.at > wanted.max_age, f"not heard for {wanted.max_age:g} s"),
        (state.bundle != bundle, f"has bundle {state.bundle[:12]}, the fleet {bundle[:12]}"),
        (not state.ready, state.why_not or "says that it is not ready"),
        (state.samples < wanted.min_samples, f"fewer than {wanted.min_samples} new labelled samples"),
        (wanted.idle and not state.idle, "trains for itself"),
    )
    return next((words for so, words in reasons if so), "")


def choose(names: Collection[str], count: int, seed: str) -> tuple[str, ...]:
    """Draw some devices by lot: `OVER` times as many as are needed.

    >>> len(choose([f"d{n}" for n in range(100)], 10, "seed"))
    13
    """
    asked = min(len(names), math.ceil(count * OVER))
    return tuple(sorted(random.Random(seed).sample(sorted(names), asked)))


def share_of(names: Collection[str], share: float, seed: str, least: int = 1) -> tuple[str, ...]:
    """Draw a share of devices, `least` where there are so many, that contains those of every smaller share.

    >>> few = share_of(["a", "b", "c", "d"], 0.5, "seed")
    >>> set(share_of(["a", "b", "c", "d"], 0.1, "seed")) <= set(few), len(few)
    (True, 2)
    """
    order = sorted(names)
    random.Random(seed).shuffle(order)
    return tuple(sorted(order[: max(least, math.ceil(share * len(order)))]))


class FleetDevices:
    """The newest state of each device; chooses devices for rounds and stages from those that sent theirs.

    `reader` tells which of them the operator has excluded.
    """

    def __init__(self, config: CoordinatorConfig, reader: ControlReader) -> None:
        self._config, self._reader = config, reader
        self._pace, self._rules = config.round, config.choose
        self._states: dict[str, DeviceState] = {}
        self._since: float | None = None  # since when a quorum is ready
        self._logged, self._logged_at = (-1, ""), float("-inf")

    def receive(self, device: str, payload: bytes) -> None:
        """Store the state of a device; an empty payload removes the device.

        RejectedUpdateError when it is none, or of another device than its topic.
        """
        if not payload:
            self._states.pop(device, None)
            return
        state = DeviceState.read(payload)
        if state.device != device:
            raise RejectedUpdateError("identity", f"the topic is of {device}, the state of {state.device}")
        self._states[device] = state

    @property
    def states(self) -> list[DeviceState]:
        """The states of all devices."""
        return list(self._states.values())

    def absent(self) -> set[str]:
        """Return the devices that are not to be waited for: excluded, or stopped by their own word."""
        stopped = {state.device for state in self._states.values() if state.why_not == STOPPED}
        return stopped.union(self._reader.read().excluded)

    def ready(self, course: FleetState, now: float) -> list[str]:
        """List the devices that would train, by name."""
        excluded = self._reader.read().excluded
        willing = (s.device for s in self.states if not why_not(self._rules, s, course.bundle, now))
        return sorted(name for name in willing if name not in excluded)

    def judges(self, course: FleetState, now: float) -> set[str]:
        """Return the devices that may be asked about a model: those that took part or are ready."""
        excluded = self._reader.read().excluded
        return {*self.ready(course, now), *(course.asked or ())}.difference(excluded)

    def of_stage(self, course: FleetState, stage: int, now: float) -> tuple[str, ...] | None:
        """Return the devices of a stage, and those of the stages before it; None for all.

        Canaries need not be ready to train; they are those that are there.
        """
        share, announced = self._config.stages[stage], course.round
        if isinstance(share, str):
            return self._canaries(course, now)
        if share >= 1.0 or announced is None:
            return None
        tried = announced.devices or () if course.phase != "open" else ()
        few = share_of(self.judges(course, now), share, announced.id, STAGE_DEVICES)
        return tuple(sorted({*tried, *few}))

    def _canaries(self, course: FleetState, now: float) -> tuple[str, ...]:
        section = self._config.rollout.canaries
        oldest, gone = now - self._rules.max_age, self.absent()
        return tuple(
            sorted(
                state.device
                for state in self.states
                if section is not None and section.includes(state)
                and state.at >= oldest and state.bundle == course.bundle and state.device not in gone
            )
        )  # fmt: skip

    def suffices(self, ready: int, now: float) -> bool:
        """Return whether a round can begin: with all that it asks for, or after a while with a quorum."""
        if ready < self._pace.least:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        waited = now - self._since >= self._rules.patience
        return waited or ready >= self._pace.devices * OVER

    def log_waiting(self, ready: int, course: FleetState, now: float) -> None:
        """Log why no round is opened, when that has changed, and now and then."""
        reasons = dict(Counter(self.reasons(course, now).values()).most_common(5))
        waiting = (ready, str(reasons))
        if waiting != self._logged and now - self._logged_at >= WAITING_SECONDS:
            self._logged, self._logged_at = waiting, now
            log.info("fleet_waits", ready=ready, needed=self._pace.least, not_ready=reasons)

    def waits_for(self, course: FleetState, now: float) -> str:
        """Return why no round is opened, in words; empty while one is under way or about to be."""
        if course.phase not in ("waiting", "done") or now < course.until:
            return ""
        if self._reader.read().paused:
            return "`edged fleet round resume`"
        if len(self.ready(course, now)) < self._pace.least:
            return f"{self._pace.least} devices that are ready"
        if not self._rules.everyone and self._since is not None:
            left = self._since + self._rules.patience - now
            return f"more devices that are ready, for another {left:.0f} s" if left > 0 else ""
        return ""

    def reasons(self, course: FleetState, now: float) -> dict[str, str]:
        """Return why devices take no part, by name, in words."""
        excluded, found = self._reader.read().excluded, {}
        for state in sorted(self.states, key=lambda state: state.device):
            reason = why_not(self._rules, state, course.bundle, now)
            if state.device in excluded or reason:
                found[state.device] = "excluded" if state.device in excluded else reason
        return found
