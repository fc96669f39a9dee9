"""Backups of a state directory: taken while a daemon writes to it, and put back whole or not at all.

What is in one: the three databases, models, checkpoints, bundles and the small files beside them.
What is published never changes, so links to it are a picture of a moment; databases are copied by SQLite
itself. The order is such that whatever happens in between is mended by the next start, as after a power cut:
files first, the registry after them, the samples last.

Putting one back: everything is unpacked and verified in `.restoring/`, which becomes `.restored/` by one
rename; from then on the old state leaves and the new one moves in, and a start that finds `.restored/` goes
on with it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edged import __version__
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message
from edged.errors import CorruptError, FormatError, RefusedError, StorageError
from edged.storage.backup import archive
from edged.storage.backup.archive import BackupManifest
from edged.storage.backup.restore import RESTORED, RESTORING, finish, state_files
from edged.storage.files import atomic
from edged.storage.files.damaged_database import damage
from edged.storage.files.database import connect, translated
from edged.storage.journal import journal
from edged.storage.journal.journal import DATABASE as REGISTRY
from edged.storage.journal.journal import Journal
from edged.storage.models.records import MODELS
from edged.storage.models.registry import POINTER, present_reign
from edged.storage.outbox import queue, tables
from edged.storage.samples.tables import FORMAT as SAMPLES_FORMAT

FORMAT = 1
HEADER = b"edged-backup-1\n"
SAMPLES = "samples.db"
FOLDERS = (MODELS, "checkpoints", "bundles", "bundle")
FILES = ("config.set.json", "bundle.hidden.json")
DATABASES = {REGISTRY: journal.FORMAT, queue.DATABASE: tables.FORMAT, SAMPLES: SAMPLES_FORMAT}
"""The databases of a state, the samples last, with their formats."""
BOOTS_AHEAD = 1000
"""Starts that the device may have had after the backup: `boot` and `seq` name a message once and no more."""

_ATTEMPTS = 5
_CHECK_SECONDS = 60.0


@dataclass(frozen=True)
class BackupReport(Message):
    """A backup that was written: its file, what its manifest says, how many files and bytes it has."""

    file: Path
    about: BackupManifest
    files: int
    bytes: int
    signed: bool

    def to_json(self) -> JsonObject:
        """Return all on one level, without the format."""
        last = self.without("file", "about")
        return {"file": str(self.file), **self.about.without("format"), **last}


@dataclass(frozen=True)
class RestoreReport(Message):
    """A backup that was put in the place of the directory `state`: what its manifest says."""

    state: Path
    about: BackupManifest
    signed: bool

    def to_json(self) -> JsonObject:
        """Return all on one level, without the format, in the order of the manifest."""
        about = sorted(self.about.without("format").items())
        return {"state": str(self.state), **dict(about), "signed": self.signed}


def back_up(
    state: Path, out: Path, device: str, created: float, sign: Callable[[bytes], bytes] | None
) -> BackupReport:
    """Write a backup of `state` as the file `out`, durably.

    A daemon may run on `state`. `out` is replaced only when the backup is whole, and its owner alone may read
    it. `device` is its id, `created` the time in Unix seconds. `sign` makes the signature of `HEADER` and the
    manifest.

    Raises StorageError when there is nothing to back up, it cannot be read or the disk refuses; CorruptError
    when a database or the champion is damaged.
    """
    if not (state / REGISTRY).exists():
        raise StorageError(
            "there is no state here", where=str(state), remedy="check storage.dir; `edged run` makes one"
        )
    if not out.parent.is_dir():
        raise StorageError("there is no such directory", where=str(out.parent))
    picture = atomic.staging_path(state, "backup")
    try:
        with atomic.disk_errors("backing up", state):
            picture.mkdir(mode=0o700)
            _copy_state(state, picture)
            files = {
                path.relative_to(picture).as_posix(): path for path in picture.rglob("*") if path.is_file()
            }
            _check_formats(picture)
            reign, samples = present_reign(picture), _samples(picture)
            champion = None if reign is None else reign.version
            about = BackupManifest(__version__, device, created, FORMAT, champion, samples)
        signer = None if sign is None else lambda manifest: sign(HEADER + manifest)
        with atomic.new_file(out, 0o600) as target:
            archive.write(target, about, files, signer)
    finally:
        shutil.rmtree(picture, ignore_errors=True)
    return BackupReport(out, about, len(files), out.stat().st_size, sign is not None)


def _copy_state(state: Path, picture: Path) -> None:
    """Copy the state to `picture`, files first and databases after them."""
    for attempt in range(_ATTEMPTS):
        for name in FOLDERS:
            shutil.rmtree(picture / name, ignore_errors=True)
            if (state / name).is_dir():
                _link_folder(state / name, picture / name)
        if _champion_is_whole(state, picture):
            break
        if attempt == _ATTEMPTS - 1:
            raise CorruptError("the model that serves is damaged", where=str(state / MODELS))
    for name in FILES:
        if (state / name).is_file():
            _link(state / name, picture / name)
    for name in DATABASES:
        if (state / name).exists():
            _copy_database(state / name, picture / name)


def _link_folder(source: Path, target: Path) -> None:
    """Links to everything published in a folder; what is removed meanwhile, or damaged, is left out."""
    target.mkdir()
    with suppress(FileNotFoundError):
        for path in sorted(source.iterdir()):
            if path.name.startswith("."):
                continue
            with suppress(FileNotFoundError):
                if path.is_dir():
                    _link_folder(path, target / path.name)
                else:
                    _link(path, target / path.name)
    if (target / atomic.MANIFEST).exists():
        try:
            atomic.verify_directory(target)
        except CorruptError:
            shutil.rmtree(target)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:  # a file system that knows no links
        shutil.copyfile(source, target)


def _champion_is_whole(state: Path, picture: Path) -> bool:
    """Whether the pointer in the picture names a model in it; true where nothing serves yet."""
    if not (state / MODELS / POINTER).exists():
        return True
    return present_reign(picture) is not None


def _copy_database(source: Path, target: Path) -> None:
    with translated(source):
        db = connect(source, readonly=True)
        with closing(db), closing(sqlite3.connect(target)) as copy:
            db.backup(copy)
            if source.name == REGISTRY:  # the audit log is the device's own: it is not put back
                copy.execute("DELETE FROM meta WHERE name GLOB 'audit.*' OR name = 'audit'")
                copy.commit()
    problem = damage(target, _CHECK_SECONDS)
    if problem is not None:
        raise CorruptError(f"the database is damaged: {problem}", where=str(source))


def _check_formats(folder: Path) -> None:
    """Raise FormatError where a database has another format than this edged reads."""
    for name, number in DATABASES.items():
        if (path := folder / name).exists():
            connect(path, number=number, readonly=True).close()


def _samples(picture: Path) -> int:
    """How many samples there are."""
    if not (path := picture / SAMPLES).exists():
        return 0
    with closing(connect(path, readonly=True)) as db, translated(path):
        return int(db.execute("SELECT samples FROM tally").fetchone()[0])


# ---- putting it back -----------------------------------------------------------------------------


def restore(
    source: BinaryIO,
    state: Path,
    *,
    replace: bool,
    trusted: Callable[[bytes, bytes], bool] | None,
    check: Callable[[Path], None],
) -> RestoreReport:
    """Put a backup in the place of a state directory, whole or not at all.

    To be called under the directory's lock and as its owner (`as_owner_of`), who decides where names in it
    lead.

    `source` is the backup, opened for reading; the directory `state` is made where there is none, and a state
    that is there may go with `replace`. `trusted` says whether a signature of a message counts; None takes
    backups without one, too. `check` is called with the unpacked state before anything else changes, and
    raises EdgedError against it.

    Raises RefusedError when there is a state already, or the signature does not count, or the archive holds
    what none does; CorruptError when a file in it is not as it was written: nothing has changed then;
    FormatError when another edged made it; StorageError when the state that is to go is partly another
    user's, or the disk refuses.
    """
    atomic.make_directory(state)
    finish(state)
    if (there := state_files(state)) and not replace:
        raise RefusedError(
            f"there is a state already: {there[0].name}",
            where=str(state),
            remedy="--replace discards it permanently",
        )
    _refuse_folders_of_others(there)
    unpacked = state / RESTORING
    try:
        about, signed = _unpack(source, unpacked, trusted)
        _check_formats(unpacked)
        if present_reign(unpacked) is None and about.champion is not None:
            raise CorruptError("the model that served is not in the backup", where=str(source.name))
        check(unpacked)
        _go_on_behind(unpacked)
        with atomic.disk_errors("restoring", state):
            for path in sorted(unpacked.rglob("*"), reverse=True):
                atomic.DISK.sync(path)
            atomic.DISK.sync(unpacked)
            unpacked.replace(state / RESTORED)
        atomic.fsync_directory(state)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    finish(state)
    return RestoreReport(state, about, signed)


def _refuse_folders_of_others(there: list[Path]) -> None:
    """What this user can neither move nor empty would hold up a restore when it is too late to turn back."""
    if (user := os.geteuid()) == 0:
        return
    for path in there:
        # Each folder from the one above: of what this user may not read only the name is seen.
        inner = (Path(above, name) for above, names, _ in os.walk(path) for name in names)
        for folder in (path, *inner) if path.is_dir() else ():
            if folder.lstat().st_uid != user:
                raise StorageError(
                    "this folder belongs to another user than the state directory",
                    where=str(folder),
                    remedy=f"chown -Rh {user} {path.parent}",
                )


def _unpack(
    source: BinaryIO, folder: Path, trusted: Callable[[bytes, bytes], bool] | None
) -> tuple[BackupManifest, bool]:
    """Write its files into a new folder; what the manifest says, and whether it is signed."""
    where = str(source.name)
    with atomic.disk_errors("reading the backup", Path(where)), archive.BackupReader(source, where) as packed:
        signature = packed.signature
        if trusted is not None and not (signature and trusted(HEADER + packed.manifest, signature)):
            raise RefusedError(
                "not signed by a key that counts" if signature else "the backup is not signed",
                where=where,
                remedy="name its public key with --key, or leave --key out",
            )
        if packed.format != FORMAT:
            raise FormatError(
                f"the backup has format {packed.format!r}, this edged reads format {FORMAT}",
                where=where,
                remedy="install the edged that made it",
            )
        about = packed.about()
        for name in packed.names:
            if name.split("/")[0] not in {*FOLDERS, *FILES, *DATABASES}:
                raise RefusedError("no backup holds this", where=repr(name[:120]))
        with atomic.disk_errors("unpacking", folder):
            folder.mkdir()
            packed.extract(folder)
    return about, bool(signature)


def _go_on_behind(unpacked: Path) -> None:
    """Count starts on behind all that the device may have had since the backup; no database stays open."""
    if not (unpacked / REGISTRY).exists():
        raise CorruptError("the backup holds no registry", where=REGISTRY)
    for name in DATABASES:
        if (unpacked / name).exists():
            connect(unpacked / name).close()  # what was only read keeps an empty log beside it
    with Journal.open(unpacked) as registry:
        registry.skip_boots(BOOTS_AHEAD)
