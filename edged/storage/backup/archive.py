"""A backup as one file, of which every byte is accounted for: an archive with a manifest.

First the manifest with the name, size and SHA-256 of each file that follows, then, where it was signed, the
signature over that manifest, then the files in the manifest's order. `unzip -l` lists it. Whoever reads one
knows which files follow before reading them, and takes nothing else: no second file of a name, no paths that
lead elsewhere, and what `archive` does not take.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from edged.domain.bundle_contents import FileEntry
from edged.domain.training.message import Message
from edged.errors import CorruptError, RefusedError, TrainingError
from edged.storage.files.atomic import disk_errors
from edged.storage.files.checksummed_json import seal, unseal
from edged.storage.models.zip_archive import ArchiveMember, ArchiveReader, ArchiveWriter, blocks_of

MANIFEST, SIGNATURE = "backup.json", "backup.sig"
MOST_FILES, LONGEST_MANIFEST = 20_000, 8 << 20
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DEPTH = 4


@dataclass(frozen=True)
class Entry:
    """A file of an archive: what the manifest says of it."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class BackupManifest(Message):
    """What the manifest of a backup says beside its files.

    `edged` is the version that made it, `device` the id of the device, `created` in Unix seconds. `champion`
    is the version of the model that served, None where none did, and `samples` the number of samples.
    """

    edged: str
    device: str
    created: float
    format: int
    champion: int | None
    samples: int


def entry_of(name: str, path: Path) -> Entry:
    """What the manifest will say of a file."""
    with disk_errors("reading", path):
        found = FileEntry.of(path)
    return Entry(name, found.bytes, found.sha256)


def write(
    target: BinaryIO,
    about: BackupManifest,
    files: Mapping[Entry, Path],
    sign: Callable[[bytes], bytes] | None,
) -> None:
    """Write an archive.

    `files` must still be what their entries say; `sign` makes the signature of the manifest, None for none.

    Raises CorruptError when a file has changed since its entry was made.
    """
    listed = [[entry.name, entry.size, entry.sha256] for entry in files]
    manifest = seal({**about.to_json(), "files": listed})
    archive = ArchiveWriter(target)
    archive.add(MANIFEST, len(manifest), [manifest])
    if sign is not None:
        signature = sign(manifest)
        archive.add(SIGNATURE, len(signature), [signature])
    for entry, path in files.items():
        changed = CorruptError("the file changed while it was copied", where=str(path), remedy="try again")
        archive.add(entry.name, entry.size, _verified(blocks_of(path), entry, changed))
    archive.finish()


def _verified(blocks: Iterable[bytes], entry: Entry, problem: CorruptError) -> Iterator[bytes]:
    """Pass on the content of a file; raise `problem` at its end where it is not what the entry says."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        yield block
    if digest.hexdigest() != entry.sha256:
        raise problem


class Archive:
    """An archive that is read once, from its beginning to its end; made on an open file.

    `manifest` and `signature` are as they were written, the signature empty where there is none: check it
    before reading on. `format` is what the manifest, verified against its own seal, says of the form it has;
    `entries` are the files that follow.

    Raises CorruptError when it is no such archive or any byte of its beginning is not as it was written;
    RefusedError when it names files as no backup does.
    """

    def __init__(self, source: BinaryIO, where: str) -> None:
        self._where = where
        self._archive = ArchiveReader(source, f"backup of edged in {where}", "use another one", _plain)
        first = self._archive.next()
        if first is None or first.name != MANIFEST or first.size > LONGEST_MANIFEST:
            raise self._archive.damaged("its beginning is damaged")
        self.manifest = b"".join(self._archive.blocks(first))
        self._whole = unseal(self.manifest, where)
        self.format = self._whole.get("format")
        self.entries = self._listed(self._whole.get("files"))
        self._ahead: ArchiveMember | None = self._archive.next()
        self.signature = b""
        if self._ahead is not None and (self._ahead.name, self._ahead.size) == (SIGNATURE, 64):
            self.signature = b"".join(self._archive.blocks(self._ahead))
            self._ahead = self._archive.next()

    def about(self) -> BackupManifest:
        """Read the manifest; raises CorruptError when it is not whole."""
        try:
            return BackupManifest.from_json(self._whole)
        except TrainingError as problem:
            raise CorruptError(f"the manifest is not whole: {problem.line()}", where=self._where) from problem

    def _listed(self, listed: Any) -> list[Entry]:
        try:
            entries = [Entry(str(name), int(size), str(digest)) for name, size, digest in listed]
        except (TypeError, ValueError):
            raise CorruptError("the manifest names no files", where=self._where) from None
        names = [entry.name for entry in entries]
        if len(names) > MOST_FILES:
            raise RefusedError(f"{len(names)} files, {MOST_FILES} are taken", where=self._where)
        taken = set(names)
        for entry in entries:
            if not _plain(entry.name) or entry.size < 0:
                raise RefusedError("no backup names a file like this", where=repr(entry.name[:120]))
            # A file cannot be where another one's directory is.
            if any(str(parent) in taken for parent in PurePosixPath(entry.name).parents):
                raise RefusedError("this file lies within a file", where=repr(entry.name[:120]))
        if len(taken) != len(names):
            raise RefusedError("a file is named twice", where=self._where)
        return entries

    def contents(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Each file with its content in pieces; what was read is right only when this has ended by itself.

        Raises CorruptError at the first byte that is not as it was written, behind the end, too.
        """
        for entry in self.entries:
            member = self._ahead
            if member is None or (member.name, member.size) != (entry.name, entry.size):
                raise self._archive.damaged("not the file that the manifest names", entry.name)
            different = self._archive.damaged("not what the manifest says", entry.name)
            yield entry, _verified(self._archive.blocks(member), entry, different)
            self._ahead = self._archive.next()
        if self._ahead is not None:
            raise self._archive.damaged("a file that the manifest does not name", self._ahead.name)
        self._archive.finish()


def _plain(name: str) -> bool:
    parts = name.split("/")
    return len(parts) <= _DEPTH and all(_PART.fullmatch(part) for part in parts) and name.isascii()
