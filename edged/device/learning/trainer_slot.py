"""One trainer process at a time, however many streams a device has, and whose turn is next."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edged.errors import TrainingError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.learning.trainer_client import TrainerClient

log = get_logger("edged.trainer_process")

AHEAD_SECONDS: Mapping[str, float] = {"command": 1200.0, "drift": 600.0, "quality": 600.0}
"""Seconds by which a run with this trigger goes before others that came earlier; none waits for ever.

Somebody waits for the answer to a command, and after a drift the model is wrong now.
"""


class StoppedRunError(TrainingError):
    """The run was asked to stop; the next one takes it up. No failure."""


class TrainerSlot:
    """Lets one stream at a time have a trainer, in the order in which they came, with a start for some.

    The process of the stream that had the last turn stays until another one gets its turn.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: TrainerClient | None = None
        self._depth = 0
        self._last: TrainerClient | None = None
        self._waiting: dict[TrainerClient, float] = {}  # since when, in monotonic seconds, less its start

    @contextmanager
    def turn(self, client: TrainerClient, name: str, ahead: float) -> Iterator[None]:
        """Wait for the turn of `client`, the trainer of the stream `name`, and hold it; may be nested.

        It goes before those that came up to `ahead` seconds earlier.

        Raises StoppedRunError when it was withdrawn meanwhile.
        """
        self._acquire(client, name, time.monotonic() - ahead)
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

    def _acquire(self, client: TrainerClient, name: str, place: float) -> None:
        with self._changed:
            if self._holder is client:
                self._depth += 1
                return
            if self._holder is not None or self._waiting:
                log.info("training_waits", stream=name, behind=len(self._waiting) + 1)
            self._waiting[client] = place
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
            self._holder = min(self._waiting, key=lambda client: self._waiting[client])
            del self._waiting[self._holder]
