"""Files that are either wholly there or not at all, and are checked when read back.

Publishing is: write under a temporary name, fsync the file, rename, fsync the directory. Every
temporary name begins with `.staging-`; what an interrupted publish leaves behind is removed by
`sweep` and is never taken for the real thing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from typing_extensions import Self

from edged.domain.bundle_contents import FileEntry
from edged.errors import CorruptError, EdgedError, StorageError
from edged.storage.files.checksummed_json import read_sealed, seal

STAGING = ".staging-"
MANIFEST = "manifest.json"
_LOCK_ATTEMPTS = 10


@dataclass(frozen=True)
class DirectoryManifest:
    """What a published directory holds: its files by name, and `extra`, which its publisher has added."""

    files: Mapping[str, FileEntry]
    extra: Mapping[str, Any]

    def sealed(self) -> bytes:
        """Return the content of `manifest.json`."""
        return seal({**self.extra, "files": {name: vars(entry) for name, entry in self.files.items()}})


_REMEDIES = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "raise the disk quota or free some space",
    errno.EROFS: "mount the file system writable",
    errno.EACCES: "give this user write permission",
    errno.EPERM: "give this user write permission",
    errno.ELOOP: "remove the symbolic link: it may lead anywhere",
    errno.EIO: "check the disk: it reports read or write errors",
    errno.EMFILE: "raise the limit of open files (LimitNOFILE=)",
    errno.ENFILE: "raise the limit of open files (LimitNOFILE=)",
}


class Disk:
    """Every change this package makes to files, except SQLite's own, goes through here.

    A harness that records or fails operations replaces this object; nothing else needs to know.

    `durable` says whether `sync` does anything; see `scratch`.
    """

    durable = True

    def make_directory(self, path: Path) -> None:
        """Create `path` and its missing parents; existing ones are fine."""
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Create or overwrite a file; not durable before `sync`."""
        path.write_bytes(data)

    def sync(self, path: Path) -> None:
        """Make the content of a file, or the names in a directory, durable."""
        if not self.durable:
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Move atomically within one file system, replacing a file of that name."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Delete a file or a whole directory; a missing one is fine."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


DISK = Disk()
_PROBE_BYTES = 64 * 1024


@contextmanager
def scratch() -> Iterator[None]:
    """Wait for no disk meanwhile: what is written needs not outlive a power cut, as an evaluation's state.

    It holds for this process alone, and for databases that are opened meanwhile.
    """
    before, DISK.durable = DISK.durable, False
    try:
        yield
    finally:
        DISK.durable = before


@contextmanager
def disk_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn OSError into StorageError with what was being done, the path and a remedy."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        remedy = _REMEDIES.get(problem.errno or 0, "")
        raise StorageError(f"{doing} failed: {reason}", where=str(where), remedy=remedy) from problem


@contextmanager
def disk_errors_of_others(directory: Path, *, disk: Disk = DISK) -> Iterator[None]:
    """Also errors of what writes into `directory` itself and does not tell the disk from other causes.

    They become StorageError where the disk refuses a small file there as well, and stay what they are
    where it does not.
    """
    with disk_errors("writing", directory):
        try:
            yield
        except EdgedError:
            probe = staging_path(directory, "probe")
            try:
                disk.write(probe, bytes(_PROBE_BYTES))
            finally:
                with suppress(OSError):
                    disk.remove(probe)
            raise


def staging_path(parent: Path, name: str) -> Path:
    """A fresh temporary name beside `name` that `sweep` recognises."""
    return parent / f"{STAGING}{name}-{secrets.token_hex(4)}"


def make_directory(path: Path, *, disk: Disk = DISK) -> None:
    """Create `path` and its missing parents, durably: what is fsynced inside is worth nothing otherwise.

    Raises StorageError when the disk refuses.
    """
    with disk_errors("creating the directory", path):
        missing = [directory for directory in (path, *path.parents) if not directory.exists()]
        disk.make_directory(path)
        try:
            for directory in reversed(missing):
                disk.sync(directory.parent)
        except OSError:
            # One that is there the next time would be taken for durable.
            for directory in missing:
                with suppress(OSError):
                    directory.rmdir()
            raise


