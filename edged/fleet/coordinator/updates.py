"""Updates and reports of devices: admitted, made durable, then acknowledged, as often as they arrive."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from edged.domain.federated.messages import Evaluation, Receipts, UpdateHeader
from edged.domain.training.message import Message
from edged.errors import RejectedUpdateError
from edged.fleet.coordinator.control import ControlReader
from edged.fleet.coordinator.journal import CoordinatorJournal
from edged.fleet.rules.admission import LATE, MAX_SAMPLES, admit, check_claims, check_round, check_sender
from edged.fleet.rules.aggregation import RoundUpdate
from edged.fleet.rules.layout import Layout
from edged.fleet.rules.rounds import FleetState
from edged.logs import get_logger
from edged.storage.files.append_log import LogRecord

HELD_BYTES = 64 * 1024**2
NAMES = 500

log = get_logger("edged.fleet")


@dataclass
class _Answers:
    """Content of the next receipts for the devices of one round."""

    accepted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredUpdate(Message):
    """Head of a stored update: `samples` as far as they count, `factor` by which its row is scaled."""

    device: str
    samples: int
    factor: float
    sha256: str


class PartialUpdates:
    """Updates of which not all parts have come; the oldest give way when they hold more than `limit` bytes.

    >>> from edged.domain.federated.messages import UpdateHeader
    >>> parts, update = PartialUpdates(100), UpdateHeader("a", 1, "0", "0", 1, 4, "0", parts=2)
    >>> parts.add(update, b"ab") is None, parts.held
    (True, 2)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[str, tuple[str, dict[int, bytes]]] = {}  # by device: hash and parts
        self.held = 0

    def add(self, update: UpdateHeader, piece: bytes) -> bytes | None:
        """Return the whole blob if no part is missing now.

        RejectedUpdateError if the parts are larger than announced.
        """
        if update.parts == 1:
            return piece
        key = update.device
        if key in self._waiting and self._waiting[key][0] != update.sha256:
            self._drop(key)
        _, pieces = self._waiting.setdefault(key, (update.sha256, {}))
        self.held += len(piece) - len(pieces.get(update.part, b""))
        pieces[update.part] = piece
        if sum(map(len, pieces.values())) > update.bytes:
            self._drop(key)
            raise RejectedUpdateError("size", "its parts are more than its line says")
        if len(pieces) < update.parts:
            self._bound(key)
            return None
        self._drop(key)
        return b"".join(pieces[part] for part in range(update.parts))

    def _bound(self, newest: str) -> None:
        # A device that continues with its parts is younger than one that does not.
        self._waiting[newest] = self._waiting.pop(newest)
        while self.held > self._limit and len(self._waiting) > 1:
            self._drop(next(iter(self._waiting)))

    def _drop(self, key: str) -> None:
        self.held -= sum(map(len, self._waiting.pop(key)[1].values()))


