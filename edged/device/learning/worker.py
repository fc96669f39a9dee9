"""The loop of training runs and what their candidates become."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edged.device.learning.changes import AnomalyExclusion, Changes
from edged.device.learning.run_queue import QueuedRun, RunQueue
from edged.device.learning.scheduler import TrainingScheduler
from edged.device.promotion.rollout import Rollout
from edged.domain.commands.tasks import Task
from edged.domain.drift.signals import DriftSignal
from edged.domain.protocols import ServedModel
from edged.domain.training.training_run import JudgedCandidate, RunOptions, RunResult
from edged.errors import EdgedError, RefusedError, StorageError
from edged.host.turns import Turns, TurnThreads
from edged.logs import disk_may_refuse, get_logger
from edged.storage.files.atomic import remove_files
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog

log = get_logger("edged.learning")

CANCELLED = "cancelled"
"""The registry's value that says that the run which has not ended was cancelled, and is not gone on with."""

UNREPORTED = (None, "interrupted", "stopped")
"""Outcomes of runs that will continue, so that they are not reported yet."""

ASKED_RUNS = 100  # newest runs among which that of a command is looked for
IDLE_SECONDS = 1.0
KEEP_SECONDS = 300.0  # between two writings of the detectors' state: a hundred kilobytes, for flash to wear


