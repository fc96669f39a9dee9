"""`edged backup` and `edged restore`: a device's state in one file, or its streams' in a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from edged.clock import SystemClock
from edged.config import Config
from edged.device.admin.local_state import local_entry
from edged.domain.training.message import Message
from edged.errors import RefusedError
from edged.signing import Keys, sign
from edged.storage.backup import backup
from edged.storage.backup.backup import BackupReport, RestoreReport
from edged.storage.backup.restore import as_owner_of
from edged.storage.files.atomic import DirectoryLock, disk_errors, make_directory
from edged.storage.files.database import connect
from edged.storage.journal.audit_log import AuditLog
from edged.storage.samples.tables import check_stream


@dataclass(frozen=True)
class StreamBackups(Message):
    """Backups of several streams."""

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


def back_up_streams(configs: Sequence[Config], folder: Path, key: Path | None = None) -> StreamBackups:
    """Write a backup of every stream into a directory, each as a file with the stream's name.

    Each is as of one moment, not all of the same. Raises as `back_up`.
    """
    with disk_errors("making room for a backup", folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    return StreamBackups({config.name: back_up(config, folder / config.name, key) for config in configs})


def restore_streams(
    configs: Sequence[Config], folder: Path, *, replace: bool = False, keys: Sequence[Path] = ()
) -> RestoredStreams:
    """Replace the state of every stream that has a file in the directory, each whole or not at all.

    Raises RefusedError when one of them is not in the configuration, and as `restore`; the same call again
    with `replace` begins again.
    """
    known = {config.name: config for config in configs}
    with disk_errors("reading the backup", folder):
        names = sorted(path.name for path in folder.iterdir())
    if unknown := [name for name in names if name not in known]:
        raise RefusedError(
            f"the backup has streams that are not configured: {', '.join(unknown)}",
            where=str(folder),
            remedy="add them to streams",
        )
    restored = {name: restore(known[name], folder / name, replace=replace, keys=keys) for name in names}
    return RestoredStreams(restored)
