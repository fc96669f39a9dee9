"""Learning, as the daemon sees it: when to train, and what a run's end means."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from edged.clock import Clock
from edged.config import Config, TrainingConfig
from edged.device.events import Events
from edged.device.learning.conditions import ConditionsReader
from edged.device.learning.trainer_client import NothingNewError, TrainerClient
from edged.device.learning.trainer_slot import StoppedRunError
from edged.device.serving.predictor import Predictor
from edged.device.startup.recovery import UnfinishedRun
from edged.domain import outcomes
from edged.domain.drift.signals import DriftSignal, Level
from edged.domain.events import (
    CheckpointDamaged,
    SampleQuarantined,
    TrainingFinished,
    TrainingPaused,
    TrainingResumed,
    TrainingStarted,
)
from edged.domain.protocols import RunObserver
from edged.domain.training.guards import BackoffRules, Budget, Conditions, FailureBackoff, refusals
from edged.domain.training.message import Message
from edged.domain.training.trainer_messages import (
    BadSamples,
    CheckpointWritten,
    DamagedCheckpoint,
    LogLine,
    RunProgress,
    RunRequest,
)
from edged.domain.training.training_run import RunCause, RunEnd, RunOptions, RunResult
from edged.domain.training.triggers import LearningPolicy, Triggers
from edged.errors import ConfigError, EdgedError, StorageError, TrainingError, UnavailableError
from edged.logs import disk_may_refuse, get_logger
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog

log = get_logger("edged.learn")

USUAL = RunOptions()
URGENT = ("drift", "quality", "resume")  # triggers that flash has to bear
BACKOFF = "setbacks"  # name of the registry's value that the scheduler writes
USUAL_LABELS = 40  # new labels that start a run
UNHURRIED = 400  # new samples for a run where all label themselves: what learns faster learns anomalies
DISK_SECONDS = 10.0  # until a run that the disk did not let begin is tried again
SECOND_CLASS = "labels of a second class"  # a network that knows one class answers nothing else
HELD_RUN = "the command resume, to continue a run that was cut off"
LONGEST_DISK_SECONDS = 300.0  # until one that it ended, which costs what the run had done


def needed_labels(config: TrainingConfig, *, labels_itself: bool = False) -> int:
    """Return how many new labels are worth a run; where only the schedule starts one, a single label is."""
    if config.new_labels:
        return config.new_labels
    if labels_itself:
        return UNHURRIED
    return USUAL_LABELS if config.new_labels is None else 1


def backoff_rules(config: TrainingConfig) -> BackoffRules:
    """Return the rules of the backoff after failures."""
    return BackoffRules(config.constants.retry_after, config.constants.max_failures)


class TrainingScheduler:
    """Decides when to train and does it, one run at a time.

    The daemon calls `step` from its learning thread, a replay in between samples.

    `registry` records runs, and knows how far was learned and which failures there were. `predictor` knows
    how many classes have labels, and how many answers were wrong. `bundle` is the fingerprint of what is
    trained: earlier failures of another bundle do not count. Without `conditions` only the time is known.
    `unfinished` is the run of an earlier process that was cut off, until a run has continued it or taken its
    place.
    """

    def __init__(
        self,
        config: Config,
        *,
        registry: Registry,
        samples: SampleLog,
        client: TrainerClient,
        predictor: Predictor,
        bundle: str,
        events: Events,
        clock: Clock,
        conditions: ConditionsReader | None = None,
    ) -> None:
        self._registry, self._samples = registry, samples
        self._predictor = predictor
        self._events = events
        self._clock = clock
        self._bundle = bundle
        self._seen = samples.next_offset()
        self._conditions = conditions
        self.client = client
        kept = registry.get_value(BACKOFF)
        self._labels_itself = config.stream.resolved_task == "reconstruct"
        self.triggers = Triggers(0)
        same = kept is not None and kept["bundle"] == bundle
        self.backoff = FailureBackoff.recalled(backoff_rules(config.training), kept if same else None)
        self.triggers.back_off(clock.monotonic(), self.backoff.wait)
        self.policy = LearningPolicy()
        self.budget = Budget.from_json(registry.get_value("budget") or {})
        self.waiting_for: tuple[str, ...] = ()
        self._retry_after = config.training.constants.retry_after
        self._disk_ended = 0  # runs that the disk has ended since it last let one through
        self._go_by(config.training)
        self.consumed = int(registry.get_value("consumed") or 0)
        self.progress: RunProgress | None = None
        self.ended: RunEnd | None = None
        self.enabled = config.training.enabled
        self.paused = False
        self.unfinished: UnfinishedRun | None = None
        self.trainings = 0
        self.train_seconds = 0.0
        self.damaged: set[int] = set()
        self._observer: RunObserver | None = None

    def configure(self, config: Config) -> None:
        """Go by another configuration from the next run on."""
        training = config.training
        self._go_by(training)
        self.client.configure(config)

    def _go_by(self, training: TrainingConfig) -> None:
        self.triggers.new_labels = needed_labels(training, labels_itself=self._labels_itself)
        self.triggers.labels_start = training.new_labels != 0
        self.engine: str = training.engine
        self._guards = training.guard_rules()
        self._usual = (training.learning_rate, training.new_share)
        self._follows_error = "new_share" not in training.model_fields_set

    def new(self) -> int:
        """Labelled samples that no run has learned from."""
        return self._samples.labelled_since(self.consumed)

    def _wanted(self) -> str | None:
        """The trigger that wants a run; labels are counted only where there may be enough of them."""
        most = self._samples.last_seq() - self.consumed
        return None if self.triggers.wanted(most) is None else self.triggers.wanted(self.new())

    @property
    def arrived(self) -> int:
        """Samples that have come since the last run began that was learned from, or this process."""
        return self._samples.next_offset() - self._seen

    @property
    def resumes(self) -> bool:
        """True if a run that was cut off continues without a command, once training is not paused."""
        return self.enabled and self.triggers.interrupted

    def drifted(self, signal: DriftSignal) -> None:
        """A drift, or a warning of one. Inputs that move are no reason by themselves to learn."""
        if signal.source == "inputs" or signal.level is Level.WARNING:
            self.triggers.warned = True
            return
        self.triggers.drifted = True
        self.policy.drifted()

    def fallen(self) -> None:
        """Live quality has fallen."""
        self.triggers.fallen = True

    def due(self) -> str | None:
        """The trigger of a run that should start now."""
        automatic = self.enabled and not (self.paused or self.backoff.paused)
        if not automatic and not self.triggers.commanded:
            self.waiting_for = (HELD_RUN,) if self.paused and self.resumes else ()
            return None
        self.triggers.arrived = self.arrived
        commanded = self.triggers.commanded
        wanted = self._wanted()
        if wanted == "command" and self.triggers.interrupted and self._resumes_first(automatic=automatic):
            wanted = "resume"
        self.waiting_for = () if wanted is None or commanded else self._held_back(wanted)
        if wanted is None or self.waiting_for:
            return None
        self.triggers.begun(wanted)
        return wanted

    def _resumes_first(self, *, automatic: bool) -> bool:
        """Return whether a run that was cut off continues before one that a command asked for."""
        trained = self.unfinished is not None and self.unfinished.trained
        return trained or (automatic and self._clock.monotonic() >= self.triggers.held_until)

    def _held_back(self, wanted: str | None) -> tuple[str, ...]:
        """Return the reasons that block a run which a trigger wants."""
        pause = self.triggers.pause_reason(self._clock.monotonic())
        if pause:
            return (pause,)
        if self._predictor.knows_one_class:
            return (SECOND_CLASS,)
        now = self.conditions()
        if wanted in URGENT:
            now = replace(now, worn=False)
        return refusals(self._guards, now, self.budget)

    def held_back(self) -> tuple[str, ...]:
        """Return the reasons that block training on this device, whatever would be trained."""
        if self.paused or not self.enabled:
            return ("training is paused",)
        return refusals(self._guards, self.conditions(), self.budget)

    def conditions(self) -> Conditions:
        """Return the time, and temperature, power and load where they are known, as the guards judge them."""
        if self._conditions is None:
            return Conditions.at(self._clock.now())
        return self._conditions.read(self.client.written)

    def spend(self, seconds: float) -> None:
        """Count something else that the trainer did as a run of today."""
        self.budget = self.budget.spent(self.conditions().day, seconds)

    def step(self) -> RunResult | None:
        """Train if a trigger says so; the result of the run, or None."""
        trigger = self.due()
        return None if trigger is None else self.train(trigger)

    def train(
        self,
        trigger: str,
        options: RunOptions = USUAL,
        observer: RunObserver | None = None,
        asked_by: Sequence[str] = (),
        resumes: bool | None = None,
    ) -> RunResult | None:
        """One run now. A failure is recorded and reported, and holds back the next one for a while.

        A run that asks for nothing goes by the learning policy. With `resumes` it continues
        a run that was cut off; None: unless a command starts it. `ended` says afterwards how it went; it is
        None when the disk did not let it begin.
        """
        self.ended = None
        if options == USUAL:
            error = self._predictor.live_error() if self._follows_error else None
            options = self.policy.options(*self._usual, error)
        try:
            with self.client.turn(trigger):
                return self._train(trigger, options, observer, asked_by, resumes)
        except StoppedRunError:  # before its turn had come
            self.triggers.interrupted = True
            return None

    def _train(
        self,
        trigger: str,
        options: RunOptions,
        observer: RunObserver | None,
        asked_by: Sequence[str],
        resumes: bool | None,
    ) -> RunResult | None:
        began = self._samples.next_offset()
        resumes = trigger != "command" if resumes is None else resumes
        left = self.unfinished if resumes else None
        try:
            continued = None if left is None else left.run
            cause = RunCause(**vars(options), asked_by=tuple(asked_by), resumes=continued)
            run = self._registry.begin_run(trigger, self._clock.now(), cause)
        except StorageError as problem:
            self._held_by_disk(problem, DISK_SECONDS)
            return None
        self.progress = RunProgress(run)
        self._events.event(TrainingStarted(run, trigger, self.new()))
        self._observer = observer
        day, started = self.conditions().day, time.monotonic()
        result: RunResult | None = None
        try:
            unjudged = left is not None and left.trained
            request = RunRequest(run, trigger, options, resumes, unjudged)
            opened = self._predictor.schema.open
            classes = None if opened is None else len(opened.rows())
            result = replace(self.client.run(request, self._on_message), classes=classes)
        except NothingNewError as problem:
            self.consumed, self.unfinished = problem.consumed, None
            self._close(RunEnd(run, outcome="no_data", error=problem.line()))
        except StoppedRunError as problem:
            self._close(RunEnd(run, outcome="stopped", error=problem.line()))
        except StorageError as problem:
            self._close(RunEnd(run, outcome="failed", error=problem.line()))
            self._ended_by_disk(problem)
        except (TrainingError, UnavailableError, ConfigError) as problem:
            self._close(RunEnd(run, outcome="failed", error=problem.line()))
            self._failed(run, problem)
        else:
            self._succeeded(run, result, learned=not options.dry_run, began=began)
        finally:
            self.progress = None
            self.budget = self.budget.spent(day, time.monotonic() - started)
        return result

    def _held_by_disk(self, problem: StorageError, seconds: float) -> None:
        """Hold the run until the disk works again; training itself has not failed."""
        self.triggers.interrupted = True
        self.triggers.back_off(self._clock.monotonic(), seconds)
        log.warning("training_held", problem=problem.line(), seconds=seconds)

    def _ended_by_disk(self, problem: StorageError) -> None:
        """Longer each time, since each run does its steps in vain; at most some minutes."""
        most = max(LONGEST_DISK_SECONDS, self._retry_after)
        self._held_by_disk(problem, min(most, self._retry_after * 2.0 ** min(self._disk_ended, 30)))
        self._disk_ended += 1

    def _succeeded(self, run: int, result: RunResult, *, learned: bool, began: int) -> None:
        self.trainings += 1
        self._disk_ended = 0
        if learned:
            self.consumed, self._seen, self.unfinished = result.consumed, began, None
        self.train_seconds += result.seconds
        self._close(result.end(), result)
        if self.backoff.failures:
            was_paused = self.backoff.paused
            self.backoff.succeeded()
            self._keep_setbacks()
            if was_paused:
                self._events.event(TrainingResumed(run))

    def _failed(self, run: int, problem: EdgedError) -> None:
        where = f"{problem.where}: " if problem.where else ""
        self.backoff.failed(f"{where}{problem.what}", problem.remedy, self._clock.now())
        self.triggers.back_off(self._clock.monotonic(), self.backoff.wait)
        log.warning("training_failed", run=run, problem=problem.line(), failures=self.backoff.failures)
        self._keep_setbacks()
        pause = self.backoff.pause()
        if pause is not None:
            log.error("training_paused", **pause.to_json())
            summary = outcomes.paused_after(pause.failures, pause.reason, pause.remedy)
            self._events.event(TrainingPaused(**vars(pause), summary=summary))

    def _keep_setbacks(self) -> None:
        with disk_may_refuse(log, "setbacks_not_kept"):
            self._registry.set_value(BACKOFF, {"bundle": self._bundle, **self.backoff.dump()})

    def _close(self, end: RunEnd, result: RunResult | None = None) -> None:
        self.ended = end
        try:
            self._registry.end_run(end.run, self._clock.now(), end.outcome, result or end)
        except StorageError as problem:
            # The next start of the daemon finds it open and calls it interrupted.
            log.warning("run_not_recorded", run=end.run, outcome=end.outcome, problem=problem.line())
        self._events.event(TrainingFinished(end, result, outcomes.ended(end)))

    def _on_message(self, message: Message) -> None:
        match message:
            case RunProgress():
                self.progress = message
                if self._observer is not None:
                    self._observer.progress(message)
            case BadSamples():
                self._events.event(SampleQuarantined("bad_for_training", offsets=message.offsets))
            case DamagedCheckpoint():
                self._damaged(message.generation)
            case CheckpointWritten():
                if self._observer is not None:
                    self._observer.checkpointed(message)
            case LogLine():
                log.warning("note", what=message.what)
            case _:
                log.debug("trainer", message=str(message))

    def _damaged(self, generation: int) -> None:
        """A generation that the trainer passed over; each trainer finds it again until it is pruned."""
        if generation not in self.damaged:
            self.damaged.add(generation)
            self._events.event(CheckpointDamaged(generation))
