"""Succession: who serves. Candidates take over, disappointing ones go, failing ones are replaced.

Joins promotion (what is durable) with serving (what answers), always in this order: durable first,
then the one reference that the serving loop looks at. Safe to call from several threads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from edged.errors import RefusedError, StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.domain.gate import Verdict
    from edged.domain.protocols import Served
    from edged.domain.sample import Window


log = get_logger("edged.succession")


class Promotion(Protocol):
    """The durable side."""

    def consider(self, result: dict[str, Any], champion: Served) -> tuple[Verdict, Served | None]:
        """Verify, judge and store a candidate."""

    def recall(self, versions: list[int], champion: Served, window: Window) -> tuple[Verdict, Served] | None:
        """Try models of earlier regimes."""

    def crown(self, served: Served, reason: str) -> None:
        """Make it the durable champion."""

    def confirm(self, version: int) -> None:
        """Probation passed."""

    def rollback(self, failing: int, reason: str, to: int | None = None) -> Served:
        """Make an earlier one the durable champion again."""


class Serving(Protocol):
    """The side that answers."""

    champion: Served
    previous: Served | None

    def swap(self, served: Served, *, watch: bool = True) -> None:
        """Serve another model from the next batch on."""


class Succession:
    """Decides nothing by itself: carries out verdicts, probation outcomes and commands.

    `notify(event, fields)` is told of every change.
    """

    def __init__(
        self, promotion: Promotion, serving: Serving, notify: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._promotion = promotion
        self._serving = serving
        self._notify = notify
        self._lock = threading.RLock()
        self.origins: dict[str, int] = {}
        self.forgets = False

    @property
    def champion(self) -> int:
        """Version of the model that serves."""
        return self._serving.champion.version

    def consider(self, result: dict[str, Any]) -> Served | None:
        """Bring the candidate of a training run before the gate; the new champion, if it became one."""
        with self._lock:
            champion = self._serving.champion
            verdict, served = self._promotion.consider(result, champion)
            self.forgets = verdict.forgets
            told = {"run": result["run"], **verdict.as_dict()}
            if served is None:
                self._notify("candidate_rejected", told)
                return None
            try:
                self._promotion.crown(served, "; ".join(verdict.reasons))
            except StorageError as problem:
                self._notify("candidate_rejected", told | {"accepted": False, "reasons": [problem.line()]})
                return None
            self._serving.swap(served)
        self._crowned(served, champion, "training", told)
        return served

    def recall(self, versions: list[int], window: Window) -> Served | None:
        """Try models of earlier regimes on rows that nobody has learned from; the one that serves now."""
        with self._lock:
            champion = self._serving.champion
            found = self._promotion.recall(versions, champion, window)
            if found is None:
                return None
            verdict, served = found
            try:
                self._promotion.crown(served, "its regime is back: " + "; ".join(verdict.reasons))
            except StorageError as problem:
                log.error("recall_failed", version=served.version, problem=problem.line())
                return None
            self._serving.swap(served)
        self._crowned(served, champion, "bank", verdict.as_dict())
        return served

    def _crowned(self, served: Served, before: Served, origin: str, told: dict[str, Any]) -> None:
        self.origins[origin] = self.origins.get(origin, 0) + 1
        self._notify(
            "model_promoted",
            {"version": served.version, "parent": before.version, "origin": origin, **told},
        )

    def probation_ended(self, version: int, passed: bool) -> None:
        """The probation of a version has an outcome; void if another serves by now."""
        with self._lock:
            if self._serving.champion.version != version:
                return
            if passed:
                self._promotion.confirm(version)
            else:
                self.roll_back("probation failed: on live samples it was worse than its predecessor")

    def champion_failed(self, failing: int, reason: str) -> None:
        """The serving loop has gone back to its predecessor by itself; make that durable."""
        with self._lock:
            back = self._promotion.rollback(failing, reason, to=self._serving.champion.version)
        self._notify("model_rolled_back", {"from": failing, "to": back.version, "reason": reason})

    def roll_back(self, reason: str, to: int | None = None) -> dict[str, Any]:
        """Serve `to` again, or the model that served before; what changed.

        Raises
        ------
        RefusedError
            When that version serves already, or none can be loaded.
        """
        with self._lock:
            failing, previous = self._serving.champion.version, self._serving.previous
            if to is None and previous is not None and previous.version < failing:
                to = previous.version
            if to == failing:
                raise RefusedError("that version is being served already", where=f"version {to}")
            served = self._promotion.rollback(failing, reason, to=to)
            self._serving.swap(served, watch=False)
        change = {"from": failing, "to": served.version, "reason": reason}
        self._notify("model_rolled_back", change)
        return change
