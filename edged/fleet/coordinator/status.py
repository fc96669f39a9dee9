"""What `edged fleet status` says, read from a coordinator's directory while it runs or not."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edged.domain.training.message import Message
from edged.errors import StorageError, TrainingError
from edged.fleet.coordinator.journal import STATUS, RoundRecord, read_lineage
from edged.fleet.rules.rounds import Phase
from edged.storage.files.atomic import DirectoryLock

if TYPE_CHECKING:
    from edged.fleet.config import CoordinatorConfig

ROUNDS = 10
NAMED = 5  # devices whose names are in a line


@dataclass(frozen=True)
class CoordinatorStatus(Message):
    """What a coordinator says of itself while it runs.

    `at` is when, `until` when the phase ends at the latest, both in Unix seconds; `model` is the fingerprint
    of the standing model; `why_not` has devices that take no part, with the reason.
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


@dataclass(frozen=True)
class FleetReport(Message):
    """Whether the coordinator runs, its status of `age` seconds ago, and the newest rounds that ended."""

    running: bool
    pid: int | None
    age: float
    status: CoordinatorStatus
    rounds: tuple[RoundRecord, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all on one level."""
        values = super().to_json()
        rounds = values.pop("rounds")
        return {**values, **values.pop("status"), "rounds": rounds}


def status_of(config: CoordinatorConfig) -> FleetReport:
    """Read what a coordinator last said of itself; StorageError if it never ran."""
    try:
        status = CoordinatorStatus.from_json(json.loads((config.dir / STATUS).read_bytes()))
    except (OSError, ValueError, TrainingError):
        raise StorageError(
            "no coordinator has run here", where=str(config.dir), remedy="start `edged fleet run`"
        ) from None
    pid = DirectoryLock.holder(config.dir)
    age, rounds = max(0.0, time.time() - status.at), tuple(read_lineage(config.dir)[-ROUNDS:])
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
        f"updates {status.updates} of {status.wanted}, refused: {refused}",
        f"devices {status.devices}, ready {status.ready}" + (", paused" if status.paused else ""),
        *_reasons(status.why_not),
        f"model version {status.version}, {status.model[:12]}",
    ]
    return lines + [_round(entry) for entry in report.rounds]


def _reasons(why_not: Mapping[str, str]) -> list[str]:
    """A line for each reason, with the devices that have it, the commonest first."""
    names: dict[str, list[str]] = {}
    for device, reason in why_not.items():
        names.setdefault(reason, []).append(device)
    lines = []
    for reason, devices in sorted(names.items(), key=lambda found: -len(found[1])):
        more = f" and {len(devices) - NAMED} more" if len(devices) > NAMED else ""
        lines.append(f"  not ready: {', '.join(devices[:NAMED])}{more}: {reason}")
    return lines


def _round(entry: RoundRecord) -> str:
    what = "accepted" if entry.accepted else "refused"
    out = len(entry.left_out)
    more = f", {out} {'device' if out == 1 else 'devices'} left out" if out else ""
    if entry.dissenters:
        more += f"; worse for {', '.join(entry.dissenters[:NAMED])}"
    return f"round {entry.round}: {what}, version {entry.version}: {entry.reason}{more}"
