"""Two threads: one for training runs and what their candidates become, one for changes that cannot wait."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

from edged.errors import StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.loop.learn import Learner
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

    def command(self, options: dict[str, Any]) -> None:
        """Train as soon as the guards allow, with these options for the next run alone."""
        self._options = options
        self._learner.triggers.commanded = True
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
                options, self._options = self._options, {}
                result = self._learner.step(options)
                if result is not None:
                    self._learned(result)
            except Exception:
                log.exception("learning_failed")
                self._ending.wait(IDLE_SECONDS)

    def _learned(self, result: dict[str, Any]) -> None:
        """A run has ended well: judge its candidate and remember how far it came."""
        served = self._succession.consider(result)
        try:
            self._samples.protect(result["memory"])
            self._registry.set_value("consumed", self._learner.consumed)
        except StorageError as problem:
            # The trainer's checkpoint knows it, too, and says so when nothing is new.
            log.warning("position_not_kept", problem=problem.line())
        self._publish_states()
        if served is not None:
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
