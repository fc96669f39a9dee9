"""How things stand at one moment, gathered for the page from the parts of the daemon; none is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edged.domain.text import attention

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edged.device.commands import Parts
    from edged.device.web.page.history import PageState, Point, Sensor
    from edged.domain.stream.schema import Schema
    from edged.host.vitals import Vitals, VitalsReader
    from edged.storage.models.registry import ModelRecord, Reign
    from edged.storage.samples.log import Counters

MODELS = 12  # the newest that are listed
RUNS = 5
PAUSABLE = ("training", "serving", "ingest")


@dataclass(frozen=True)
class Right:
    """What whoever looks may do: answer label requests, steer; and whether a session could be left."""

    label: bool
    control: bool
    session: bool


@dataclass(frozen=True)
class Snapshot:
    """One moment. `history`, `events` and the like are copies of what the board had."""

    device: str
    schema: Schema
    now: float
    monotonic: float
    may: Right
    status: Mapping[str, Any]
    counters: Counters
    limit: int
    new_labelled: int
    label_share: float | None
    anomaly: Mapping[str, Any] | None
    vitals: Vitals
    refused: Mapping[str, int]
    models: Sequence[ModelRecord]
    parents: Mapping[int, int | None]
    reigns: Sequence[Reign]
    runs: Sequence[Any]
    points: Sequence[Point]
    marks: Sequence[tuple[float, str, str]]
    events: Sequence[Mapping[str, Any]]
    requests: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    sensors: Mapping[str, Sensor]
    stuck: Mapping[str, Sequence[str]]
    forgotten: int
    connected: bool

    @property
    def champion(self) -> int:
        """The version that serves."""
        version: int = self.status["model"]["version"]
        return version

    @property
    def lineage(self) -> list[int]:
        """The champion, what it was trained from, and so on, as far as they are kept."""
        line, parent = [self.champion], self.parents.get(self.champion)
        while parent is not None and parent not in line:
            line.append(parent)
            parent = self.parents.get(parent)
        return line

    @property
    def silent(self) -> list[str]:
        """Keys that should have been heard by now."""
        return [key for key, sensor in self.sensors.items() if sensor.is_silent(self.monotonic)]

    @property
    def troubles(self) -> list[str]:
        """What keeps the device from being well: as `edged status` says it, and what only the page knows."""
        found = attention(self.status)
        if silent := self.silent:
            more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
            found.append(f"nothing comes any more from {', '.join(silent[:3])}{more}")
        if self.anomaly is not None and self.anomaly["standing"]:
            found.append(f"alarm of {', '.join(self.anomaly['standing'][:3])}")
        return found


def view_of(parts: Parts, board: PageState, vitals: VitalsReader, may: Right) -> Snapshot:
    """Look at everything; may wait for the disk."""
    counters = parts.samples.counters()
    records = parts.registry.records()
    anomalies = parts.server.anomalies
    with board.lock:
        noted: dict[str, Any] = {
            "points": list(board.history.points),
            "marks": list(board.history.marks),
            "events": list(board.events),
            "requests": list(board.requests.values()),
            "evaluations": list(board.evaluations),
            "sensors": dict(board.sensors),
            "stuck": {key: sorted(features) for key, features in board.stuck.items()},
            "forgotten": board.forgotten,
        }
    return Snapshot(
        device=parts.config.device.id,
        schema=parts.server.schema,
        now=parts.clock.now(),
        monotonic=parts.clock.monotonic(),
        may=may,
        status=parts.selfreport.status(),
        counters=counters,
        limit=parts.config.storage.max_bytes,
        new_labelled=parts.selfreport.new_labelled(),
        label_share=counters.labels / counters.samples if counters.samples else None,
        anomaly=None if anomalies is None else anomalies.figures(),
        vitals=vitals.read(),
        refused=parts.reader.quarantine_counts(),
        models=sorted(records, key=lambda record: -record.version)[:MODELS],
        parents={record.version: record.parent for record in records},
        reigns=parts.registry.reigns(MODELS),
        runs=parts.registry.runs(RUNS),
        connected=parts.session.connected,
        **noted,
    )
