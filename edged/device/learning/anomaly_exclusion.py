"""Samples that looked anomalous leave the training data, and come back when they are accepted."""

from __future__ import annotations

import threading

from edged.domain.stream.anomaly import Anomalies
from edged.storage.samples.log import SampleLog


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
