"""Models that are stored: what the registry knows of each and of its time as champion, and their files."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edged.domain.json_fields import JsonObject
from edged.domain.judging.verdict import Verdict
from edged.domain.model_files import MODEL
from edged.domain.training.message import Message
from edged.domain.training.training_run import ModelData
from edged.errors import CorruptError, StorageError
from edged.storage.files import atomic
from edged.storage.files.checked_table import CheckedTable
from edged.storage.journal.journal import Journal

if TYPE_CHECKING:
    from typing_extensions import Self


MODELS = "models"
JUDGED = "judged"  # name of the registry's value: the newest training run whose candidate was judged
Status = Literal["candidate", "champion", "good", "retired", "rejected", "rolled_back"]
BAD: tuple[Status, ...] = ("rejected", "rolled_back")
_FLAGS = ("proven", "pinned")


@dataclass(frozen=True)
class ModelFigures(Message):
    """What was measured of a model before it was stored; its JSON has all on one level.

    `loss_last` is the loss at the end of its training, `numbers` are those of its first verdict, `scale`
    weighs the errors of its outputs. None: not known, or all outputs count the same.
    """

    loss_last: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    scale: tuple[float, ...] | None = None

    def reported(self) -> Mapping[str, float | None]:
        """Return the figures that reports have: all but `scale`."""
        measured = self.numbers or self.loss_last is not None
        return {"loss_last": self.loss_last, **self.numbers} if measured else {}

    def to_json(self) -> JsonObject:
        """Return the figures as the registry holds them."""
        return {**self.reported(), **({} if self.scale is None else {"scale": list(self.scale)})}


@dataclass(frozen=True)
class ModelRecord(Message):
    """The record of one model in the registry.

    `source` is `bundle`, `training` or another word. `created` is Unix seconds. `verdict` is None for a model
    that was not judged. `proven` says that it passed its probation; a `good` model was champion and proven, a
    `retired` one was champion without having been proven.
    """

    version: int
    parent: int | None
    created: float
    source: str
    run: int | None
    generation: int | None
    data: ModelData
    metrics: ModelFigures
    verdict: Verdict | None
    status: Status
    proven: bool = False
    pinned: bool = False

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Read the record in a manifest, or a row; TrainingError when it is none."""
        given = dict(values["metrics"])
        first = {name: given.pop(name, None) for name in ("loss_last", "scale")}
        return super().from_json({**values, "metrics": {**first, "numbers": given}})

    def superseded(self, outgoing: Status | None) -> ModelRecord:
        """The record of a champion whose place another has taken."""
        status = outgoing or ("good" if self.proven else "retired")
        return replace(self, status=status, proven=self.proven and status not in BAD)


@dataclass(frozen=True)
class Reign:
    """A model became champion: when (Unix seconds), in whose place and why.

    `outgoing` is the status that the one before was to get; it stands in the pointer, so that a
    crash between pointer and rows does not lose it.
    """

    ts: float
    version: int
    previous: int | None
    reason: str
    outgoing: Status | None = None


_MODELS = CheckedTable(
    "models", tuple(field.name for field in fields(ModelRecord)), "version", ("data", "metrics", "verdict")
)


class StoredModels(Journal):
    """The models of one state directory: a folder and a row of `state.db` for each; see `Registry`."""

    def __init__(self, db: sqlite3.Connection, path: Path, *, disk: atomic.Disk = atomic.DISK) -> None:
        super().__init__(db, path)
        self._models = path.parent / MODELS
        self._disk = disk
        self.repaired: list[str] = []

    def add(
        self,
        staging: Path,
        *,
        created: float,
        source: str,
        parent: int | None = None,
        run: int | None = None,
        generation: int | None = None,
        data: ModelData | None = None,
        metrics: ModelFigures | None = None,
        verdict: Verdict | None = None,
        status: Status = "candidate",
    ) -> ModelRecord:
        """Take a directory with `model.onnx` into the registry under the next version.

        `staging` must lie in the same file system; it is moved, not copied. Versions rise and are
        never used again.

        Raises StorageError when there is no `model.onnx` in it, or it could not be made durable.
        """
        if not (staging / MODEL).is_file():
            raise StorageError(f"there is no {MODEL} in it", where=str(staging))
        with self._lock:
            with self._writing():
                version = self._count("model", max([0, *self._on_disk()]) + 1)
            record = ModelRecord(
                version, parent, created, source, run, generation, data or ModelData(),
                metrics or ModelFigures(), verdict, status,
            )  # fmt: skip
            # A copied candidate may bring the manifest of its own publication: it is written again.
            folder = self._path_of(version)
            try:
                atomic.publish_directory(staging, folder, extra={"model": record.to_json()}, disk=self._disk)
                with self._writing():
                    self._insert(record)
            except StorageError:
                with suppress(OSError, StorageError):  # files without a row would stay until a restart
                    atomic.remove(folder, disk=self._disk)
                raise
        return record

    def get(self, version: int) -> ModelRecord:
        """One record; StorageError when there is no such version."""
        with self._reading():
            found = self._records("WHERE version = ?", version)
        if not found:
            raise StorageError(f"there is no model version {version}", where=str(self._models),
                               remedy="`edged models CONFIG list` shows all")  # fmt: skip
        return found[0]

    def records(self) -> list[ModelRecord]:
        """List all models, oldest first."""
        with self._reading():
            return self._records("ORDER BY version")

    def pinned(self) -> list[int]:
        """List the versions that are pinned, oldest first."""
        return [record.version for record in self.records() if record.pinned]

    def _records(self, which: str, *values: int) -> list[ModelRecord]:
        found = _MODELS.select(self._db, which, *values)
        return [ModelRecord.from_json(row | {name: bool(row[name]) for name in _FLAGS}) for row in found]

    def verify(self, version: int) -> Path:
        """Path of the file of a model in this form, all its files compared with the manifest.

        Raises CorruptError when a file is missing or damaged.
        """
        directory = self._path_of(version)
        path = directory / MODEL
        if path.name not in atomic.verify_directory(directory).files:
            raise CorruptError(f"the manifest names no {path.name}", where=str(directory))
        return path

    # ---- inside ----------------------------------------------------------------------------

    def _path_of(self, version: int) -> Path:
        return self._models / str(version)

    def _on_disk(self) -> list[int]:
        if not self._models.is_dir():
            return []
        return sorted(int(path.name) for path in self._models.iterdir() if path.name.isdigit())

    def _insert(self, record: ModelRecord) -> None:
        _MODELS.insert(self._db, record.to_json(), replace=True)

    def _tables(self) -> tuple[CheckedTable, ...]:
        return (*super()._tables(), _MODELS)
