"""`edged import`: recorded data into the sample log of a device, whether its daemon runs or not."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edged.clock import SystemClock
from edged.device.admin.audit import local_entry
from edged.device.admin.results import ImportedFile, ImportReport
from edged.device.admin.stopped_device import lock_state
from edged.device.ingest.import_feed import finish, store_part
from edged.device.startup.bootstrap import open_samples, with_context
from edged.domain.commits.imported import ImportProgress
from edged.errors import ConfigError, RefusedError, StorageError
from edged.storage.files.atomic import DirectoryLock
from edged.storage.journal.audit_log import AuditLog
from edged.storage.models.registry import Registry
from edged.storage.recordings import FORMATS, format_of
from edged.storage.recordings.formats import readable
from edged.storage.recordings.history import FileReader
from edged.storage.samples.import_chunks import ImportChunks

if TYPE_CHECKING:
    from edged.config import Config
    from edged.domain.audit_chain import AuditEntry
    from edged.domain.stream.sample import Batch
    from edged.storage.samples.log import SampleLog

AHEAD = 4  # chunks that wait for the daemon, at most
POLL_SECONDS = 0.05
RESTART_SECONDS = 10.0

Progress = Callable[[str, int], None]
"""Receives the name of a file and how many of its samples are stored."""


@dataclass(frozen=True)
class ImportFile:
    """A file that is imported, its format, and its progress so far."""

    path: Path
    format: str
    progress: ImportProgress


class DaemonEndedError(Exception):
    """The daemon ended while it was storing samples."""


def import_files(
    config: Config, files: Sequence[Path], given: str | None = None, on_progress: Progress = lambda *_: None
) -> ImportReport:
    """Store the samples of files, one after the other; of a file that was imported before, nothing.

    `given` is the format of all files; by their names when absent. After a kill the same call continues.

    Raises
    ------
    ConfigError
        When a file cannot be read, or lacks what the stream needs.
    RefusedError
        When an import of the file was begun for another configuration or format.
    StorageError
        When a disk refuses. What is stored stays.
    """
    if given is not None and given not in FORMATS:
        raise ConfigError(
            f"unknown format {given!r}", where="--format", remedy=f"one of {', '.join(FORMATS)}"
        )
    found = [_described(path, given, config) for path in files]
    config = with_context(config)
    imported = tuple(_imported(config, file, on_progress) for file in found)
    return ImportReport(imported, sum(one.samples for one in imported))


def _described(path: Path, given: str | None, config: Config) -> ImportFile:
    with readable(path):
        known = given or format_of(path)
        content = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                content.update(block)
    options = f"{known}\n{config.stream.model_dump_json(exclude_defaults=True)}"
    digest = hashlib.sha256(options.encode()).hexdigest()
    return ImportFile(path, known, ImportProgress(content.hexdigest(), digest, path.name))


def _imported(config: Config, file: ImportFile, on_progress: Progress) -> ImportedFile:
    history = FileReader(config.stream, SystemClock().now())
    while True:
        try:
            if DirectoryLock.holder(config.storage.dir) is None:
                before, stored = _store(config, file, history, on_progress)
            else:
                before, stored = _hand_over(config, file, history, on_progress)
        except DaemonEndedError:
            _await_restart(config.storage.dir)
            history = FileReader(config.stream, SystemClock().now())
            continue
        break
    warnings = [history.left_out.line(history.unit), history.refused.line(history.unit, "labels")]
    return ImportedFile(file.path, stored, before, tuple(filter(None, warnings)))


def _await_restart(state: Path) -> None:
    """A daemon that crashed is started again: the lock in its way would keep it from serving."""
    until = time.monotonic() + RESTART_SECONDS
    while DirectoryLock.holder(state) is None and time.monotonic() < until:
        time.sleep(POLL_SECONDS)


def _known(samples: SampleLog, file: ImportFile) -> ImportProgress:
    """How far an earlier import of the file has come; RefusedError when it was another one."""
    stored = samples.imported(file.progress.file)
    if stored is None:
        return file.progress
    if stored.finished is None and stored.options != file.progress.options:
        raise RefusedError(
            f"its import was started with another configuration, {stored.samples:,} samples are stored",
            where=str(file.path),
            remedy="restore the section stream, or erase the samples with `edged wipe --samples`",
        )
    return stored


def _batches(file: ImportFile, history: FileReader, stored: int) -> Iterator[Batch]:
    """The samples of a file that are not stored yet: what comes before them is read again."""
    for batch in history.batches(file.path, file.format):
        skipped = min(len(batch), max(0, stored - int(batch.offsets[0])))
        if skipped < len(batch):
            yield batch.part(skipped, len(batch))


def _entry(file: ImportFile, samples: int) -> AuditEntry:
    request = {"file": file.progress.file, "name": file.progress.name}
    return local_entry("import", request, result={"samples": samples})


# ---- without a daemon ------------------------------------------------------------------------


def _store(config: Config, file: ImportFile, history: FileReader, on_progress: Progress) -> tuple[bool, int]:
    """Store a file's samples; whether all were there before, and how many there are."""
    state, clock = config.storage.dir, SystemClock()
    with lock_state(state, "import"), closing(open_samples(config, clock=clock)) as samples:
        progress = _known(samples, file)
        if progress.finished is not None:
            ImportChunks.of(state, progress.file).remove()
            return True, progress.samples
        for batch in _batches(file, history, progress.samples):
            progress = store_part(samples, progress, batch, samples.next_offset(), clock.now())
            on_progress(file.path.name, progress.samples)
        with Registry.open(state) as registry:
            finish(samples, progress, registry, _entry(file, progress.samples), clock.now())
            AuditLog(state).drain(registry)
        ImportChunks.of(state, progress.file).remove()
        return False, progress.samples


