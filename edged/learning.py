"""Two threads: one for training runs and what their candidates become, one for changes that cannot wait."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from edged.errors import StorageError
from edged.logs import get_logger
from edged.loop.aside import Aside
from edged.storage.erasure import erase_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.domain.anomaly import Anomalies
    from edged.domain.drift import DriftSignal
    from edged.loop.learn import Learner
    from edged.loop.recall import Recall
    from edged.loop.succession import Succession
    from edged.storage.registry import Registry
    from edged.storage.samples import SampleLog

log = get_logger("edged.learning")

IDLE_SECONDS = 1.0
SETTLE_SECONDS = 2.0


class Learning:
    """Where training runs are started, and the outcomes of probations carried out.

    A run may take hours: a champion that fails meanwhile is replaced by the other thread.

    Parameters
    ----------
    learner, succession, samples, registry
        The parts that it brings together.
    publish_states
        Called after each run that ended well, and after each change of champion.
    promoted
        Called with the version of each candidate that became champion.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        succession: Succession,
        samples: SampleLog,
        registry: Registry,
        recall: Recall,
        drift_state: Callable[[], dict[str, Any]],
        publish_states: Callable[[], None],
        promoted: Callable[[int], None],
        anomalies: Anomalies | None = None,
    ) -> None:
        self._learner = learner
        self._succession = succession
        self._samples = samples
        self._registry = registry
        self._recall = recall
        self._anomalies = anomalies
        self._aside = Aside(anomalies, samples)
        self._drift_state = drift_state
        self._publish_states = publish_states
        self._promoted = promoted
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._options: dict[str, Any] = {}
        self._between: deque[Callable[[], None]] = deque()
        self._changes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changer = threading.Thread(target=self._change, name="change", daemon=True)
        self._thread = threading.Thread(target=self._loop, name="learn", daemon=True)

    # ---- what other threads call -----------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()
        self._changer.start()

    def wake(self) -> None:
        """Something has happened that may start a run."""
        self._wake.set()

    def later(self, action: Callable[[], None]) -> None:
        """Carry out a change of champion soon: the serving thread must not wait for it."""
        self._changes.put(action)

    def drifted(self, signal: DriftSignal) -> None:
        """A drift or a warning of one was signalled: from any thread."""
        self.later(lambda: self._drifted(signal))

    def fallen(self) -> None:
        """Live quality has fallen: from any thread."""
        self.later(self._fallen)

    def command(self, options: dict[str, Any]) -> None:
        """Train as soon as the guards allow, with these options for the next run alone."""
        self._options = options
        self._learner.triggers.commanded = True
        self.wake()

    def erase(
        self,
        state: Path,
        done: Callable[[dict[str, int]], None],
        *,
        samples: bool = False,
        labels: bool = False,
        checkpoints: bool = False,
    ) -> None:
        """Erase what was collected and learned, between two runs, while the daemon goes on.

        The champion stays and serves. The trainer is ended first: it holds samples in memory.

        Parameters
        ----------
        state
            The state directory.
        done
            Called on this thread with how much of each went.
        samples, labels, checkpoints
            What goes; see `SampleLog.erase`.
        """

        def between_runs() -> None:
            self._learner.process.end()
            gone: dict[str, int] = {}
            if samples or labels:
                gone |= self._samples.erase(samples=samples, labels=labels)
            if checkpoints:
                gone["checkpoints"] = erase_files([state / "checkpoints"])
                self._learner.consumed = 0
                self._registry.set_value("consumed", 0)
            done(gone)

        self._between.append(between_runs)
        self.wake()

    def end(self) -> None:
        """Begin nothing new."""
        self._ending.set()
        self._changes.put(None)
        self.wake()

    def join(self, timeout: float) -> None:
        """Wait for what is being done."""
        self._thread.join(timeout)
        self._changer.join(timeout)

    # ---- the threads -----------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._ending.is_set():
            self._wake.wait(IDLE_SECONDS)
            self._wake.clear()
            try:
                self._do_between_runs()
                self._aside.settle()
                self._try_recall()
                options, self._options = self._options, {}
                result = self._learner.step(options)
                if result is not None:
                    self._learned(result)
            except StorageError as problem:
                log.warning("learning_held", problem=problem.line(), remedy="tried again")
                self._ending.wait(IDLE_SECONDS)
            except Exception:
                log.exception("learning_failed")
                self._ending.wait(IDLE_SECONDS)

    def _do_between_runs(self) -> None:
        """What the disk refuses stays first, and is tried again."""
        while self._between:
            try:
                self._between[0]()
            except StorageError:
                raise
            except Exception:
                self._between.popleft()
                raise
            self._between.popleft()

    def _drifted(self, signal: DriftSignal) -> None:
        self._learner.drifted(signal)
        if self._recall.drifted(signal):
            self._registry.set_value("regimes", self._recall.regimes.state())

    def _fallen(self) -> None:
        self._learner.triggers.fallen = True
        if self._recall.ended("error"):
            self._registry.set_value("regimes", self._recall.regimes.state())

    def _try_recall(self) -> None:
        """A regime may be back: its model is tried before anything is learned."""
        found = self._recall.worth_trying(self._learner.consumed, self._succession.champion)
        if found is None:
            return
        served = self._succession.recall(*found)
        if served is not None:
            self._recall.crowned(served.version)
            self._publish_states()

    def keep(self) -> None:
        """Remember what a restart goes on from: the drift detectors, and what training has cost today."""
        self._registry.set_value("drift", self._drift_state())
        self._registry.set_value("budget", self._learner.budget.state())
        if self._anomalies is not None:
            self._registry.set_value("anomalies", self._anomalies.state())

    def _learned(self, result: dict[str, Any]) -> None:
        """A run has ended well: judge its candidate and remember how far it came."""
        served = self._succession.consider(result)
        self._learner.effort.judged(forgets=self._succession.forgets)
        try:
            self._samples.protect(result["memory"])
            self._registry.set_value("consumed", self._learner.consumed)
            self.keep()
        except StorageError as problem:
            # The trainer's checkpoint knows it, too, and says so when nothing is new.
            log.warning("position_not_kept", problem=problem.line())
        self._publish_states()
        if served is not None:
            self._recall.crowned(served.version)
            self._promoted(served.version)

    def _change(self) -> None:
        """Carry out changes as they come, and make those durable that a full disk has refused."""
        while True:
            try:
                action = self._changes.get(timeout=SETTLE_SECONDS)
            except queue.Empty:
                action = self._settle
            if action is None:
                return
            try:
                action()
                if action != self._settle:
                    self._publish_states()
            except Exception:
                log.exception("change_failed")

    def _settle(self) -> None:
        self._succession.settle()
        try:
            self._aside.settle()  # here, too: a run that goes on for hours holds up the other thread
        except StorageError as problem:
            log.warning("not_set_aside", problem=problem.line(), remedy="tried again")
