"""What a message holds: readings that are let in, labels, or a reason for the quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.clock import Clock
from edged.config import StreamConfig
from edged.device.ingest.notices import IngestNotices
from edged.domain.commits.commit_group import CommitGroup, Packet
from edged.domain.stream.admission import AdmissionControl, RefusalMonitor
from edged.domain.stream.sample import Batch, HoldReading, LabelReading, Observation, Reading, Rejected, Seen
from edged.errors import RejectedSampleError
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.codecs import label_codec
from edged.mqtt.topics import matches

if TYPE_CHECKING:
    from edged.domain.stream.windowing import Windowing
    from edged.mqtt.codecs import Decoder

log = get_logger("edged.ingest")


class SampleDecoder:
    """Decodes messages into readings, and lets in what their sensors may send.

    `stream`: where labels arrive, and how fast sensors may send. `codec` decodes the messages of samples;
    raises RejectedSampleError. `admission` judges rates, event times and sensors that have stopped. `clock`
    tells when a message is rejected, and measures rates. `notices` reports sensors that send too much, or
    have stopped.
    """

    def __init__(
        self,
        stream: StreamConfig,
        codec: Decoder[Reading | Sequence[Seen]],
        admission: AdmissionControl,
        clock: Clock,
        notices: IngestNotices,
    ) -> None:
        self._codec = codec
        self._watched = stream.watched
        # Where samples are joined their codec knows the labels, too.
        apart = not (stream.joined and stream.near_label is not None)
        self._label_filter = (stream.label_filter if apart else None) or ""
        self._label_codec = label_codec(stream) if self._label_filter else None
        self._clock = clock
        self._notices = notices
        self.admission = admission
        self.messages, self.labels = RefusalMonitor("messages"), RefusalMonitor("labels")

    @property
    def problem(self) -> str | None:
        """Why most messages, or most labels, are refused; None when most are taken."""
        return self.messages.problem or self.labels.problem

    def decode(
        self, delivery: ReceivedMessage, packet: Packet, group: CommitGroup
    ) -> Reading | list[Seen] | None:
        """Return what a message says; labels of samples, bad ones, and bad messages go to `group`."""
        of_label = self._label_codec is not None and matches(self._label_filter, delivery.topic)
        try:
            if self._label_codec is None or not of_label:
                found = self._codec.decode(delivery.topic, delivery.payload)
                self.record(self.messages, None)
                if isinstance(found, Reading):
                    self._look_at_label(found, delivery, group)
                    return found if self.admit(found) else None
                return self._several(found, delivery, group)
            label = _from(self._label_codec.decode(delivery.topic, delivery.payload), delivery.topic)
            if isinstance(label, HoldReading) or (label.key is not None and label.ts is None):
                return [label]
            group.labels.append(label)
            group.label_packets.append(packet)
        except Exception as problem:  # whatever a message does to a decoder, the stream goes on
            if not isinstance(problem, RejectedSampleError):
                log.exception("decoder_failed", topic=delivery.topic)
                problem = RejectedSampleError("internal", f"the decoder failed: {problem!r}"[:200])
            rejected = Rejected(
                self._clock.now(), delivery.topic, problem.reason, delivery.payload, problem.what, packet
            )
            group.rejected.append(rejected)
            self.record(self.labels if of_label else self.messages, f"{delivery.topic}: {problem.what}")
        return None

    def _several(self, found: Sequence[Seen], delivery: ReceivedMessage, group: CommitGroup) -> list[Seen]:
        """Let in what one message says of several samples, or of parts of them, and its labels."""
        accepted: list[Seen] = []
        for one in found:
            if isinstance(one, LabelReading | HoldReading):
                self.record(self.labels, None)
                accepted.append(_from(one, delivery.topic))
            else:
                self._look_at_label(one, delivery, group)
                if self.admit(one):
                    accepted.append(one)
        return accepted

    def _look_at_label(
        self, reading: Reading | Observation, delivery: ReceivedMessage, group: CommitGroup
    ) -> None:
        """Say where a label came from; one that the stream does not know is quarantined, its sample stays."""
        if reading.label is not None:
            self.record(self.labels, None)
            if isinstance(reading, Reading):
                reading.source = delivery.topic
        elif reading.refused_label is not None:
            now, what = self._clock.now(), reading.refused_label
            group.rejected.append(Rejected(now, delivery.topic, "label", delivery.payload, what))
            self.record(self.labels, f"{delivery.topic}: {what}")

    def record(self, monitor: RefusalMonitor, refused: str | None) -> None:
        """Record what was taken, or why not; when most are refused from now on, or no longer, report it."""
        if monitor.record(refused):
            self._notices.problem_changed()

    def admit_all(self, found: Sequence[Seen]) -> bool:
        """Whether all of what came together is let in."""
        return all(isinstance(one, LabelReading | HoldReading) or self.admit(one) for one in found)

    def admit(self, reading: Reading | Observation) -> bool:
        """Whether a reading is let in; a key that sends too many is reported."""
        if self.admission.admit(reading.key, self._clock.monotonic()):
            return True
        self._notices.flooding(reading.key)
        return False

    def cut(
        self, windowing: Windowing, readings: list[Reading], received: list[float], now: float
    ) -> tuple[list[Reading], NDArray[np.float64], list[float]]:
        """Return windows that end with these readings, their times, and when what completed them arrived."""
        # Without a time of their own, readings of one batch still came one after the other.
        delays = self._clock.monotonic() - np.asarray(received)
        times = [now - delay if r.ts is None else r.ts for r, delay in zip(readings, delays, strict=True)]
        self.watch([r.key for r in readings], np.array([r.values for r in readings], np.float32))
        ts = self.admission.event_times(times, now).tolist()
        windows, ends, completed = windowing.cut(readings, ts, received)
        return windows, np.array(ends, np.float64), completed

    def watch(self, keys: Sequence[str], x: NDArray[np.float32]) -> None:
        """Look for sensors that have stopped or move again in rows `x` `(n, d)`, one key each."""
        changes = self.admission.watch(keys, x[:, : self._watched])
        if changes:
            self._notices.stuck(changes)

    def implausible(self, batch: Batch, channels: int) -> frozenset[int]:
        """Report samples with values that cannot be, and return their offsets; `channels`: of a reading."""
        x = batch.x.reshape(len(batch), -1, channels)
        outside = self.admission.implausible_values(batch.keys, x)
        rows = np.flatnonzero(outside.any(axis=1)).tolist()
        for row in rows:
            feature = int(outside[row].argmax())
            values = x[row, :, feature]
            self._notices.implausible(batch.keys[row], feature, float(values[np.abs(values).argmax()]))
        return frozenset(batch.offsets[rows].tolist())


def _from(label: LabelReading | HoldReading, topic: str) -> LabelReading | HoldReading:
    """A label, with the topic of its message as its source."""
    return replace(label, source=topic) if isinstance(label, LabelReading) else label
