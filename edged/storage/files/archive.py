"""Archives of plain files in exactly one form: a zip as `zipfile` writes it, stored, and nothing else in it.

Bundles as one file and backups have it. An archive may come from anywhere. What is read is written again and
compared byte by byte, so nothing in it is overlooked: no links, no devices, nothing packed, nothing between
the files or behind the end.
"""

from __future__ import annotations

import encodings.cp437  # noqa: F401  zipfile reads names with it; root cannot load it once it acts as the owner
import errno
import io
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast
from zipfile import ZIP64_LIMIT, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from edged.errors import CorruptError, RefusedError

if TYPE_CHECKING:
    from typing_extensions import Self

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
        with self.open(name, size) as target:
            for block in blocks:
                target.write(block)

    @contextmanager
    def open(self, name: str, size: int) -> Iterator[IO[bytes]]:
        """Open a new file to write its content; CorruptError at the end when it is not of this size."""
        member = ZipInfo(name, _EPOCH)
        member.file_size = size  # beyond 2 GiB it has another form
        with self._archive.open(member, "w") as target:
            yield target
        if member.file_size != size:
            raise CorruptError("the file changed while it was copied", where=name, remedy="try again")


class _Comparison:
    """Compares what is written to it with `source`, and stores nothing."""

    def __init__(self, source: BinaryIO) -> None:
        self._source: BinaryIO | None = source
        self._at = 0
        self._different: set[int] = set()

    @property
    def same(self) -> bool:
        """Whether all of the source has been written, as it is there."""
        return bool(self._source and not self._different and self._at == self._source.seek(0, io.SEEK_END))

    def end(self) -> None:
        """Compare nothing any more: the source will be closed."""
        self._source = None

    def write(self, data: Any) -> int:
        if self._source is not None:
            self._source.seek(self._at)
            if self._source.read(len(data)) == data:
                self._different.discard(self._at)
            else:  # the head of a member is written a second time, with its checksum
                self._different.add(self._at)
        self._at += len(data)
        return len(data)

    def seek(self, at: int) -> int:
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass


class ArchiveReader:
    """Reads an archive: `members` are its files in their order, read each once with `blocks`, then `finish`.

    Use it as a context manager. `source` must be seekable. Errors say with `kind` what it should be and with
    `remedy` what helps where it is none; `is_name` tells whether a file may have this name; there may be
    `most_files`.

    Raises RefusedError when it holds what no archive of plain files does; CorruptError when it is not exactly
    in the form that `ArchiveWriter` writes; OSError when it cannot be read.
    """

    def __init__(
        self, source: BinaryIO, kind: str, remedy: str, is_name: Callable[[str], bool], most_files: int
    ) -> None:
        self._kind, self._remedy, self._source = kind, remedy, source
        self._refuse_large_directory(most_files)
        self._again = _Comparison(source)
        with self._translated(), ExitStack() as unless_read:
            self._archive = unless_read.enter_context(ZipFile(source))
            self.members = self._archive.infolist()
            self._check(is_name, most_files)
            self._writer = ArchiveWriter(cast("BinaryIO", self._again))
            unless_read.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._again.end()

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

    def _too_many(self, most_files: int) -> RefusedError:
        return RefusedError(f"a {self._kind} holds no more than {most_files} files")

    def blocks(self, member: ZipInfo) -> Iterator[bytes]:
        """Read the content of the next member in pieces; it is right only when this has ended by itself."""
        name = member.filename
        with (
            self._translated(name),
            self._archive.open(member) as content,
            self._writer.open(name, member.file_size) as again,
        ):
            while block := content.read(_BLOCK):
                again.write(block)
                yield block

    def finish(self) -> None:
        """Check that all was as it is written; all members must have been read."""
        with self._translated(), self._writer:
            pass
        if not self._again.same:
            raise self.damaged("not in the form in which edged writes it")

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
