"""The device that a member of a fleet runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.federated.participation import MembershipRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.device.events import Events
    from edged.device.learning.worker import TrainingWorker
    from edged.storage.models.registry import Registry

RECORD = "fleet"  # name of the registry's value


class DeviceHost:
    """Keeps a member's record in the registry and carries out its work on the learning thread.

    Parameters
    ----------
    registry
        Stores the record.
    worker
        Carries out work between two training runs.
    events
        Hears what happens in the fleet.
    """

    def __init__(self, registry: Registry, worker: TrainingWorker, events: Events) -> None:
        self._registry, self._worker, self._events = registry, worker, events
        self._record = MembershipRecord.from_json(registry.get_value(RECORD) or {})

    @property
    def record(self) -> MembershipRecord:
        """The membership record as it was last stored."""
        return self._record

    def store(self, record: MembershipRecord) -> None:
        """Store the membership record durably.

        Raises
        ------
        StorageError
            When the disk refuses.
        """
        self._registry.set_value(RECORD, record.to_json())
        self._record = record

    def between_runs(self, job: Callable[[], None]) -> None:
        """Call `job` on the learning thread, after the present training run."""
        self._worker.between_runs(job)

    def event(self, name: str, fields: dict[str, Any]) -> None:
        """Report an event of the contract."""
        self._events.event(name, fields)
