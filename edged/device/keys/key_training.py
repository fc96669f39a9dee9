"""Training of keys that have models of their own: which key trains next, and its run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from edged.device.keys.loaded_keys import AGAIN_SECONDS
from edged.domain.events import KeyModelChanged
from edged.domain.training.triggers import FEWEST
from edged.domain.training.turns import RunGain, Waiting, next_turn
from edged.errors import EdgedError, RefusedError, StorageError, TrainingError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edged.device.events import Events
    from edged.device.keys.key_pipeline import KeyPipeline
    from edged.device.keys.loaded_keys import LoadedKeys
    from edged.device.learning.queued_run import QueuedRun
    from edged.device.pipeline import Pipeline
    from edged.domain.commands.tasks import Task
    from edged.domain.training.training_run import JudgedCandidate, RunOptions, RunResult

log = get_logger("edged.keys")

LOOK_SECONDS = 1.0  # between two counts of new labels
MORE_LABELS = 20  # until a key's classes are looked at again


class KeyTraining:
    """Trains the models of keys, in turn with that of the stream, `common`; see `KeyTurns`.

    `keys` has the pipelines. New labels are counted every `look_seconds`.
    """

    def __init__(self, common: Pipeline, keys: LoadedKeys, events: Events, look_seconds: float) -> None:
        self._common, self._keys, self._events, self._look_seconds = common, keys, events, look_seconds
        self._counted = 0
        self._looked = float("-inf")
        self._labels: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        self._ready: dict[str, float] = {}  # keys with enough new labels, and since when
        self._begun = False  # whether the stream's model was trained
        self._training: tuple[KeyPipeline, QueuedRun] | None = None
        self._not_before: dict[str, float] = {}
        self._fewest: dict[str, int] = {}  # labels at which a key's classes are looked at again

    def labels(self, key: str) -> int | None:
        """Labels of a key; None before they were counted."""
        return self._labels[key] if self._counted else None

    def should_train(self, key: str) -> None:
        """Have a key take its turn although few labels are new: it answers worse, or its samples changed."""
        self._ready.setdefault(key, self._common.clock.monotonic())

    def forget(self, keys: Iterable[str] | None = None) -> None:
        """Forget what is due of keys that share the stream's model again; without `keys` what was counted."""
        for key in keys or ():
            self._ready.pop(key, None)
        if keys is None:
            self._counted, self._begun = 0, False  # the log may be another one
            for counts in (self._labels, self._new, self._ready, self._fewest):
                counts.clear()

    def store_state(self) -> None:
        """Store what a restart resumes from."""
        self._keys.store_state()

    def next_key(self, common: Waiting | None) -> str | None:
        """The key whose turn it is to train; None for the stream's model, which may be `common` waiting."""
        now = self._common.clock.monotonic()
        if now - self._looked >= self._look_seconds:
            self._looked = now
            self._count(now)
        commanded = [own.key for own in self._keys.all() if own.scheduler.triggers.commanded]
        if commanded:
            return commanded[0]
        if not self._ready or self._common.scheduler.held_back():
            return None
        if not self._begun:
            version = self._common.predictor.champion.version
            self._begun = self._common.registry.get(version).source != "bundle"
            if not self._begun:
                return None  # there is nothing yet that a key could start from
        waiting = [self._waiting(key, since) for key, since in list(self._ready.items())]
        waiting = [one for one in waiting if now >= self._not_before.get(one.name or "", now)]
        if common is not None:
            waiting.append(common)
        return next_turn(waiting, now).name if waiting else None

    def _waiting(self, key: str, since: float) -> Waiting:
        own = self._keys.get(key)
        urgent = own is not None and own.urgent
        return Waiting(key, since, RunGain(self._new_labels(key) / max(1.0, self._needed(key)), urgent))

    def _new_labels(self, key: str) -> int:
        return self._new[key] if key in self._keys else self._labels[key]

    def _needed(self, key: str) -> float:
        """New labels with which a key has its turn."""
        own = self._keys.get(key)
        if own is not None:
            return own.scheduler.triggers.needed
        if key in self._keys:
            return self._common.scheduler.triggers.rules.new_labels or float("inf")
        return float(self._keys.config.model.own_after)

    def _count(self, now: float) -> None:
        """Count the labels that came since the last time, by key."""
        reader = self._common.reader
        upto = reader.last_seq()
        if upto == self._counted:
            return
        first = self._counted == 0
        for key, count in reader.labels_by_key(self._counted, upto).items():
            self._labels[key] += count
            known = first and key in self._keys
            self._new[key] = (
                reader.of_key(key).labelled_since(self._keys.record_of(key).consumed)
                if known
                else self._new[key] + count
            )
            if self._is_due(key):
                self._ready.setdefault(key, now)
        self._counted = upto

    def _is_due(self, key: str) -> bool:
        if key in self._keys:
            own = self._keys.get(key)
            fewest = FEWEST if own is not None and own.urgent else self._needed(key)
            return self._new[key] >= fewest
        enough = max(self._keys.config.model.own_after, self._fewest.get(key, 0))
        if self._labels[key] < enough:
            return False
        if self._common.schema.task == "classify":
            classes = self._common.reader.of_key(key).labels_by_class()
            if len(classes) < 2 or min(classes.values()) < 2:
                self._fewest[key] = self._labels[key] + MORE_LABELS
                return False
        return True

    def train(self, key: str) -> tuple[RunResult | None, JudgedCandidate | None]:
        """Carry out a run of a key that is due; what came of it, None where nothing was trained.

        The first run of a key makes its directory.
        """
        self._ready.pop(key, None)
        try:
            self.begin(key)
            with self._keys.held(key) as own:
                return self._train(own)
        except StorageError as problem:
            log.warning("key_not_trained", key=key, problem=problem.line())
        except EdgedError as problem:
            log.error("key_not_trained", key=key, problem=problem.line())
        self._not_before[key] = self._common.clock.monotonic() + AGAIN_SECONDS
        return None, None

    def begin(self, key: str) -> None:
        """Make a model for a key that shares the stream's until now; EdgedError where that fails."""
        if self._keys.make(key):
            self._new[key] = self._labels[key]
            self._events.event(KeyModelChanged(key, "stream", self._labels[key]))

    def _train(self, own: KeyPipeline) -> tuple[RunResult | None, JudgedCandidate | None]:
        scheduler, stream = own.scheduler, self._common.scheduler
        own.follow_common()
        own.exclusion.apply()
        own.disputes.apply()
        scheduler.budget, scheduler.enabled, scheduler.paused = stream.budget, stream.enabled, stream.paused
        found = own.recall.worth_trying(scheduler.consumed, own.rollout.champion)
        served = None if found is None else own.rollout.recall(*found)
        if served is not None:
            own.recall.record_champion(served.version)
        trigger = scheduler.due()
        if trigger is None:
            self._not_before[own.key] = self._common.clock.monotonic() + AGAIN_SECONDS
            self._new[own.key] = scheduler.new()
            return None, None
        order = own.orders.pop(trigger)
        for task in order.tasks:
            task.mark_executing()
        options = order.options.over(scheduler.usual_options())
        self._training = own, order
        try:
            result = scheduler.train(trigger, options, order, resumes=order.resumes)
            judged = None if result is None else self._learned(own, result, rehearsal=order.options.dry_run)
        except Exception:
            order.fail(EdgedError("internal error, see the device's log", where="train"))
            raise
        finally:
            self._training = None
            stream.budget = scheduler.budget
            self._new[own.key] = scheduler.new()
        if scheduler.ended is not None:
            order.finish(scheduler.ended, judged)
        else:
            order.fail(TrainingError("the disk did not let the run start", where=f"key {own.key}"))
        return result, judged

    def cancel(self, task: Task | None = None) -> int | None:
        """End the run of a key that is under way, or `task` before its run; its number, None without one.

        Raises RefusedError when there is nothing to cancel.
        """
        for own in self._keys.all() if task is not None else ():
            if task is not None and own.orders.withdraw(task) is not None:
                task.fail(EdgedError("cancelled before it started", where="train"))
                return None
        if self._training is not None:
            learner, order = self._training
            progress = learner.scheduler.progress
            if progress is not None and (task is None or task in order.tasks):
                learner.scheduler.client.cancel()
                return progress.run
        raise RefusedError("no run is under way", where="cancel")

    def _learned(self, own: KeyPipeline, result: RunResult, *, rehearsal: bool) -> JudgedCandidate:
        if rehearsal:
            return own.rollout.rehearse(result.own_candidate())
        shared = own.shares
        judged, served = own.rollout.consider(*result.candidates())
        own.scheduler.policy.judged(forgets=judged.verdict.forgets)
        own.registry.set_value("consumed", own.scheduler.consumed)
        if served is not None:
            own.recall.record_champion(served.version)
            if shared:
                own.teacher.refresh()
                own.contest.begin()
                self._events.event(own.answering())
        return judged

    def command(self, key: str, options: RunOptions, task: Task | None = None) -> None:
        """Train a key as soon as the present run has ended; `task` ends with that run.

        Raises RefusedError when it has no model of its own, or too many runs wait; EdgedError as `at`.
        """
        with self._keys.held(key) as own:
            own.orders.add(options, task)
