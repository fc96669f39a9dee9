"""Ingest on a sample log of its own, and what it hands on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.clock import VirtualClock
from edged.config import Config, DeviceConfig, MqttConfig, StorageConfig, StreamConfig
from edged.device.events import Events, Listener
from edged.device.ingest.committer import GroupCommitter
from edged.device.ingest.decoder import SampleDecoder
from edged.device.ingest.ingestor import Ingestor
from edged.device.ingest.joiner import Joiner
from edged.device.ingest.notices import IngestNotices
from edged.domain.stream.admission import AdmissionControl, AdmissionRules
from edged.errors import StorageError
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.codecs import sample_codec
from edged.storage.samples.log import SampleLog
from tests.constants import section
from tests.device.partners import Supervisor, watchdog
from tests.storage.stream import stored_inputs

if TYPE_CHECKING:
    from edged.domain.events import Event
    from edged.domain.stream.sample import Batch, LabelUpdate, Rejected
    from edged.mqtt.client.session import Session

CLASSIFY: dict[str, Any] = {
    "features": 2,
    "classes": ["ok", "worn"],
    "label": "label",
    "key": "topic:1",
    "ts": "ts",
}
MATCHED = {"topic": "labels/#", "path": "label", "join": "id"}
JOINED: dict[str, Any] = {**CLASSIFY, "id": "id", "label": MATCHED}


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


class Notices(IngestNotices):
    """Keeps what is reported besides."""

    def __init__(self, dock: Dock) -> None:
        super().__init__(dock.schema, Events(Hearing(dock)), dock.clock)
        self._dock = dock

    def rejected(self, rejected: Rejected) -> None:
        self._dock.rejected.append(rejected)
        super().rejected(rejected)


class Hearing(Listener):
    """Keeps events of sensors, and every change of the problem."""

    def __init__(self, dock: Dock) -> None:
        self._dock = dock

    def event(self, event: Event) -> None:
        if event.name.startswith(("sensor_", "sample_implausible")):
            self._dock.notices.append((event.name, event.to_json()))

    def problem_changed(self) -> None:
        self._dock.problems.append(self._dock.committer.problem)


class Dock(Supervisor):
    """Ingest on a log of its own; notes what it hands on, and what was durable at that moment."""

    def __init__(self, folder: Path, stream: dict[str, Any] | None = None, **storage: Any) -> None:
        self.path = folder / "samples.db"
        self.stream = StreamConfig(**(stream or CLASSIFY))
        self.schema = self.stream.to_schema()
        self.config: StorageConfig = section("storage", {"dir": folder, "commit_delay": 0, **storage})
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
        self.notices: list[tuple[str, Mapping[str, Any]]] = []
        self.clock, self.rules = VirtualClock(1000.0), AdmissionRules()
        self.max_age: float | None = None
        self.in_flight = MqttConfig().constants.receive_maximum
        self.open()

    def open(self, session: Session | None = None) -> None:
        """Begin, or begin anew as after a restart."""
        log = FailingLog.open(self.path, self.schema, holdout=0.1, max_age=self.max_age)
        assert isinstance(log, FailingLog)
        self.log: FailingLog = log
        config = Config(
            device=DeviceConfig(id="d"),
            mqtt=MqttConfig(),
            stream=self.stream,
            storage=self.config,
        )
        notices = Notices(self)
        codec = sample_codec(self.stream, clock=self.clock)
        admission = AdmissionControl(self.rules, self.stream.watched)
        decoder = SampleDecoder(self.stream, codec, admission, self.clock, notices)
        self.committer = GroupCommitter(
            config,
            self.log,
            broker=session or self,
            serving=self,
            supervisor=self,
            decoder=decoder,
            notices=notices,
            clock=self.clock,
            watchdog=watchdog(),
        )
        self.ingestor = Ingestor(
            config,
            self.log,
            decoder=decoder,
            joiner=Joiner(self.stream, admission, self.clock, notices),
            serving=self,
            committer=self.committer,
            clock=self.clock,
            watchdog=watchdog(),
        )

    def turn(self) -> None:
        """One turn of the ingest thread."""
        self.ingestor._turn(woken=True)  # noqa: SLF001  how much it does at a time is what is tested

    def work(self, deliveries: Sequence[Any]) -> None:
        """Take in messages as the ingest thread does, and commit them without delay."""
        self.ingestor.ingest_messages(deliveries)
        self.committer.commit()

    def stored(self) -> int:
        """Samples that another connection sees: only what is committed."""
        with closing(SampleLog.open(self.path, self.schema, readonly=True)) as reader:
            return reader.counters().samples

    def ack(self, deliveries: Sequence[Any]) -> None:
        self.on_acknowledge(deliveries)

    def _note_acknowledged(self, deliveries: Sequence[Any]) -> None:
        self.order.append("acknowledge")
        self.acknowledged.extend(deliveries)
        self.durable_at_ack.append(self.stored())

    def drop(self) -> None:
        self.on_redeliver()

    def _count_redelivery(self) -> None:
        self.redeliveries += 1

    def inputs(self) -> list[float]:
        """First input of every stored sample, oldest first."""
        return [float(x) for x in stored_inputs(self.path, self.schema.width)[:, 0]]

    def submit(self, batch: Batch, received: Any) -> None:
        self.on_batch(batch, received)

    def label(self, updates: list[LabelUpdate]) -> None:
        self.labels.extend(updates)

    def _on_batch(self, batch: Batch, received: Any) -> None:
        assert len(received) == len(batch)
        self.order.append("batch")
        self.batches.append(batch)
        self.stored_at_batch.append(self.stored())

    def wake(self) -> None:
        self.committed = self.log.last_seq()

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
    dock.ingestor.start()
    yield dock.ingestor
    dock.ingestor.stop()


def delivery(
    mid: int, topic: str = "s/m1", *, dup: bool = False, payload: bytes | None = None, **fields: Any
) -> ReceivedMessage:
    body = payload if payload is not None else json.dumps({"x": [mid, 0.5], **fields}).encode()
    return ReceivedMessage(topic, body, mid, 1, dup, False, 1, time.monotonic())


def again(first: ReceivedMessage) -> ReceivedMessage:
    """The same, delivered once more by the broker."""
    return ReceivedMessage(first.topic, first.payload, first.mid, 1, True, False, 2, 0.0)
