"""The status of a fleet as all may read it: retained at the broker, for the fleet page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.fleet.coordinator.announcer import Announcer

ROUNDS = 10
NAMED = 200
EVERY_SECONDS = 60.0
"""How often the same status is published again; the page takes three times that without one for silence."""
_ROUND = ("round", "version", "model", "ended", "accepted", "reason", "dissenters", "left_out", "approved_by")


class StatusPublisher:
    """Publishes the status when it has changed, and now and then."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._told: dict[str, Any] = {}
        self._at = float("-inf")

    def publish(self, status: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> None:
        """Publish the status of the coordinator with its newest rounds, if that is due."""
        told = {name: value for name, value in status.items() if name not in ("at", "connected", "until")}
        told["why_not"] = dict(list(status["why_not"].items())[:NAMED])
        told["rounds"] = [_short(entry) for entry in rounds[-ROUNDS:]]
        at = float(status["at"])
        if told == self._told and at - self._at < EVERY_SECONDS:
            return
        self._told, self._at = told, at
        payload = json.dumps(told | {"at": at, "until": status["until"], "every": EVERY_SECONDS})
        self._announcer.status(payload.encode())


def _short(entry: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: entry.get(name) for name in _ROUND}
    return found | {name: list(entry.get(name, []))[:20] for name in ("dissenters", "left_out")}
