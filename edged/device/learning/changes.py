"""Changes that cannot wait for a training run: another champion, samples that no run is to learn from."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from edged.domain.stream.anomaly import Anomalies
from edged.host.turns import Turns, TurnThreads
from edged.logs import get_logger
from edged.storage.samples.log import SampleLog

log = get_logger("edged.learning")

IDLE_SECONDS = 2.0


class Changes:
    """Carries out changes as they come, also while a training run takes hours.

    `changed` is called after each, `catch_up` where none waits: a full disk may have refused something.
    """

    def __init__(self, changed: Callable[[], None], catch_up: Callable[[], None]) -> None:
        self._changed, self._catch_up = changed, catch_up
        self._waiting: deque[Callable[[], None]] = deque()
        self._turns = Turns(TurnThreads("change", 1))
        self._ending = False
        self._idle: float | None = IDLE_SECONDS  # seconds between two turns without a change

    def start(self, threads: TurnThreads | None) -> None:
        """Begin, on a thread of its own or on `threads`, where `wake` is called regularly."""
        if threads is not None:
            self._turns, self._idle = Turns(threads), None
        self._turns.start(self)

    def defer(self, action: Callable[[], None]) -> None:
        """Call `action` soon on another thread; from any thread."""
        self._waiting.append(action)
        self.wake()

    def wake(self) -> None:
        """Have a turn taken; from any thread."""
        self._turns.set()

    def stop(self) -> None:
        """Carry out what waits, then end."""
        self._ending = True
        self.wake()

    def join(self, timeout: float) -> None:
        """Wait for the last turn, at most `timeout` seconds."""
        self._turns.join(timeout)

    def patience(self) -> float | None:
        """Seconds until the next turn unless woken; None for no end."""
        return self._idle

    def turn(self, *, woken: bool) -> bool:  # noqa: ARG002  what waits tells more
        """See `Stage`: what waits, or what a full disk has refused where nothing does."""
        self._turns.clear()
        over, waiting = self._ending, len(self._waiting)
        for _ in range(waiting):
            self._carry_out(self._waiting.popleft(), self._changed)
        if not waiting and not over:
            self._carry_out(self._catch_up)
        return not over

    def _carry_out(self, *actions: Callable[[], None]) -> None:
        try:
            for action in actions:
                action()
        except Exception:
            log.exception("change_failed")


class AnomalyExclusion:
    """Carries out in the sample log what was found of samples: durably, so off the serving thread.

    A sample is judged before it is stored: what is not there yet is set aside the next time, and comes back
    no sooner. May be called from several threads.
    """

    def __init__(self, anomalies: Anomalies | None, samples: SampleLog) -> None:
        self._anomalies = anomalies
        self._samples = samples
        self._offsets: list[int] = []
        self._back: list[tuple[str, int, int]] = []  # key, first, and the newest that was aside then
        self._lock = threading.Lock()

    def apply(self) -> int:
        """Exclude and include the samples that are due; return how many were included again.

        Raises StorageError when the disk refuses: call it again, nothing is forgotten.
        """
        if self._anomalies is None:
            return 0
        with self._lock:
            return self._apply(self._anomalies)

    def _apply(self, anomalies: Anomalies) -> int:
        offsets, back = anomalies.pop_changes()
        self._offsets += offsets
        self._back += [(key, first, max(self._offsets, default=-1)) for key, first in back]
        if not self._offsets and not self._back:
            return 0
        stored = self._samples.next_offset()
        here = [offset for offset in self._offsets if offset < stored]
        if here:
            self._samples.exclude(here)
            self._offsets = [offset for offset in self._offsets if offset >= stored]
        readmitted = 0
        while self._back and self._back[0][2] < stored:
            key, first, _ = self._back[0]
            readmitted += self._samples.include(key, first)
            self._back.pop(0)
        return readmitted
