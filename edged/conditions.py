"""How things are on this device while it trains: for the guards, and for the pace of the trainer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from edged.domain.guards import Conditions, Pace

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.domain.latencies import Latencies
    from edged.host.trainer_process import TrainerProcess
    from edged.host.vitals import VitalsReader

FRESH = 1.0  # seconds that a reading holds


class ConditionsReader:
    """Reads vital signs and latencies for the guards, at most once a second.

    Parameters
    ----------
    clock, vitals, latencies
        What is read.
    """

    def __init__(self, clock: Clock, vitals: VitalsReader, latencies: Latencies) -> None:
        self._clock = clock
        self._vitals = vitals
        self._latencies = latencies
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
        )
        return self._last


class Pacer:
    """Slows the trainer down while predictions take longer than they may."""

    def __init__(self, budget: float, latencies: Latencies, trainer: TrainerProcess) -> None:
        self._pace = Pace(budget)
        self._latencies = latencies
        self._trainer = trainer
        self._seen = 0

    def look(self) -> None:
        """Compare the latencies since the last look with the budget; call once a second."""
        p99, self._seen = self._latencies.p99_since(self._seen)
        self._trainer.pace(self._pace.rest(p99))