class UpdateAdmission:
    """Takes updates into the file of the round that is open.

    `refused` counts the messages that were refused in this round, by reason.
    """

    def __init__(
        self,
        journal: CoordinatorJournal,
        layout: Layout,
        course: FleetState,
        control: ControlReader,
    ) -> None:
        self._journal, self._layout, self._control = journal, layout, control
        self._answers: defaultdict[tuple[int, str], _Answers] = defaultdict(_Answers)
        self.refused = Counter[str]()
        self._course = course
        self._begin()

    def turn(self, course: FleetState) -> None:
        """Continue with the state of `course`; a new round begins a file of its own."""
        before, self._course = self._course, course
        if course.number != before.number:
            self.close()
            self.refused.clear()
            self._begin()

    def _begin(self) -> None:
        number = self._course.number
        self._spool = self._journal.updates(number)
        self._records: dict[str, LogRecord] = {
            record.head["device"]: record for record in self._spool.records
        }
        self._parts = PartialUpdates(HELD_BYTES)
        self._journal.forget(number)

    @property
    def accepted(self) -> int:
        """Number of devices whose update for the round was accepted."""
        return len(self._records)

    @property
    def contributors(self) -> list[str]:
        """Names of these devices, in order."""
        return sorted(self._records)

    def updates(self) -> list[RoundUpdate]:
        """List the updates that count, in the order of names: the same whatever came first."""
        spool, excluded = self._spool, self._control.read().excluded
        found = []
        for device in sorted(self._records.keys() - excluded):
            record = self._records[device]
            head = StoredUpdate.from_json(record.head)
            found.append(RoundUpdate(head.samples, head.factor, partial(spool.read, record)))
        return found

    def receive(self, device: str, number: int | None, part: int | None, payload: bytes) -> None:
        """Receive one message on the topic of an update. The update counts when `commit` has returned."""
        answer: tuple[int, str] | None = None
        try:
            update, piece = UpdateHeader.read(payload)
            answer = (update.round, update.id) if update.round == number else None
            check_sender(update, device, number, part)
            self._control.check(device)
            if self._is_stored(update):
                self._answers[update.round, update.id].accepted.append(device)
            else:
                self._add(update, piece)
        except RejectedUpdateError as problem:
            self._refuse(device, problem, answer)

    def _is_stored(self, update: UpdateHeader) -> bool:
        """Return whether the update is stored already; refuse another one of the same device."""
        announced, record = self._course.round, self._records.get(update.device)
        if announced is None or announced.id != update.id or record is None:
            return False
        if record.head["sha256"] != update.sha256:
            raise RejectedUpdateError("duplicate", f"{update.device} has sent another update for this round")
        return True

    def _add(self, update: UpdateHeader, piece: bytes) -> None:
        """Add a part; with the last one, check the update and store it."""
        announced = self._course.round
        if announced is None:
            raise RejectedUpdateError("round", "no round is open")
        check_round(update, announced)
        check_claims(update, self._layout)
        blob = self._parts.add(update, piece)
        if blob is None:
            return
        settings = announced.config  # as it was announced: the file may have changed since
        found = admit(update, blob, self._layout, settings)
        samples = min(update.samples, MAX_SAMPLES)
        stored = StoredUpdate(update.device, samples, found.factor, update.sha256)
        self._records[update.device] = self._spool.append(stored.to_json(), found.row.to_bytes())
        self._answers[update.round, update.id].accepted.append(update.device)

    def commit(self) -> list[tuple[int, Receipts]]:
        """Make durable what was taken; round and receipts that may be sent then."""
        self._spool.sync()
        receipts = [
            (number, Receipts(token, tuple(names), refused))
            for (number, token), answers in self._answers.items()
            for names, refused in _pieces(answers)
        ]
        self._answers.clear()
        return receipts

    def close(self) -> None:
        """Close the file of updates without deleting it."""
        self._spool.close()

    def count(self, problem: RejectedUpdateError) -> None:
        """Count a message that was refused."""
        self.refused[problem.reason] += 1

    def _refuse(self, device: str, problem: RejectedUpdateError, answer: tuple[int, str] | None) -> None:
        if not self.refused[problem.reason]:
            log.warning("update_refused", device=device, reason=problem.reason, problem=problem.line())
        self.count(problem)
        announced = self._course.round
        if answer is None and announced is not None:
            answer = announced.round, announced.id
        if answer is not None:
            self._answers[answer].refused[device] = problem.reason


def _pieces(answers: _Answers) -> Iterator[tuple[list[str], dict[str, str]]]:
    """A few hundred names in one message."""
    names, refused = list(dict.fromkeys(answers.accepted)), list(answers.refused.items())
    for at in range(0, max(len(names), len(refused)), NAMES):
        yield names[at : at + NAMES], dict(refused[at : at + NAMES])


class RoundReports:
    """Reports of devices on the models of a round, one per device and model, kept until the next round."""

    def __init__(self, journal: CoordinatorJournal, course: FleetState) -> None:
        self._journal = journal
        self._open(course.number)

    def turn(self, course: FleetState) -> None:
        """Continue with the round of `course`."""
        if course.number != self._number:
            self.close()
            self._open(course.number)

    def _open(self, number: int) -> None:
        self._number, self._spool = number, self._journal.reports(number)
        stored = [Evaluation.read(record.text) for record in self._spool.records]
        self._reports = {(report.device, report.base): report for report in stored}

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
            self._spool.append(json.loads(report.payload()), b"")

    def commit(self) -> None:
        """Make accepted reports durable."""
        self._spool.sync()

    def of(self, digest: str) -> list[Evaluation]:
        """The reports on a model, by name."""
        return [report for (_, base), report in sorted(self._reports.items()) if base == digest]

    def close(self) -> None:
        """Close the file without deleting it."""
        self._spool.close()
