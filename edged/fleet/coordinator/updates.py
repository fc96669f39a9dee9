"""Updates that come: admitted, made durable, then acknowledged, the same ones as often as they come."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edged.domain.federated.messages import Receipts, UpdateHeader
from edged.domain.training.message import Message
from edged.errors import RejectedUpdateError
from edged.fleet.coordinator.inbox import PartialUpdates
from edged.fleet.rules.admission import admit, check_claims, check_round, check_sender
from edged.fleet.rules.aggregation import discount
from edged.logs import get_logger
from edged.mqtt import update_encoding

if TYPE_CHECKING:
    from edged.fleet.config import CoordinatorConfig
    from edged.fleet.coordinator.control import ControlReader
    from edged.fleet.coordinator.journal import CoordinatorJournal
    from edged.fleet.rules.layout import Layout
    from edged.fleet.rules.rounds import FleetState
    from edged.storage.files.append_log import AppendLog, LogRecord

HELD_BYTES = 64 * 1024**2
NAMES = 500

log = get_logger("edged.fleet")


@dataclass
class _Answers:
    """What the devices of one round are told next."""

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
    norm: float
    loss: float | None
    metrics: Mapping[str, float]


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
        """The fleet has gone on; where another round collects now, its spool is begun."""
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
        """Devices whose update counts in the round that collects."""
        return len(self._newest)

    @property
    def contributors(self) -> list[str]:
        """Names of the devices whose updates count, in order."""
        return sorted(self._newest)

    def records(self) -> Iterator[tuple[StoredUpdate, bytes]]:
        """Head and row of each update that counts, in the order of names: the same whatever came first."""
        spool = self._opened()
        for device in self.contributors:
            _, record = self._newest[device]
            yield StoredUpdate.from_json(record.head), spool.read(record)

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
        """Whether nothing is there of this device for this round; another thing than before is refused."""
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
        told = self.course.round
        settings = self._settings if told is None else told.config  # the file may have changed since
        found = admit(update, blob, self._layout, settings, self._limits, update_encoding.unpack)
        late = self._number - update.round
        stored = StoredUpdate(
            device=update.device,
            round=update.round,
            samples=min(update.samples, self._limits.max_samples),
            factor=found.factor * discount(late, self._config.reduce.discount),
            sha256=update.sha256,
            norm=found.norm,
            loss=update.loss,
            metrics=update.metrics,
        )
        record = self._opened().append(stored.to_json(), found.row.to_bytes())
        self._count(update.device, update.round, record)
        self._seen[update.round][update.device] = bytes.fromhex(update.sha256)
        self._answers[update.round, update.id].accepted.append(update.device)

    def commit(self) -> list[tuple[int, Receipts]]:
        """Make durable what was taken; round and receipts that may be sent then."""
        self._opened().sync()
        told = [
            (number, Receipts(token, tuple(names), refused))
            for (number, token), answers in self._answers.items()
            for names, refused in _pieces(answers)
        ]
        self._answers.clear()
        return told

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
        told = self.course.round
        if answer is None and told is not None:
            answer = told.round, told.id
        if answer is not None:
            self._answers[answer].refused[device] = problem.reason


def _pieces(answers: _Answers) -> Iterator[tuple[list[str], dict[str, str]]]:
    """A few hundred names in one message."""
    names, refused = list(dict.fromkeys(answers.accepted)), list(answers.refused.items())
    for at in range(0, max(len(names), len(refused)), NAMES):
        yield names[at : at + NAMES], dict(refused[at : at + NAMES])
