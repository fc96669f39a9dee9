"""`edged import`: recorded data into the sample log of a device, while no daemon runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edged.clock import SystemClock
from edged.config import Config
from edged.device.admin.local_state import local_entry, lock_state
from edged.device.startup.bootstrap import open_samples, with_context
from edged.domain.stream.sample import Batch
from edged.domain.training.message import Message
from edged.errors import ConfigError, RefusedError
from edged.storage.journal.audit_log import AuditLog
from edged.storage.models.registry import Registry
from edged.storage.recordings.reader import FORMATS, format_of, readable
from edged.storage.recordings.samples import FileReader
from edged.storage.samples.log import SampleLog
from edged.storage.samples.side_tables import ImportProgress

Progress = Callable[[str, int], None]
"""Receives the name of a file and how many of its samples are stored."""


@dataclass(frozen=True)
class ImportFile:
    """A file that is imported, its format, and its progress so far."""

    path: Path
    format: str
    progress: ImportProgress


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
        While a daemon runs, or when an import of the file was begun for another configuration or format.
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
    before, stored = _store(config, file, history, on_progress)
    warnings = [history.left_out.line(history.unit), history.refused.line(history.unit, "labels")]
    return ImportedFile(file.path, stored, before, tuple(filter(None, warnings)))


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


def _store(config: Config, file: ImportFile, history: FileReader, on_progress: Progress) -> tuple[bool, int]:
    """Store a file's samples; return whether all were there before, and how many there are."""
    state, clock = config.storage.dir, SystemClock()
    with lock_state(state), closing(open_samples(config, clock=clock)) as samples:
        progress = _known(samples, file)
        if progress.finished is not None:
            return True, progress.samples
        for batch in _batches(file, history, progress.samples):
            progress = _store_part(samples, progress, batch, clock.now())
            on_progress(file.path.name, progress.samples)
        with Registry.open(state) as registry:
            request = {"file": progress.file, "name": progress.name}
            registry.record_audit(local_entry("import", request, result={"samples": progress.samples}))
            samples.commit(None, imported=replace(progress, finished=clock.now()))
            AuditLog(state).drain(registry)
        return False, progress.samples


def _store_part(samples: SampleLog, progress: ImportProgress, batch: Batch, now: float) -> ImportProgress:
    """Store samples as arrived at `now`, and how far the import is then.

    Both are in one transaction: whatever happens, no sample is stored twice.
    """
    first, n = samples.next_offset(), len(batch)
    stored = replace(batch, offsets=np.arange(first, first + n), ingested=np.full(n, now))
    after = replace(progress, samples=progress.samples + n)
    samples.commit(stored, imported=after)
    return after