# ---- beside a daemon -------------------------------------------------------------------------


def _hand_over(
    config: Config, file: ImportFile, history: FileReader, on_progress: Progress
) -> tuple[bool, int]:
    """Leave a file's samples to the daemon, and wait until it has stored them."""
    state = config.storage.dir
    chunks = ImportChunks.of(state, file.progress.file)
    with closing(open_samples(config, readonly=True)) as samples:
        progress = _known(samples, file)
        if progress.finished is not None:
            return True, progress.samples
        waiting = _Daemon(state, samples, chunks, lambda done: on_progress(file.path.name, done))
        chunks.begin(file.progress)
        total = progress.samples
        try:
            for batch in _batches(file, history, progress.samples):
                waiting.until_room(total)
                chunks.write(batch)
                total = int(batch.offsets[-1]) + 1
            chunks.write_end(total, _entry(file, total))
        except StorageError:
            progress = _known(samples, file)
            if progress.finished is None:
                raise
            # The daemon had all of an earlier attempt, and has removed the folder.
            return False, progress.samples
        waiting.until_finished(total)
        return False, total


@dataclass(frozen=True)
class _Daemon:
    """The daemon that stores chunks, as it is seen from beside."""

    state: Path
    samples: SampleLog
    chunks: ImportChunks
    on_stored: Callable[[int], None]

    def until_room(self, written: int) -> None:
        """Wait until the daemon has stored all but a few of the `written` samples."""
        while self.chunks.count() >= AHEAD:
            self._look(written)

    def until_finished(self, written: int) -> None:
        """Wait until the daemon has stored all `written` samples and noted the end."""
        while not self._look(written):
            pass

    def _look(self, written: int) -> bool:
        """Look at what is stored, and wait a moment; whether the import is finished."""
        there = self.chunks.folder.exists()
        lost = there and self.chunks.count() == 0
        progress = self.samples.imported(self.chunks.folder.name)
        stored = 0 if progress is None else progress.samples
        self.on_stored(stored)
        if progress is not None and progress.finished is not None:
            return True
        if not there or (lost and stored < written):
            raise StorageError(
                "chunks of the import are gone", where=str(self.chunks.folder), remedy="run the import again"
            )
        if DirectoryLock.holder(self.state) is None:
            raise DaemonEndedError
        time.sleep(POLL_SECONDS)
        return False
