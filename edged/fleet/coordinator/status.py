"""What `edged fleet status` says, read from a coordinator's directory while it runs or not."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edged.errors import StorageError
from edged.fleet.coordinator.branches import folder_of
from edged.fleet.coordinator.journal import STATUS, read_lineage
from edged.storage.files.atomic import DirectoryLock

if TYPE_CHECKING:
    from edged.fleet.config import CoordinatorConfig

ROUNDS = 10
NAMED = 5  # devices whose names are in a line


def status_of(config: CoordinatorConfig, group: str = "") -> dict[str, Any]:
    """Whether it runs, what it last said of the fleet or of a group, and the newest rounds there.

    Raises StorageError if it never ran; ConfigError when there is no such group.
    """
    folder = folder_of(config, group)
    try:
        told = json.loads((folder / STATUS).read_bytes())
    except (OSError, ValueError):
        raise StorageError(
            "no coordinator has run here", where=str(folder), remedy="start `edged fleet run`"
        ) from None
    pid = DirectoryLock.holder(folder)
    state = {"running": pid is not None, "pid": pid, "age": max(0.0, time.time() - told["at"])}
    return {**state, **told, "rounds": read_lineage(folder)[-ROUNDS:]}


def lines_of(status: dict[str, Any]) -> list[str]:
    """Format the status for people."""
    left = status["until"] - status["at"]
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(status["refused"].items())) or "none"
    runs = f"running (pid {status['pid']})" if status["running"] else f"stopped {status['age']:.0f} s ago"
    broker = "connected" if status["connected"] else "no broker"
    lines = [
        f"fleet {status['fleet']}{_group(status)}: {runs}, {broker}",
        f"round {status['round']} {status['phase']}" + (f", {left:.0f} s left" if left > 0 else ""),
        f"updates {status['updates']} of {status['wanted']}, refused: {refused}",
        *([f"masks {status['masks']}"] if status.get("masks") else []),
        f"devices {status['devices']}, ready {status['ready']}"
        + (", paused" if status.get("paused") else ""),
        *_reasons(status.get("why_not", {})),
        *(rollout_lines(status["rollout"]) if status.get("rollout") else ()),
        f"model version {status['version']}, {status['model'][:12]}",
    ]
    return lines + [_round(entry) for entry in status["rounds"]]


def _group(status: dict[str, Any]) -> str:
    return f", group {status['group']}" if status.get("group") else ""


def rollout_lines(told: Mapping[str, Any]) -> list[str]:
    """Format how far a rollout has come for people."""
    if not told:
        return ["no rollout is under way"]
    named = "all" if told["named"] is None else told["named"]
    where = f"stage {told['stage']} of {told['stages']} ({told['name']})"
    asked = f"{named} devices asked, {told['queued']} to come"
    made = f"{told['reports']} have reported, {told['taken']} have taken it"
    lines = [f"rollout of {told['model'][:12]}: {where}: {asked}, {made}"]
    if worse := told["worse"]:
        more = f" and {len(worse) - NAMED} more" if len(worse) > NAMED else ""
        lines.append(f"  worse for {', '.join(worse[:NAMED])}{more}")
    if told["approval"]:
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


def _round(entry: dict[str, Any]) -> str:
    what = "accepted" if entry["accepted"] else "refused"
    out = len(entry.get("left_out", []))
    more = f", {out} {'device' if out == 1 else 'devices'} left out" if out else ""
    if against := entry.get("dissenters", []):
        more += f"; worse for {', '.join(against[:NAMED])}"
    return f"round {entry['round']}: {what}, version {entry['version']}: {entry['reason']}{more}"
