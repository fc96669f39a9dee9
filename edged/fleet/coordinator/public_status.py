"""The status of a fleet, as files and commands have it, and as all may read it: retained at the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edged.domain.messages.encoding import json_ready
from edged.domain.training.message import Message
from edged.fleet.rules.rounds import Phase

if TYPE_CHECKING:
    from edged.fleet.coordinator.announcer import Announcer
    from edged.fleet.coordinator.journal import RoundRecord

ROUNDS = 10
NAMED = 200
EVERY_SECONDS = 60.0
"""How often the same status is published again; the page takes three times that without one for silence."""
_ROUND = ("round", "version", "model", "ended", "accepted", "reason", "dissenters", "left_out", "approved_by")


@dataclass(frozen=True)
class RolloutStatus(Message):
    """How far the model of a round has come: devices named so far (None: all), and still queued.

    `stage` counts from 1; `taken` of the `reports` serve it, for `worse` it is worse.
    """

    model: str
    stage: int
    stages: int
    name: str
    named: int | None
    queued: int
    reports: int
    taken: int
    worse: tuple[str, ...]
    approval: bool


@dataclass(frozen=True)
class RunTotals(Message):
    """Since the start: rounds that ended by outcome, and refusals by reason."""

    rounds: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CoordinatorStatus(Message):
    """What a coordinator says of itself while it runs.

    `at` is when, `until` when the phase ends at the latest, both in Unix seconds; `model` is the fingerprint
    of the standing model; `masks` says which devices they wait for; `traffic` is in bytes of today (UTC);
    `why_not` has devices that take no part, with the reason, `waits_for` why no round is opened.
    """

    fleet: str
    at: float
    connected: bool
    phase: Phase
    round: int
    version: int
    model: str
    until: float
    updates: int
    wanted: int
    asked: int | None
    refused: Mapping[str, int]
    devices: int
    ready: int
    paused: bool = False
    excluded: tuple[str, ...] = ()
    why_not: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    masks: str | None = None
    totals: RunTotals = RunTotals()
    traffic: int = 0
    waits_for: str = ""
    rollout: RolloutStatus | None = None


class StatusPublisher:
    """Publishes the status when it has changed, and now and then."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._published: dict[str, Any] = {}
        self._at = float("-inf")

    def publish(self, status: CoordinatorStatus, rounds: Sequence[RoundRecord]) -> None:
        """Publish the status of the coordinator with its newest rounds, if that is due."""
        content = dict(json_ready(status.without("at", "connected", "until")))
        content["why_not"] = dict(list(status.why_not.items())[:NAMED])
        content["rounds"] = [_short(entry) for entry in rounds[-ROUNDS:]]
        if content == self._published and status.at - self._at < EVERY_SECONDS:
            return
        self._published, self._at = content, status.at
        payload = json.dumps(content | {"at": status.at, "until": status.until, "every": EVERY_SECONDS})
        self._announcer.status(payload.encode())


def _short(entry: RoundRecord) -> dict[str, Any]:
    found = {name: getattr(entry, name) for name in _ROUND}
    return found | {name: list(getattr(entry, name))[:20] for name in ("dissenters", "left_out")}
