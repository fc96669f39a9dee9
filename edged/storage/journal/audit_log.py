"""The files of the audit log: `audit-<first entry>.jsonl`, and `audit.head`, which says where the log ends.

An entry is first a row of `state.db`, written in the transaction of the change that it is about. `drain`
appends waiting rows to the newest file, syncs it, publishes the head, and deletes the rows. After a power cut
between two of these steps, the next `drain` removes what the head does not know and appends it again, so that
each entry is there once. The head names the rows that it has, in case that only their deletion was lost.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edged.domain.audit_chain import AuditEntry, Link, LoggedEntry, hash_of, verify
from edged.domain.training.message import Message
from edged.errors import CorruptError
from edged.logs import get_logger
from edged.storage.files import atomic
from edged.storage.files.checksummed_json import read_message, seal
from edged.storage.journal.journal import Journal

HEAD = "audit.head"
MAX_BYTES = 4 * 1024**2  # of one file; of two full files the older one goes
KEPT = 2

log = get_logger("edged.audit")


@dataclass(frozen=True)
class Head(Message):
    """The last entry, bytes of the newest file up to it, the links before each file, and its newest rows."""

    last: Link
    size: int = 0
    files: tuple[Link, ...] = (Link(),)
    rows: tuple[str, ...] = ()

    @classmethod
    def read(cls, state: Path) -> Head | None:
        """Read the head in a state directory; None if there is none. Raises CorruptError if it is damaged."""
        path = state / HEAD
        return read_message(path, cls) if path.exists() else None


def _file(state: Path, before: Link) -> Path:
    return state / f"audit-{before.seq + 1}.jsonl"


def read_audit(state: Path, *, running: bool) -> tuple[list[LoggedEntry], Link]:
    """Verify the audit log of a state directory; return its entries, oldest first, and the last link.

    With `running` a daemon can be adding entries at the moment; what the head does not know yet is left out.

    Raises CorruptError naming the file and the first line that is wrong.
    """
    for attempt in range(3):
        head = Head.read(state)
        if head is None:
            left = sorted(state.glob("audit-*.jsonl"))
            if left:
                raise CorruptError("the file is missing", where=str(state / HEAD))
            return [], Link()
        entries: list[LoggedEntry] = []
        ends = (*head.files[1:], head.last)
        try:
            for before, end in zip(head.files, ends, strict=True):
                path = _file(state, before)
                data = path.read_bytes() if end != before or path.exists() else b""
                if running and end is head.last:
                    data = data[: head.size]
                try:
                    entries += verify(data, before, end)
                except CorruptError as problem:
                    raise CorruptError(problem.what, where=f"{path}, {problem.where}") from None
        except FileNotFoundError as problem:
            if attempt == 2 or not running:  # else the daemon began another file meanwhile
                raise CorruptError("the file is missing", where=str(problem.filename)) from None
        else:
            return entries, head.last
    raise AssertionError


class AuditLog:
    """Appends entries; safe to use from several threads of one process, which holds the directory's lock."""

    def __init__(self, state: Path, *, max_bytes: int = MAX_BYTES, disk: atomic.Disk = atomic.DISK) -> None:
        self._state, self._max_bytes, self._disk = state, max_bytes, disk
        self._lock = threading.Lock()

    def drain(self, journal: Journal) -> None:
        """Append the entries that wait in `state.db`; they stay there if this raises StorageError."""
        with self._lock:
            rows = journal.waiting_audit()
            if not rows:
                return
            try:
                head = self._head()
                new = [entry for name, entry in rows.items() if name not in head.rows]
                head = self._append(head, new, tuple(rows)) if new else head
                journal.remove_audit(list(rows), head.last)
            except BaseException:
                journal.audit_waits = True
                raise

    def append(self, entry: AuditEntry) -> None:
        """Append an entry of a command that works on a state directory without its `state.db`."""
        with self._lock:
            head = self._head()
            self._append(head, [entry], head.rows)

    def _head(self) -> Head:
        """Return the head; made where there is no log yet, taken from the files where it was lost."""
        try:
            head = Head.read(self._state)
        except CorruptError:
            head = None
        if head is not None:
            return head
        files = sorted(self._state.glob("audit-*.jsonl"), key=lambda path: (len(path.name), path.name))
        if not files:
            head = Head(Link())
            self._publish(head)
            return head
        log.error("audit_head_lost", remedy="run `edged audit CONFIG`")
        return self._append(self._recovered(files[-1]), [AuditEntry(time.time(), "head_lost")], ())

    def _recovered(self, newest: Path) -> Head:
        """Return the head of a log whose own was lost: it begins with the newest file."""
        data = newest.read_bytes()
        try:
            first, last = json.loads(data.splitlines()[0]), data[: data.rindex(b"\n")].rpartition(b"\n")[2]
            before = Link(first["seq"] - 1, first["previous"])
            return Head(Link(json.loads(last)["seq"], hash_of(last)), data.rindex(b"\n") + 1, (before,))
        except (ValueError, LookupError, TypeError):
            return Head(Link(), len(data))

    def _publish(self, head: Head) -> None:
        atomic.publish_file(self._state / HEAD, seal(head.to_json()), disk=self._disk)

    def _append(self, head: Head, entries: Sequence[AuditEntry], rows: tuple[str, ...]) -> Head:
        if head.size >= self._max_bytes:
            head = replace(head, size=0, files=(*head.files, head.last)[-KEPT:])
        link, lines = head.last, []
        for entry in entries:
            link, line = link.then(entry)
            lines.append(line)
        path = _file(self._state, head.files[-1])
        with atomic.disk_errors("writing the audit log", path):
            size = self._write(path, head, b"".join(lines))
            self._disk.sync(path)
            self._disk.sync(self._state)
        head = Head(link, size, head.files, rows)
        self._publish(head)
        kept = {_file(self._state, before).name for before in head.files}
        if len(kept) == KEPT:
            for old in self._state.glob("audit-*.jsonl"):
                if old.name not in kept:
                    with suppress(OSError):
                        old.unlink()
        return head

    def _write(self, path: Path, head: Head, data: bytes) -> int:
        """Write lines behind those that the head knows; return the size of the file."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with closing(os.fdopen(descriptor, "r+b", buffering=0)):
            end, size = head.size, os.fstat(descriptor).st_size
            line = os.pread(descriptor, end, 0)[:-1].rpartition(b"\n")[2] if size >= end else b""
            if hash_of(line) != head.last.hash if end else head.last != head.files[-1]:
                # It was tampered with or damaged: the evidence stays, `verify` finds the place.
                log.error("audit_log_broken", file=str(path), remedy="run `edged audit CONFIG --verify`")
                end = size
            os.ftruncate(descriptor, end)
            return atomic.write_at(descriptor, data, end)
