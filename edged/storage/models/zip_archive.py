"""A zip archive in exactly one form: plain files, stored, in a row, and nothing else.

Any zip program reads it. What is read here has to be, byte by byte, what is written here for the same files:
so there is no second way to say the same, and nothing in it that is not looked at.

Source: PKWARE's APPNOTE.TXT 6.3, sections 4.3.7 (a file), 4.3.12 (its entry in the directory) and 4.3.16
(the end).
"""

from __future__ import annotations

import struct
from binascii import crc32
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from edged.errors import CorruptError, RefusedError
from edged.storage.models.manifest import MOST_PACKED, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_FILE, _DIRECTORY, _LAST = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_VERSION, _UNIX, _DAY = 20, 3, 0x21  # 2.0; attributes as Unix has them; 1 January 1980
_MODE = 0o600 << 16
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Member:
    """One file: where it begins in the archive, and what is said of it."""

    name: bytes
    crc: int
    size: int
    start: int

    @property
    def local(self) -> bytes:
        """What comes before its content."""
        fixed = (_VERSION, 0, 0, 0, _DAY, self.crc, self.size, self.size, len(self.name), 0)
        return _LOCAL.pack(_FILE, *fixed) + self.name

    @property
    def entry(self) -> bytes:
        """What the directory at the end says."""
        said = (_UNIX << 8 | _VERSION, _VERSION, 0, 0, 0, _DAY, self.crc, self.size, self.size)
        return _ENTRY.pack(_DIRECTORY, *said, len(self.name), 0, 0, 0, 0, _MODE, self.start) + self.name


def write_archive(target: IO[bytes], files: Iterable[Path]) -> None:
    """Write the archive of these files, by their names alone, in this order.

    Raises
    ------
    RefusedError
        When one has a name that is not taken, or they are too large together.
    OSError
        When one cannot be read, or the archive not written.
    """
    members: list[_Member] = []
    for file in files:
        if not is_plain(file.name):
            raise RefusedError("this name cannot be packed", where=str(file), remedy="plain ASCII names")
        size, crc = file.stat().st_size, 0
        with file.open("rb") as source:
            while block := source.read(_BLOCK):
                crc = crc32(block, crc)
            member = _Member(file.name.encode(), crc, size, target.tell())
            if member.start + size > MOST_PACKED:
                raise RefusedError("too large for one file", where=str(file), remedy="copy the directory")
            target.write(member.local)
            source.seek(0)
            while block := source.read(_BLOCK):
                target.write(block)
        members.append(member)
    target.write(_tail(members, target.tell()))


def _tail(members: list[_Member], start: int) -> bytes:
    directory = b"".join(member.entry for member in members)
    count = len(members)
    return directory + _END.pack(_LAST, 0, 0, count, count, len(directory), start, 0)


def read_archive(source: IO[bytes], folder: Path, *, most_files: int, max_bytes: int) -> None:
    """Write the files of the archive in `source` into the empty directory `folder`.

    Raises
    ------
    RefusedError
        When it holds what no archive of plain files does, or too much.
    CorruptError
        When it is not exactly in the form that `write_archive` writes.
    OSError
        When it cannot be read, or a file not written.
    """
    members: list[_Member] = []
    names: set[bytes] = set()
    while (member := _next(source)) is not None:
        if member.name.lower() in names:
            raise RefusedError("a bundle file holds plain files, each once", where=_shown(member.name))
        names.add(member.name.lower())
        members.append(member)
        if len(members) > most_files or sum(m.size for m in members) > max_bytes:
            raise RefusedError(
                f"more than {most_files} files or {max_bytes:,} bytes", remedy="raise install.max_bytes"
            )
        _extract(source, member, folder)
    tail = _tail(members, source.tell())
    if source.read(len(tail) + 1) != tail:
        raise CorruptError(
            "no bundle file: its directory does not say what is in it",
            remedy="pack it again with `edged artifacts pack`",
        )


def _next(source: IO[bytes]) -> _Member | None:
    """The next file, checked before anything is written; None where the directory begins."""
    start = source.tell()
    head = source.read(_LOCAL.size)
    if head[:4] != _FILE:
        if start == 0:
            raise CorruptError("no bundle file: it does not begin with a stored file")
        source.seek(start)
        return None
    if len(head) < _LOCAL.size:
        raise _cut_off()
    _, _, flags, method, _, _, crc, packed, size, length, extra = _LOCAL.unpack(head)
    name = source.read(length)
    if len(name) < length:
        raise _cut_off()
    if not is_plain(name.decode("latin-1")):
        raise RefusedError("a bundle file holds plain files, each once", where=_shown(name))
    if flags & 1 or method != 0 or packed != size:
        raise RefusedError(
            "a bundle file holds plain files, neither packed nor encrypted", where=_shown(name)
        )
    member = _Member(name, crc, size, start)
    if extra or member.local != head + name:
        raise CorruptError(
            "no bundle file: said in another way than `edged artifacts pack` does", where=_shown(name)
        )
    return member


def _extract(source: IO[bytes], member: _Member, folder: Path) -> None:
    left, crc = member.size, 0
    with (folder / member.name.decode()).open("xb") as target:
        while left:
            block = source.read(min(left, _BLOCK))
            if not block:
                raise _cut_off()
            crc = crc32(block, crc)
            target.write(block)
            left -= len(block)
    if crc != member.crc:
        raise CorruptError("no bundle file: a checksum does not fit", where=_shown(member.name))


def _cut_off() -> CorruptError:
    return CorruptError("no bundle file: it is cut off", remedy="fetch it again")


def _shown(name: bytes) -> str:
    return repr(name[:80].decode("latin-1"))
