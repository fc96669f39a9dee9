"""What a message says: readings that are let in, labels, or a reason for the quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.stream.sample import Reading, Rejected
from edged.errors import RejectedSampleError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from edged.clock import Clock
    from edged.domain.protocols import Delivery
    from edged.domain.stream.admission import AdmissionControl
    from edged.domain.stream.commit_group import CommitGroup
    from edged.domain.stream.redelivery import Packet
    from edged.domain.stream.sample import Decoded, LabelReading
    from edged.domain.stream.schema import Schema
    from edged.domain.stream.windowing import Windowing

log = get_logger("edged.ingest")

NOTICES = 20  # of one batch, at most


class SampleDecoder:
    """Decodes deliveries, asks intake whether their sensors may send so much, and tells of odd sensors.

    Parameters
    ----------
    decode, decode_label
        What a payload says, raising RejectedSampleError; None where no labels come by themselves.
    is_label
        Whether a topic is one of labels.
    notice
        Called with the kind and the fields of an event.
    """

    def __init__(
        self,
        *,
        schema: Schema,
        decode: Callable[[str, bytes], Decoded],
        decode_label: Callable[[str, bytes], LabelReading] | None,
        is_label: Callable[[str], bool],
        intake: AdmissionControl,
        clock: Clock,
        notice: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._schema = schema
        self._decode = decode
        self._decode_label = decode_label
        self._is_label = is_label
        self._intake = intake
        self._clock = clock
        self._notice = notice

    def read(self, delivery: Delivery, packet: Packet, group: CommitGroup) -> Decoded | None:
        """The readings of a message; labels and bad messages go to the group."""
        try:
            if self._decode_label is None or not self._is_label(delivery.topic):
                found = self._decode(delivery.topic, delivery.payload)
                if isinstance(found, Reading):
                    return found if self.admit(found) else None
                return [reading for reading in found if self.admit(reading)]
            group.labels.append(self._decode_label(delivery.topic, delivery.payload))
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
        """Whether a reading is let in; a key that sends too many is told of once."""
        if self._intake.admit(reading.key, self._clock.monotonic()):
            return True
        self._notice("sensor_flooding", {"key": reading.key})
        return False

    def cut(
        self, windowing: Windowing, readings: list[Reading], received: list[float], now: float
    ) -> tuple[list[Reading], NDArray[np.float64], list[float]]:
        """Windows that end with these readings, their times, and when what completed them was received."""
        # Without a time of their own, readings of one batch still came one after the other.
        delays = self._clock.monotonic() - np.asarray(received)
        times = [now - delay if r.ts is None else r.ts for r, delay in zip(readings, delays, strict=True)]
        self.watch([r.key for r in readings], np.array([r.values for r in readings], np.float32))
        ts = self._intake.event_times(times, now).tolist()
        windows, ends, completed = windowing.cut(readings, ts, received)
        return windows, np.array(ends, np.float64), completed

    def watch(self, keys: Sequence[str], x: NDArray[np.float32]) -> None:
        """Sensors that have stopped or moved again: one event for each, up to a limit."""
        changes = self._intake.watch(keys, x)
        for change in changes[:NOTICES]:
            names = [self._schema.names[i] if self._schema.names else i for i in change.features]
            self._notice(
                "sensor_stuck" if change.stuck else "sensor_moves",
                {"key": change.key, "features": names, "more": max(0, len(changes) - NOTICES)},
            )
