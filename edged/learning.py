"""The learning thread: probations that ended, training runs, and what their candidates become."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from edged.errors import StorageError
from edged.logs import get_logger
from edged.storage.erasure import erase_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.loop.learn import Learner
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
        publish_states: Callable[[], None],
        promoted: Callable[[int], None],
    ) -> None:
        self._learner = learner
        self._succession = succession
        self._samples = samples
        self._registry = registry
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

        self.later(between_runs)

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
                self._carry_out()
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

    def _carry_out(self) -> None:
        """Do what was left to this thread; what the disk refuses stays first, and is tried again."""
        while self._waiting:
            try:
                self._waiting[0]()
            except StorageError:
                raise
            except Exception:
                self._waiting.popleft()
                raise
            self._waiting.popleft()

    def _learned(self, result: dict[str, Any]) -> None:
        """A run has ended well: judge its candidate and remember how far it came."""
        served = self._succession.consider(result)
        self._samples.protect(result["memory"])
        self._registry.set_value("consumed", self._learner.consumed)
        self._publish_states()
        if served is not None:
            self._promoted(served.version)
