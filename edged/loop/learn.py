"""Learning, as the daemon sees it: when to train, and the trainer process that does it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from math import isfinite
from typing import TYPE_CHECKING, Any

from edged.domain.drift import Level
from edged.domain.effort import Effort
from edged.domain.guards import Budget, Conditions, refusals
from edged.domain.triggers import TriggerRules, Triggers
from edged.errors import ConfigError, NoDataError, TrainingError, UnavailableError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.clock import Clock
    from edged.config import Config, TrainingConfig
    from edged.domain.drift import DriftSignal

log = get_logger("edged.learn")

Message = dict[str, Any]


class NothingNewError(NoDataError):
    """The trainer has learned everything up to label position `consumed`."""

    def __init__(self, what: str, consumed: int) -> None:
        self.consumed = consumed
        super().__init__(what)


KILL_AFTER = 5.0


class TrainerProcess:
    """The trainer as a child process that stays between runs.

    `run` blocks until the run has ended; `cancel` may be called from any thread.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._buffer = b""
        self._lock = threading.Lock()
        self._rest: float | None = 0.0

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def run(self, request: Message, on_message: Callable[[Message], None]) -> Message:
        """Do one training run and return its result message.

        Raises
        ------
        NothingNewError
            When nothing is new.
        UnavailableError
            When the engine is missing on this machine.
        TrainingError
            When the run failed, was cancelled, or made no progress for `training.timeout`.
        """
        self._order(request)
        answered = False
        while True:
            message = self._receive(self._config.training.timeout)
            if message is None:
                code = self._exit_code()
                if code == 0 and not answered:
                    # It had idled too long and was leaving when the order came.
                    self._order(request)
                    continue
                raise _ended(code)
            answered = answered or message["type"] != "ready"
            kind = message["type"]
            if kind == "result":
                return message
            if kind == "error":
                self._raise(message)
            on_message(message)

    def cancel(self) -> None:
        """Ask a run to stop after the present step and its checkpoint."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)

    def pace(self, rest: float) -> None:
        """How long a run rests after each step, in times of the step's own length; without end if infinite.

        From any thread. A process that leaves after each run (`training.resident: 0`) cannot hear it.
        """
        told = rest if isfinite(rest) else None
        if told != self._rest:
            self._rest = told
            self._send({"pace": told})

    def close(self) -> None:
        """End the process, kindly first."""
        self._end()
        self._selector.close()

    def _order(self, request: Message) -> None:
        """Hand a request to the process, starting one where there is none."""
        for _ in range(2):
            self._ensure()
            if self._send(request):
                break
            self._end()
        if (
            self._config.training.resident == 0
            and self._process is not None
            and self._process.stdin is not None
        ):
            self._process.stdin.close()

    def _ensure(self) -> None:
        process = self._process
        if process is not None and (process.stdin is None or process.stdin.closed):
            self._end(kindly=False)
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._forget()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edged.trainer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            if self._process.stdout is None:
                raise TrainingError("the trainer has no output")
            os.set_blocking(self._process.stdout.fileno(), False)
            self._selector.register(self._process.stdout, selectors.EVENT_READ)
        settings = self._config.model_dump(mode="json", exclude_unset=True)
        self._send({"config": settings})
        if self._rest != 0.0:
            self._send({"pace": self._rest})

    def _send(self, message: Message) -> bool:
        process = self._process
        if process is None or process.stdin is None:
            return False
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def _receive(self, timeout: float) -> Message | None:
        """The next message, or None when the process has ended or was ended for its silence."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                log.warning("trainer_silent", seconds=timeout)
                self._end()
                return None
            stdout = self._process.stdout if self._process is not None else None
            chunk = stdout.read(1 << 16) if stdout is not None else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def _raise(self, message: Message) -> None:
        what, reason = message["what"], message.get("reason")
        if reason == "no_data":
            raise NothingNewError(what, message["consumed"])
        self._end()
        if reason == "UnavailableError":
            raise UnavailableError(what)
        if reason in ("ConfigError", "BundleError", "CorruptError"):
            raise ConfigError(what)
        raise TrainingError(what)

    def _exit_code(self) -> int | None:
        """How the process ended, after its output has."""
        process = self._process
        if process is None:
            return None
        try:
            code: int | None = process.wait(KILL_AFTER)
        except subprocess.TimeoutExpired:
            code = None
        self._end()
        return code

    def _end(self, *, kindly: bool = True) -> None:
        """End the process; not `kindly` when it is leaving by itself already."""
        with self._lock:
            process = self._process
            if process is not None:
                if kindly:
                    process.terminate()
                try:
                    process.wait(KILL_AFTER)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self._forget()

    def _forget(self) -> None:
        process, self._process, self._buffer = self._process, None, b""
        if process is None:
            return
        if process.stdout is not None:
            if process.stdout in {key.fileobj for key in self._selector.get_map().values()}:
                self._selector.unregister(process.stdout)
            process.stdout.close()
        if process.stdin is not None:
            try:
                process.stdin.close()
            except BrokenPipeError:
                log.debug("trainer_input_closed")


