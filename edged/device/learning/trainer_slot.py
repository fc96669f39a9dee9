"""One trainer process at a time, however many streams a device has, and whose turn is next."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.errors import TrainingError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.learning.trainer_client import TrainerClient

log = get_logger("edged.trainer_process")

ENOUGH_LABELS = 10.0  # times the labels that start a run: more make it no more urgent
DRIFT_URGENCY = 10.0  # what a drift, or quality that has fallen, adds: the model is wrong now
COMMAND_URGENCY = 20.0  # what a command adds: somebody waits for the answer
PATIENCE_SECONDS = 60.0  # seconds of waiting that count as much as the labels of one run


@dataclass(frozen=True)
class RunGain:
    """Gain of a run.

    `labels` are those not yet learned, in times of what starts a run. `drifted`: a drift was signalled, or
    live quality has fallen. `asked`: a command has asked for it.
    """

    labels: float = 1.0
    drifted: bool = False
    asked: bool = False

    @property
    def urgency(self) -> float:
        """Urgency of a run when it begins to wait; bounded, so that waiting longer always wins."""
        return min(self.labels, ENOUGH_LABELS) + DRIFT_URGENCY * self.drifted + COMMAND_URGENCY * self.asked


@dataclass(frozen=True)
class Waiting:
    """A learner that waits for the trainer since `since` (monotonic seconds).

    `name` is that of a stream, empty for the only one.
    """

    name: str
    since: float
    gain: RunGain = RunGain()


LONGEST_AHEAD = (ENOUGH_LABELS + DRIFT_URGENCY + COMMAND_URGENCY) * PATIENCE_SECONDS
"""Seconds after which a learner that waits is before all that come later, whatever they would gain."""


def next_turn(waiting: Sequence[Waiting], now: float) -> Waiting:
    """Return whose turn is next at `now` (monotonic seconds); of equals the one that came first.

    Urgency is bounded and waiting is not: who has waited `LONGEST_AHEAD` seconds longer than another goes
    first, so none waits for ever.

    >>> waiting = [Waiting("a", 0.0, RunGain(1.0)), Waiting("b", 5.0, RunGain(3.0))]
    >>> next_turn(waiting, now=10.0).name
    'b'
    >>> next_turn([*waiting, Waiting("c", 10.0, RunGain(1.0, asked=True))], now=10.0).name
    'c'
    """
    return max(waiting, key=lambda one: (one.gain.urgency + (now - one.since) / PATIENCE_SECONDS, -one.since))


class StoppedRunError(TrainingError):
    """The run was asked to stop; the next one takes it up. No failure."""


class TrainerSlot:
    """Lets one stream at a time have a trainer; whose turn is next, `next_turn` says.

    The process of the stream that had the last turn stays until another one gets its turn.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: TrainerClient | None = None
        self._depth = 0
        self._last: TrainerClient | None = None
        self._waiting: dict[TrainerClient, Waiting] = {}

    @contextmanager
    def turn(self, client: TrainerClient, name: str, gain: RunGain) -> Iterator[None]:
        """Wait for the turn of `client`, the trainer of the stream `name`, and hold it; may be nested.

        Raises StoppedRunError when it was withdrawn meanwhile.
        """
        self._acquire(client, Waiting(name, time.monotonic(), gain))
        try:
            yield
        finally:
            self._release()

    def withdraw(self, client: TrainerClient) -> None:
        """Let a client that waits wait no more; from any thread."""
        with self._changed:
            self._waiting.pop(client, None)
            self._changed.notify_all()

    def forget(self, client: TrainerClient) -> None:
        """Forget a client whose process has ended permanently."""
        self.withdraw(client)
        with self._changed:
            if self._last is client:
                self._last = None

    def _acquire(self, client: TrainerClient, wish: Waiting) -> None:
        with self._changed:
            if self._holder is client:
                self._depth += 1
                return
            if self._holder is not None or self._waiting:
                log.info("training_waits", stream=wish.name, behind=len(self._waiting) + 1)
            self._waiting[client] = wish
            self._choose()
            self._changed.wait_for(lambda: self._holder is client or client not in self._waiting)
            if self._holder is not client:
                raise StoppedRunError("it was asked to stop while it waited for its turn")
            before, self._last = self._last, client
        if before is not None and before is not client:
            before.stop()

    def _release(self) -> None:
        with self._changed:
            if self._depth:
                self._depth -= 1
                return
            self._holder = None
            self._choose()
            self._changed.notify_all()

    def _choose(self) -> None:
        """Give a free slot to the one whose turn it is."""
        if self._holder is None and self._waiting:
            chosen = next_turn(list(self._waiting.values()), time.monotonic())
            self._holder = next(client for client, one in self._waiting.items() if one is chosen)
            del self._waiting[self._holder]
