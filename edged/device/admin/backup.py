"""`edged backup` and `edged restore`: a device's state in one file, or a backup of each of its streams."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from edged.clock import SystemClock
from edged.config import Config
from edged.device.admin.audit import local_entry
from edged.domain.training.message import Message
from edged.errors import RefusedError
from edged.signing import Keys, sign
from edged.storage.backup import backup
from edged.storage.backup.archive import MOST_FILES, is_plain
from edged.storage.backup.backup import BackupReport, RestoreReport
from edged.storage.backup.restore import as_owner_of
from edged.storage.files.archive import ArchiveReader, ArchiveWriter, blocks_of
from edged.storage.files.atomic import (
    DirectoryLock,
    disk_errors,
    make_directory,
    new_file,
    staging_path,
)
from edged.storage.files.database import connect
from edged.storage.journal.audit_log import AuditLog
from edged.storage.samples.tables import check_stream

FOLDER = "streams/"
"""Where the file has the backups of several streams, each as `edged backup --stream` writes it."""
_NAME = 30  # bytes before the name of the first file of an archive


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


def back_up(config: Config, out: Path, key: Path | None = None) -> BackupReport:
    """Write the state of the device to the file `out`, also while its daemon runs; sign it with `key`.

    Raises ConfigError when the key cannot be used; StorageError when there is
    no state or it is damaged, or a disk refuses.
    """
    signer = None if key is None else lambda message: sign(message, key)
    return backup.back_up(config.storage.dir, out, config.device.id, SystemClock().now(), signer)


def restore(
    config: Config, source: Path, *, replace: bool = False, keys: Sequence[Path] = ()
) -> RestoreReport:
    """Replace the state of this device by a backup; if `keys` are given, one of them must have signed it.

    Raises RefusedError when a daemon runs, there is a state and `replace` is false, the backup is of another
    stream, or its signature is not by one of the keys; StorageError when the backup is damaged or of a newer
    edged, or a disk refuses.

    Notes
    -----
    Root acts as the owner of the state directory, so that files in it can harm no other user.
    """
    state = config.storage.dir
    pid = DirectoryLock.holder(state)
    if pid is not None:
        raise RefusedError(
            f"another edged is using this state directory (pid {pid})",
            where=str(state),
            remedy="stop it first",
        )
    trusted = Keys(keys) if keys else None
    make_directory(state)
    with ExitStack() as opened:
        with disk_errors("reading the backup", source):
            content = opened.enter_context(source.open("rb"))
        opened.enter_context(as_owner_of(state))
        opened.enter_context(DirectoryLock(state))
        audit = AuditLog(state)

        def check(unpacked: Path) -> None:
            _same_stream(config, unpacked)
            audit.append(local_entry("restore", {}, "executing"))  # nothing can refuse it any more

        report = backup.restore(
            content,
            state,
            replace=replace,
            trusted=None if trusted is None else lambda text, mark: trusted.signer(text, mark) is not None,
            check=check,
        )
        done = {"champion": report.about.champion, "signed": report.signed}
        audit.append(local_entry("restore", {}, result=done))
    return report


def _same_stream(config: Config, unpacked: Path) -> None:
    """Raises StorageError where the samples are of another stream than the configuration's."""
    path = unpacked / backup.SAMPLES
    if path.exists():
        with closing(connect(path, readonly=True)) as db:
            check_stream(db, path, config.stream.to_schema())


def back_up_streams(configs: Sequence[Config], out: Path, key: Path | None = None) -> StreamsBackup:
    """Write the state of every stream to the file `out`, each signed with `key`.

    Each is as of one moment, not all of the same. Raises as `back_up`.
    """
    results: dict[str, BackupReport] = {}
    with _scratch(out) as folder, new_file(out, 0o600) as target, ArchiveWriter(target) as archive:
        for config in configs:
            one = folder / config.name
            results[config.name] = back_up(config, one, key)
            archive.add(FOLDER + config.name, one.stat().st_size, blocks_of(one))
            one.unlink()
    return StreamsBackup(out, out.stat().st_size, results)


def holds_streams(source: Path) -> bool:
    """Return whether a file holds backups of several streams."""
    with disk_errors("reading the backup", source), source.open("rb") as content:
        content.seek(_NAME)
        return content.read(len(FOLDER)) == FOLDER.encode()


def restore_streams(
    configs: Sequence[Config], source: Path, *, replace: bool = False, keys: Sequence[Path] = ()
) -> RestoredStreams:
    """Replace the state of every stream that is in the file; each is restored whole, or not at all.

    Raises RefusedError when one of them is not in the configuration, and as `restore`; the same call again
    continues where it ended.
    """
    known = {config.name: config for config in configs}
    results: dict[str, RestoreReport] = {}
    with (
        _scratch(source) as folder,
        disk_errors("restoring", source),
        source.open("rb") as content,
        ArchiveReader(content, "backup of streams", "use another one", _is_stream, MOST_FILES) as archive,
    ):
        members = {member.filename.removeprefix(FOLDER): member for member in archive.members}
        if unknown := sorted(set(members) - set(known)):
            raise RefusedError(
                f"the backup has streams that are not configured: {', '.join(unknown)}",
                where=str(source),
                remedy="add them to streams",
            )
        for name, member in members.items():
            one = folder / name
            with one.open("wb") as copy:
                copy.writelines(archive.blocks(member))
            results[name] = restore(known[name], one, replace=replace, keys=keys)
            one.unlink()
        archive.finish()
    return RestoredStreams(results)


def _is_stream(name: str) -> bool:
    return name.startswith(FOLDER) and is_plain(name)


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
