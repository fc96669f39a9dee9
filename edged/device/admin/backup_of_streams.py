"""Backup and restore of a device with several streams: one file that holds a backup of each."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edged.device.admin.backup import back_up, restore
from edged.domain.training.message import Message
from edged.errors import RefusedError, StorageError
from edged.storage.backup.backup import BackupReport, RestoreReport
from edged.storage.files.atomic import disk_errors, fsync_directory, staging_path

if TYPE_CHECKING:
    from edged.config import Config

FOLDER = "streams"
"""In the file: one backup a stream, as `edged backup --stream` writes it."""


@dataclass(frozen=True)
class StreamsBackup(Message):
    """A backup of several streams: the file, its size, and the backup of each stream."""

    file: Path
    bytes: int
    streams: Mapping[str, BackupReport]


@dataclass(frozen=True)
class RestoredStreams(Message):
    """The streams that were restored."""

    streams: Mapping[str, RestoreReport]


def back_up_streams(configs: Sequence[Config], out: Path, key: Path | None = None) -> StreamsBackup:
    """Write the state of every stream to the file `out`, each signed with `key`.

    Each is as of one moment, not all of the same. Raises as `back_up`.
    """
    results: dict[str, BackupReport] = {}
    with _scratch(out) as folder, disk_errors("writing the backup", out):
        unfinished = folder / "whole"
        with open(unfinished, "xb", opener=_for_us_alone) as target:
            with tarfile.open(fileobj=target, mode="w") as tar:
                for config in configs:
                    one = folder / config.name
                    results[config.name] = back_up(config, one, key)
                    tar.add(one, f"{FOLDER}/{config.name}")
                    one.unlink()
            target.flush()
            os.fsync(target.fileno())
        size = unfinished.stat().st_size
        unfinished.replace(out)
        fsync_directory(out.parent)
    return StreamsBackup(out, size, results)


def holds_streams(source: Path) -> bool:
    """Return whether a file holds backups of several streams."""
    with disk_errors("reading the backup", source), source.open("rb") as content:
        content.seek(257)
        return content.read(5) == b"ustar"


def restore_streams(
    configs: Sequence[Config], source: Path, *, replace: bool = False, keys: Sequence[Path] = ()
) -> RestoredStreams:
    """Replace the state of every stream that is in the file; each is restored whole, or not at all.

    Raises RefusedError when one of them is not in the configuration, and as `restore`; the same call again
    goes on where it ended.
    """
    known = {config.name: config for config in configs}
    results: dict[str, RestoreReport] = {}
    with _scratch(source) as folder:
        try:
            with tarfile.open(source) as tar:
                members = {Path(member.name).name: member for member in tar if member.isfile()}
                unknown = sorted(set(members) - set(known))
                if unknown:
                    raise RefusedError(
                        f"the backup has streams that are not configured: {', '.join(unknown)}",
                        where=str(source),
                        remedy="add them to streams",
                    )
                for name, member in members.items():
                    one, content = folder / name, tar.extractfile(member)
                    if content is None:
                        continue
                    with disk_errors("restoring", one), content, one.open("wb") as copy:
                        shutil.copyfileobj(content, copy)
                    results[name] = restore(known[name], one, replace=replace, keys=keys)
                    one.unlink()
        except tarfile.TarError as problem:
            raise StorageError(f"the backup is damaged: {problem}", where=str(source)) from problem
    return RestoredStreams(results)


@contextmanager
def _scratch(beside: Path) -> Iterator[Path]:
    """A directory for one backup at a time, beside a file."""
    folder = staging_path(beside.parent, beside.name)
    with disk_errors("making room for a backup", folder):
        folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
