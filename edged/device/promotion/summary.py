"""What the newest labels did, in plain words: kept for whoever looks later, also after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.device.events import Listener
from edged.errors import StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.domain.events import Event
    from edged.storage.models.registry import Registry

SUMMARY = "learned"  # the registry's value: `summary` and `summary_ts` (Unix seconds)
SUMMARISED = (
    "training_finished", "training_paused", "candidate_rejected", "candidates_refused", "model_promoted",
    "model_rolled_back",
)  # fmt: skip
NONE = {"summary": None, "summary_ts": None}

log = get_logger("edged.promote")


def stored_summary(registry: Registry) -> dict[str, Any]:
    """Return `summary` and `summary_ts` of the newest event about learning; None before the first."""
    return {**NONE, **(registry.get_value(SUMMARY) or {})}


class LearningSummary(Listener):
    """Stores the summary of the newest event about learning in `registry`."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    def event(self, event: Event) -> None:
        """Store the summary of an event; if the disk refuses it, the older one stays."""
        told = event.to_json().get("summary") if event.name in SUMMARISED else None
        if not told:
            return
        try:
            self._registry.set_value(SUMMARY, {"summary": told, "summary_ts": self._clock.now()})
        except StorageError as problem:
            log.warning("summary_not_kept", problem=problem.line())
