"""What commands on a state directory return, with the fields of their `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edged.device.promotion.summary import StoredSummary
from edged.device.reports import DriftStatus, FlashPace, Health, StoredModel, StoredTraining, StreamLine
from edged.domain.audit_chain import Link
from edged.domain.json_fields import JsonObject
from edged.domain.judging.verdict import Verdict
from edged.domain.training.guards import TrainingPause
from edged.domain.training.message import Message, SparseMessage
from edged.domain.training.training_run import RunResult
from edged.host.vitals import BoardVitals
from edged.storage.journal.journal import RunRecord
from edged.storage.models.records import ModelRecord
from edged.storage.outbox.tables import OutboxBacklog


@dataclass(frozen=True)
class LocalTraining(Message):
    """Runs in the registry, what was `learned`, and of a running daemon the `present` run."""

    runs: int = 0
    last: RunRecord | None = None
    paused: TrainingPause | None = None
    learned: StoredSummary | None = None
    present: StoredTraining | None = None

    def to_json(self) -> JsonObject:
        """Return all on one level."""
        learned = {} if self.learned is None else self.learned.to_json()
        others = ("runs", "last", "paused", "summary", "summary_ts")
        present = {} if self.present is None else self.present.without(*others)
        return {**self.without("learned", "present"), **learned, **present}


@dataclass(frozen=True, kw_only=True)
class LocalStatus(SparseMessage):
    """What `edged status` prints; `host`, `flash` and `stuck` are of a running daemon."""

    state: str
    pid: int | None
    samples: int
    labels: int
    quarantined: int
    evicted: int
    model: StoredModel
    training: LocalTraining
    outbox: OutboxBacklog
    engine: str | None
    on_hold: Sequence[str]
    audit: Link | None
    drift: DriftStatus | None
    host: BoardVitals | None = None
    flash: FlashPace | None = None
    stuck: int | None = None
    problem: str | None = None
    health: Health

    def line(self) -> StreamLine:
        """Return what is said of the stream beside others."""
        model, runs = self.model.version, self.training.runs
        return StreamLine(self.state, self.problem, self.samples, self.labels, model, runs=runs)


@dataclass(frozen=True)
class JudgedRun(Message):
    """A run, the verdict on its candidate, the version under which it serves, and who is champion now."""

    result: RunResult
    verdict: Verdict
    summary: str
    version: int | None
    champion: int | None

    def to_json(self) -> JsonObject:
        """Return all on one level."""
        return {**self.result.without("memory", "candidate"), **self.without("result")}


@dataclass(frozen=True)
class Erased(SparseMessage):
    """How much `wipe` has erased, None of what it was not to erase; `kept` are files that are not edged's."""

    files: int | None = None
    kept: tuple[str, ...] | None = None
    messages: int | None = None
    samples: int | None = None
    labels: int | None = None
    quarantined: int | None = None
    checkpoints: int | None = None
    models: int | None = None


@dataclass(frozen=True)
class ListedModel(Message):
    """A model of the registry, whether it is champion, and where its file is if one model was asked for."""

    record: ModelRecord
    champion: bool
    path: Path | None = None

    def to_json(self) -> JsonObject:
        """Return the fields of the record with the others."""
        path = {} if self.path is None else {"path": str(self.path)}
        return {**self.record.to_json(), "champion": self.champion, **path}


@dataclass(frozen=True)
class ExportedModel(Message):
    """A model that was written to a file."""

    version: int
    file: Path


@dataclass(frozen=True)
class Pinned(Message):
    """The version that serves until `unpin`; None after that."""

    pinned: int | None


@dataclass(frozen=True)
class ImportedFile(Message):
    """A file: how many samples of it are stored, whether they were `before`, and what was left out."""

    file: Path
    samples: int
    before: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ImportReport(Message):
    """Files that were imported, and their samples in all."""

    files: tuple[ImportedFile, ...]
    samples: int
