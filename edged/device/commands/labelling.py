"""The command `label`: labels that people give to samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.stream.sample import LabelReading, LabelUpdate
from edged.errors import ConfigError, RefusedError, RejectedSampleError, StorageError

if TYPE_CHECKING:
    from edged.device.pipeline import LivePipeline


class LabelCommands:
    """The command `label`: labels from people who answer label requests, or who label unasked.

    Takes `{"id", "label"}` or `{"key", "ts", "label"}`, or a list of such under `labels`. An `id` is the
    sender's own, or that of a prediction. A sample is predicted before it is on disk; if a sample is not
    there yet, the command waits for its commit.
    """

    def __init__(self, pipeline: LivePipeline) -> None:
        self._pipeline = pipeline

    def label(self, request: dict[str, Any]) -> dict[str, Any]:
        """Store labels durably and pass them to serving and training.

        Raises ConfigError when a label is not valid (then none is stored); RefusedError when none of the
        labels has a sample; StorageError when the newest samples, to which the labels might belong, cannot be
        stored.
        """
        entries = request.get("labels", [request])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError("expected a list of objects with id and label", where="labels")
        readings = [self._read(entry, place) for place, entry in enumerate(entries)]
        found = self._find_settled(readings)
        updates = [
            LabelUpdate(offset, reading.label, self._pipeline.clock.now())
            for offset, reading in zip(found, readings, strict=True)
            if offset is not None
        ]
        if not updates:
            raise RefusedError(
                "no sample is here for this label", remedy="give the id of a prediction, or key and ts"
            )
        self._pipeline.samples.commit(None, updates)
        self._pipeline.serving.label(updates)
        self._pipeline.worker.wake()
        return {"labelled": len(updates), "unknown": len(readings) - len(updates)}

    def _read(self, entry: dict[str, Any], place: int) -> LabelReading:
        where = f"label {place + 1}"
        if entry.get("label") is None:
            raise ConfigError("no label", where=where, remedy='send {"id": …, "label": …}')
        try:
            label = self._pipeline.schema.parse_label(entry["label"])
        except RejectedSampleError as problem:
            raise ConfigError(problem.what, where=where) from problem
        sample_id, key, ts = entry.get("id"), entry.get("key"), entry.get("ts")
        if isinstance(sample_id, str | int):
            return LabelReading(label, id=str(sample_id))
        if isinstance(key, str) and isinstance(ts, int | float):
            return LabelReading(label, key=key, ts=float(ts))
        raise ConfigError("no sample is named", where=where, remedy="give id, or key and ts (Unix seconds)")

    def _find_settled(self, readings: list[LabelReading]) -> list[int | None]:
        """Find offsets of the samples, also of those that are predicted but not stored yet."""
        # A time means the nearest sample, which might not be on disk yet.
        timed = any(reading.ts is not None for reading in readings)
        found = [] if timed else self._pipeline.samples.find_many(readings)
        if not timed and None not in found:
            return found
        settled = self._pipeline.ingestor.flush()
        found = self._pipeline.samples.find_many(readings)
        if not settled and all(offset is None for offset in found):
            raise StorageError(
                "the newest samples are not on the disk yet", where="samples.db", remedy="send it again"
            )
        return found
