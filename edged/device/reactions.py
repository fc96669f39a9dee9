"""What follows when something happens in one part of a running device, and others have to hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.device.reporting.reporter import Throttle

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edged.device.assembly import Wired
    from edged.domain.drift import DriftSignal
    from edged.domain.judging.predictions import Predictions
    from edged.domain.protocols import ServedModel
    from edged.domain.stream.sample import Batch, LabelUpdate, Rejected
    from edged.mqtt.client.message import ReceivedMessage


class Reactions:
    """Handed to the parts when they are made; itself it finds them later, when all are there."""

    def __init__(self, device: Wired) -> None:
        self._device = device
        self._throttle = Throttle(device.clock)

    # What is made later than those who ask for it.

    def paused(self) -> list[str]:
        """What commands have paused."""
        return self._device.steering.pauses.paused()

    def settings(self) -> dict[str, Any]:
        """What commands have set."""
        return self._device.steering.settings.state()

    def command(self, delivery: ReceivedMessage) -> None:
        """A command came by another way than its topic."""
        self._device.control.receive(delivery)

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
            self._device.reporter.event(
                "sample_quarantined",
                {"reason": rejected.reason, "topic": rejected.topic, "detail": rejected.detail, "more": held},
            )

    def noticed(self, event: str, fields: dict[str, Any]) -> None:
        """What a stream's guards noticed; floods are told of once a second."""
        held = self._throttle.admit(event) if event == "sensor_flooding" else 0
        if held is not None:
            self._device.reporter.event(event, {"more": held} | fields)

    def predicted(self, payloads: list[bytes]) -> None:
        """Predictions, as they are published."""
        self._device.publishing.predictions(payloads)
        if self._device.edgenode is not None:
            self._device.edgenode.predicted(payloads)
        if self._device.web is not None:
            self._device.web.predicted(payloads)

    def answered(self, batch: Batch, part: slice, ids: Sequence[str], made: Predictions) -> None:
        """Samples were answered."""
        self._device.asking.answered(batch, part, ids, made)
        if self._device.web is not None:
            self._device.web.answered(made, ids, batch.keys[part], batch.ts[part])

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

    def rest(self, times: int) -> int:
        """Have training pause for so many times the labels of a run."""
        return self._device.learner.rest(times)

    def drifted(self, signal: DriftSignal) -> None:
        """Drift, or a warning of it."""
        self._device.reporter.event("drift_detected", signal.as_dict(self._device.schema.names))
        self._device.learning.drifted(signal, self._device.server.rise)

    def fallen(self) -> None:
        """Live quality has fallen."""
        self._device.learning.fallen(self._device.server.rise)

    # ---- reporting -------------------------------------------------------------------------

    def metrics(self, metrics: dict[str, Any]) -> None:
        """Metrics, as they are published."""
        if self._device.edgenode is not None:
            self._device.edgenode.report(metrics)

    def online(self) -> None:
        """The broker has taken our connection."""
        self._device.reporter.birth()
        self._device.discovery.online()

    def connection_changed(self) -> None:
        """It is there, or gone."""
        self._device.publishing.wake()
        self.tell_soon()

    def tell_soon(self) -> None:
        """Have the states told."""
        self._device.timetable.soon(self._device.telling.now)
