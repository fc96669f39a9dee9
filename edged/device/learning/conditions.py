"""How things are on this device while it trains: for the guards, and for the pace of the trainer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from edged.clock import Ages
from edged.domain.training.guards import Conditions, TrainingPace

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.clock import Clock
    from edged.device.learning.trainer_client import TrainerClient
    from edged.domain.judging.latencies import Latencies
    from edged.host.board import Board
    from edged.host.vitals import VitalsReader

Message = dict[str, Any]

FRESH = 1.0  # seconds that a reading holds


class ConditionsReader:
    """Reads vital signs and latencies for the guards, at most once a second.

    Parameters
    ----------
    clock, vitals, latencies
        What is read.
    troubled
        What troubles the board, in words.
    worn
        Whether training has written its share.
    """

    def __init__(
        self,
        clock: Clock,
        vitals: VitalsReader,
        latencies: Latencies,
        troubled: Callable[[], tuple[str, ...]] = tuple,
        worn: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._vitals = vitals
        self._latencies = latencies
        self._troubled = troubled
        self._worn = worn
        self._seen = 0
        self._read_at = float("-inf")
        self._last = Conditions.at(0.0)

    def read(self) -> Conditions:
        """The conditions of now."""
        if self._clock.monotonic() - self._read_at < FRESH:
            return self._last
        self._read_at = self._clock.monotonic()
        vitals, now = self._vitals.read(), self._clock.now()
        time_alone = Conditions.at(now + time.localtime(now).tm_gmtoff)
        p99, self._seen = self._latencies.p99_since(self._seen)
        self._last = Conditions(
            time_alone.minute,
            time_alone.day,
            vitals.temperature_c,
            vitals.on_battery,
            vitals.battery_percent,
            None if vitals.load1 is None else vitals.load1 / (os.cpu_count() or 1),
            p99,
            self._troubled(),
            self._worn(),
        )
        return self._last


class BoardWatch:
    """Tells when the board begins to be throttled or under-supplied, and when that is over.

    Flags of firmware flicker: it is over when `CALM` seconds have passed without one.

    Parameters
    ----------
    read
        The board of now.
    notify
        Told of the event `device_throttled`.
    """

    CALM = 30.0

    def __init__(
        self, clock: Clock, read: Callable[[], Board], notify: Callable[[str, Message], None]
    ) -> None:
        self._clock = clock
        self._read = read
        self._notify = notify
        self._since: float | None = None
        self._last = 0.0
        self.reasons: tuple[str, ...] = ()
        """What troubles it, or has within the last seconds; empty when nothing does."""

    def look(self) -> None:
        """To be called every few seconds."""
        board, now = self._read(), self._clock.monotonic()
        if board.troubled:
            self._last, self.reasons = now, board.reasons
            if self._since is None:
                self._since = now
                self._tell("start", {})
        elif self._since is not None and now - self._last >= self.CALM:
            self._tell("end", {"seconds": round(self._last - self._since, 1)})
            self._since, self.reasons = None, ()

    def _tell(self, state: str, more: Message) -> None:
        self._notify("device_throttled", {"state": state, "reasons": list(self.reasons), **more})


class ClockWatch:
    """Tells when the device's clock was set, such as by a time server after a start without a battery."""

    def __init__(self, clock: Clock, notify: Callable[[str, Message], None]) -> None:
        self._clock = clock
        self._notify = notify
        self._lead = clock.now() - clock.monotonic()

    def look(self) -> None:
        """To be called every few seconds; a step of more than `Ages.STEP` seconds is told of."""
        now = self._clock.now()
        lead = now - self._clock.monotonic()
        step, self._lead = lead - self._lead, lead
        if abs(step) > Ages.STEP:
            self._notify("clock_set", {"step_s": round(step, 1), "before": round(now - step, 3)})


class Pacer:
    """Slows the trainer down while predictions take longer than they may, or the board is troubled.

    `budget` is None where predictions may take as long as they like.
    """

    TROUBLED = 9.0  # rest after each step, in times of its length: enough to cool down, and no halt

    def __init__(
        self,
        budget: float | None,
        latencies: Latencies,
        trainer: TrainerClient,
        troubled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pace = None if budget is None else TrainingPace(budget)
        self._latencies = latencies
        self._trainer = trainer
        self._troubled = troubled
        self._seen = 0

    def look(self) -> None:
        """Compare the latencies since the last look with the budget; call once a second."""
        rest = self.TROUBLED if self._troubled() else 0.0
        if self._pace is not None:
            p99, self._seen = self._latencies.p99_since(self._seen)
            rest = max(rest, self._pace.rest(p99))
        self._trainer.pace(rest)
