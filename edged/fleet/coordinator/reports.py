"""What devices make of the model of a round."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from edged.domain.federated.messages import Evaluation
from edged.errors import RejectedUpdateError

if TYPE_CHECKING:
    from edged.fleet.coordinator.journal import CoordinatorJournal
    from edged.fleet.rules.rounds import FleetState
    from edged.storage.files.append_log import AppendLog
LATE = "late"


class RoundReports:
    """What devices say of the model of the round; one report each, kept until the rounds after it."""

    def __init__(self, journal: CoordinatorJournal, course: FleetState) -> None:
        self._journal = journal
        self._number = course.number
        self._reports: dict[tuple[str, str], Evaluation] = {}
        self._spool: AppendLog | None = None
        self._open(course.number)

    def turn(self, course: FleetState) -> None:
        """Continue with the round of `course`."""
        if course.number == self._number:
            return
        self.close()
        self._number = course.number
        self._reports.clear()
        self._open(course.number)

    def receive(self, device: str, number: int | None, payload: bytes, course: FleetState) -> None:
        """Store a report; a report that is known changes nothing.

        Raises RejectedUpdateError when it is not one on the model that is tried now, by a device that was
        asked.
        """
        report, announced = Evaluation.read(payload), course.round
        if report.device != device or report.round != number:
            raise RejectedUpdateError("identity", f"the topic is of {device}, the report of {report.device}")
        tried = course.phase in ("trial", "approval")
        if announced is None or not tried or (report.id, report.base) != (announced.id, announced.base.hash):
            raise RejectedUpdateError(LATE, "no such model is tried now")
        if not announced.names(device):
            raise RejectedUpdateError("not_chosen", f"{device} was not asked to try it")
        if (device, report.base) not in self._reports:
            self._reports[device, report.base] = report
            if self._spool is not None:
                self._spool.append(json.loads(report.payload()), b"")

    def commit(self) -> None:
        """Make accepted reports durable."""
        if self._spool is not None:
            self._spool.sync()

    def of(self, digest: str) -> list[Evaluation]:
        """The reports on a model, by name."""
        return [report for (_, base), report in sorted(self._reports.items()) if base == digest]

    def close(self) -> None:
        """Close the file without deleting it."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _open(self, number: int) -> None:
        if number < 1:
            return
        self._spool = self._journal.reports(number)
        for record in self._spool.records:
            report = Evaluation.read(record.text)
            self._reports[report.device, report.base] = report
