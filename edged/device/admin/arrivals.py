"""What would become of the messages on a device's topics: samples, labels, or refusals with their reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from edged.clock import Clock
from edged.config import Config
from edged.device.events import Events
from edged.device.ingest.decoder import SampleDecoder
from edged.device.ingest.joiner import Joiner
from edged.device.ingest.notices import IngestNotices
from edged.domain.commits.commit_group import CommitGroup
from edged.domain.stream.admission import AdmissionControl
from edged.domain.stream.sample import HoldReading, LabelReading, Reading
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.codecs import sample_codec
from edged.mqtt.topics import matches
from edged.storage.samples.log import SampleLog


@dataclass
class TopicCount:
    """Messages on one filter, and why some would be refused, in the decoder's words."""

    messages: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Arrivals:
    """Decodes and joins messages as ingest does, and counts; nothing is stored.

    `topics` has an entry for each filter of the configuration. `samples` counts what would be one (readings,
    where samples are windows of them), `labelled` those that would have a label at once.
    `label_topic` is the filter of labels that come by themselves, None where none do.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        stream = config.stream
        self._config, self._clock = config, clock
        notices = IngestNotices(stream.to_schema(), Events(), clock)
        admission = AdmissionControl(stream.admission_rules(), stream.watched)
        self._decoder = SampleDecoder(stream, sample_codec(stream, clock=clock), admission, clock, notices)
        self._joiner = Joiner(stream, admission, clock, notices)
        self.label_topic = stream.label_filter
        self.topics = {name: TopicCount() for name in stream.all_topics}
        self.samples = self.labelled = self.held = 0
        self.labels: list[LabelReading] = []
        self._ids: set[str] = set()
        self._times: list[tuple[str, float]] = []

    @property
    def awaited(self) -> list[str]:
        """Features without a value so far, for want of which no sample can be made."""
        return self._joiner.awaited

    def add(self, delivery: ReceivedMessage) -> None:
        """Count one message, and what ingest would make of it."""
        group = CommitGroup()
        found = self._decoder.decode(delivery, (0, 0), group)
        for name, count in self.topics.items():
            if matches(name, delivery.topic):
                count.messages += 1
                count.refused.update(item.detail for item in group.rejected)
        readings = [found] if isinstance(found, Reading) else found or []
        self.held += sum(isinstance(one, HoldReading) for one in readings)
        self._count(self._joiner.join(readings, delivery.received, group))
        self.labels += group.labels

    def count_due(self) -> None:
        """Count the samples by the clock that are due."""
        self._count(self._joiner.tick())

    def _count(self, made: list[Reading]) -> None:
        for reading in made:
            self.samples += 1
            self.labelled += reading.label is not None
            if reading.id is not None:
                self._ids.add(reading.id)
            self._times.append((reading.key, self._clock.now() if reading.ts is None else reading.ts))

    def joined(self) -> int:
        """How many of the labels would find a sample: one of those seen, or one in the device's log."""
        near = self._config.stream.join_tolerance
        left = [
            label
            for label in self.labels
            if label.id not in self._ids
            and not any(
                label.key == key and label.ts is not None and abs(label.ts - ts) <= near
                for key, ts in self._times
            )
        ]
        return len(self.labels) - len(left) + self._stored(left)

    def _stored(self, labels: list[LabelReading]) -> int:
        path = self._config.storage.dir / "samples.db"
        if not labels or not path.exists():
            return 0
        log = SampleLog.open(path, self._config.stream.to_schema(), readonly=True)
        try:
            return sum(offset is not None for offset in log.find_many(labels))
        finally:
            log.close()
