"""Ingest on a sample log of its own, and what it hands on."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from edged.clock import VirtualClock
from edged.config import MqttConfig, StorageConfig, StreamConfig
from edged.device.ingest import Ingestor
from edged.domain.stream.admission import AdmissionControl, AdmissionRules
from edged.domain.stream.windowing import Windowing
from edged.errors import StorageError
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.codecs import label_codec, sample_codec
from edged.mqtt.topics import matches
from edged.storage.samples.log import SampleLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from edged.domain.stream.sample import Batch, LabelUpdate, Rejected
    from edged.mqtt.client.session import Session

CLASSIFY: dict[str, Any] = {
    "features": 2,
    "classes": ["ok", "worn"],
    "label": "label",
    "key": "topic:1",
    "ts": "ts",
}
JOINED: dict[str, Any] = {**CLASSIFY, "id": "id", "label_topic": "labels/#"}


class FailingLog(SampleLog):
    """A sample log whose disk fails: on the commits of these numbers, counted from 1, or while `broken`.

    The commits numbered in `late` come through, and an error is raised all the same.
    """

    failing: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    broken = False
    commits = 0

    def commit(self, *arguments: Any, **named: Any) -> None:
        self.commits += 1
        problem = StorageError("disk I/O error", where="samples.db")
        if self.broken or self.commits in self.failing:
            raise problem
        super().commit(*arguments, **named)
        if self.commits in self.late:
            raise problem


class Dock:
    """Ingest on a log of its own; notes what it hands on, and what was durable at that moment."""

    def __init__(self, folder: Path, stream: dict[str, Any] | None = None, **storage: Any) -> None:
        self.path = folder / "samples.db"
        self.stream = StreamConfig(**(stream or CLASSIFY))
        self.schema = self.stream.to_schema()
        self.config = StorageConfig(dir=folder, commit_delay=0, **storage)
        self.acknowledged: list[Any] = []
        self.durable_at_ack: list[int] = []
        self.batches: list[Batch] = []
        self.stored_at_batch: list[int] = []
        self.labels: list[LabelUpdate] = []
        self.rejected: list[Rejected] = []
        self.redeliveries = 0
        self.on_batch: Callable[[Batch, Any], None] = self._on_batch
        self.on_redeliver: Callable[[], None] = self._count_redelivery
        self.on_acknowledge: Callable[[Sequence[Any]], None] = self._note_acknowledged
        self.committed = 0
        self.problems: list[str | None] = []
        self.order: list[str] = []
        self.notices: list[tuple[str, dict[str, Any]]] = []
        self.clock, self.rules = VirtualClock(1000.0), AdmissionRules()
        self.max_age: float | None = None
        self.in_flight = MqttConfig().receive_maximum
        self.open()

    def open(self, session: Session | None = None) -> None:
        """Begin, or begin anew as after a restart."""
        log = FailingLog.open(self.path, self.schema, holdout=0.1, max_age=self.max_age)
        assert isinstance(log, FailingLog)
        self.log: FailingLog = log
        window = self.stream.window
        codec, filters = sample_codec(self.stream, clock=self.clock), self.stream.label_topic
        forecast = (
            (self.stream.forecast_columns, self.stream.horizon) if self.schema.task == "forecast" else None
        )
        self.ingest = Ingestor(
            config=self.config,
            schema=self.schema,
            unacknowledged=MqttConfig().receive_maximum,
            store=self.log,
            clock=self.clock,
            decode=codec.decode,
            decode_label=label_codec(self.stream).decode if filters else None,
            is_label=(lambda topic: matches(filters, topic)) if filters else (lambda _: False),
            acknowledge=self._acknowledge if session is None else session.ack,
            redeliver=self._redeliver if session is None else session.drop,
            on_batch=self._hand_over,
            on_labels=self.labels.extend,
            on_committed=self._on_committed,
            on_rejected=self.rejected.append,
            beat=lambda: None,
            on_problem=lambda: self.problems.append(self.ingest.problem),
            forecast=forecast,
            join_expiry=self.stream.join_expiry,
            intake=AdmissionControl(self.rules, self.schema.channels),
            windowing=None if window is None else Windowing(window.rules(), self.stream.width),
            notice=lambda *event: self.notices.append(event),
            in_flight=lambda: self.in_flight,
        )

    def stored(self) -> int:
        """Samples that another connection sees: only what is committed."""
        with closing(SampleLog.open(self.path, self.schema, readonly=True)) as reader:
            return reader.counters().samples

    def _acknowledge(self, deliveries: Sequence[Any]) -> None:
        self.on_acknowledge(deliveries)

    def _note_acknowledged(self, deliveries: Sequence[Any]) -> None:
        self.order.append("acknowledge")
        self.acknowledged.extend(deliveries)
        self.durable_at_ack.append(self.stored())

    def _redeliver(self) -> None:
        self.on_redeliver()

    def _count_redelivery(self) -> None:
        self.redeliveries += 1

    def inputs(self) -> list[float]:
        """First input of every stored sample, oldest first."""
        return [float(x) for x in self.log.recent_inputs(10_000)[:, 0]]

    def _hand_over(self, batch: Batch, received: Any) -> None:
        self.on_batch(batch, received)

    def _on_batch(self, batch: Batch, received: Any) -> None:
        assert len(received) == len(batch)
        self.order.append("batch")
        self.batches.append(batch)
        self.stored_at_batch.append(self.stored())

    def _on_committed(self, labelled: int) -> None:
        self.committed += labelled

    def close(self) -> None:
        self.log.close()


def gathering(folder: Path, *, in_flight: int = 2000, delay: float = 5.0) -> Dock:
    """One whose samples wait for each other, so many seconds at most."""
    dock = Dock(folder)
    dock.config = dock.config.model_copy(update={"commit_delay": delay})
    dock.in_flight = in_flight
    dock.close()
    dock.open()
    return dock


@contextmanager
def running(dock: Dock) -> Iterator[Ingestor]:
    """The ingest thread; what was received is worked on when the block ends."""
    dock.ingest.start()
    yield dock.ingest
    dock.ingest.stop()


def delivery(
    mid: int, topic: str = "s/m1", *, dup: bool = False, payload: bytes | None = None, **fields: Any
) -> ReceivedMessage:
    body = payload if payload is not None else json.dumps({"x": [mid, 0.5], **fields}).encode()
    return ReceivedMessage(topic, body, mid, 1, dup, False, 1, 0.0)


def again(first: ReceivedMessage) -> ReceivedMessage:
    """The same, delivered once more by the broker."""
    return ReceivedMessage(first.topic, first.payload, first.mid, 1, True, False, 2, 0.0)
