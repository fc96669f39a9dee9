"""Updates and reports of devices: admitted, made durable, then acknowledged, as often as they arrive."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from edged.domain.federated.messages import Evaluation, Receipts, UpdateHeader
from edged.domain.training.message import Message
from edged.errors import RejectedUpdateError
from edged.fleet.config import CoordinatorConfig
from edged.fleet.coordinator.control import ControlReader
from edged.fleet.coordinator.journal import CoordinatorJournal
from edged.fleet.rules.admission import admit, check_claims, check_round, check_sender, discount
from edged.fleet.rules.aggregation import RoundUpdate
from edged.fleet.rules.layout import Layout
from edged.fleet.rules.rounds import FleetState
from edged.logs import get_logger
from edged.mqtt import weight_encoding

if TYPE_CHECKING:
    from edged.storage.files.append_log import AppendLog, LogRecord

HELD_BYTES = 64 * 1024**2
NAMES = 500
LATE = "late"

log = get_logger("edged.fleet")


@dataclass
class _Answers:
    """What the next receipts say to the devices of one round."""

    accepted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredUpdate(Message):
    """Head of an update that counts: `samples` as far as they count, `factor` by which its row is scaled."""

    device: str
    round: int
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
        self._waiting: dict[tuple[str, int], tuple[str, dict[int, bytes]]] = {}
        self.held = 0

    def add(self, update: UpdateHeader, piece: bytes) -> bytes | None:
        """Return the whole blob if no part is missing now.

        RejectedUpdateError if the parts are larger than announced.
        """
        if update.parts == 1:
            return piece
        key = update.device, update.round
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

    def _bound(self, newest: tuple[str, int]) -> None:
        # A device that continues with its parts is younger than one that does not.
        self._waiting[newest] = self._waiting.pop(newest)
        while self.held > self._limit and len(self._waiting) > 1:
            self._drop(next(iter(self._waiting)))

    def _drop(self, key: tuple[str, int]) -> None:
        self.held -= sum(map(len, self._waiting.pop(key)[1].values()))


class UpdateAdmission:
    """Takes updates into the spool of the round that collects; `turn` tells where the fleet is."""

    def __init__(
        self,
        config: CoordinatorConfig,
        journal: CoordinatorJournal,
        layout: Layout,
        course: FleetState,
        control: ControlReader,
    ) -> None:
        self._config, self._journal, self._layout, self._control = config, journal, layout, control
        self._limits, self._settings = config.admit, config.settings
        self._parts = PartialUpdates(HELD_BYTES)
        self._answers: defaultdict[tuple[int, str], _Answers] = defaultdict(_Answers)
        self.refused: Counter[str] = Counter()
        # For each round that updates may be for: the hash of what each device has sent.
        self._seen: dict[int, dict[str, bytes]] = {}
        self._spool: AppendLog | None = None
        self.course = course
        self._begin(course.collecting)

    def turn(self, course: FleetState) -> None:
        """Continue with the state of `course`; where another round collects now, its spool is begun."""
        self.course = course
        if course.collecting != self._number:
            self.close()
            self._begin(course.collecting)

    def _begin(self, number: int) -> None:
        self._number = number
        self.refused.clear()
        oldest = number - self._limits.staleness - 1
        self._seen = {n: self._seen.get(n, {}) for n in range(oldest, number + 1)}
        for other in range(oldest, number):
            if self._journal.has_updates(other):
                spool = self._journal.updates(other)
                self._remember(spool.records)
                spool.close()
        self._spool = self._journal.updates(number)
        self._remember(self._spool.records)
        self._newest: dict[str, tuple[int, LogRecord]] = {}
        for record in self._spool.records:
            head = record.head
            self._count(head["device"], head["round"], record)
        self._journal.forget(oldest)

    def _remember(self, records: list[LogRecord]) -> None:
        for head in (record.head for record in records):
            if head["round"] in self._seen:
                self._seen[head["round"]][head["device"]] = bytes.fromhex(head["sha256"])

    def _count(self, device: str, number: int, record: LogRecord) -> None:
        """Of one device's updates the newest counts."""
        if device not in self._newest or self._newest[device][0] < number:
            self._newest[device] = number, record

    @property
    def accepted(self) -> int:
        """Devices whose update has come for the round that collects."""
        return len(self._newest)

    @property
    def contributors(self) -> list[str]:
        """Names of the devices whose updates have come for it, in order."""
        return sorted(self._newest)

    def updates(self) -> list[RoundUpdate]:
        """List the updates that count, in the order of names: the same whatever came first."""
        spool, excluded = self._opened(), self._control.read().excluded
        found = []
        for device in sorted(self._newest.keys() - excluded):
            _, record = self._newest[device]
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
            if not self._is_new(update):
                self._answers[update.round, update.id].accepted.append(device)
            elif (blob := self._whole(update, piece)) is not None:
                self._accept(update, blob)
        except RejectedUpdateError as problem:
            self._refuse(device, problem, answer)

    def _is_new(self, update: UpdateHeader) -> bool:
        """Whether the device has sent nothing for this round; another update than before is refused."""
        known = self.course.known().get(update.round)
        seen = self._seen.get(update.round, {}).get(update.device)
        if known is None or known.id != update.id or seen is None:
            return True
        if seen != bytes.fromhex(update.sha256):
            raise RejectedUpdateError("duplicate", f"{update.device} has sent another update for this round")
        return False

    def _whole(self, update: UpdateHeader, piece: bytes) -> bytes | None:
        check_round(update, self.course.known(), self._number, self._limits)
        check_claims(update, self._layout)
        return self._parts.add(update, piece)

    def _accept(self, update: UpdateHeader, blob: bytes) -> None:
        announced = self.course.round
        # Those of the round: the file may have changed since.
        settings = self._settings if announced is None else announced.config
        found = admit(update, blob, self._layout, settings, self._limits, weight_encoding.unpack_coded)
        late = self._number - update.round
        stored = StoredUpdate(
            device=update.device,
            round=update.round,
            samples=min(update.samples, self._limits.max_samples),
            factor=found.factor * discount(late),
            sha256=update.sha256,
        )
        record = self._opened().append(stored.to_json(), found.row.to_bytes())
        self._count(stored.device, stored.round, record)
        self._seen[stored.round][stored.device] = bytes.fromhex(stored.sha256)
        self._answers[update.round, update.id].accepted.append(update.device)

    def commit(self) -> list[tuple[int, Receipts]]:
        """Make durable what was taken; round and receipts that may be sent then."""
        self._opened().sync()
        receipts = [
            (number, Receipts(token, tuple(names), refused))
            for (number, token), answers in self._answers.items()
            for names, refused in _pieces(answers)
        ]
        self._answers.clear()
        return receipts

    def close(self) -> None:
        """Close the file of updates without deleting it."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _opened(self) -> AppendLog:
        if self._spool is None:
            raise ValueError("closed")
        return self._spool

    def _refuse(self, device: str, problem: RejectedUpdateError, answer: tuple[int, str] | None) -> None:
        if not self.refused[problem.reason]:
            log.warning("update_refused", device=device, reason=problem.reason, problem=problem.line())
        self.refused[problem.reason] += 1
        announced = self.course.round
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
