"""The learning thread: probations that ended, training runs, and what their candidates become."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.domain.drift import DriftSignal
    from edged.loop.learn import Learner
    from edged.loop.recall import Recall
    from edged.loop.succession import Succession
    from edged.storage.registry import Registry
    from edged.storage.samples import SampleLog

log = get_logger("edged.learning")

IDLE_SECONDS = 1.0


class Learning:
    """One thread on which everything happens that changes the champion or starts training.

    Parameters
    ----------
    learner, succession, samples, registry
        The parts that it brings together.
    publish_states
        Called after each run that ended well.
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
    ) -> None:
        self._learner = learner
        self._succession = succession
        self._samples = samples
        self._registry = registry
        self._recall = recall
        self._drift_state = drift_state
        self._publish_states = publish_states
        self._promoted = promoted
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._options: dict[str, Any] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._loop, name="learn", daemon=True)

    # ---- what other threads call -----------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def wake(self) -> None:
        """Something has happened that may start a run."""
        self._wake.set()

    def later(self, action: Callable[[], None]) -> None:
        """Leave an action to this thread: the serving thread must not wait for it."""
        self._waiting.append(action)
        self.wake()

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

    def end(self) -> None:
        """Begin nothing new."""
        self._ending.set()
        self.wake()

    def join(self, timeout: float) -> None:
        """Wait for what is being done."""
        self._thread.join(timeout)

    # ---- the thread ------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._ending.is_set():
            self._wake.wait(IDLE_SECONDS)
            self._wake.clear()
            try:
                while self._waiting:
                    self._waiting.popleft()()
                self._try_recall()
                options, self._options = self._options, {}
                result = self._learner.step(options)
                if result is not None:
                    self._learned(result)
            except Exception:
                log.exception("learning_failed")
                self._ending.wait(IDLE_SECONDS)

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

    def _learned(self, result: dict[str, Any]) -> None:
        """A run has ended well: judge its candidate and remember how far it came."""
        served = self._succession.consider(result)
        self._learner.effort.judged(forgets=self._succession.forgets)
        self._samples.protect(result["memory"])
        self._registry.set_value("consumed", self._learner.consumed)
        self.keep()
        self._publish_states()
        if served is not None:
            self._recall.crowned(served.version)
            self._promoted(served.version)
