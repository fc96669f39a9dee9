"""Learning, as the daemon sees it: when to train, and what a run's end means."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edged.device.learning.trainer_client import NothingNewError, StoppedRunError, TrainerClient
from edged.domain.drift import Level
from edged.domain.training.failure_backoff import BackoffRules, FailureBackoff
from edged.domain.training.guards import Budget, Conditions, refusals
from edged.domain.training.learning_policy import LearningPolicy
from edged.domain.training.triggers import TriggerRules, Triggers
from edged.errors import ConfigError, EdgedError, StorageError, TrainingError, UnavailableError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.clock import Clock
    from edged.config import Config, TrainingConfig
    from edged.domain.drift import DriftSignal
    from edged.storage.models.installed_bundles import ActiveBundle

log = get_logger("edged.learn")

Message = dict[str, Any]

NOT_KEPT = ("type", "memory", "run", "challenger")  # of a result: long, or said already
URGENT = ("drift", "quality", "resume")  # triggers that flash has to bear
SETBACKS = "setbacks"  # name of the registry's value that `keep` writes
UNHURRIED = 400  # new samples for a run where all label themselves: what learns faster learns anomalies
DISK_SECONDS = 10.0  # until a run that the disk did not let begin is tried again
LONGEST_DISK_SECONDS = 300.0  # until one that it ended, which costs what the run had done


def trigger_rules(config: TrainingConfig, *, drift: bool = True, fewest: int = 0) -> TriggerRules:
    """The configured rules; without `new_labels` a run starts at `min_new_samples`.

    That is `fewest` at least where it is not configured.
    """
    least = config.min_new_samples
    if "min_new_samples" not in config.model_fields_set:
        least = max(least, fewest)
    wanted = least if config.new_labels is None else config.new_labels
    return TriggerRules(
        new_labels=wanted or None,
        min_new_samples=least,
        cooldown=config.cooldown,
        drift=drift,
        scarce=config.scarce_labels,
    )


def setback_rules(config: TrainingConfig) -> BackoffRules:
    """The configured rules."""
    return BackoffRules(config.retry_after, config.max_failures)


class TrainingScheduler:
    """Decides when to train and does it, one run at a time.

    `labelled_since(seq)` counts labelled samples after a position, and `next_offset` tells how many samples
    have come; `begin` and `end` keep the
    record of runs. The daemon calls `step` from its learning thread, a replay calls it in between
    samples. `keep` is given what is to be known of failures after a restart, and `kept` is what it
    was given last; it holds for the `bundle` of that fingerprint alone. `error` tells the share of the newest
    answers that were wrong, or None. `bundles` knows the bundle to train from; see `TrainerClient`.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        labelled_since: Callable[[int], int],
        next_offset: Callable[[], int],
        begin: Callable[[str, float, Message], int],
        end: Callable[[int, float, str, Message], None],
        notify: Callable[[str, Message], None],
        consumed: int = 0,
        keep: Callable[[Message], None] = lambda _: None,
        kept: Message | None = None,
        bundle: str = "",
        conditions: Callable[[], Conditions] | None = None,
        error: Callable[[], float | None] = lambda: None,
        bundles: ActiveBundle | None = None,
    ) -> None:
        self._clock, self._error = clock, error
        self._labelled_since = labelled_since
        self._next_offset, self._seen = next_offset, next_offset()
        self._begin = begin
        self._end = end
        self._notify = notify
        self._keep = keep
        self._bundle = bundle
        self._fewest = UNHURRIED if config.stream.resolved_task == "reconstruct" else 0
        self.triggers = Triggers(
            trigger_rules(config.training, drift=config.drift.train, fewest=self._fewest)
        )
        same = kept is not None and kept["bundle"] == bundle
        self.setbacks = FailureBackoff.recalled(setback_rules(config.training), kept if same else None)
        self.triggers.hold(clock.monotonic(), self.setbacks.wait)
        self.effort = LearningPolicy()
        self.budget = Budget()
        self.waiting_for: tuple[str, ...] = ()
        self._disk_ended = 0  # runs that the disk has ended since it last let one through
        self._severe = None if config.training.challenger == "off" else config.training.challenger_rise
        self._go_by(config.training)
        self._conditions = conditions or (lambda: Conditions.at(clock.now()))
        self.process = TrainerClient(config, bundles)
        self.consumed = consumed
        self.progress: Message | None = None
        self.ended: tuple[str, Message] | None = None
        self.paused = not config.training.enabled
        self.trainings = 0
        self.train_seconds = 0.0
        self.engine: str | None = None
        self.damaged: set[int] = set()
        self._on_progress: Callable[[Message], None] | None = None
        self.asked_by: list[str] = []  # ids of the commands that ask for the next run
        self.checkpointed: Callable[[Message], None] = lambda _: None

    def configure(self, config: Config) -> None:
        """Go by another configuration from the next run on."""
        training = config.training
        self.triggers.rules = trigger_rules(training, drift=config.drift.train, fewest=self._fewest)
        self.setbacks.rules = setback_rules(training)
        self._go_by(training)
        self.process.configure(config)

    def _go_by(self, training: TrainingConfig) -> None:
        self._retry_after = training.retry_after
        self._guards = training.guard_rules()
        self._usual = (training.learning_rate, training.new_share)
        self._follows_error = "new_share" not in training.model_fields_set

    @property
    def failures(self) -> int:
        """Runs that failed since the last one that ended well."""
        return self.setbacks.failures

    def new(self) -> int:
        """Labelled samples that no run has learned from."""
        return self._labelled_since(self.consumed)

    @property
    def arrived(self) -> int:
        """Samples that have come since the last run began that was learned from, or this process."""
        return self._next_offset() - self._seen

    def drifted(self, signal: DriftSignal, rise: float = 0.0) -> None:
        """A drift, or a warning of one. Inputs that move are no reason by themselves to learn.

        `rise` is by what share live errors are larger than before.
        """
        if signal.source == "inputs" or signal.level is Level.WARNING:
            self.triggers.warned = True
            return
        self.triggers.drifted = True
        self.effort.drifted()
        self._perhaps_challenge(rise)

    def fallen(self, rise: float) -> None:
        """Live quality has fallen: errors are larger by the share `rise`."""
        self.triggers.fallen = True
        self._perhaps_challenge(rise)

    def _perhaps_challenge(self, rise: float) -> None:
        if self._severe is not None and rise >= self._severe:
            self.effort.challenge = True

    def due(self) -> str | None:
        """The trigger of a run that should start now."""
        if (self.paused or self.setbacks.paused) and not self.triggers.commanded:
            return None
        self.triggers.arrived = self.arrived
        wanted = self.triggers.wanted(self.new())
        self.waiting_for = () if wanted in (None, "command") else self._held_back(wanted)
        if wanted is None or self.waiting_for:
            return None
        self.triggers.begun(wanted)
        return wanted

    def _held_back(self, wanted: str | None) -> tuple[str, ...]:
        """What keeps a run from beginning that a trigger wants."""
        resting = self.triggers.resting(self._clock.monotonic())
        if resting:
            return (resting,)
        now = self._conditions()
        if wanted in URGENT:
            now = replace(now, worn=False)
        return refusals(self._guards, now, self.budget)

    def held_back(self) -> tuple[str, ...]:
        """What keeps this device from training now, whatever would be trained."""
        if self.paused:
            return ("training is paused",)
        return refusals(self._guards, self._conditions(), self.budget)

    def conditions(self) -> Conditions:
        """How things are, as the guards see it."""
        return self._conditions()

    def spend(self, seconds: float) -> None:
        """Count something else that the trainer did as a run of today."""
        self.budget = self.budget.spent(self._conditions().day, seconds)

    def step(self, options: Message | None = None) -> Message | None:
        """Train if a trigger says so; the result of the run, or None."""
        trigger = self.due()
        if trigger is None:
            return None
        return self.train(trigger, self.usual_options() | (options or {}))

    def usual_options(self) -> Message:
        """What the next run asks for beyond the configuration."""
        return self.effort.options(*self._usual, self._error() if self._follows_error else None)

    def train(
        self, trigger: str, options: Message, on_progress: Callable[[Message], None] | None = None
    ) -> Message | None:
        """One run now. A failure is recorded and reported, and holds back the next one for a while.

        `ended` says afterwards how it went; it is None when the disk did not let it begin.
        """
        self.ended, began = None, self._next_offset()
        try:
            asked = {"asked_by": self.asked_by} if self.asked_by else {}
            run = self._begin(trigger, self._clock.now(), options | asked)
        except StorageError as problem:
            self._held_by_disk(problem, DISK_SECONDS)
            return None
        self._notify("training_started", {"run": run, "trigger": trigger, "new": self.new()})
        self.progress = {"run": run, "step": 0}
        self._on_progress = on_progress
        day, started = self._conditions().day, time.monotonic()
        result: Message | None = None
        try:
            result = self.process.run({"run": run, "trigger": trigger, **options}, self._on_message)
        except NothingNewError as problem:
            self.consumed = problem.consumed
            self._close(run, "no_data", {"error": problem.line()})
        except StoppedRunError as problem:
            self._close(run, "stopped", {"error": problem.line()})
        except StorageError as problem:
            self._close(run, "failed", {"error": problem.line()})
            self._ended_by_disk(problem)
        except (TrainingError, UnavailableError, ConfigError) as problem:
            self._close(run, "failed", {"error": problem.line()})
            self._failed(run, problem)
        else:
            self._succeeded(run, result, learned=not options.get("dry_run"), began=began)
        finally:
            self.progress = None
            self.triggers.last_end = self._clock.monotonic()
            self.budget = self.budget.spent(day, time.monotonic() - started)
        return result

    @property
    def written(self) -> int:
        """Bytes that runs have handed to the disk, also those that failed or were ended."""
        return self.process.written

    def rest(self, times: int) -> int:
        """Begin no run by itself before so many times the usual new labels have come; how many that is."""
        return self.triggers.rest(times)

    def _held_by_disk(self, problem: StorageError, seconds: float) -> None:
        """No fault of training: it goes on by itself once the disk does, whatever had started the run."""
        self.triggers.interrupted = True
        self.triggers.hold(self._clock.monotonic(), seconds)
        log.warning("training_held", problem=problem.line(), seconds=seconds)

    def _ended_by_disk(self, problem: StorageError) -> None:
        """Longer each time, since each run does its steps in vain; at most some minutes."""
        most = max(LONGEST_DISK_SECONDS, self._retry_after)
        self._held_by_disk(problem, min(most, self._retry_after * 2.0 ** min(self._disk_ended, 30)))
        self._disk_ended += 1

    def _succeeded(self, run: int, result: Message, *, learned: bool, began: int) -> None:
        self.trainings += 1
        self._disk_ended = 0
        if learned:
            self.consumed, self._seen = result["consumed"], began
        self.train_seconds += result["seconds"]
        self.engine = result["engine"]
        self._close(run, "done", {k: v for k, v in result.items() if k not in NOT_KEPT})
        if self.failures:
            was_paused = self.setbacks.paused
            self.setbacks.succeeded()
            self._keep_setbacks()
            if was_paused:
                self._notify("training_resumed", {"run": run})

    def _failed(self, run: int, problem: EdgedError) -> None:
        where = f"{problem.where}: " if problem.where else ""
        self.setbacks.failed(f"{where}{problem.what}", problem.remedy, self._clock.now())
        self.triggers.hold(self._clock.monotonic(), self.setbacks.wait)
        log.warning("training_failed", run=run, problem=problem.line(), failures=self.failures)
        self._keep_setbacks()
        pause = self.setbacks.pause()
        if pause is not None:
            log.error("training_paused", **pause)
            self._notify("training_paused", pause)

    def _keep_setbacks(self) -> None:
        try:
            self._keep({"bundle": self._bundle, **self.setbacks.dump()})
        except StorageError as problem:
            log.warning("setbacks_not_kept", problem=problem.line())

    def _close(self, run: int, outcome: str, result: Message) -> None:
        self.ended = outcome, {"run": run, **result}
        try:
            self._end(run, self._clock.now(), outcome, result)
        except StorageError as problem:
            # The next start of the daemon finds it open and calls it interrupted.
            log.warning("run_not_recorded", run=run, outcome=outcome, problem=problem.line())
        self._notify("training_finished", {"run": run, "outcome": outcome, **result})

    def _on_message(self, message: Message) -> None:
        kind = message.pop("type")
        if kind == "progress":
            self.progress = message
            if self._on_progress is not None:
                self._on_progress(message)
        elif kind == "bad_samples":
            self._notify("sample_quarantined", {"reason": "bad_for_training", **message})
        elif kind == "damaged_checkpoint":
            self._damaged(message["generation"])
        elif kind == "checkpoint":
            self.checkpointed(message)
        elif kind == "note":
            log.warning(kind, **message)
        else:
            log.debug(kind, **message)

    def _damaged(self, generation: int) -> None:
        """A generation that the trainer passed over; each trainer finds it again until it is pruned."""
        if generation not in self.damaged:
            self.damaged.add(generation)
            self._notify("checkpoint_damaged", {"generation": generation})
