"""A file that grows by records and is durable when it says so; what a power cut has torn is cut off.

Each record is a head, which is JSON, and a body: their lengths and a CRC-32 of both stand before them.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged.errors import CorruptError
from edged.logs import get_logger
from edged.storage.files.atomic import DISK, Disk, disk_errors, fsync_directory, make_directory

_BEFORE = struct.Struct("<III")

log = get_logger("edged.spool")


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record that is there: its head as JSON, and where its body lies."""

    text: bytes
    at: int
    size: int

    @property
    def head(self) -> Mapping[str, Any]:
        """Read what the record begins with; each time, for thousands of records are kept."""
        return dict(json.loads(self.text))


class AppendLog:
    """Opens or creates the file `path`; `records` are those that it holds from before.

    Raises StorageError when the disk refuses; then the file is as it was at the last `sync`, or longer.

    >>> import tempfile; from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spool = AppendLog(Path(folder) / "a")
    ...     record = spool.append({"n": 1}, b"body")
    ...     spool.sync()
    ...     spool.close()
    ...     again = AppendLog(Path(folder) / "a")
    ...     [(record.head, again.read(record)) for record in again.records]
    ...     again.close()
    [({'n': 1}, b'body')]
    """

    def __init__(self, path: Path, *, disk: Disk = DISK) -> None:
        self._path, self._disk = path, disk
        make_directory(path.parent, disk=disk)
        with disk_errors("opening", path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._waiting: list[bytes] = []
            self.records, self._end = self._scan()
            if self._end < os.fstat(self._file).st_size:
                log.warning("spool_cut", file=str(path), kept=self._end, remedy="what was torn is sent again")
                os.ftruncate(self._file, self._end)
        self._written = self._end
        fsync_directory(path.parent, disk=disk)

    def append(self, head: Mapping[str, Any], body: bytes) -> LogRecord:
        """Add a record; it is neither durable nor readable before `sync`."""
        text = json.dumps(head, separators=(",", ":")).encode()
        before = _BEFORE.pack(len(text), len(body), zlib.crc32(body, zlib.crc32(text)))
        self._waiting += [before, text, body]
        record = LogRecord(text, self._end + len(before) + len(text), len(body))
        self._end = record.at + record.size
        return record

    def sync(self) -> None:
        """Make all appended records durable."""
        if self._written == self._end:
            return
        with disk_errors("writing", self._path):
            left = memoryview(b"".join(self._waiting))
            while left:
                left = left[os.write(self._file, left) :]
            self._waiting.clear()
            self._disk.sync(self._path)
        self._written = self._end

    def read(self, record: LogRecord, start: int = 0, size: int | None = None) -> bytes:
        """Return the body of a durable record, or `size` bytes of it from `start` on.

        Raises CorruptError when the body has not as many bytes, or the record is missing.
        """
        wanted = record.size - start if size is None else size
        with disk_errors("reading", self._path):
            part = os.pread(self._file, wanted, record.at + start)
        if len(part) != wanted or start + wanted > record.size:
            raise CorruptError("a record is missing", where=str(self._path))
        return part

    def close(self) -> None:
        """Close the file without a sync. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _scan(self) -> tuple[list[LogRecord], int]:
        found: list[LogRecord] = []
        at = 0
        while (record := self._record(at)) is not None:
            found.append(record)
            at = record.at + record.size
        return found, at

    def _record(self, at: int) -> LogRecord | None:
        before = os.pread(self._file, _BEFORE.size, at)
        if len(before) < _BEFORE.size:
            return None
        length, size, crc = _BEFORE.unpack(before)
        left = os.fstat(self._file).st_size - at - _BEFORE.size
        if length + size > left:
            return None
        data = os.pread(self._file, length + size, at + _BEFORE.size)
        if zlib.crc32(data) != crc:
            return None
        return LogRecord(data[:length], at + _BEFORE.size + length, size)
