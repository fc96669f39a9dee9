"""The command `label`: answers of people to label requests, or labels that come by the way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from edged.domain.stream.sample import LabelReading, LabelUpdate
from edged.errors import ConfigError, RefusedError, RejectedSampleError, StorageError

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.device.ingest import Ingestor
    from edged.device.learning.worker import TrainingWorker
    from edged.device.serving import ServingWorker
    from edged.domain.stream.schema import Schema
    from edged.storage.samples.log import SampleLog

PREDICTION_ID = re.compile(r"[0-9]+-([0-9]{1,18})")


class LabelCommands:
    """The command `label`: answers of people to label requests, or labels that come by the way.

    Takes `{"id", "label"}` or `{"key", "ts", "label"}`, or a list of such under `labels`. An `id` is the
    sender's own, or that of a prediction. A sample is predicted before it is on the disk: one that is not
    there yet is waited for.
    """

    def __init__(
        self,
        schema: Schema,
        samples: SampleLog,
        ingest: Ingestor,
        serving: ServingWorker,
        learning: TrainingWorker,
        clock: Clock,
    ) -> None:
        self._schema = schema
        self._samples = samples
        self._ingest = ingest
        self._serving = serving
        self._learning = learning
        self._clock = clock

    def label(self, request: dict[str, Any]) -> dict[str, Any]:
        """Store the labels, durably, before the answer.

        Raises
        ------
        ConfigError
            When a label cannot be understood; then none is taken.
        RefusedError
            When no sample is here for any of them.
        StorageError
            When the disk refuses those that have come last, which may be meant.
        """
        entries = request.get("labels", [request])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError("expected a list of objects with id and label", where="labels")
        readings = [self._read(entry, place) for place, entry in enumerate(entries)]
        found = self._find_settled(readings)
        updates = [
            LabelUpdate(offset, reading.label, self._clock.now())
            for offset, reading in zip(found, readings, strict=True)
            if offset is not None
        ]
        if not updates:
            raise RefusedError(
                "no sample is here for this label", remedy="give the id of a prediction, or key and ts"
            )
        self._samples.commit(None, updates)
        self._serving.label(updates)
        self._learning.wake()
        return {"labelled": len(updates), "unknown": len(readings) - len(updates)}

    def _read(self, entry: dict[str, Any], place: int) -> LabelReading:
        where = f"label {place + 1}"
        if entry.get("label") is None:
            raise ConfigError("no label", where=where, remedy='send {"id": …, "label": …}')
        try:
            label = self._schema.parse_label(entry["label"])
        except RejectedSampleError as problem:
            raise ConfigError(problem.what, where=where) from problem
        sample_id, key, ts = entry.get("id"), entry.get("key"), entry.get("ts")
        if isinstance(sample_id, str | int):
            return LabelReading(label, id=str(sample_id))
        if isinstance(key, str) and isinstance(ts, int | float):
            return LabelReading(label, key=key, ts=float(ts))
        raise ConfigError("no sample is named", where=where, remedy="give id, or key and ts (Unix seconds)")

    def _find_settled(self, readings: list[LabelReading]) -> list[int | None]:
        """Offsets, of what has only been predicted so far, too."""
        # By time the nearest one is meant, which may not be the nearest of those on the disk.
        timed = any(reading.ts is not None for reading in readings)
        found = [] if timed else self._find(readings)
        if not timed and None not in found:
            return found
        settled = self._ingest.settled()
        found = self._find(readings)
        if not settled and all(offset is None for offset in found):
            raise StorageError(
                "the newest samples are not on the disk yet", where="samples.db", remedy="send it again"
            )
        return found

    def _find(self, readings: list[LabelReading]) -> list[int | None]:
        """Offsets by the sender's id or by time; else by the id of a prediction."""
        found = self._samples.find_many(readings)
        named = {
            place: int(match[1])
            for place, reading in enumerate(readings)
            if found[place] is None and reading.id and (match := PREDICTION_ID.fullmatch(reading.id))
        }
        here = self._samples.holds(list(named.values()))
        for place, offset in named.items():
            if offset in here:
                found[place] = offset
        return found
