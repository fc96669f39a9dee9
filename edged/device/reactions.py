"""What follows when something happens in one part of a running device, and others have to hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.device.outbound.reporter import Throttle
from edged.domain.training.guards import FlashWear

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edged.device.assembly import Assembly
    from edged.domain.drift import DriftSignal
    from edged.domain.judging.predictions import Predictions
    from edged.domain.protocols import ServedModel
    from edged.domain.stream.sample import Batch, LabelUpdate, Rejected


class Reactions:
    """Handed to the parts when they are made; itself it finds them later, when all are there."""

    def __init__(self, device: Assembly) -> None:
        self._device = device
        self._throttle = Throttle(device.clock)
        self._wear = FlashWear(0.0)

    # ---- samples and labels ----------------------------------------------------------------

    def read(self, batch: Batch, received: NDArray[np.float64]) -> None:
        """A batch of samples was read."""
        self._device.serving.submit(batch, received)

    def labelled(self, updates: list[LabelUpdate]) -> None:
        """Labels have found their samples."""
        self._device.serving.label(updates)

    def committed(self, labelled: int) -> None:
        """A group is on the disk, with so many labels in it."""
        if labelled or self._device.schema.labels_itself:
            self._device.learning.wake()

    def rejected(self, rejected: Rejected) -> None:
        """A message was put into quarantine; floods are told of once a second."""
        held = self._throttle.admit(rejected.reason)
        if held is not None:
            self._device.events.event(
                "sample_quarantined",
                {"reason": rejected.reason, "topic": rejected.topic, "detail": rejected.detail, "more": held},
            )

    def noticed(self, event: str, fields: dict[str, Any]) -> None:
        """What a stream's guards noticed; floods are told of once a second."""
        held = self._throttle.admit(event) if event == "sensor_flooding" else 0
        if held is not None:
            self._device.events.event(event, {"more": held} | fields)

    def predicted(self, payloads: list[bytes]) -> None:
        """Predictions, as they are published."""
        self._device.outbound.predictions(payloads)
        self._device.events.predicted(payloads)

    def answered(self, batch: Batch, part: slice, ids: Sequence[str], made: Predictions) -> None:
        """Samples were answered."""
        self._device.asking.answered(batch, part, ids, made)
        self._device.events.answered(made, ids, batch.keys[part], batch.ts[part])

    def sample_id(self, offset: int) -> str:
        """The name of a sample that has none of its own."""
        return f"{self._device.boot}-{offset}"

    # ---- learning and promotion ------------------------------------------------------------

    def probation_ended(self, passed: bool) -> None:
        """The champion has passed its probation, or failed."""
        version = self._device.server.champion.version
        self._device.learning.later(lambda: self._device.succession.probation_ended(version, passed))

    def champion_failed(self, served: ServedModel, reason: str) -> None:
        """A champion could not answer, and another does."""
        self._device.learning.later(lambda: self._device.succession.champion_failed(served.version, reason))

    def worn(self) -> bool:
        """Whether trainings have written more than they may."""
        rate = self._device.config.training.max_write_rate
        if rate is None:
            return False
        self._wear.rate = rate
        return self._wear.worn(self._device.learner.written, self._device.clock.monotonic())

    def rest(self, times: int) -> int:
        """Have training pause for so many times the labels of a run."""
        return self._device.learner.rest(times)

    def drifted(self, signal: DriftSignal) -> None:
        """Drift, or a warning of it."""
        self._device.events.event("drift_detected", signal.as_dict(self._device.schema.names))
        self._device.learning.drifted(signal, self._device.server.rise)

    def fallen(self) -> None:
        """Live quality has fallen."""
        self._device.learning.fallen(self._device.server.rise)

    def online(self) -> None:
        """The broker has taken our connection."""
        self._device.events.online()
        self._device.events.connection_changed()
