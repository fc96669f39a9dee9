"""An archive of which every byte is accounted for: a tar file in one form only.

First a manifest with the name, size and SHA-256 of each file that follows, then, where it was signed, the
signature over that manifest, then the files in the manifest's order. `tar -tvf` lists it. Whoever reads one
knows each header, each byte of padding and the end before reading them, and takes nothing else: no links, no
devices, no second file of a name, no paths that lead elsewhere, nothing behind the end.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from edged.errors import CorruptError, RefusedError
from edged.storage.files.atomic import disk_errors
from edged.storage.files.checksummed_json import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

MANIFEST, SIGNATURE = "backup.json", "backup.sig"
MOST_FILES, LONGEST_MANIFEST = 20_000, 8 << 20
_BLOCK, _CHUNK = tarfile.BLOCKSIZE, 1 << 20
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DEPTH = 4


@dataclass(frozen=True)
class Entry:
    """A file of an archive: what the manifest says of it."""

    name: str
    size: int
    sha256: str


def entry_of(name: str, path: Path) -> Entry:
    """What the manifest will say of a file."""
    digest, size = hashlib.sha256(), 0
    with disk_errors("reading", path), path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return Entry(name, size, digest.hexdigest())


def _header(name: str, size: int) -> bytes:
    """The tar header of a file: owner, mode and time are always the same."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.GNU_FORMAT)


def write(
    target: BinaryIO,
    about: Mapping[str, Any],
    files: Mapping[Entry, Path],
    sign: Callable[[bytes], bytes] | None,
) -> None:
    """Write an archive.

    Parameters
    ----------
    target
        Where to.
    about
        What the manifest says beside `files`.
    files
        Entries with the paths of their content, which must still be what the entries say.
    sign
        Makes the signature of the manifest; None for none.

    Raises
    ------
    CorruptError
        When a file has changed since its entry was made.
    """
    listed = [[entry.name, entry.size, entry.sha256] for entry in files]
    manifest = seal({**about, "files": listed})
    _write_bytes(target, MANIFEST, manifest)
    if sign is not None:
        _write_bytes(target, SIGNATURE, sign(manifest))
    for entry, path in files.items():
        target.write(_header(entry.name, entry.size))
        digest, left = hashlib.sha256(), entry.size
        with path.open("rb") as file:
            while left and (chunk := file.read(min(_CHUNK, left))):
                digest.update(chunk)
                target.write(chunk)
                left -= len(chunk)
        if left or digest.hexdigest() != entry.sha256:
            raise CorruptError("the file changed while it was copied", where=str(path), remedy="try again")
        target.write(bytes(-entry.size % _BLOCK))
    target.write(bytes(_end_bytes(target.tell())))


def _write_bytes(target: BinaryIO, name: str, data: bytes) -> None:
    target.write(_header(name, len(data)) + data + bytes(-len(data) % _BLOCK))


def _end_bytes(position: int) -> int:
    """Zeros at the end: two blocks, and what fills the last record."""
    return 2 * _BLOCK + -(position + 2 * _BLOCK) % tarfile.RECORDSIZE


class Archive:
    """An archive that is read once, from its beginning to its end; made on an open file.

    Attributes
    ----------
    manifest, signature
        As they were written; the signature empty where there is none. Check it before reading on.
    about
        What the manifest holds, verified against its own seal.
    entries
        The files that follow.

    Raises
    ------
    CorruptError
        When it is no such archive or any byte of its beginning is not as it was written.
    RefusedError
        When it names files as no backup does.
    """

    def __init__(self, source: BinaryIO, where: str) -> None:
        self._source, self._where = source, where
        self.manifest = self._beginning()
        self.about = unseal(self.manifest, where)
        self.entries = self._listed(self.about.pop("files", None))
        self.signature = self._signature()

    def _beginning(self) -> bytes:
        head = self._source.read(_BLOCK)
        try:
            size = tarfile.TarInfo.frombuf(head, "utf-8", "strict").size
        except (tarfile.HeaderError, UnicodeDecodeError):
            size = -1
        if not 0 < size <= LONGEST_MANIFEST or head != _header(MANIFEST, size):
            raise CorruptError("no backup of edged, or its beginning is damaged", where=self._where)
        return self._content(size)

    def _signature(self) -> bytes:
        """The signature, where the next header is that of one; else the header is put back."""
        place = self._source.tell()
        head = _header(SIGNATURE, 64)
        if self._source.read(len(head)) == head:
            return self._content(64)
        self._source.seek(place)
        return b""

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
            if any(parent in taken for parent in _parents(entry.name)):
                raise RefusedError("this file lies within a file", where=repr(entry.name[:120]))
        if len(taken) != len(names):
            raise RefusedError("a file is named twice", where=self._where)
        return entries

    def contents(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Each file with its content in pieces; what was read is right only when this has ended by itself.

        Raises
        ------
        CorruptError
            At the first byte that is not as it was written, behind the end, too.
        """
        for entry in self.entries:
            head = _header(entry.name, entry.size)
            if self._source.read(len(head)) != head:
                raise self._damaged(entry.name)
            yield entry, self._pieces(entry)
        end = _end_bytes(self._source.tell())
        if self._source.read(end + 1) != bytes(end):
            raise self._damaged("its end")

    def _pieces(self, entry: Entry) -> Iterator[bytes]:
        digest, left = hashlib.sha256(), entry.size
        while left:
            chunk = self._source.read(min(_CHUNK, left))
            if not chunk:
                raise self._damaged(entry.name)
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        self._padding(entry.size, entry.name)
        if digest.hexdigest() != entry.sha256:
            raise self._damaged(entry.name)

    def _content(self, size: int) -> bytes:
        data = self._source.read(size)
        if len(data) != size:
            raise self._damaged("its beginning")
        self._padding(size, "its beginning")
        return data

    def _padding(self, size: int, what: str) -> None:
        padding = -size % _BLOCK
        if self._source.read(padding) != bytes(padding):
            raise self._damaged(what)

    def _damaged(self, what: str) -> CorruptError:
        return CorruptError(f"the backup is damaged at {what}", where=self._where, remedy="use another one")


def _plain(name: str) -> bool:
    parts = name.split("/")
    return len(parts) <= _DEPTH and all(_PART.fullmatch(part) for part in parts) and name.isascii()


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
