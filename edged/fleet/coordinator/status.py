"""The status of a fleet: as the coordinator writes it, as all may read it, and as people read it.

`edged fleet status` reads the coordinator's directory, whether it runs or not; a copy is retained at the
broker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edged.domain.json_fields import JsonObject, json_ready
from edged.domain.training.message import Message
from edged.errors import StorageError, TrainingError
from edged.fleet.config import CoordinatorConfig
from edged.fleet.coordinator.channel import Announcer
from edged.fleet.coordinator.journal import NAMED, STATUS, RoundRecord, read_lineage
from edged.fleet.coordinator.updates import RoundReports
from edged.fleet.rules.rounds import FleetState, Phase
from edged.fleet.rules.verdict import worse_of
from edged.storage.files.atomic import DirectoryLock

ROUNDS = 10
SHOWN = 5  # devices whose names are in a line
EVERY_SECONDS = 60.0
"""Interval at which an unchanged status is published; the page reports silence after three of them."""
_ROUND = ("round", "version", "model", "ended", "accepted", "reason", "approved_by")


@dataclass(frozen=True)
class RolloutStatus(Message):
    """Progress of the model of a round: devices named so far, None for all.

    `stage` counts from 1; `taken` of the `reports` serve it, for `worse` it is worse.
    """

    model: str
    stage: int
    stages: int
    name: str
    named: int | None
    reports: int
    taken: int
    worse: tuple[str, ...]
    approval: bool


@dataclass(frozen=True)
class CoordinatorStatus(Message):
    """Status of a coordinator.

    `at` is when, `until` when the phase ends at the latest, both in Unix seconds; `model` is the fingerprint
    of the standing model; `why_not` has devices that take no part,
    with the reason, `waits_for` why no round is opened.
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
    waits_for: str = ""
    rollout: RolloutStatus | None = None


def rollout_status(
    course: FleetState, received: RoundReports, config: CoordinatorConfig
) -> RolloutStatus | None:
    """Return the progress of the round's model; None unless devices try one."""
    announced = course.round
    if announced is None or course.phase not in ("trial", "approval"):
        return None
    reports = received.of(announced.base.hash)
    return RolloutStatus(
        model=announced.base.hash,
        stage=course.stage + 1,
        stages=len(config.stages),
        name=config.stage_name(course.stage),
        named=None if announced.devices is None else len(announced.devices),
        reports=len(reports),
        taken=sum(report.taken for report in reports),
        worse=tuple(worse_of(reports, config.gate)[:NAMED]),
        approval=course.phase == "approval",
    )


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
    return found | {"dissenters": list(entry.dissenters[:20])}


@dataclass(frozen=True)
class FleetReport(Message):
    """Report for people: the status of `age` seconds ago, the newest rounds that ended, and if it runs."""

    running: bool
    pid: int | None
    age: float
    status: CoordinatorStatus
    rounds: tuple[RoundRecord, ...]

    def to_json(self) -> JsonObject:
        """Return all on one level."""
        rounds = [record.to_json() for record in self.rounds]
        return {**self.without("status", "rounds"), **self.status.to_json(), "rounds": rounds}


def status_of(folder: Path) -> FleetReport:
    """Read what the coordinator with this directory last said; StorageError if it never ran."""
    try:
        status = CoordinatorStatus.from_json(json.loads((folder / STATUS).read_bytes()))
    except (OSError, ValueError, TrainingError):
        raise StorageError(
            "no coordinator has run here", where=str(folder), remedy="start `edged fleet run`"
        ) from None
    pid = DirectoryLock.holder(folder)
    age, rounds = max(0.0, time.time() - status.at), tuple(read_lineage(folder)[-ROUNDS:])
    return FleetReport(pid is not None, pid, age, status, rounds)


def lines_of(report: FleetReport) -> list[str]:
    """Format the status for people."""
    status = report.status
    left = status.until - status.at
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(status.refused.items())) or "none"
    runs = f"running (pid {report.pid})" if report.running else f"stopped {report.age:.0f} s ago"
    broker = "connected" if status.connected else "no broker"
    lines = [
        f"fleet {status.fleet}: {runs}, {broker}",
        f"round {status.round} {status.phase}" + (f", {left:.0f} s left" if left > 0 else ""),
        *([f"  waits for {status.waits_for}"] if status.waits_for else []),
        f"updates {status.updates} of {status.wanted}, refused: {refused}",
        f"devices {status.devices}, ready {status.ready}" + (", paused" if status.paused else ""),
        *_reasons(status.why_not),
        *([] if status.rollout is None else _rollout_lines(status.rollout)),
        f"model version {status.version}, {status.model[:12]}",
    ]
    return lines + [_round(entry) for entry in report.rounds]


def _rollout_lines(status: RolloutStatus) -> list[str]:
    named = "all" if status.named is None else status.named
    where = f"stage {status.stage} of {status.stages} ({status.name})"
    made = f"{named} devices asked, {status.reports} have reported, {status.taken} have taken it"
    lines = [f"rollout of {status.model[:12]}: {where}: {made}"]
    if worse := status.worse:
        lines.append(f"  worse for {_names(worse)}")
    if status.approval:
        lines.append("  waits for approval: `edged fleet round approve CONFIG`, or abandon")
    return lines


def _names(devices: Sequence[str]) -> str:
    more = f" and {len(devices) - SHOWN} more" if len(devices) > SHOWN else ""
    return f"{', '.join(devices[:SHOWN])}{more}"


def _reasons(why_not: Mapping[str, str]) -> list[str]:
    """A line for each reason, with the devices that have it, the commonest first."""
    names: dict[str, list[str]] = {}
    for device, reason in why_not.items():
        names.setdefault(reason, []).append(device)
    lines = []
    for reason, devices in sorted(names.items(), key=lambda found: -len(found[1])):
        lines.append(f"  not ready: {_names(devices)}: {reason}")
    return lines


def _round(entry: RoundRecord) -> str:
    what = "accepted" if entry.accepted else "refused"
    more = f", approved by {entry.approved_by}" if entry.approved_by else ""
    more += f"; worse for {', '.join(entry.dissenters[:SHOWN])}" if entry.dissenters else ""
    return f"round {entry.round}: {what}, version {entry.version}: {entry.reason}{more}"
