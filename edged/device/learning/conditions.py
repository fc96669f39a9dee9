"""State of this device while it trains: for the guards, and for the pace of the trainer."""

from __future__ import annotations

import time

from edged.clock import Ages, Clock
from edged.device.events import Events
from edged.device.learning.trainer_client import TrainerClient
from edged.domain.events import ClockSet, DeviceThrottled
from edged.domain.judging.latencies import Latencies
from edged.domain.training.guards import Conditions, FlashWear, TrainingPace
from edged.host.board import BoardReader
from edged.host.vitals import VitalsReader

FRESH = 1.0  # seconds that a reading holds


class ConditionsReader:
    """Reads vital signs and latencies for the guards, at most once a second.

    Without `board` nothing troubles the board; without `wear` training may write to flash without limit.
    """

    def __init__(
        self,
        clock: Clock,
        vitals: VitalsReader,
        latencies: Latencies,
        board: BoardWatch | None = None,
        wear: FlashWear | None = None,
    ) -> None:
        self._clock = clock
        self._vitals = vitals
        self._latencies = latencies
        self._board = board
        self._wear = wear
        self._seen = 0
        self._read_at = float("-inf")
        self._last = Conditions.at(0.0)

    def read(self, written: int = 0) -> Conditions:
        """Read the conditions; `written` is how many bytes training has written so far."""
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
            p99,
            () if self._board is None else self._board.reasons,
            self._wear is not None and self._wear.worn(written, self._clock.monotonic()),
        )
        return self._last


class BoardWatch:
    """Reports when the board starts and stops being throttled or under-supplied.

    Flags of firmware flicker: trouble is over when `CALM` seconds have passed without a flag. `events`
    receives `device_throttled`.
    """

    CALM = 30.0

    def __init__(self, clock: Clock, board: BoardReader, events: Events) -> None:
        self._clock = clock
        self._board = board
        self._events = events
        self._since: float | None = None
        self._last = 0.0
        self.reasons: tuple[str, ...] = ()
        """What troubles the board, or has within the last `CALM` seconds; empty if nothing does."""

    def look(self) -> None:
        """Read the board and report changes; call it every few seconds."""
        board, now = self._board.read(), self._clock.monotonic()
        if board.troubled:
            self._last, self.reasons = now, board.reasons
            if self._since is None:
                self._since = now
                self._events.event(DeviceThrottled("start", self.reasons))
        elif self._since is not None and now - self._last >= self.CALM:
            seconds = round(self._last - self._since, 1)
            self._events.event(DeviceThrottled("end", self.reasons, seconds))
            self._since, self.reasons = None, ()


class ClockWatch:
    """Reports when the device's clock was set, such as by a time server after a start without a battery."""

    def __init__(self, clock: Clock, events: Events) -> None:
        self._clock = clock
        self._events = events
        self._lead = clock.now() - clock.monotonic()

    def look(self) -> None:
        """Report a step of more than `Ages.STEP` seconds as `clock_set`; call it every few seconds."""
        now = self._clock.now()
        lead = now - self._clock.monotonic()
        step, self._lead = lead - self._lead, lead
        if abs(step) > Ages.STEP:
            self._events.event(ClockSet(round(step, 1), round(now - step, 3)))


class Pacer:
    """Slows the trainer down while predictions exceed their latency budget, or the board is troubled.

    `budget` is the allowed 99th percentile of the latency in seconds; None: unlimited. Without `board` its
    trouble is ignored.
    """

    TROUBLED = 9.0  # rest after each step, in times of its length: enough to cool down, and no halt

    def __init__(
        self,
        budget: float | None,
        latencies: Latencies,
        trainer: TrainerClient,
        board: BoardWatch | None = None,
    ) -> None:
        self._pace = None if budget is None else TrainingPace(budget)
        self._latencies = latencies
        self._trainer = trainer
        self._board = board
        self._seen = 0

    def look(self) -> None:
        """Compare the latencies since the last look with the budget; call once a second."""
        pause = self.TROUBLED if self._board is not None and self._board.reasons else 0.0
        if self._pace is not None:
            p99, self._seen = self._latencies.p99_since(self._seen)
            pause = max(pause, self._pace.throttle(p99))
        self._trainer.pace(pause)
