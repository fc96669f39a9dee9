"""What a message holds: readings that are let in, labels, or a reason for the quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.stream.sample import Reading, Rejected
from edged.errors import RejectedSampleError
from edged.logs import get_logger
from edged.mqtt.codecs import label_codec
from edged.mqtt.topics import matches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.clock import Clock
    from edged.config import StreamConfig
    from edged.device.ingest.notices import IngestNotices
    from edged.domain.protocols import Delivery
    from edged.domain.stream.admission import AdmissionControl
    from edged.domain.stream.commit_group import CommitGroup
    from edged.domain.stream.redelivery import Packet
    from edged.domain.stream.sample import Decoded
    from edged.domain.stream.windowing import Windowing
    from edged.mqtt.codecs.compressed import Decoder

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
        codec: Decoder[Decoded],
        admission: AdmissionControl,
        clock: Clock,
        notices: IngestNotices,
    ) -> None:
        self._codec = codec
        self._label_codec = label_codec(stream) if stream.label_topic else None
        self._label_filter = stream.label_topic or ""
        self._clock = clock
        self._notices = notices
        self.admission = admission

    def decode(self, delivery: Delivery, packet: Packet, group: CommitGroup) -> Decoded | None:
        """Return the readings of a message; labels and bad messages go to `group`."""
        try:
            if self._label_codec is None or not matches(self._label_filter, delivery.topic):
                found = self._codec.decode(delivery.topic, delivery.payload)
                if isinstance(found, Reading):
                    return found if self.admit(found) else None
                return [reading for reading in found if self.admit(reading)]
            group.labels.append(self._label_codec.decode(delivery.topic, delivery.payload))
            group.label_packets.append(packet)
        except Exception as problem:  # whatever a message does to a decoder, the stream goes on
            if not isinstance(problem, RejectedSampleError):
                log.exception("decoder_failed", topic=delivery.topic)
                problem = RejectedSampleError("internal", f"the decoder failed: {problem!r}"[:200])
            rejected = Rejected(
                self._clock.now(), delivery.topic, problem.reason, delivery.payload, problem.what, packet
            )
            group.rejected.append(rejected)
        return None

    def admit(self, reading: Reading) -> bool:
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
        changes = self.admission.watch(keys, x)
        if changes:
            self._notices.stuck(changes)
