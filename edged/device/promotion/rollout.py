"""The serving model: candidates take over, disappointing ones go, failing ones are replaced.

Joins promotion (what is durable) with serving (what answers). A candidate becomes durable first, then
the one reference that the serving loop looks at is exchanged. A champion that fails leaves in the other
order: its predecessor, still loaded, answers from the next batch on, whatever the disk says, and is made
durable then. A crash in between leaves the failed one in the pointer: it is on probation again after it.
Safe to call from several threads.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edged.device.events import Events
from edged.device.promotion.evaluator import CandidateEvaluator
from edged.device.promotion.model_store import ModelStore, discard
from edged.device.serving.predictor import Predictor
from edged.domain import outcomes
from edged.domain.events import (
    CandidateRejected,
    CandidatesRefused,
    ModelPromoted,
    ModelRolledBack,
)
from edged.domain.json_fields import JsonObject
from edged.domain.judging.verdict import RefusalStreak, Verdict
from edged.domain.protocols import ServedModel
from edged.domain.training.training_run import Candidate, JudgedCandidate
from edged.errors import CorruptError, EdgedError, RefusedError, StorageError
from edged.logs import get_logger

log = get_logger("edged.succession")


@dataclass(frozen=True)
class ChampionChange:
    """Another stored model serves, and why: None if somebody wanted it."""

    before: int
    to: int
    reason: str | None = None

    def to_json(self) -> JsonObject:
        """Return the fields of events and answers."""
        change = {"from": self.before, "to": self.to}
        return change if self.reason is None else {**change, "reason": self.reason}


class Rollout:
    """Brings candidates and stored models into service, and takes failing ones out of it.

    `events` hears of every change.
    """

    def __init__(
        self,
        evaluator: CandidateEvaluator,
        models: ModelStore,
        predictor: Predictor,
        events: Events,
    ) -> None:
        self._evaluator = evaluator
        self._models = models
        self.predictor = predictor
        self.events = events
        self._lock = threading.RLock()
        self._owed: list[tuple[int, str]] = []  # failed versions that the registry does not know of yet
        self._streak = RefusalStreak()

    @property
    def champion(self) -> int:
        """Version of the model that serves."""
        return self.predictor.champion.version

    @property
    def problem(self) -> str | None:
        """Reason why candidate after candidate is rejected; None otherwise."""
        return self._streak.problem

    # ---- candidates ------------------------------------------------------------------------

    def consider(self, candidate: Candidate) -> tuple[JudgedCandidate, ServedModel | None]:
        """Bring a candidate before the gate; return the verdict, and the new champion if there is one."""
        judged, served = self._consider(candidate)
        self._models.record_judged(candidate)
        return judged, served

    def _consider(self, candidate: Candidate) -> tuple[JudgedCandidate, ServedModel | None]:
        champion = self.predictor.champion
        evaluation = self._evaluator.evaluate(candidate, champion)
        verdict, served = self._models.add(evaluation)
        if candidate.source == "training" and self._streak.record(verdict, failed=evaluation.failed):
            self._publish_streak(verdict)
        if served is None:
            return self._rejected(self._judged(candidate, verdict, evaluation.scale)), None
        against = self._make_champion(served, champion, "; ".join(verdict.reasons))
        if against is not None:
            withdrawn = self._models.withdraw(served.version, against)
            return self._rejected(self._judged(candidate, withdrawn)), None
        judged = self._judged(candidate, verdict, evaluation.scale, served.version)
        self._publish_promotion(served, champion, candidate.source, judged.summary, verdict, candidate)
        return judged, served

    def _judged(
        self,
        candidate: Candidate,
        verdict: Verdict,
        scale: NDArray[np.float32] | None = None,
        promoted: int | None = None,
    ) -> JudgedCandidate:
        summary = outcomes.judged(self.predictor.schema, candidate, verdict, promoted, scale)
        return JudgedCandidate(candidate, verdict, promoted, summary)

    def _rejected(self, judged: JudgedCandidate) -> JudgedCandidate:
        self.events.event(CandidateRejected(judged))
        return judged

    def _publish_streak(self, verdict: Verdict) -> None:
        if self.problem is not None:
            count, cause = self._streak.count, self._streak.cause
            summary = outcomes.refused_again(count, cause)
            self.events.event(CandidatesRefused(count, cause, verdict.reasons, summary))
        self.events.problem_changed()

    def rehearse(self, candidate: Candidate) -> JudgedCandidate:
        """Bring the candidate of a dry run before the gate; whatever the verdict, nothing changes."""
        evaluation = self._evaluator.evaluate(candidate, self.predictor.champion)
        discard(candidate.folder)
        return self._judged(candidate, evaluation.verdict, evaluation.scale)

    # ---- stored models ---------------------------------------------------------------------

    def pin(self, version: int) -> int:
        """Let no candidate take over from now on, not even one that is about to; the version that serves."""
        with self._lock:
            self._models.pin(version)
            return self.predictor.champion.version

    def promote(self, to: int, *, watch: bool = True) -> ChampionChange:
        """Serve a stored model because somebody wants it, with `watch` on probation; what changed.

        Raises RefusedError when that version serves already; EdgedError when it cannot be loaded.
        """
        champion = self.predictor.champion
        if to == champion.version:
            raise RefusedError("this version is serving already", where=f"version {to}")
        served = self._models.open(to)
        with self._lock:
            if self.predictor.champion is not champion:
                raise RefusedError("another model took over meanwhile", where=f"version {to}")
            self._models.set_champion(to, outcomes.BY_COMMAND)
            self.predictor.swap(served, watch=watch)
        self._publish_promotion(served, champion, outcomes.BY_COMMAND, outcomes.chosen(to))
        return ChampionChange(champion.version, to)

    # ---- taking over -----------------------------------------------------------------------

    def _make_champion(self, served: ServedModel, champion: ServedModel, reason: str) -> str | None:
        """Make a model the champion, durably, and then serve it; return a reason where that fails."""
        with self._lock:
            if self.predictor.champion is not champion:
                return "another model took over while it was judged"
            if self._models.pinned:
                return f"version {self._models.pinned[0]} was pinned while it was judged"
            try:
                self._models.set_champion(served.version, reason)
            except StorageError as problem:
                return problem.line()
            self.predictor.swap(served)
        return None

    def _publish_promotion(
        self,
        served: ServedModel,
        before: ServedModel,
        origin: str,
        summary: str,
        verdict: Verdict | None = None,
        candidate: Candidate | None = None,
    ) -> None:
        self.events.event(ModelPromoted(served.version, before.version, origin, summary, verdict, candidate))

    # ---- probation and rollback ------------------------------------------------------------

    def probation_ended(self, version: int, passed: bool) -> None:
        """The probation of a version has an outcome; void if another serves by now."""
        with self._lock:
            if self.predictor.champion.version != version:
                return
            if passed:
                self._models.confirm(version)
                return
            previous = self.predictor.previous
            if previous is None:
                self.roll_back(outcomes.DISAPPOINTED)
                return
            self.predictor.revert(previous)
            self._fallen(version, outcomes.DISAPPOINTED)

    def champion_failed(self, failing: int, reason: str) -> None:
        """Store the rollback that the serving thread has already made."""
        with self._lock:
            self._fallen(failing, reason)

    def _fallen(self, failing: int, reason: str) -> None:
        self._publish_rollback(failing, self.predictor.champion, reason)
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
                    # It keeps serving from memory; nothing on the disk is any better.
                    log.error("rollback_not_durable", version=failing, problem=problem.line())
                self._owed.pop(0)
        return True

    def _stand_down(self, failing: int, reason: str) -> None:
        serving = self.predictor.champion.version
        try:
            self._models.stand_down(failing, serving, reason)
        except CorruptError as problem:
            # What is served cannot be read back: find one that can, and serve that.
            served = self._models.roll_back(failing, reason)
            self.predictor.revert(served)
            self._publish_rollback(serving, served, problem.line())

    def rescue(self, failing: ServedModel, reason: str) -> ServedModel | None:
        """Another model when what is served fails and has no predecessor; None when there is none."""
        with self._lock:
            if self.predictor.champion is not failing:
                return self.predictor.champion
            try:
                self.roll_back(reason)
            except EdgedError as problem:
                log.error("no_model_left", problem=problem.line())
                return None
            return self.predictor.champion

    def roll_back(self, reason: str, to: int | None = None) -> ChampionChange:
        """Serve `to` again, or the model that served before; what changed.

        Raises RefusedError when that version serves already, or none can be loaded.
        """
        with self._lock:
            failing, previous = self.predictor.champion.version, self.predictor.previous
            if to is None and previous is not None:
                to = previous.version
            if to == failing:
                raise RefusedError("this version is serving already", where=f"version {to}")
            served = self._models.roll_back(failing, reason, to=to)
            self.predictor.revert(served)
        return self._publish_rollback(failing, served, reason)

    def begin_anew(self, reason: str) -> None:
        """Serve the bundle's own model, as on the first day."""
        with self._lock:
            before = self.predictor.champion.version
            served = self._models.reinstall_base(reason)
            self.predictor.revert(served)
            self._owed.clear()
        self._publish_rollback(before, served, reason)

    def _publish_rollback(self, before: int, served: ServedModel, reason: str) -> ChampionChange:
        change = ChampionChange(before, served.version, reason)
        summary = outcomes.rolled_back(before, served.version, reason)
        self.events.event(ModelRolledBack(before, served.version, reason, summary))
        return change
