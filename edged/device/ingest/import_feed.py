"""Samples that the command `import` leaves for a running daemon, stored by its ingest thread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from edged.errors import CorruptError, StorageError
from edged.logs import get_logger
from edged.storage.files.atomic import sweep
from edged.storage.samples.import_chunks import FOLDER, ImportChunks

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.domain.audit_chain import AuditEntry
    from edged.domain.commits.imported import ImportProgress
    from edged.domain.protocols import ModelSupervisor, SampleStore
    from edged.domain.stream.sample import Batch

log = get_logger("edged.import")

SLICE = 1000
"""Samples of one transaction: some 10 ms in which a message waits."""
RETRY_SECONDS, LOOK_SECONDS = 5.0, 1.0


class AuditJournal(Protocol):
    """Where an entry waits for the audit log."""

    def record_audit(self, entry: AuditEntry) -> None:
        """Queue an entry for the audit log, durably."""


def store_part(
    store: SampleStore, progress: ImportProgress, samples: Batch, first: int, now: float
) -> ImportProgress:
    """Store samples of an import with offsets from `first` on, as arrived at `now`, and how far it is then.

    Both are in one transaction: whatever happens, no sample of it is stored twice. Raises StorageError when
    nothing was stored.
    """
    n = len(samples)
    batch = replace(samples, offsets=np.arange(first, first + n), ingested=np.full(n, now))
    after = replace(progress, samples=progress.samples + n)
    store.commit(batch, imported=after)
    return after


def finish(
    store: SampleStore, progress: ImportProgress, journal: AuditJournal, entry: AuditEntry, now: float
) -> None:
    """Note that all samples of a file are stored, with `entry` for the audit log."""
    journal.record_audit(replace(entry, ts=now))
    store.commit(None, imported=replace(progress, finished=now))


class ImportFeed:
    """Stores the chunks in the state directory `state`, a part at each call; for the ingest thread alone.

    `supervisor` is woken for new labels. `journal` stores the entry about an import that is done.
    """

    def __init__(
        self,
        state: Path,
        store: SampleStore,
        journal: AuditJournal,
        supervisor: ModelSupervisor,
        clock: Clock,
    ) -> None:
        self._state, self._store, self._journal = state, store, journal
        self._supervisor, self._clock = supervisor, clock
        self._not_before = 0.0
        # The rest of a chunk, and where it is from: read once, not for each part.
        self._batch: tuple[tuple[Path, int], Batch] | None = None
        sweep(state / FOLDER)

    def waiting(self) -> bool:
        """Whether there may be something to store; looks for it every `LOOK_SECONDS` at most."""
        now = self._clock.monotonic()
        if now < self._not_before:
            return False
        found = any(ImportChunks.waiting(self._state))
        if not found:
            self._not_before = now + LOOK_SECONDS
        return found

    def store_next(self, first: int) -> int:
        """Store a part of the next chunk with offsets from `first` on; return the next offset."""
        for chunks in ImportChunks.waiting(self._state):
            try:
                stored = self._store_of(chunks, first)
            except (CorruptError, StorageError) as problem:
                log.error("import_failed", problem=problem.line(), action="retrying")
                self._not_before = self._clock.monotonic() + RETRY_SECONDS
                return first + SLICE  # after an error nobody knows whether these offsets are given
            if stored:
                return first + stored
        self._not_before = self._clock.monotonic() + LOOK_SECONDS
        return first

    def _store_of(self, chunks: ImportChunks, first: int) -> int:
        now = self._clock.now()
        progress = self._store.imported(chunks.folder.name) or chunks.progress()
        if self._batch is None or self._batch[0] != (chunks.folder, progress.samples):
            batch = chunks.at(progress.samples)
        else:
            batch = self._batch[1]
        self._batch = None
        if batch is None:
            self._finish_import(chunks, progress, now)
            return 0
        part = batch.part(0, SLICE)
        after = store_part(self._store, progress, part, first, now)
        if len(batch) > SLICE:
            self._batch = (chunks.folder, after.samples), batch.part(SLICE, len(batch))
        self._supervisor.wake()
        return len(part)

    def _finish_import(self, chunks: ImportChunks, progress: ImportProgress, now: float) -> None:
        end = chunks.read_end()
        if end is None or progress.samples < end[0]:
            return
        if progress.finished is None:
            finish(self._store, progress, self._journal, end[1], now)
        chunks.remove()
        log.info("imported", file=progress.name, samples=progress.samples)
