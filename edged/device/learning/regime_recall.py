"""Regimes that end and come back: what is remembered of them, and whose model is tried again."""

from __future__ import annotations

from collections import deque

import numpy as np

from edged.domain.drift.signals import DriftSignal, Level
from edged.domain.judging.regimes import Regimes, Signature
from edged.domain.stream.sample import Window
from edged.domain.stream.schema import Schema
from edged.logs import get_logger
from edged.storage.samples.log import SampleLog

log = get_logger("edged.recall")

ROWS = 60  # newest labelled rows on which a model of the bank is tried
FEWEST = 20
EVERY = 25  # new labels between two tries
NEAR = 1.0  # distance of signatures beyond which a regime is another one
BEFORE = 300  # labels before a signal at which the model of the ended regime served: what adapts is not it
REIGNS = 32


class RegimeRecall:
    """Ends regimes when a drift is signalled, and says which models of the bank are worth a try.

    The bank are the models that served the newest regimes; the registry keeps them. They are tried on
    labelled rows that neither they nor the champion have learned from, whenever enough of them are new: a
    comparison costs less than a millisecond, and a regime may be back long before a detector is sure.
    """

    def __init__(self, schema: Schema, regimes: Regimes, samples: SampleLog, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._schema = schema
        self.regimes = regimes
        self._samples = samples
        self._reigns: deque[tuple[int, int]] = deque(maxlen=REIGNS)
        self._tried = 0

    def record_champion(self, version: int) -> None:
        """Record that model `version` serves from now on."""
        self._reigns.append((self._samples.last_seq(), version))

    def drifted(self, signal: DriftSignal) -> bool:
        """Return whether a signal has ended a regime."""
        return signal.level is Level.DRIFT and self.record_regime_end(signal.source)

    def record_regime_end(self, source: str) -> bool:
        """Record the end of the present regime; False if the regime was too short to be one."""
        until = self._samples.last_seq()
        begun = self.regimes.begun
        rows = self._samples.training_window(begun, ROWS * 4, upto_seq=max(begun, until - BEFORE))
        signature = self._signature(rows) if len(rows) >= FEWEST else None
        ended = self.regimes.close_regime(until, source, self._served_at(until - BEFORE), signature)
        if ended:
            log.info("regime_ended", source=source, label=until, version=self.regimes.ended[-1].version)
        return ended

    def _served_at(self, seq: int) -> int | None:
        before = [version for at, version in self._reigns if at <= seq]
        return before[-1] if before else (self._reigns[0][1] if self._reigns else None)

    def bank(self) -> list[int]:
        """Versions of the models of the newest regimes, newest first, which the registry must keep."""
        return self.regimes.bank() if self._enabled else []

    def worth_trying(self, consumed: int, champion: int) -> tuple[list[int], Window] | None:
        """Versions whose regime may be back, nearest first, and the rows to try them on.

        `consumed` is the position in label order up to which everything was learned.
        """
        if self._samples.last_seq() - self._tried < EVERY or not self.bank():
            return None
        self._tried = self._samples.last_seq()
        fresh = self._fresh(consumed)
        if len(fresh) < FEWEST:
            return None
        now = self._signature(fresh)
        kept = set(self.bank()) - {champion}
        near = sorted(
            (regime.signature.distance(now), regime.version)
            for regime in self.regimes.ended
            if regime.version in kept and regime.signature is not None
        )
        versions = [version for distance, version in near if distance <= NEAR and version is not None]
        return (list(dict.fromkeys(versions)), fresh) if versions else None

    def _fresh(self, consumed: int) -> Window:
        """Return the newest labelled rows that no model has learned from, oldest first."""
        held = self._samples.holdout_window(ROWS)
        held = held.take(held.seq > consumed)
        both = self._samples.training_window(consumed, ROWS).followed_by(held)
        return both.take(np.argsort(both.seq, kind="stable")[-ROWS:])

    def _signature(self, rows: Window) -> Signature:
        return Signature.of(rows.x, rows.y, len(self._schema.classes))
