"""The devices of a fleet: how they are, which of them a round may ask, and why not the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from edged.domain.federated.messages import STOPPED, DeviceState
from edged.errors import RejectedUpdateError
from edged.fleet.rules.rollout import charged, fetched, remaining
from edged.fleet.rules.selection import eligible, share_of, why_not
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection

    from edged.domain.federated.audience import Audience
    from edged.fleet.config import CoordinatorConfig
    from edged.fleet.coordinator.control import ControlReader
    from edged.fleet.coordinator.rollout import RolloutStages
    from edged.fleet.rules.layout import Layout
    from edged.fleet.rules.rounds import FleetState
    from edged.fleet.rules.statistics import SolvedHead

WAITING_SECONDS = 30.0

log = get_logger("edged.fleet")


def update_bytes(config: CoordinatorConfig, layout: Layout, head: SolvedHead | None) -> int:
    """About the bytes of what a device sends in a round, not compressed."""
    if head is not None:
        return 8 * head.size
    if config.masks.enabled:
        return 8 * (layout.size + 1)
    return layout.update_bytes(config.train.dtype)


class States:
    """The newest state of each device that rounds for `audience` are for."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._states: dict[str, DeviceState] = {}

    def get(self, device: str) -> DeviceState | None:
        """The newest state of a device; None without one."""
        return self._states.get(device)

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
        if self._audience.includes(state.facts):
            self._states[device] = state
        else:
            self._states.pop(device, None)

    def stopped(self) -> set[str]:
        """The devices that have said that they stop."""
        return {state.device for state in self._states.values() if state.why_not == STOPPED}

    def all(self) -> list[DeviceState]:
        """List the states of all devices."""
        return list(self._states.values())


class RoundDevices:
    """Chooses devices for a round from those that have sent their state.

    `reader` tells which of them the operator has excluded; `rollout` has the budget of bytes.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        audience: Audience,
        states: States,
        reader: ControlReader,
        rollout: RolloutStages,
        update_bytes: int,
    ) -> None:
        self._config, self._audience, self._states = config, audience, states
        self._reader, self._rollout, self._update_bytes = reader, rollout, update_bytes
        self._pace, self._rules = config.round, config.choose
        self._since: float | None = None  # since when a quorum is ready
        self._logged, self._logged_at = (-1, ""), float("-inf")

    def ready(self, course: FleetState, now: float) -> list[str]:
        """The devices that would train, by name."""
        found = eligible(self._states.all(), self._rules, course.bundle, now, self._audience.hours)
        excluded = self._reader.read().excluded
        return [name for name in found if name not in excluded]

    def present(self, course: FleetState, now: float) -> dict[str, DeviceState]:
        """The devices that could try a model, whether they would train or not, by name."""
        oldest, gone = now - self._rules.max_age, {*self._states.stopped(), *self._reader.read().excluded}
        return {
            state.device: state
            for state in self._states.all()
            if state.at >= oldest and state.bundle == course.bundle and state.device not in gone
        }

    def judges(self, course: FleetState, now: float) -> set[str]:
        """The devices that may be asked about a model: those that took part, and those that are ready."""
        excluded = self._reader.read().excluded
        return {*self.ready(course, now), *(course.asked or ())}.difference(excluded)

    def share(self, course: FleetState, stage: int, now: float) -> tuple[str, ...] | None:
        """The devices of a stage of the gate; None for all."""
        share, announced = self._config.stages[stage], course.round
        if isinstance(share, str) or share >= 1.0 or announced is None:
            return None
        return share_of(self.judges(course, now), share, announced.id, self._config.gate.least)

    def affordable(self, names: list[str], course: FleetState, now: float) -> list[str]:
        """As many of the devices as the fleet's budget of bytes has left for today."""
        left, kept = remaining(course, self._rollout.fleet_bytes, now), []
        for name in sorted(names, key=lambda name: self._fetched(name, course)):
            left -= self._update_bytes + self._fetched(name, course)
            if left < 0:
                break
            kept.append(name)
        return kept

    def charged(self, course: FleetState, devices: Collection[str], now: float) -> FleetState:
        """After devices were asked to train: they fetch the base that they lack, and send an update."""
        spent = sum(self._update_bytes + self._fetched(name, course) for name in devices)
        return charged(course, spent, now)

    def _fetched(self, name: str, course: FleetState) -> int:
        return fetched(self._states.get(name), course.standing)

    def suffices(self, ready: int, now: float) -> bool:
        """Whether a round can begin: with all that it asks for, or after a while with a quorum."""
        if ready < self._pace.least:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        waited = now - self._since >= self._rules.patience
        return waited or ready >= self._pace.devices * self._pace.over

    def log_waiting(self, ready: int, course: FleetState, now: float) -> None:
        """Log why no round is opened, when that has changed, and now and then."""
        reasons = dict(Counter(self.reasons(course, now).values()).most_common(5))
        waiting = (ready, str(reasons))
        if waiting != self._logged and now - self._logged_at >= WAITING_SECONDS:
            self._logged, self._logged_at = waiting, now
            log.info("fleet_waits", ready=ready, needed=self._pace.least, not_ready=reasons)

    def waits_for(self, course: FleetState, now: float) -> str:
        """Why no round is opened, in words; empty while one is under way or about to be."""
        if course.phase not in ("waiting", "done") or now < course.until:
            return ""
        if self._reader.read().paused:
            return "`edged fleet round resume`"
        ready = self.ready(course, now)
        if len(ready) < self._pace.least:
            return f"{self._pace.least} devices that are ready"
        if not self._rules.everyone and len(self.affordable(ready, course, now)) < self._pace.least:
            return "the budget of bytes of the fleet for today is used"
        if not self._rules.everyone and self._since is not None:
            left = self._since + self._rules.patience - now
            return f"more devices that are ready, for another {left:.0f} s" if left > 0 else ""
        return ""

    def reasons(self, course: FleetState, now: float) -> dict[str, str]:
        """Why a device takes no part, by name, in words."""
        excluded, found = self._reader.read().excluded, {}
        for state in sorted(self._states.all(), key=lambda state: state.device):
            reason = why_not(self._rules, state, course.bundle, now, self._audience.hours)
            if state.device in excluded or reason:
                found[state.device] = "excluded" if state.device in excluded else reason
        return found
