"""Effect of the newest labels in plain words, stored across restarts."""

from __future__ import annotations

from dataclasses import dataclass

from edged.clock import Clock
from edged.device.events import Listener
from edged.domain.events import Event
from edged.domain.training.message import Message
from edged.logs import disk_may_refuse, get_logger
from edged.storage.models.registry import Registry

SUMMARY = "learned"  # name of the registry's value
SUMMARISED = (
    "training_finished", "training_paused", "candidate_rejected", "candidates_refused", "model_promoted",
    "model_rolled_back",
)  # fmt: skip

log = get_logger("edged.promote")


@dataclass(frozen=True)
class StoredSummary(Message):
    """Summary of the newest event about learning, and when it was (Unix seconds); None before the first."""

    summary: str | None = None
    summary_ts: float | None = None


def stored_summary(registry: Registry) -> StoredSummary:
    """Read the newest summary from the registry."""
    return StoredSummary.from_json(registry.get_value(SUMMARY) or {})


class LearningSummary(Listener):
    """Stores the summary of the newest event about learning in `registry`."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    def event(self, event: Event) -> None:
        """Store the summary of an event; if the disk refuses it, the older one stays."""
        summary = event.to_json().get("summary") if event.name in SUMMARISED else None
        if not isinstance(summary, str) or not summary:
            return
        with disk_may_refuse(log, "summary_not_kept"):
            self._registry.set_value(SUMMARY, StoredSummary(summary, self._clock.now()).to_json())
