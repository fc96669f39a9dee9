"""A snapshot of the daemon for the page, read from its parts at one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edged.device.learning.label_reviews import CheckedLabel, LabelReviews
from edged.device.live_pipeline import LivePipeline
from edged.device.reporting.status import StatusCollector
from edged.device.reports import Report, StreamStatus
from edged.device.status_text import attention
from edged.device.web.http.authentication import Scope
from edged.device.web.page.history import Mark, PageState, Point, Sensor
from edged.domain.events import LabelRequested
from edged.domain.judging.metrics import QualityFigures
from edged.domain.judging.outputs import probabilities
from edged.domain.labels.label_requests import in_order
from edged.domain.stream.anomaly import AlarmFigures
from edged.domain.stream.sample import LabelReading
from edged.domain.stream.schema import Schema
from edged.errors import EdgedError
from edged.host.vitals import Vitals, VitalsReader
from edged.storage.journal.journal import RunRecord
from edged.storage.models.records import ModelRecord, Reign
from edged.storage.samples.reader import Counters

MODELS = 12  # the newest that are listed
RUNS = 5
SUSPECTS = 21  # labels to check: one more than are shown
PAUSABLE = ("training", "serving")


@dataclass(frozen=True)
class Snapshot:
    """The state of the daemon at one moment; `points`, `events` and the like are copies of `PageState`.

    `new_labelled` of `needed` new labels are there for the next training run, infinite if labels start none.
    The viewer may submit labels or send commands as `may_label` and `may_control` say.
    """

    device: str
    schema: Schema
    now: float
    monotonic: float
    may_label: bool
    may_control: bool
    status: StreamStatus
    counters: Counters
    limit: int
    new_labelled: int
    needed: float
    label_share: float | None
    anomaly: AlarmFigures | None
    vitals: Vitals
    refused: Mapping[str, int]
    models: Sequence[ModelRecord]
    parents: Mapping[int, int | None]
    reigns: Sequence[Reign]
    runs: Sequence[RunRecord]
    points: Sequence[Point]
    marks: Sequence[Mark]
    events: Sequence[Report]
    requests: Sequence[LabelRequested]
    suspects: tuple[float | None, int, Sequence[CheckedLabel]]
    evaluations: Sequence[Mapping[str, Any]]
    sensors: Mapping[str, Sensor]
    stuck: Mapping[str, Sequence[str]]
    forgotten: int
    connected: bool

    @property
    def material(self) -> str:
        """What is learned from: labels, or samples where they label themselves."""
        return "label" if self.schema.task in ("classify", "regress") else "sample"

    @property
    def champion(self) -> int:
        """Version of the current model."""
        return self.status.model.version or 0

    @property
    def quality(self) -> QualityFigures:
        """Live quality of the current model."""
        return self.status.model.quality or QualityFigures(None, 0, None, of_classes=False)

    @property
    def lineage(self) -> list[int]:
        """The current version, its parent, and so on, as far as they are stored."""
        line, parent = [self.champion], self.parents.get(self.champion)
        while parent is not None and parent not in line:
            line.append(parent)
            parent = self.parents.get(parent)
        return line

    @property
    def silent(self) -> list[str]:
        """Keys that have not sent a sample for too long."""
        return [key for key, sensor in self.sensors.items() if sensor.is_silent(self.monotonic)]

    @property
    def troubles(self) -> list[str]:
        """Problems in words: those of `edged status`, silent keys, and alarms."""
        found = attention(self.status)
        if silent := self.silent:
            more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
            found.append(f"no data from {', '.join(silent[:3])}{more}")
        if self.anomaly is not None and self.anomaly.standing:
            found.append(f"active alarm: {', '.join(self.anomaly.standing[:3])}")
        return found


def read_snapshot(
    pipeline: LivePipeline,
    status: StatusCollector,
    state: PageState,
    vitals: VitalsReader,
    scopes: Collection[Scope],
    reviews: LabelReviews,
) -> Snapshot:
    """Read all parts of the daemon, for a viewer with these scopes; this might wait for the disk."""
    counters = pipeline.samples.counters()
    records = pipeline.registry.records()
    anomalies = pipeline.predictor.anomalies
    with state.lock:
        state_values: dict[str, Any] = {
            "points": list(state.history.points),
            "marks": list(state.history.marks),
            "events": list(state.events),
            "evaluations": list(state.evaluations),
            "sensors": dict(state.sensors),
            "stuck": {key: sorted(features) for key, features in state.stuck.items()},
            "forgotten": state.forgotten,
        }
        requests = list(state.requests.values())
    return Snapshot(
        device=pipeline.config.device.id,
        schema=pipeline.predictor.schema,
        now=pipeline.clock.now(),
        monotonic=pipeline.clock.monotonic(),
        may_label="control" in scopes or "infer" in scopes,
        may_control="control" in scopes,
        status=status.status(),
        counters=counters,
        limit=pipeline.config.storage.max_bytes,
        new_labelled=status.new_labelled(),
        needed=pipeline.scheduler.triggers.needed,
        label_share=counters.labels / counters.samples if counters.samples else None,
        anomaly=None if anomalies is None else anomalies.figures(),
        vitals=vitals.read(),
        refused=pipeline.reader.quarantine_counts(),
        models=sorted(records, key=lambda record: -record.version)[:MODELS],
        parents={record.version: record.parent for record in records},
        reigns=pipeline.registry.reigns(MODELS),
        runs=pipeline.registry.runs(RUNS),
        connected=status.session.connected,
        requests=wanted(pipeline, requests),
        suspects=reviews.suspects(SUSPECTS),
        **state_values,
    )


def wanted(pipeline: LivePipeline, requests: Sequence[LabelRequested]) -> list[LabelRequested]:
    """Return requests (oldest first) with the model's answers of now, best first; newest first for values.

    Those whose sample has a label by now, or is gone, are left out where the stream has classes.
    """
    schema, reader = pipeline.schema, pipeline.reader
    if schema.task != "classify" or not requests:
        return list(reversed(requests))
    offsets = reader.find_many([LabelReading(0.0, id=said.id) for said in requests])
    stored = {one.offset: one for one in reader.stored([o for o in offsets if o is not None])}
    found = [
        (said, stored[offset].x)
        for said, offset in zip(requests, offsets, strict=True)
        if offset is not None and offset in stored and stored[offset].label is None
    ]
    if not found:
        return []
    try:
        p = probabilities(pipeline.predictor.champion.model.predict(np.stack([x for _, x in found])))
    except EdgedError:  # serving says so
        return [said for said, _ in reversed(found)]
    best = np.partition(p, -2, axis=1)[:, -2:]
    answers = [schema.classes[at] for at in p.argmax(axis=1).tolist()]
    now = [
        replace(said, answer=answer, confidence=sure)
        for (said, _), answer, sure in zip(found, answers, best[:, 1].tolist(), strict=True)
    ]
    order = in_order((best[:, 1] - best[:, 0]).tolist(), [said.random for said in now])
    return [now[at] for at in order]
