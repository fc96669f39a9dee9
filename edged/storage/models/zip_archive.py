"""A zip archive in exactly one form: files, stored, in a row, and nothing else.

Any zip program reads it. What is read here has to be, byte by byte, what is written here for the same files:
so there is no second way to say the same, and nothing in it that is not looked at: no links, no devices,
nothing packed, nothing behind the end. Bundles as one file and backups have it. From 4 GiB on, and only
there, sizes and places are those of zip64.

Source: PKWARE's APPNOTE.TXT 6.3, sections 4.3.7 (a file), 4.3.12 (its entry in the directory), 4.3.14 to
4.3.16 (the end) and 4.5.3 (zip64).
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from edged.errors import CorruptError, RefusedError

_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_64, _LOCATOR_64 = struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI")
_FILE, _DIRECTORY, _LAST = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_LAST_64, _PLACE_64 = b"PK\x06\x06", b"PK\x06\x07"
_UNIX, _DAY = 3, 0x21  # attributes as Unix has them; 1 January 1980
_MODE = 0o600 << 16
_FULL = 0xFFFF_FFFF  # of a field of 32 bits: the number is in a field of zip64
_BLOCK = 1 << 20


@dataclass(frozen=True)
class ArchiveMember:
    """One file: its name, checksum and size, and where it begins in the archive."""

    name: str
    crc: int
    size: int
    start: int

    @property
    def local(self) -> bytes:
        """Return the header before the file's content."""
        name, wide = self.name.encode(), _wide([self.size] * 2 if self.size >= _FULL else [])
        size = min(self.size, _FULL)
        fixed = (_version(wide), 0, 0, 0, _DAY, self.crc, size, size, len(name), len(wide))
        return _LOCAL.pack(_FILE, *fixed) + name + wide

    @property
    def entry(self) -> bytes:
        """Return the file's entry in the central directory."""
        name, size, start = self.name.encode(), min(self.size, _FULL), min(self.start, _FULL)
        far = [self.start] if start == _FULL else []
        wide = _wide(([self.size] * 2 if size == _FULL else []) + far)
        version = _version(wide)
        said = (_UNIX << 8 | version, version, 0, 0, 0, _DAY, self.crc, size, size, len(name), len(wide))
        return _ENTRY.pack(_DIRECTORY, *said, 0, 0, 0, _MODE, start) + name + wide


def _wide(numbers: list[int]) -> bytes:
    """The extra field of zip64; nothing where all numbers fit elsewhere."""
    return struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


def _version(wide: bytes) -> int:
    """What a program must know: 4.5 is zip64."""
    return 45 if wide else 20


def _tail(members: list[ArchiveMember], start: int) -> bytes:
    """What follows the files: the directory, which begins at `start`, and the end."""
    directory = b"".join(member.entry for member in members)
    count, size, end = len(members), len(directory), b""
    if start >= _FULL:
        made = (44, _UNIX << 8 | 45, 45, 0, 0, count, count, size, start)
        end = _END_64.pack(_LAST_64, *made) + _LOCATOR_64.pack(_PLACE_64, 0, start + size, 1)
    return directory + end + _END.pack(_LAST, 0, 0, count, count, size, min(start, _FULL), 0)


def blocks_of(path: Path) -> Iterator[bytes]:
    """The content of a file in pieces."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


class ArchiveWriter:
    """Writes an archive to a seekable file, one member after the other; `finish` ends it."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._members: list[ArchiveMember] = []

    def add(self, name: str, size: int, blocks: Iterable[bytes]) -> None:
        """Add a file; CorruptError when its content is not of this size."""
        member, left = ArchiveMember(name, 0, size, self._target.tell()), size
        self._target.write(member.local)
        for block in blocks:
            member, left = replace(member, crc=crc32(block, member.crc)), left - len(block)
            self._target.write(block)
        if left:
            raise CorruptError("the file changed while it was copied", where=name, remedy="try again")
        end = self._target.tell()
        self._target.seek(member.start)
        self._target.write(member.local)
        self._target.seek(end)
        self._members.append(member)

    def finish(self) -> None:
        """Write the archive's central directory."""
        self._target.write(_tail(self._members, self._target.tell()))


class ArchiveReader:
    """Reads an archive once, from its beginning to its end: `next`, then `blocks`, for each file; `finish`.

    `source` must be seekable. Errors say with `kind` what it should be and with `remedy` what helps where it
    is none; `is_name` says whether a file may have this name.

    Raises RefusedError when it holds what no archive of plain files does; CorruptError when it is not exactly
    in the form that `ArchiveWriter` writes; OSError when it cannot be read.
    """

    def __init__(self, source: BinaryIO, kind: str, remedy: str, is_name: Callable[[str], bool]) -> None:
        self._source, self._kind, self._remedy, self._is_name = source, kind, remedy, is_name
        self._members: list[ArchiveMember] = []

    def next(self) -> ArchiveMember | None:
        """The next file, checked before anything is written; None where the directory begins."""
        start = self._source.tell()
        head = self._source.read(_LOCAL.size)
        if head[:4] != _FILE:
            if start == 0:
                raise self.damaged(f"it begins with {head[:4]!r}, not with {_FILE!r}")
            self._source.seek(start)
            return None
        if len(head) < _LOCAL.size:
            raise self.damaged("it is cut off")
        _, _, flags, method, _, _, crc, packed, size, length, more = _LOCAL.unpack(head)
        raw, wide = self._source.read(length), self._source.read(more)
        name = raw.decode("latin-1")
        if not self._is_name(name):
            raise RefusedError(f"a {self._kind} holds plain files, each once", where=repr(name[:120]))
        if flags & 1 or method != 0 or packed != size:
            raise RefusedError(
                f"a {self._kind} holds plain files, neither packed nor encrypted", where=repr(name[:120])
            )
        if size == _FULL and len(wide) == 20:
            size = int.from_bytes(wide[4:12], "little")
        member = ArchiveMember(name, crc, size, start)
        if member.local != head + raw + wide:
            raise self.damaged("said in another way than edged does", name)
        self._members.append(member)
        return member

    def blocks(self, member: ArchiveMember) -> Iterator[bytes]:
        """The content of the file that `next` gave, in pieces: right only when this has ended by itself."""
        left, crc = member.size, 0
        while left:
            block = self._source.read(min(left, _BLOCK))
            if not block:
                raise self.damaged("it is cut off", member.name)
            crc, left = crc32(block, crc), left - len(block)
            yield block
        if crc != member.crc:
            raise self.damaged("a checksum does not fit", member.name)

    def finish(self) -> None:
        """Check what follows the files."""
        tail = _tail(self._members, self._source.tell())
        if self._source.read(len(tail) + 1) != tail:
            raise self.damaged("damaged at its end, which does not say what is in it")

    def damaged(self, what: str, name: str = "") -> CorruptError:
        """The error for an archive that is not as it was written."""
        return CorruptError(f"no {self._kind}: {what}", where=repr(name) if name else "", remedy=self._remedy)
