"""The models of keys beside the stream's: which key has one, which answers, who trains next.

A key shares the stream's model until it has labels enough. Then it gets a directory, and a pipeline that
starts from the stream's model. Both answer its samples from then on, and the one that errs less is
published. Pipelines that are not used for longest are unloaded; what they know is in their directories.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.device.keys.key_pipeline import KeyEvents, KeyPipeline, config_of
from edged.device.pipeline import Host
from edged.device.reports import KeyModelLine, KeyModelsReport
from edged.device.serving.key_answers import Share
from edged.domain.events import DriftDetected, EventOfKey, KeyModelChanged
from edged.domain.judging.outputs import errors
from edged.domain.training.triggers import FEWEST
from edged.domain.training.turns import RunGain, Waiting, next_turn
from edged.errors import CorruptError, EdgedError, ModelError, RefusedError, StorageError, TrainingError
from edged.logs import get_logger
from edged.storage.files.atomic import sweep
from edged.storage.files.damaged_database import damage
from edged.storage.models.key_folders import KeyFolders, KeyNote
from edged.storage.models.resting_registry import RestingRegistry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.device.learning.queued_run import QueuedRun
    from edged.device.pipeline import Pipeline
    from edged.domain.commands.tasks import Task
    from edged.domain.judging.predictions import Predictions
    from edged.domain.protocols import Deferring
    from edged.domain.training.training_run import JudgedCandidate, RunOptions, RunResult
    from edged.storage.models.bundles import Bundle

log = get_logger("edged.keys")

LOOK_SECONDS = 1.0  # between two counts of new labels
AGAIN_SECONDS = 10.0  # until a key is tried again that could not be trained or loaded
UNUSED_SECONDS = 10.0  # for which a model must not have answered before another takes its place
MOST_LOADING = 4  # models that wait to be loaded at once
ANSWERS = 10_000  # samples whose two answers wait for their label
MORE_LABELS = 20  # until a key's classes are looked at again
CHECK_SECONDS = 0.2  # for which the database of a key is checked when it is opened
WORST = 20  # keys that the status lists


class KeyModels:
    """The models of keys beside that of the stream, `common`.

    `host` is what a stream runs on. `later` carries out what the serving thread must not wait for; without
    it, as in a replay, everything is done at once.
    """

    def __init__(self, common: Pipeline, bundle: Bundle, host: Host, later: Deferring | None = None) -> None:
        self._common, self._bundle, self._host, self._later = common, bundle, host, later
        self._config: Config = common.config
        self._folders = KeyFolders(common.config.storage.dir)
        self._notes = self._folders.notes()
        self._loaded: dict[str, KeyPipeline] = {}
        self._loading: set[str] = set()
        self._lock = threading.RLock()  # of what is loaded; not taken by the serving thread
        self._busy: set[str] = set()  # keys that must stay loaded
        self._answered: dict[int, tuple[KeyPipeline, NDArray[np.float32], NDArray[np.float32]]] = {}
        self._counted = self._changes = 0
        self._looked = float("-inf")
        self._labels: Counter[str] = Counter()
        self._new: Counter[str] = Counter({})
        self._ready: dict[str, float] = {}  # keys with enough new labels, and since when
        self._begun = False  # whether the stream's model was trained
        self._training: tuple[KeyPipeline, QueuedRun] | None = None
        self._not_before: dict[str, float] = {}
        self._fewest: dict[str, int] = {}  # labels at which a key's classes are looked at again
        self.loads = self.unloads = 0

    # ---- serving ---------------------------------------------------------------------------

    def split(self, keys: Sequence[str]) -> list[Share]:
        """Who answers samples of these keys, in their order of first appearance."""
        now, common = self._host.clock.monotonic(), self._common.predictor
        if self._changes != self._common.teacher.changes:
            self._changes = self._common.teacher.changes
            for loaded in list(self._loaded.values()):
                loaded.teacher.forget()
        groups: dict[str | None, list[int]] = {}
        owners: dict[str | None, KeyPipeline] = {}
        for at, key in enumerate(keys):
            own = self._loaded.get(key)
            if own is None:
                if key in self._notes:
                    self._want(key, now)
                groups.setdefault(None, []).append(at)
                continue
            own.used = now
            if own.shares:
                groups.setdefault(None, []).append(at)
            else:
                groups.setdefault(key, []).append(at)
                owners[key] = own
        shares = []
        for owner, rows in groups.items():
            one = owners.get(owner)
            if one is not None:
                one.predictor.expire_probation(now)
            serves = one is not None and one.serves
            predictor = one.predictor if one is not None and serves else common
            shares.append(Share(np.array(rows, np.int64), predictor, owner, serves))
        return shares

    def compare(self, share: Share, made: Predictions, x: NDArray[np.float32], keys: Sequence[str]) -> None:
        """Ask the other model about samples that one has answered; call it once the answers are out."""
        own = None if share.key is None else self._loaded.get(share.key)
        if own is None or own.shares:
            return
        common = self._common.predictor
        try:
            if share.own:
                ours, second = made, common.predict(made.offsets, x, keys)
            else:
                ours, second = own.predictor.predict(made.offsets, x, keys), made
        except ModelError as problem:
            log.error("not_compared", key=own.key, problem=problem.line())
            return
        for offset, one, other in zip(made.offsets.tolist(), ours.answers, second.answers, strict=True):
            self._answered[offset] = own, one, other
        while len(self._answered) > ANSWERS:
            del self._answered[next(iter(self._answered))]

    def label(
        self,
        offsets: NDArray[np.int64],
        y: NDArray[np.float32],
        x: NDArray[np.float32] | None = None,
        sources: Sequence[str] | None = None,
    ) -> None:
        """Judge both models by labels `(n, targets)` of samples that both have answered."""
        groups: dict[str, tuple[KeyPipeline, list[int], list[Any], list[Any]]] = {}
        for at, offset in enumerate(offsets.tolist()):
            found = self._answered.pop(offset, None)
            if found is not None:
                own, ours, common = found
                group = groups.setdefault(own.key, (own, [], [], []))
                group[1].append(at)
                group[2].append(ours)
                group[3].append(common)
        for own, rows, own_said, common_said in groups.values():
            told = None if sources is None else [sources[at] for at in rows]
            inputs = None if x is None else x[rows]
            outcome = own.predictor.label(offsets[rows], y[rows], inputs, sources=told)
            self._contest(own, np.stack(own_said), np.stack(common_said), y[rows])
            if outcome is not None:
                self._soon(partial(own.rollout.probation_ended, own.predictor.champion.version, outcome))
            self._heed(own)

    def failed(self, share: Share, problem: ModelError) -> None:
        """The model of a key could not answer: the stream's does, until the own one proves better again."""
        log.error("key_model_failed", key=share.key, problem=problem.line())
        own = None if share.key is None else self._loaded.get(share.key)
        if own is not None:
            own.contest.give_up()
            self._tell_who_answers(own)

    def _contest(
        self,
        own: KeyPipeline,
        ours: NDArray[np.float32],
        common: NDArray[np.float32],
        y: NDArray[np.float32],
    ) -> None:
        schema, scale = self._common.schema, own.predictor.champion.scale
        mapped = y if schema.open is None else schema.open.mapped(y)
        good = (mapped >= 0).all(axis=1) if schema.task == "classify" else np.ones(len(y), bool)
        good &= np.isfinite(ours).all(axis=1) & np.isfinite(common).all(axis=1)
        both = [errors(schema, made[good], mapped[good], scale) for made in (ours, common)]
        if own.contest.add(both[0], both[1]):
            self._tell_who_answers(own)

    def _tell_who_answers(self, own: KeyPipeline) -> None:
        self._host.events.event(KeyModelChanged(own.key, "own" if own.serves else "stream"))

    def _heed(self, own: KeyPipeline) -> None:
        """What the detectors of a key have signalled."""
        predictor = own.predictor
        failed, predictor.failed = predictor.failed, None
        if failed is not None:
            self._soon(partial(own.rollout.champion_failed, failed[0].version, failed[1]))
        for signal in predictor.drift.pop_signals():
            told = DriftDetected(signal, self._common.schema.names)
            self._host.events.event(EventOfKey(own.key, told))
            own.scheduler.drifted(signal, predictor.rise)
            self._soon(partial(own.recall.drifted, signal))
        if predictor.pop_quality_drop():
            own.scheduler.fallen(predictor.rise)
        if own.scheduler.triggers.drifted or own.scheduler.triggers.fallen:
            self._ready.setdefault(own.key, self._host.clock.monotonic())

    def _soon(self, action: Callable[[], Any]) -> None:
        if self._later is None:
            action()
        else:
            self._later.defer(action)

    # ---- loading ---------------------------------------------------------------------------

    def _want(self, key: str, now: float) -> None:
        """Have a model loaded, unless all that are there are in use, or many are being loaded."""
        full = len(self._loaded) >= self._config.model.keep
        if key in self._loading or len(self._loading) >= MOST_LOADING or now < self._not_before.get(key, now):
            return
        if full and self._later is not None and now - self._longest_unused() < UNUSED_SECONDS:
            return
        self._loading.add(key)
        self._soon(lambda: self._load(key))

    def _longest_unused(self) -> float:
        return min((own.used for own in list(self._loaded.values())), default=float("-inf"))

    def _load(self, key: str) -> None:
        try:
            self.at(key)
        except EdgedError as problem:
            self._not_before[key] = self._host.clock.monotonic() + AGAIN_SECONDS
            log.warning("key_not_loaded", key=key, problem=problem.line())
        finally:
            self._loading.discard(key)

    def at(self, key: str) -> KeyPipeline:
        """The pipeline of a key, loaded; it may be unloaded again unless it is `held`.

        Raises RefusedError when the key has no model of its own; EdgedError when it cannot be loaded: what is
        damaged has been set aside.
        """
        with self._lock:
            if key not in self._notes:
                raise RefusedError(
                    "this key has no own model",
                    where=f"key {key}",
                    remedy="leave key out: it shares the stream's",
                )
            found = self._loaded.get(key)
            return found if found is not None else self._open(key)

    @contextmanager
    def held(self, key: str) -> Iterator[KeyPipeline]:
        """The pipeline of a key, which stays loaded meanwhile; raises as `at`."""
        with self._lock:
            own = self.at(key)
            self._busy.add(key)
        try:
            yield own
        finally:
            self._busy.discard(key)
            self._keep_note(own)

    def _open(self, key: str) -> KeyPipeline:
        """Load a pipeline, of a new key too, and unload others for it."""
        note = self._notes.get(key) or KeyNote(key)
        self._make_room()
        try:
            own = self._opened(key)
            own.restore(note)
            if not own.shares:
                own.teacher.refresh()
        except (EdgedError, OSError, ValueError) as problem:
            # Of others the key is not to blame: the disk refuses, or serving is set up wrongly.
            if isinstance(problem, CorruptError | ModelError | ValueError):
                self._set_aside(key, problem)
            raise
        own.used = self._host.clock.monotonic()
        own.rest()
        self._notes[key] = note
        self._loaded[key] = own
        self.loads += 1
        return own

    def _opened(self, key: str) -> KeyPipeline:
        folder = self._folders.make(key)
        for name in (".", "models", "checkpoints", "candidates"):
            if (folder / name).is_dir():
                sweep(folder / name)
        problem = damage(folder / "state.db", CHECK_SECONDS)
        if problem is not None:
            raise CorruptError(problem, where=str(folder))
        registry = RestingRegistry.open(folder)
        host, common = self._host, self._common
        own_host = Host(KeyEvents(key, host.events), host.clock, host.models, host.client, host.conditions)
        try:
            return KeyPipeline(key, config_of(self._config, folder), self._bundle, registry, common, own_host)
        except BaseException:
            registry.close()
            raise

    def _set_aside(self, key: str, problem: Exception) -> None:
        self._notes.pop(key, None)
        what = problem.line() if isinstance(problem, EdgedError) else f"{type(problem).__name__}: {problem}"
        name = self._folders.set_aside(key, self._host.clock.now())
        log.error("key_set_aside", key=key, name=name, problem=what)
        self._host.events.event(KeyModelChanged(key, "stream", reason=what))
        self._new[key] = self._labels[key]

    def _make_room(self) -> None:
        """Unload what was not used for longest, so that one more may be loaded."""
        while len(self._loaded) >= self._config.model.keep:
            idle = [
                own
                for key, own in self._loaded.items()
                if key not in self._busy and not own.scheduler.triggers.commanded
            ]
            if not idle:
                return
            self._unload(min(idle, key=lambda own: own.used))

    def _unload(self, own: KeyPipeline) -> None:
        del self._loaded[own.key]
        self.unloads += 1
        try:
            own.store_state()
            self._keep_note(own)
        except StorageError as problem:
            log.warning("key_state_not_kept", key=own.key, problem=problem.line())
        finally:
            own.registry.close()

    def _keep_note(self, own: KeyPipeline) -> None:
        self._notes[own.key] = note = own.note()
        try:
            own.registry.set_value("mix", own.predictor.mix.state())
            self._folders.write(note)
            own.rest()
        except StorageError as problem:
            log.warning("key_note_not_kept", key=own.key, problem=problem.line())

    def close(self) -> None:
        """Store what every loaded model knows, and unload all."""
        with self._lock:
            for own in list(self._loaded.values()):
                self._unload(own)

    # ---- learning --------------------------------------------------------------------------

    def next_key(self, common: Waiting | None) -> str | None:
        """The key whose turn it is to train; None for the stream's model, which may be `common` waiting."""
        now = self._host.clock.monotonic()
        if now - self._looked >= LOOK_SECONDS or self._later is None:
            self._looked = now
            self._count(now)
        commanded = [key for key, own in list(self._loaded.items()) if own.scheduler.triggers.commanded]
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
        own = self._loaded.get(key)
        triggers = None if own is None else own.scheduler.triggers
        urgent = triggers is not None and (triggers.drifted or triggers.fallen)
        return Waiting(key, since, RunGain(self._new[key] / max(1.0, self._needed(key)), urgent))

    def _needed(self, key: str) -> float:
        """New labels with which a key has its turn."""
        own = self._loaded.get(key)
        if own is not None:
            return own.scheduler.triggers.needed
        if key in self._notes:
            return self._common.scheduler.triggers.rules.new_labels or float("inf")
        return float(self._config.model.own_after)

    def _count(self, now: float) -> None:
        """Count the labels that came since the last time, by key."""
        reader = self._common.reader
        upto = reader.last_seq()
        if upto == self._counted:
            return
        first = self._counted == 0
        for key, count in reader.labels_by_key(self._counted, upto).items():
            self._labels[key] += count
            known = first and key in self._notes
            self._new[key] = (
                reader.of_key(key).labelled_since(self._notes[key].consumed)
                if known
                else self._new[key] + count
            )
            if self._is_due(key):
                self._ready.setdefault(key, now)
        self._counted = upto

    def _is_due(self, key: str) -> bool:
        if key in self._notes:
            own = self._loaded.get(key)
            urgent = own is not None and (own.scheduler.triggers.drifted or own.scheduler.triggers.fallen)
            return self._new[key] >= (FEWEST if urgent else self._needed(key))
        enough = max(self._config.model.own_after, self._fewest.get(key, 0))
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
            with self.held(key) as own:
                return self._train(own)
        except StorageError as problem:
            log.warning("key_not_trained", key=key, problem=problem.line())
        except EdgedError as problem:
            log.error("key_not_trained", key=key, problem=problem.line())
        self._not_before[key] = self._host.clock.monotonic() + AGAIN_SECONDS
        return None, None

    def begin(self, key: str) -> None:
        """Make a model for a key that shares the stream's until now; EdgedError where that fails."""
        with self._lock:
            if key in self._notes:
                return
            self._open(key)
        self._host.events.event(KeyModelChanged(key, "stream", self._labels[key]))

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
            self._not_before[own.key] = self._host.clock.monotonic() + AGAIN_SECONDS
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
        for own in list(self._loaded.values()) if task is not None else ():
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
                self._tell_who_answers(own)
        return judged

    def command(self, key: str, options: RunOptions, task: Task | None = None) -> None:
        """Train a key as soon as the present run has ended; `task` ends with that run.

        Raises RefusedError when it has no model of its own, or too many runs wait; EdgedError as `at`.
        """
        with self._lock:
            own = self.at(key)
            own.orders.add(options, task)

    # ---- for everybody ---------------------------------------------------------------------

    def configure(self, config: Config) -> None:
        """Go by another configuration."""
        with self._lock:
            self._config = config
            for own in self._loaded.values():
                own.scheduler.configure(config_of(config, own.config.storage.dir))
                own.evaluator.configure(config.gate)
                own.models.configure(config.gate)
                own.predictor.configure(config.gate)

    def store_state(self) -> None:
        """Store what a restart resumes from."""
        with self._lock:
            for own in self._loaded.values():
                own.store_state()
                self._keep_note(own)

    def status(self) -> KeyModelsReport:
        """How many keys have models of their own, how many are loaded, and those that do worst."""
        with self._lock:
            loaded = {key: own.told(self._notes[key]) for key, own in self._loaded.items()}
        counted = self._counted > 0
        lines = [
            KeyModelLine(
                note.key,
                note.accuracy,
                note.version,
                note.runs,
                labels=self._labels[note.key] if counted else None,
                answers=bool(note.version and note.contest and note.contest["own"]),
                loaded=note.key in loaded,
            )
            for note in {**self._notes, **loaded}.values()
        ]
        worst = sorted(lines, key=lambda line: (line.accuracy is None, line.accuracy or 0.0, line.key))
        serving = sum(line.answers for line in lines)
        return KeyModelsReport(
            len(lines), serving, len(loaded), self.loads, self.unloads, tuple(worst[:WORST])
        )

    def forget(self, key: str | None = None) -> int:
        """Remove the models of a key, or of all; how many keys share the stream's again.

        Call it between two runs. StorageError when the disk refuses: then call it again.
        """
        with self._lock:
            doomed = [one for one in self._notes if key in (None, one)]
            for one in doomed:
                own = self._loaded.pop(one, None)
                if own is not None:
                    own.registry.close()
                if key is not None:
                    self._folders.erase(key)
                self._notes.pop(one, None)
                self._ready.pop(one, None)
                self._new[one] = self._labels[one]
            if key is None:
                self._folders.erase()
                self._counted, self._begun = 0, False  # the log may be another one
                for counts in (self._labels, self._new, self._ready, self._fewest):
                    counts.clear()
            return len(doomed)
