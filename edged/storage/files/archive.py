"""Archives of plain files: a zip as `zipfile` writes it, stored, without links, devices and folders.

Bundles as one file and backups have this form. An archive may come from anywhere: names and sizes of its
members are checked before any is read, and its reader compares the content with the hashes of a manifest.
"""

from __future__ import annotations

import encodings.cp437  # noqa: F401  zipfile reads names with it; root cannot load it once it acts as the owner
import errno
import io
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP64_LIMIT, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from typing_extensions import Self

from edged.errors import CorruptError, RefusedError

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o600 << 16
_BLOCK = 1 << 20
_END, _WIDE_END = struct.Struct("<4s8xIIH"), b"PK\x06\x07"
_ENTRY_BYTES = 512  # of one file in the directory, at most
# What `zipfile` raises for content that is not what it should be.
_DAMAGE = (BadZipFile, EOFError, ValueError, RuntimeError, OverflowError, LookupError, struct.error)


def blocks_of(path: Path) -> Iterator[bytes]:
    """Read the content of a file in pieces."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


class ArchiveWriter:
    """Writes an archive to a seekable file, one member after the other; use it as a context manager."""

    def __init__(self, target: BinaryIO) -> None:
        self._archive = ZipFile(target, "w")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def add(self, name: str, size: int, blocks: Iterable[bytes]) -> None:
        """Add a file; CorruptError when its content is not of this size."""
        member = ZipInfo(name, _EPOCH)
        member.file_size = size  # beyond 2 GiB it has another form
        with self._archive.open(member, "w") as target:
            for block in blocks:
                target.write(block)
        if member.file_size != size:
            raise CorruptError("the file changed while it was copied", where=name, remedy="try again")


class ArchiveReader:
    """Reads an archive: `members` are its files in their order, read with `blocks`.

    Use it as a context manager. `source` must be seekable. Errors say with `kind` what it should be and with
    `remedy` what helps where it is none; `is_name` tells whether a file may have this name; there may be
    `most_files`.

    Raises RefusedError when it holds what no archive of plain files does; CorruptError when it is damaged;
    OSError when it cannot be read.
    """

    def __init__(
        self, source: BinaryIO, kind: str, remedy: str, is_name: Callable[[str], bool], most_files: int
    ) -> None:
        self._kind, self._remedy, self._source = kind, remedy, source
        self._refuse_large_directory(most_files)
        with self._translated(), ExitStack() as unless_read:
            self._archive = unless_read.enter_context(ZipFile(source))
            self.members = self._archive.infolist()
            self._check(is_name, most_files)
            unless_read.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def _refuse_large_directory(self, most_files: int) -> None:
        """Look at the end first: `zipfile` takes memory for whatever the directory names."""
        size = self._source.seek(0, io.SEEK_END)
        self._source.seek(max(0, size - _END.size - 20))
        tail = self._source.read()
        if len(tail) < _END.size:
            raise self.damaged("it is cut off")
        mark, directory, _, comment = _END.unpack(tail[-_END.size :])
        wide = tail.startswith(_WIDE_END)
        if mark != b"PK\x05\x06" or comment or (wide and size <= ZIP64_LIMIT):
            raise self.damaged("damaged at its end")
        if directory > most_files * _ENTRY_BYTES:
            raise self._too_many(most_files)

    def _check(self, is_name: Callable[[str], bool], most_files: int) -> None:
        names: set[str] = set()
        for member in self.members:
            name, where = member.filename, repr(member.filename[:120])
            if not is_name(name) or name.lower() in names or member.external_attr != _MODE:
                raise RefusedError(f"a {self._kind} holds plain files, each once", where=where)
            packed = member.compress_type != ZIP_STORED or member.compress_size != member.file_size
            if packed or member.flag_bits & 1:
                what = f"a {self._kind} holds plain files, neither packed nor encrypted"
                raise RefusedError(what, where=where)
            names.add(name.lower())
        if len(names) > most_files:
            raise self._too_many(most_files)
        if sum(member.file_size for member in self.members) > self._source.seek(0, io.SEEK_END):
            raise self.damaged("its files overlap")

    def _too_many(self, most_files: int) -> RefusedError:
        return RefusedError(f"a {self._kind} holds no more than {most_files} files")

    def blocks(self, member: ZipInfo) -> Iterator[bytes]:
        """Read the content of a member in pieces; it is right only when this has ended by itself."""
        with self._translated(member.filename), self._archive.open(member) as content:
            while block := content.read(_BLOCK):
                yield block

    @contextmanager
    def _translated(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except (*_DAMAGE, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno != errno.EINVAL:  # a place before the beginning
                raise
            raise self.damaged(str(problem)[:120] or type(problem).__name__, name) from problem

    def damaged(self, what: str, name: str = "") -> CorruptError:
        """Return the error for an archive that is not as it was written."""
        return CorruptError(f"no {self._kind}: {what}", where=repr(name) if name else "", remedy=self._remedy)
