"""What `edged fleet status` says, read from a coordinator's directory while it runs or not."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.domain.training.message import Message
from edged.errors import StorageError, TrainingError
from edged.fleet.coordinator.branches import folder_of
from edged.fleet.coordinator.journal import STATUS, RoundRecord, read_lineage
from edged.fleet.coordinator.public_status import CoordinatorStatus, RolloutStatus
from edged.storage.files.atomic import DirectoryLock

if TYPE_CHECKING:
    from edged.domain.json_fields import JsonObject
    from edged.fleet.config import CoordinatorConfig

ROUNDS = 10
NAMED = 5  # devices whose names are in a line


@dataclass(frozen=True)
class FleetReport(Message):
    """Whether the coordinator runs, its status of `age` seconds ago, and the newest rounds that ended."""

    running: bool
    pid: int | None
    age: float
    status: CoordinatorStatus
    rounds: tuple[RoundRecord, ...]

    def to_json(self) -> JsonObject:
        """Return all on one level."""
        rounds = [record.to_json() for record in self.rounds]
        return {**self.without("status", "rounds"), **self.status.to_json(), "rounds": rounds}


def status_of(config: CoordinatorConfig, group: str = "") -> FleetReport:
    """Read what a coordinator last said of the fleet or of a group.

    Raises StorageError if it never ran; ConfigError when there is no such group.
    """
    folder = folder_of(config, group)
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
    group = f", group {status.group}" if status.group else ""
    broker = "connected" if status.connected else "no broker"
    lines = [
        f"fleet {status.fleet}{group}: {runs}, {broker}",
        f"round {status.round} {status.phase}" + (f", {left:.0f} s left" if left > 0 else ""),
        *([f"  waits for {status.waits_for}"] if status.waits_for else []),
        f"updates {status.updates} of {status.wanted}, refused: {refused}",
        *([] if status.masks is None else [f"masks {status.masks}"]),
        f"devices {status.devices}, ready {status.ready}" + (", paused" if status.paused else ""),
        *_reasons(status.why_not),
        *([] if status.rollout is None else rollout_lines(status.rollout)),
        f"model version {status.version}, {status.model[:12]}",
    ]
    return lines + [_round(entry) for entry in report.rounds]


def rollout_lines(status: RolloutStatus | None) -> list[str]:
    """Format how far a rollout has come for people."""
    if status is None:
        return ["no rollout is under way"]
    named = "all" if status.named is None else status.named
    where = f"stage {status.stage} of {status.stages} ({status.name})"
    asked = f"{named} devices asked, {status.queued} to come"
    made = f"{status.reports} have reported, {status.taken} have taken it"
    lines = [f"rollout of {status.model[:12]}: {where}: {asked}, {made}"]
    if worse := status.worse:
        more = f" and {len(worse) - NAMED} more" if len(worse) > NAMED else ""
        lines.append(f"  worse for {', '.join(worse[:NAMED])}{more}")
    if status.approval:
        lines.append("  waits for approval: `edged fleet rollout approve CONFIG`, or abort")
    return lines


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