class TrainingWorker:
    """Starts training runs, and carries out the outcomes of probations.

    A run may take hours: a champion that fails meanwhile is replaced by the other thread.

    The detectors of the predictor are stored for the next start; its events hear of changed states.
    """

    def __init__(
        self,
        *,
        scheduler: TrainingScheduler,
        rollout: Rollout,
        exclusion: AnomalyExclusion,
        samples: SampleLog,
        registry: Registry,
    ) -> None:
        self._scheduler = scheduler
        self._rollout = rollout
        self._exclusion = exclusion
        self._predictor, self._events = rollout.predictor, rollout.events
        self._samples = samples
        self._registry = registry
        self._kept_at = float("-inf")
        self.idle: float | None = IDLE_SECONDS
        """Seconds between two looks whether a run is due; None where `look` is called while one may be."""

        self._wake = Turns(TurnThreads("learn", 1))
        self._ending, self._held_until = False, 0.0
        self._orders = RunQueue(scheduler.triggers)
        self._running: QueuedRun | None = None
        self._between: deque[Callable[[], None]] = deque()
        self._changes = Changes(self._changed, self._catch_up)

    # ---- what other threads call -----------------------------------------------------------

    def start(self, threads: TurnThreads | None = None) -> None:
        """Start the training loop and the loop of changes, on `threads` that several streams share if any."""
        if threads is not None:
            self._wake, self.idle = Turns(threads), None
        self._wake.start(self)
        self._changes.start(threads)

    def wake(self) -> None:
        """Look whether a run is due, such as when labels became durable; from any thread."""
        self._wake.set()

    @property
    def waits(self) -> bool:
        """True if there is work that only time brings about."""
        return bool(self._between) or bool(self._scheduler.waiting_for) or self._scheduler.resumes

    def look(self) -> None:
        """Look whether a run is due, and make durable what a full disk has refused; from any thread."""
        self.wake()
        self._changes.wake()

    def defer(self, action: Callable[[], None]) -> None:
        """Call `action` soon on another thread: the serving thread must not wait for a change of champion."""
        self._changes.defer(action)

    def probation_ended(self, version: int, passed: bool) -> None:
        """Confirm a champion, or roll it back; from any thread."""
        self.defer(lambda: self._rollout.probation_ended(version, passed))

    def champion_failed(self, version: int, reason: str) -> None:
        """Make durable that the predecessor of `version` serves; from any thread."""
        self.defer(lambda: self._rollout.champion_failed(version, reason))

    def rescue(self, failing: ServedModel, reason: str) -> ServedModel | None:
        """Return another model for a champion without predecessor; None where there is none."""
        return self._rollout.rescue(failing, reason)

    def drifted(self, signal: DriftSignal) -> None:
        """A drift or a warning of one was signalled; from any thread."""
        self.defer(lambda: self._scheduler.drifted(signal))

    def fallen(self) -> None:
        """Live quality has fallen; from any thread."""
        self.defer(self._scheduler.fallen)

    def command(self, options: RunOptions, task: Task | None = None) -> None:
        """Train as soon as the present run has ended, whatever the guards say; `task` ends with that run.

        Those that ask for the same before it has begun get the same run.

        Raises RefusedError when too many runs wait.
        """
        self._orders.add(options, task)
        self.wake()

    def adopt(self, options: RunOptions, task: Task) -> None:
        """After a restart: `task` is about a run that ended unreported, or was cut off, or has not begun.

        A run that was cut off continues once training is not paused; one that has not begun does not wait.
        """
        runs = self._registry.runs(ASKED_RUNS)
        run = next((r for r in runs if task.key in r.request.asked_by), None)
        left = self._scheduler.unfinished
        # A checkpoint keeps the number of the run that began; those that continued it name that number.
        its_own = run is not None and left is not None and left.run in (run.id, run.request.resumes)
        unjudged = its_own and left is not None and left.trained
        if run is not None and run.outcome not in UNREPORTED and not (unjudged and run.outcome == "done"):
            verdict = next((r.verdict for r in self._registry.records() if r.run == run.id), None)
            QueuedRun(tasks=[task]).finish(run.end, verdict)
        elif run is not None and run.id == runs[0].id and self._registry.get_value(CANCELLED):
            task.fail(EdgedError("cancelled", where="train"))
        elif not its_own or options.dry_run:
            self.command(options, task)
        elif self._scheduler.resumes:
            self._orders.resume(QueuedRun(options, [task], resumes=True))
            self.wake()
        else:
            self._orders.add(options, task, resumes=True)
            self.wake()

    def cancel(self, task: Task | None = None) -> int | None:
        """End the present run, its last checkpoint stays; or `task`, before its run has begun.

        Returns
        -------
        The number of the run, None for one that had not begun.

        Raises
        ------
        RefusedError
            When there is nothing to cancel.
        """
        order = None if task is None else self._orders.withdraw(task)
        if task is not None and order is not None:
            if order.resumes and not order.tasks:
                self._scheduler.triggers.interrupted = False
                self._registry.set_value(CANCELLED, True)
            task.fail(EdgedError("cancelled before it started", where="train"))
            return None
        running, progress = self._running, self._scheduler.progress
        if progress is None or running is None or not (task is None or task in running.tasks):
            raise RefusedError("no run is under way", where="cancel")
        running.cancelled = True
        self._registry.set_value(CANCELLED, True)
        self._scheduler.client.cancel()
        return progress.run

    def between_runs(self, action: Callable[[], None]) -> None:
        """Call `action` between two runs; call it again after a StorageError."""
        self._between.append(action)
        self.wake()

    def want_checkpoint(self, task: Task) -> bool:
        """Have the present run write a checkpoint, and answer `task` with it; False where no run is there.

        Raises RefusedError when the trainer accepts no orders within a run.
        """
        running = self._running
        if running is None or not self._under_way():
            return False
        running.checkpointing.append(task)
        if not self._scheduler.client.ask_checkpoint():
            raise RefusedError("the trainer cannot be told within a run", remedy="try again while it is idle")
        if not self._under_way():
            running.report_checkpoint(None, None)  # the run has ended meanwhile
        return True

    def _under_way(self) -> bool:
        return self._scheduler.progress is not None

    def erase(
        self, state: Path, *, samples: bool = False, labels: bool = False, checkpoints: bool = False
    ) -> dict[str, int]:
        """Erase what was collected and learned in the directory `state`; how much of each went.

        Call it within `between_runs`. The champion stays and serves; the trainer is ended, which holds
        samples in memory.
        """
        self._scheduler.client.stop()
        gone: dict[str, int] = {}
        if samples or labels:
            gone |= self._samples.erase(samples=samples, labels=labels)
        if checkpoints:
            gone["checkpoints"] = remove_files([state / "checkpoints"])
            self._scheduler.consumed = 0
            self._registry.set_value("consumed", 0)
        return gone

    def stop(self) -> None:
        """Start no new run and wake the thread."""
        self._ending = True
        self._changes.stop()
        self.wake()

    def join(self, timeout: float) -> None:
        """Wait for what is being done."""
        self._wake.join(timeout)
        self._changes.join(timeout)

    # ---- the threads -----------------------------------------------------------------------

    def patience(self) -> float | None:
        """Seconds until the next turn unless woken; None for no end."""
        held = self._held_until - time.monotonic()
        return held if held > 0 else self.idle

    def turn(self, *, woken: bool) -> bool:  # noqa: ARG002  what is due tells more
        """See `Stage`: what waits for the end of a run, and a run where one is due."""
        self._wake.clear()
        if self._ending or time.monotonic() < self._held_until:
            return not self._ending
        self._held_until = 0.0
        try:
            self._do_between_runs()
            self._exclusion.apply()
            self._train_due()
        except StorageError as problem:
            log.warning("learning_held", problem=problem.line(), remedy="tried again")
            self._held_until = time.monotonic() + IDLE_SECONDS
        except Exception:
            log.exception("learning_failed")
            self._held_until = time.monotonic() + IDLE_SECONDS
        return True

    def _train_due(self) -> None:
        """Train the stream's model if a run is due."""
        trigger = self._scheduler.due()
        if trigger is not None:
            with self._wake.apart():
                self._run(trigger)

    def _do_between_runs(self) -> None:
        """Do what waits for the end of a run; what the disk rejects stays first and is tried again."""
        while self._between:
            try:
                with self._wake.apart():
                    self._between[0]()
            except StorageError:
                raise
            except Exception:
                self._between.popleft()
                raise
            self._between.popleft()

    def store_state(self) -> None:
        """Store what a restart resumes from: drift detectors, anomalies and today's training budget."""
        self._kept_at = time.monotonic()
        self._registry.set_value("drift", self._predictor.drift_state())
        self._registry.set_value("mix", self._predictor.mix.state())
        if self._predictor.sets is not None:
            self._registry.set_value("sets", self._predictor.sets.state())
        self._registry.set_value("budget", self._scheduler.budget.to_json())
        if self._predictor.anomalies is not None:
            self._registry.set_value("anomalies", self._predictor.anomalies.state())

    def _run(self, trigger: str) -> None:
        """Train once and evaluate the result; publish the outcome to those who requested the run."""
        self._running = order = self._orders.pop(trigger)
        try:
            self._forget_cancelled()
            for task in order.tasks:
                task.mark_executing()
            asked_by = [task.key for task in order.tasks if task.key is not None]
            options = order.options
            if order.resumes:
                options = replace(options, base=None)  # its checkpoint was made from there
            result = self._scheduler.train(trigger, options, order, asked_by, order.resumes)
            judged = None if result is None else self._learned(result, order.options)
        except Exception:
            order.fail(EdgedError("internal error, see the device's log", where="train"))
            raise
        finally:
            self._running = None
            ended = self._scheduler.ended
            order.report_checkpoint(None if ended is None else ended.generation, None)
        if ended is None:
            self._orders.resume(order)  # the disk did not let it begin: it is tried again by itself
        elif order.cancelled and ended.outcome == "stopped":
            self._scheduler.triggers.cancelled(self._scheduler.new())
            self._orders.report()
            order.fail(EdgedError("cancelled", where="train"))
        elif ended.outcome != "stopped" or not self._ending:
            order.finish(ended, judged)

    def _forget_cancelled(self) -> None:
        with disk_may_refuse(log, "cancellation_not_forgotten"):
            if self._registry.get_value(CANCELLED):
                self._registry.set_value(CANCELLED, False)

    def _learned(self, result: RunResult, options: RunOptions) -> JudgedCandidate:
        """A run has ended well: judge its candidate, and record how far the run came."""
        if options.dry_run:
            return self._rollout.rehearse(result.to_candidate())
        judged, served = self._rollout.consider(result.to_candidate())
        try:
            self._samples.protect(result.memory)
            self._registry.set_value("consumed", self._scheduler.consumed)
            self._registry.set_value("budget", self._scheduler.budget.to_json())
            if time.monotonic() >= self._kept_at + KEEP_SECONDS:
                self.store_state()
        except StorageError as problem:
            # The trainer's checkpoint knows it, too, and says so when nothing is new.
            log.warning("position_not_kept", problem=problem.line())
        self._events.states_changed()
        if served is not None:
            self._events.champion_changed(served.version)
        return judged

    def _changed(self) -> None:
        """Report that a deferred action has been carried out; it may be a reason to train."""
        self._events.states_changed()
        self.wake()

    def _catch_up(self) -> None:
        """Make durable what a full disk has refused."""
        self._rollout.persist()
        with disk_may_refuse(log, "not_set_aside", remedy="tried again"):
            # Here, too: a run that takes hours holds up the other thread.
            self._exclusion.apply()