def _ended(code: int | None) -> TrainingError:
    if code is not None and code < 0:
        what = f"the trainer was killed by {signal.Signals(-code).name}"
        return TrainingError(
            what, where="trainer", remedy="its run is taken up again from the last checkpoint"
        )
    what = (
        "the trainer made no progress and was ended"
        if code is None
        else f"the trainer ended with exit code {code}"
    )
    return TrainingError(what, where="trainer", remedy="its log says why; the run is taken up again")


def trigger_rules(config: TrainingConfig, *, drift: bool = True) -> TriggerRules:
    """The configured rules; without `new_labels` a run starts at `min_new_samples`."""
    wanted = config.min_new_samples if config.new_labels is None else config.new_labels
    return TriggerRules(wanted or None, config.min_new_samples, config.cooldown, drift)


class Learner:
    """Decides when to train and does it, one run at a time.

    `labelled_since(seq)` counts labelled samples after a position; `begin` and `end` keep the
    record of runs. The daemon calls `step` from its learning thread, a replay calls it in between
    samples.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        labelled_since: Callable[[int], int],
        begin: Callable[[str, float, Message], int],
        end: Callable[[int, float, str, Message], None],
        notify: Callable[[str, Message], None],
        consumed: int = 0,
        conditions: Callable[[], Conditions] | None = None,
    ) -> None:
        self._clock = clock
        self._labelled_since = labelled_since
        self._begin = begin
        self._end = end
        self._notify = notify
        self.triggers = Triggers(trigger_rules(config.training, drift=config.drift.train))
        self.effort = Effort()
        self.budget = Budget()
        self.waiting_for: tuple[str, ...] = ()
        self._guards = config.training.guard_rules()
        self._usual = (config.training.learning_rate, config.training.new_share)
        self._conditions = conditions or (lambda: Conditions.at(clock.now()))
        self.process = TrainerProcess(config)
        self.consumed = consumed
        self.progress: Message | None = None
        self.paused = not config.training.enabled
        self.trainings = 0
        self.failures = 0
        self.train_seconds = 0.0
        self.engine: str | None = None
        self._on_progress: Callable[[Message], None] | None = None

    def new(self) -> int:
        """Labelled samples that no run has learned from."""
        return self._labelled_since(self.consumed)

    def drifted(self, signal: DriftSignal) -> None:
        """A drift, or a warning of one. Inputs that move are no reason by themselves to learn."""
        if signal.source == "inputs" or signal.level is Level.WARNING:
            self.triggers.warned = True
            return
        self.triggers.drifted = True
        self.effort.drifted()

    def due(self) -> str | None:
        """The trigger of a run that should start now."""
        if self.paused and not self.triggers.commanded:
            return None
        wanted = self.triggers.wanted(self.new())
        self.waiting_for = () if wanted in (None, "command") else self._held_back()
        if wanted is None or self.waiting_for:
            return None
        self.triggers.begun(wanted)
        return wanted

    def _held_back(self) -> tuple[str, ...]:
        """What keeps a run from beginning that a trigger wants."""
        resting = self.triggers.resting(self._clock.monotonic())
        return (resting,) if resting else refusals(self._guards, self._conditions(), self.budget)

    def step(self, options: Message | None = None) -> Message | None:
        """Train if a trigger says so; the result of the run, or None."""
        trigger = self.due()
        if trigger is None:
            return None
        return self.train(trigger, self.effort.options(*self._usual) | (options or {}))

    def train(
        self, trigger: str, options: Message, on_progress: Callable[[Message], None] | None = None
    ) -> Message | None:
        """One run now. A failure is recorded and reported, and holds back the next one for a while."""
        run = self._begin(trigger, self._clock.now(), options)
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
        except (TrainingError, UnavailableError, ConfigError) as problem:
            self.failures += 1
            self.triggers.hold(self._clock.monotonic(), self.failures)
            log.warning("training_failed", run=run, problem=problem.line(), failures=self.failures)
            self._close(run, "failed", {"error": problem.line()})
        else:
            self.failures = 0
            self.trainings += 1
            self.consumed = result["consumed"]
            self.train_seconds += result["seconds"]
            self.engine = result["engine"]
            self._close(run, "done", {k: v for k, v in result.items() if k not in ("type", "memory", "run")})
        finally:
            self.progress = None
            self.triggers.last_end = self._clock.monotonic()
            self.budget = self.budget.spent(day, time.monotonic() - started)
        return result

    def _close(self, run: int, outcome: str, result: Message) -> None:
        self._end(run, self._clock.now(), outcome, result)
        self._notify("training_finished", {"run": run, "outcome": outcome, **result})

    def _on_message(self, message: Message) -> None:
        kind = message.pop("type")
        if kind == "progress":
            self.progress = message
            if self._on_progress is not None:
                self._on_progress(message)
        elif kind == "bad_samples":
            self._notify("sample_quarantined", {"reason": "bad_for_training", **message})
        elif kind in ("note", "damaged_checkpoint"):
            log.warning(kind, **message)
        else:
            log.debug(kind, **message)