def fsync_directory(path: Path, *, disk: Disk = DISK) -> None:
    """Make the names in a directory durable: a rename is not before this."""
    with disk_errors("syncing the directory", path):
        disk.sync(path)


def write_at(descriptor: int, data: bytes, at: int) -> int:
    """Write all of `data` into an open file from position `at` on; return where it ends."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        left, at = left[written:], at + written
    return at


def publish_file(path: Path, data: bytes, *, disk: Disk = DISK) -> None:
    """Replace `path` by `data`, atomically and durably.

    Raises StorageError when it failed. Then `path` holds either its old content or `data`: read it again.
    """
    staging = staging_path(path.parent, path.name)
    with disk_errors("publishing", path):
        try:
            disk.write(staging, data)
            disk.sync(staging)
            disk.rename(staging, path)
        except OSError:
            with suppress(OSError):  # what is left is swept later; the first error is the one to tell
                disk.remove(staging)
            raise
        disk.sync(path.parent)


@contextmanager
def new_file(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Yield a file to write, which takes the place of `path`, durably, when no error ends the block.

    `mode` are its rights, of which the umask takes some.

    Raises StorageError when the disk refuses.
    """
    staging = staging_path(path.parent, path.name)
    try:
        with disk_errors("writing", path):
            with open(staging, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as target:
                yield target
                target.flush()
                os.fsync(target.fileno())
            staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
    fsync_directory(path.parent)


def publish_directory(
    staging: Path, final: Path, *, extra: Mapping[str, Any] | None = None, disk: Disk = DISK
) -> DirectoryManifest:
    """Give a finished directory its final name, atomically and durably, with a manifest inside.

    `manifest.json` holds `{"files": {name: {"sha256", "bytes"}}}` and `extra`, and is sealed with
    its own sha256. The manifest is returned as `read_manifest` gives it.

    Raises StorageError when `final` exists already or the disk refuses. The directory may have its final name
    all the same when the very last sync failed: look again.
    """
    if final.exists():
        raise StorageError("this was published before and is never overwritten", where=str(final),
                           remedy="choose another name or remove it")  # fmt: skip
    with disk_errors("publishing", final):
        names = _files_below(staging)
        manifest = DirectoryManifest({name: FileEntry.of(staging / name) for name in names}, extra or {})
        disk.write(staging / MANIFEST, manifest.sealed())
        for name in [*names, MANIFEST]:
            disk.sync(staging / name)
        for directory in _directories_within(staging):
            disk.sync(directory)
        disk.rename(staging, final)
        for parent in {final.parent, staging.parent}:
            disk.sync(parent)
    return read_manifest(final)


def _files_below(directory: Path) -> list[str]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(name for path in found if (name := path.relative_to(directory).as_posix()) != MANIFEST)


def _directories_within(directory: Path) -> list[Path]:
    """Deepest first, so that a directory is durable before its parent's sync."""
    inner = [path for path in directory.rglob("*") if path.is_dir()]
    return [*sorted(inner, key=lambda path: -len(path.parts)), directory]


def read_manifest(directory: Path) -> DirectoryManifest:
    """The manifest of a published directory, its own seal checked, the files not.

    Raises CorruptError when it is missing or is not what was written.
    """
    extra = dict(read_sealed(directory / MANIFEST))
    try:
        files = {name: FileEntry(file["bytes"], file["sha256"]) for name, file in extra.pop("files").items()}
    except (KeyError, TypeError, AttributeError):
        raise CorruptError("the manifest names no files", where=str(directory / MANIFEST)) from None
    return DirectoryManifest(files, extra)


def verify_directory(directory: Path) -> DirectoryManifest:
    """Compare every file with the manifest and return the manifest.

    Files that the manifest does not name are not looked at.

    Raises CorruptError naming the first file that is missing or differs.
    """
    manifest = read_manifest(directory)
    for name, expected in manifest.files.items():
        path = directory / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CorruptError("the manifest names a file outside its directory", where=str(path))
        if not path.is_file():
            raise CorruptError("the file is missing", where=str(path))
        with disk_errors("reading", path):
            actual = FileEntry.of(path)
        if actual != expected:
            raise CorruptError("the file is not what its manifest says: it is damaged", where=str(path))
    return manifest


def remove(path: Path, *, disk: Disk = DISK) -> None:
    """Delete a published file or directory so that no half of it can ever be seen."""
    doomed = staging_path(path.parent, path.name)
    with disk_errors("removing", path):
        disk.rename(path, doomed)
        disk.sync(path.parent)  # deleted earlier, a power cut may bring back the name without some files
        disk.remove(doomed)


def remove_files(paths: Iterable[Path]) -> int:
    """Delete files, and directories with all that is in them; return how many files went.

    Missing ones are fine. A symbolic link is removed, what it points to is left alone.

    Raises StorageError when the disk refuses; what is left can be removed by another call.
    """
    count = 0
    for path in paths:
        if not path.is_symlink() and not path.exists():
            continue
        inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
        count += sum(file.is_file() and not file.is_symlink() for file in inside)
        with disk_errors("removing", path):
            DISK.remove(path)
        fsync_directory(path.parent)
    return count


def sweep(parent: Path, *, disk: Disk = DISK) -> list[str]:
    """Remove what interrupted publishes left in `parent`; the names removed.

    Call it only while no other thread or process publishes into `parent`.
    """
    if not parent.is_dir():
        return []
    left = sorted(path.name for path in parent.iterdir() if path.name.startswith(STAGING))
    if left:
        fsync_directory(parent, disk=disk)  # some may have been set aside in the moment before a crash
    for name in left:
        with disk_errors("removing", parent / name):
            disk.remove(parent / name)
    return left


class DirectoryLock:
    """One daemon per state directory: an flock on `edged.lock` inside it.

    The kernel releases the lock when the process ends, however it ends. Child processes do not
    inherit it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as state, DirectoryLock(Path(state)):
    ...     DirectoryLock.holder(Path(state)) == os.getpid()
    True
    """

    NAME = "edged.lock"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._umask = 0

    def acquire(self) -> None:
        """Acquire the lock without waiting; until `release` what this process makes is for its owner alone.

        Raises StorageError when another process holds it (its pid is named), or the directory cannot be
        written.
        """
        file = self._path / self.NAME
        make_directory(self._path)
        with disk_errors("locking", file):
            if not file.is_symlink() and file.is_dir():
                file.rmdir()  # it locks nothing, and holds nothing of ours
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if not self._lock(descriptor):
            pid = _read_pid(descriptor)
            os.close(descriptor)
            raise StorageError(
                f"another edged is using this state directory (pid {pid or 'unknown'})",
                where=str(self._path),
                remedy="stop it first or choose another storage.dir",
            )
        self._descriptor = descriptor
        self._umask = os.umask(0o077)
        with suppress(OSError):
            if self._path.stat().st_uid == os.geteuid():
                self._path.chmod(0o700)  # so others reach nothing in it
        with disk_errors("locking", file):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    @staticmethod
    def _lock(descriptor: int) -> bool:
        """Try for a moment: someone asking `holder` has the lock for some microseconds."""
        for attempt in range(_LOCK_ATTEMPTS):
            if _try_flock(descriptor, fcntl.LOCK_EX):
                return True
            time.sleep(0.001 * attempt)
        return False

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor is not None:
            os.umask(self._umask)
            os.close(self._descriptor)
            self._descriptor = None

    @classmethod
    def holder(cls, path: Path) -> int | None:
        """Return the pid of the process that holds the lock of this state directory; None without one.

        0 stands for a holder that has not written its pid yet.
        """
        try:
            descriptor = os.open(path / cls.NAME, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return None if _try_flock(descriptor, fcntl.LOCK_SH) else _read_pid(descriptor) or 0
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def owner_only() -> Iterator[None]:
    """Let what this process makes meanwhile be for its owner alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _try_flock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
