"""Who serves: candidates take over, disappointing ones go, failing ones are replaced.

Joins promotion (what is durable) with serving (what answers). A candidate becomes durable first, then
the one reference that the serving loop looks at is exchanged. A champion that fails leaves in the other
order: its predecessor, still loaded, answers from the next batch on, whatever the disk says, and is made
durable then. A crash in between leaves the failed one in the pointer: it is on probation again after it.
Safe to call from several threads.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edged.domain.judging.gate import refuse
from edged.errors import CorruptError, EdgedError, RefusedError, StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.events import Events
    from edged.device.promotion.promoter import Promoter
    from edged.device.serving.predictor import Predictor
    from edged.domain.judging.gate import Verdict
    from edged.domain.protocols import ServedModel
    from edged.domain.stream.sample import Window
    from edged.domain.training.training_run import Candidate
    from edged.domain.training.triggers import Triggers

log = get_logger("edged.succession")

DISAPPOINTED = "probation failed: on live samples it was worse than its predecessor"


@dataclass(frozen=True)
class Judged:
    """A candidate and the verdict on it."""

    candidate: Candidate
    verdict: Verdict

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of events and answers."""
        return {"run": self.candidate.run, **self.candidate.told(), **self.verdict.as_dict()}


class Rollout:
    """Decides nothing by itself: carries out verdicts, probation outcomes and commands.

    `events` hears of every change; `triggers` holds back the next training run after suspect labels.
    """

    def __init__(
        self,
        promoter: Promoter,
        predictor: Predictor,
        events: Events,
        triggers: Triggers,
    ) -> None:
        self._promoter = promoter
        self._predictor = predictor
        self._events = events
        self._triggers = triggers
        self._lock = threading.RLock()
        self._owed: list[tuple[int, str]] = []  # failed versions that the registry does not know of yet
        self.origins: dict[str, int] = {}
        self.forgets = False

    @property
    def champion(self) -> int:
        """Version of the model that serves."""
        return self._predictor.champion.version

    def consider(self, *candidates: Candidate) -> tuple[Judged, ServedModel | None]:
        """Bring the candidates of a run before the gate until one takes over.

        Returns
        -------
        The newest verdict, and the new champion, if there is one.
        """
        for candidate in candidates:
            judged, served = self._evaluate(candidate)
            if served is not None:
                break
        return judged, served

    def _evaluate(self, candidate: Candidate) -> tuple[Judged, ServedModel | None]:
        champion = self._predictor.champion
        try:
            verdict, served = self._promoter.consider(candidate, champion)
        except StorageError as problem:  # there will be a newer candidate; this one was no worse for it
            return self._rejected(Judged(candidate, refuse(problem.line()))), None
        self.forgets = verdict.forgets
        judged = Judged(candidate, verdict)
        if served is None:
            self._rejected(judged)
            if candidate.source == "training":
                self._perhaps_rest()
            return judged, None
        against = self._take_over(served, champion, "; ".join(verdict.reasons))
        if against is not None:
            withdrawn = self._promoter.withdraw(served.version, against)
            return self._rejected(Judged(candidate, withdrawn)), None
        self._publish_promotion(served, champion, candidate.source, judged.as_fields())
        return judged, served

    def _rejected(self, judged: Judged) -> Judged:
        self._events.event("candidate_rejected", judged.as_fields())
        return judged

    def rehearse(self, candidate: Candidate) -> Judged:
        """Bring the candidate of a dry run before the gate; whatever the verdict, nothing changes."""
        return Judged(candidate, self._promoter.appraise(candidate, self._predictor.champion))

    def promote(self, to: int, *, watch: bool = True) -> dict[str, Any]:
        """Serve a stored model because somebody wants it, with `watch` on probation; what changed.

        Raises
        ------
        RefusedError
            When that version serves already.
        EdgedError
            When it cannot be loaded.
        """
        champion = self._predictor.champion
        if to == champion.version:
            raise RefusedError("this version is serving already", where=f"version {to}")
        served = self._promoter.open(to)
        with self._lock:
            if self._predictor.champion is not champion:
                raise RefusedError("another model took over meanwhile", where=f"version {to}")
            self._promoter.set_champion(served, "command")
            self._predictor.swap(served, watch=watch)
        self._publish_promotion(served, champion, "command", {"reasons": ["command"]})
        return {"from": champion.version, "to": to}

    def begin_anew(self, reason: str) -> None:
        """Serve the bundle's own model, as on the first day."""
        with self._lock:
            before = self._predictor.champion.version
            served = self._promoter.base(reason)
            self._predictor.revert(served)
            self._owed.clear()
        self._events.event("model_rolled_back", {"from": before, "to": served.version, "reason": reason})

    def recall(self, versions: list[int], window: Window) -> ServedModel | None:
        """Try models of earlier regimes on rows that nobody has learned from; the one that serves now."""
        champion = self._predictor.champion
        found = self._promoter.recall(versions, champion, window)
        if found is None:
            return None
        verdict, served = found
        against = self._take_over(served, champion, "its regime is back: " + "; ".join(verdict.reasons))
        if against is not None:
            log.error("recall_failed", version=served.version, problem=against)
            return None
        self._publish_promotion(served, champion, "bank", verdict.as_dict())
        return served

    def _publish_promotion(
        self, served: ServedModel, before: ServedModel, origin: str, told: dict[str, Any]
    ) -> None:
        self.origins[origin] = self.origins.get(origin, 0) + 1
        self._events.event(
            "model_promoted",
            {"version": served.version, "parent": before.version, "origin": origin, **told},
        )

    def _take_over(self, served: ServedModel, champion: ServedModel, reason: str) -> str | None:
        """Durable first, then serving; what stood against it."""
        with self._lock:
            if self._predictor.champion is not champion:
                return "another model took over while it was judged"
            try:
                self._promoter.set_champion(served, reason)
            except StorageError as problem:
                return problem.line()
            self._predictor.swap(served)
        return None

    def _perhaps_rest(self) -> None:
        pause = self._promoter.recommended_pause()
        if pause is not None:
            labels = self._triggers.hold_back(pause.pop("times"))
            self._events.event("training_paused", {**pause, "new_labels": labels})

    def probation_ended(self, version: int, passed: bool) -> None:
        """The probation of a version has an outcome; void if another serves by now."""
        with self._lock:
            if self._predictor.champion.version != version:
                return
            if passed:
                self._confirm(version)
                return
            previous = self._predictor.previous
            if previous is None:
                self.roll_back(DISAPPOINTED)
                return
            self._predictor.revert(previous)
            self._fallen(version, DISAPPOINTED)

    def _confirm(self, version: int) -> None:
        try:
            self._promoter.confirm(version)
        except StorageError as problem:
            log.warning("confirmation_not_kept", version=version, problem=problem.line())

    def champion_failed(self, failing: int, reason: str) -> None:
        """Store the rollback that the serving thread has already made."""
        with self._lock:
            self._fallen(failing, reason)

    def _fallen(self, failing: int, reason: str) -> None:
        back = self._predictor.champion.version
        self._events.event("model_rolled_back", {"from": failing, "to": back, "reason": reason})
        self._owed.append((failing, reason))
        self.persist()

    def persist(self) -> bool:
        """Store the rollbacks that serving has made; return False if the disk refuses, then call again."""
        with self._lock:
            while self._owed:
                failing, reason = self._owed[0]
                try:
                    self._stand_down(failing, reason)
                except StorageError as problem:
                    log.warning("rollback_not_durable", version=failing, problem=problem.line())
                    return False
                except RefusedError as problem:
                    # It goes on serving from memory; nothing on the disk is any better.
                    log.error("rollback_not_durable", version=failing, problem=problem.line())
                self._owed.pop(0)
        return True

    def _stand_down(self, failing: int, reason: str) -> None:
        serving = self._predictor.champion.version
        try:
            self._promoter.stand_down(failing, serving, reason)
        except CorruptError as problem:
            # What is served cannot be read back: find one that can, and serve that.
            served = self._promoter.rollback(failing, reason)
            self._predictor.revert(served)
            change = {"from": serving, "to": served.version, "reason": problem.line()}
            self._events.event("model_rolled_back", change)

    def rescue(self, failing: ServedModel, reason: str) -> ServedModel | None:
        """Another model when what is served fails and has no predecessor; None when there is none."""
        with self._lock:
            if self._predictor.champion is not failing:
                return self._predictor.champion
            try:
                self.roll_back(reason)
            except EdgedError as problem:
                log.error("no_model_left", problem=problem.line())
                return None
            return self._predictor.champion

    def roll_back(self, reason: str, to: int | None = None) -> dict[str, Any]:
        """Serve `to` again, or the model that served before; what changed.

        Raises
        ------
        RefusedError
            When that version serves already, or none can be loaded.
        """
        with self._lock:
            failing, previous = self._predictor.champion.version, self._predictor.previous
            if to is None and previous is not None:
                to = previous.version
            if to == failing:
                raise RefusedError("this version is serving already", where=f"version {to}")
            served = self._promoter.rollback(failing, reason, to=to)
            self._predictor.revert(served)
        change = {"from": failing, "to": served.version, "reason": reason}
        self._events.event("model_rolled_back", change)
        return change
