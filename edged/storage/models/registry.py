"""The model registry: which models there are, which one is served, and why.

`models/<version>/` holds `model.onnx`, what else the trainer left, and a manifest that repeats the record.
`models/champion` is the pointer to the model
being served. A model's files and their directory are durable before its row is written, and before the
pointer moves.

After a crash the pointer and the rows of `state.db` may disagree. **The pointer wins**: `open`
brings the rows in line with it, takes up models whose row is missing from their manifests, and
drops rows whose files are gone. Only where the pointer itself is missing or damaged, the row that
was champion last is believed and the pointer written again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

from edged.domain.audit_chain import AuditEntry
from edged.domain.bundle_contents import MODEL
from edged.domain.judging.verdict import Verdict
from edged.domain.training.training_run import ModelData
from edged.errors import CorruptError, StorageError
from edged.storage.files import atomic
from edged.storage.files.checked_table import CheckedTable
from edged.storage.files.checksummed_json import read_message, seal
from edged.storage.files.database import rewrite
from edged.storage.journal.journal import Journal
from edged.storage.models.records import BAD, MODELS, ModelFigures, ModelRecord, Reign, Status, stored_record

POINTER = "champion"
JUDGED = "judged"  # name of the value: the newest training run whose candidate was judged
REIGNS_KEPT = 5000
LABEL_TRACES = (
    "status", "history", "sets", "label_review", "label_map", "label_confirmed",
)  # fmt: skip
SAMPLE_TRACES = (*LABEL_TRACES, "drift", "anomalies", "home_assistant_keys")
"""Values that hold something of labels, and of samples."""
_FLAGS = ("proven", "pinned")
_MODELS = CheckedTable(
    "models", tuple(field.name for field in fields(ModelRecord)), "version", ("data", "metrics", "verdict")
)
_REIGNS = CheckedTable("reigns", ("ts", "version", "previous", "reason"), "number")


def champion_folder(state_dir: Path) -> Path | None:
    """The directory of the model that is served, as the pointer says; None without one.

    For a process that must not open the registry: the trainer.
    """
    reign = present_reign(state_dir)
    return None if reign is None else state_dir / MODELS / str(reign.version)


def present_reign(state_dir: Path) -> Reign | None:
    """What the pointer says, for such a process; None without a champion."""
    reign, models = _pointer(state_dir / MODELS), state_dir / MODELS
    return reign if reign is not None and (models / str(reign.version) / MODEL).exists() else None


def _pointer(models: Path) -> Reign | None:
    try:
        return read_message(models / POINTER, Reign)
    except CorruptError:
        return None


class Registry(Journal):
    """Models, training runs, commands and small values of one state directory.

    Made by `Registry.open`; safe to use from several threads of one process.

    `repaired` says what `open` mended, one line each.
    """

    def __init__(self, db: sqlite3.Connection, path: Path, *, disk: atomic.Disk = atomic.DISK) -> None:
        super().__init__(db, path)
        self._models = path.parent / MODELS
        self._disk = disk
        self.repaired: list[str] = []

    @classmethod
    def open(cls, state_dir: Path, *, readonly: bool = False, disk: atomic.Disk = atomic.DISK) -> Registry:
        """Open the registry, creating it unless `readonly`, and mend what a crash left behind.

        Raises StorageError when it is missing (`readonly`) or cannot be opened; CorruptError when `state.db`
        is no database any more.
        """
        db, path = cls._connect(state_dir, readonly=readonly)
        registry = cls(db, path, disk=disk)
        with ExitStack() as unless_opened:
            unless_opened.callback(registry.close)
            if not readonly:
                registry._repair()
            unless_opened.pop_all()
        return registry

    # ---- models ----------------------------------------------------------------------------

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

    def verify(self, version: int) -> Path:
        """Path of the file of a model in this form, all its files compared with the manifest.

        Raises CorruptError when a file is missing or damaged.
        """
        directory = self._path_of(version)
        if MODEL not in atomic.verify_directory(directory).files:
            raise CorruptError(f"the manifest names no {MODEL}", where=str(directory))
        return directory / MODEL

    def set_status(self, version: int, status: Status, *, verdict: Verdict | None = None) -> ModelRecord:
        """Change a model's status, and its verdict where given; the new record.

        `good` for the champion means that it passed its probation: it stays `champion`, is `proven`
        from then on, and becomes `good` when another takes its place. Champions are made by
        `set_champion` alone.
        """
        if status not in get_args(Status):
            raise StorageError(f"{status!r} is no status of a model", where=f"model {version}",
                               remedy=f"one of {', '.join(get_args(Status))}")  # fmt: skip
        with self._lock:
            record = self.get(version)
            proven = status == "good" or (record.proven and status not in BAD)
            if status == "good" and record.status == "champion":
                status = "champion"
            elif status == "champion" and record.status != "champion":
                raise StorageError("a champion is made by set_champion alone", where=f"model {version}")
            record = replace(record, status=status, proven=proven, verdict=verdict or record.verdict)
            with self._writing():
                self._insert(record)
        return record

    def pin(self, version: int) -> None:
        """Protect this model from pruning."""
        self._pin(version, pinned=True)

    def unpin_all(self, but: int | None = None) -> list[int]:
        """Allow pruning of all models again, `but` one; their versions."""
        unpinned = [version for version in self.pinned() if version != but]
        for version in unpinned:
            self._pin(version, pinned=False)
        return unpinned

    def judged(self) -> int:
        """The newest training run on whose candidate a verdict took effect; 0 before the first."""
        return int(self.get_value(JUDGED) or 0)

    def record_judged(self, run: int) -> None:
        """Record that a verdict on the candidate of a run took effect, durably.

        That of a run whose model became champion is known already.
        """
        with self._lock:
            if run > self.judged():
                self.set_value(JUDGED, run)

    def prune(self, keep: int, protect: Iterable[int] = ()) -> list[int]:
        """Remove models until `keep` are left, refused ones first, then the oldest; their versions.

        The champion, the one before it, pinned and protected ones stay in any case.
        """
        with self._lock:
            records = self.records()
            pinned = {record.version for record in records if record.pinned}
            stay = {self.champion(), self.previous(), *protect, *pinned}
            by_worth = sorted(records, key=lambda r: (r.version in stay, r.status not in BAD, r.version))
            surplus = [r.version for r in by_worth[: max(0, len(by_worth) - keep)] if r.version not in stay]
            for version in surplus:
                atomic.remove(self._path_of(version), disk=self._disk)
                with self._writing():
                    self._db.execute("DELETE FROM models WHERE version = ?", (version,))
        return sorted(surplus)

    def erase(self) -> int:
        """Erase every model but the champion, pinned ones too; return how many went."""
        with self._lock:
            champion = self.champion()
            doomed = [record.version for record in self.records() if record.version != champion]
            for version in doomed:
                atomic.remove(self._path_of(version), disk=self._disk)
                with self._writing():
                    self._db.execute("DELETE FROM models WHERE version = ?", (version,))
        return len(doomed)

    def erase_traces(self, values: Iterable[str]) -> None:
        """Erase commands that have ended, which may name samples and labels, and some of the stored values.

        None of their bytes stays in the files. Raises StorageError when the disk refuses, or something still
        reads; call it again.
        """
        with self._lock:
            with self._writing():
                self._forget_commands("ended IS NOT NULL")
                self._db.executemany("DELETE FROM meta WHERE name = ?", [(name,) for name in values])
            rewrite(self._db, self._path)

    # ---- champion --------------------------------------------------------------------------

    def champion(self) -> int | None:
        """Version of the model to serve, read from the pointer each time; None without one."""
        pointer = self.reign()
        return None if pointer is None else pointer.version

    def previous(self) -> int | None:
        """The model to go back to: the champion before, or else the best other one that is not refused."""
        champion = self.champion()
        others = [version for version in self.best_loadable() if version != champion]
        return others[0] if others else None

    def reign(self) -> Reign | None:
        """Since when and why the champion serves, as the pointer says; None where its model is not there."""
        reign = _pointer(self._models)
        return reign if reign is not None and self._path_of(reign.version).is_dir() else None

    def reigns(self, limit: int = 100) -> list[Reign]:
        """The newest changes of champion, newest first."""
        with self._reading():
            rows = _REIGNS.select(self._db, "ORDER BY number DESC LIMIT ?", limit)
        return [Reign(**{name: row[name] for name in _REIGNS.columns}) for row in rows]

    def set_champion(self, version: int, reason: str, ts: float, *, outgoing: Status | None = None) -> None:
        """Make a model the champion: verify its files, move the pointer, then write the rows.

        `ts` is Unix seconds, `reason` a word or a line. `outgoing` is the status of the model whose place it
        takes; when absent `good` if that was proven, else `retired`. A rollback gives `rolled_back`.

        Raises CorruptError when the model is damaged; the old champion stays. Raises StorageError when the
        pointer could not be moved durably. The rows then follow the pointer as it was read again: ask
        `champion()`, and do not assume.
        """
        with self._lock:
            self.get(version)
            self.verify(version)
            before = self.champion()
            previous = before if before != version else self.previous()
            reign = Reign(ts, version, previous, reason, outgoing)
            try:
                atomic.publish_file(self._models / POINTER, seal(reign.to_json()), disk=self._disk)
            finally:
                # Whether it moved or not, the rows follow what is really there.
                self._follow_pointer()

    def best_loadable(self) -> list[int]:
        """Versions in the order to try at the start: champion, the one before, proven ones, retired ones."""
        pointer = self.reign()
        records = {record.version: record for record in self.records() if record.status not in BAD}
        order: list[int | None] = [] if pointer is None else [pointer.version, pointer.previous]
        newest = sorted(records.values(), key=lambda r: -r.version)
        order += [r.version for r in newest if r.proven]
        order += [r.version for r in newest if r.status == "retired"]
        return [version for version in dict.fromkeys(order) if version in records]

    # ---- inside ----------------------------------------------------------------------------

    def _path_of(self, version: int) -> Path:
        return self._models / str(version)

    def _on_disk(self) -> list[int]:
        if not self._models.is_dir():
            return []
        return sorted(int(path.name) for path in self._models.iterdir() if path.name.isdigit())

    def _insert(self, record: ModelRecord) -> None:
        _MODELS.insert(self._db, record.to_json(), replace=True)

    def _records(self, which: str, *values: int) -> list[ModelRecord]:
        found = _MODELS.select(self._db, which, *values)
        return [ModelRecord.from_json(row | {name: bool(row[name]) for name in _FLAGS}) for row in found]

    def _pin(self, version: int, *, pinned: bool) -> None:
        with self._lock:
            record = replace(self.get(version), pinned=pinned)
            with self._writing():
                self._insert(record)

    def _follow_pointer(self, *, repairing: bool = False) -> None:
        """Bring the rows in line with the pointer, and note a change of champion."""
        reign = self.reign()
        if reign is None:
            return
        with self._writing():
            for record in self._records("WHERE status = 'champion' AND version != ?", reign.version):
                self._insert(record.superseded(reign.outgoing))
                if repairing:
                    turn = "undone" if record.version > reign.version else "finished"
                    self.repaired.append(
                        f"the swap between models {record.version} and {reign.version} was {turn}"
                    )
            for record in self._records("WHERE status != 'champion' AND version = ?", reign.version):
                self._insert(replace(record, status="champion"))
                if record.source == "training" and (record.run or 0) > int(self._get(JUDGED) or 0):
                    self._set(JUDGED, record.run)
            self._record_reign(reign)

    def _record_reign(self, reign: Reign) -> None:
        row = {name: getattr(reign, name) for name in _REIGNS.columns}
        newest = _REIGNS.select(self._db, "ORDER BY number DESC LIMIT 1")
        if newest and newest[0] | row == newest[0]:
            return
        _REIGNS.insert(self._db, row)
        self._audit(self._change_of(reign))
        self._db.execute(
            "DELETE FROM reigns WHERE number <= (SELECT max(number) FROM reigns) - ?", (REIGNS_KEPT,)
        )

    def _change_of(self, reign: Reign) -> AuditEntry:
        """Return the entry of the audit log about a change of champion."""
        record = next(iter(self._records("WHERE version = ?", reign.version)), None)
        run = None if record is None else record.run
        trigger = self._db.execute("SELECT trigger FROM runs WHERE id = ?", (run,)).fetchone()
        back = reign.previous is not None and reign.outgoing in BAD
        entry = AuditEntry(
            reign.ts, "rollback" if back else "champion", before=reign.previous, after=reign.version,
            reason=reign.reason, trigger=None if trigger is None else trigger[0],
        )  # fmt: skip
        if record is None:
            return entry
        return replace(entry, source=record.source, run=run, data=record.data, verdict=record.verdict)

    def _repair(self) -> None:
        """What `open` does after a crash; harmless after a clean end."""
        atomic.make_directory(self._models, disk=self._disk)
        swept = atomic.sweep(self._models, disk=self._disk)
        self.repaired += [f"removed {MODELS}/{name}, which was never published" for name in swept]
        self.repaired += self._drop_damaged()
        self.repaired += [f"training run {run} was cut off" for run in self._close_interrupted()]
        self._match_rows_to_files()
        if self.reign() is None:
            self._restore_pointer()
        self._follow_pointer(repairing=True)

    def _tables(self) -> tuple[CheckedTable, ...]:
        return (*super()._tables(), _MODELS, _REIGNS)

    def _match_rows_to_files(self) -> None:
        stored, known = set(self._on_disk()), {record.version for record in self.records()}
        with self._writing():
            self._db.executemany("DELETE FROM models WHERE version = ?", [(v,) for v in known - stored])
        self.repaired += [f"model {v} has no files: its row was dropped" for v in sorted(known - stored)]
        for version in sorted(stored - known):
            self._insert_from_manifest(version)

    def _insert_from_manifest(self, version: int) -> None:
        """Add the row of a model that has none: a crash came between the two, or `state.db` was lost."""
        record = stored_record(self._path_of(version))
        if record is None:
            return  # unreadable: it is never served, and its number is not given again
        if record.status != "rejected":
            record = replace(record, status="candidate")
        with self._writing():
            self._count("model", version)
            self._insert(record)
        self.repaired.append(f"model {version} was taken up from its manifest")

    def _restore_pointer(self) -> None:
        """The pointer is missing or damaged: the last champion of the rows takes its place."""
        last = [record for record in self.records() if record.status == "champion"]
        if not last:
            return
        known = [reign for reign in self.reigns(REIGNS_KEPT) if reign.version == last[0].version]
        reign = known[0] if known else Reign(last[0].created, last[0].version, None, "pointer restored")
        self.repaired.append(f"the pointer to the champion was lost: model {reign.version} is it again")
        atomic.publish_file(self._models / POINTER, seal(reign.to_json()), disk=self._disk)
