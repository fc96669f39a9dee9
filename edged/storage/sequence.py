"""Numbers of messages that continue across restarts."""

from __future__ import annotations

import threading

from edged.errors import StorageError
from edged.logs import get_logger
from edged.storage.journal.journal import Journal

AHEAD = 1_000_000

log = get_logger("edged.sequence")


class Sequence:
    """Rising numbers, none of which is given twice on this device.

    The journal holds a number that is never reached between two calls of `keep`, so that a number costs no
    write. After an orderly end the next one follows on; after a kill there is a gap.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._next = int(journal.get_value("seq") or 1)
        self._bound = self._next
        self.reserve()

    def __call__(self) -> int:
        """The next number; from any thread."""
        with self._lock:
            number = self._next
            self._next += 1
        return number

    def reserve(self) -> None:
        """Move the stored bound on when half of its numbers are used; call this regularly."""
        if self._bound - self._next < AHEAD // 2:
            self._write(self._next + AHEAD)

    def close(self) -> None:
        """Store the next number, so that the next start continues without a gap."""
        self._write(self._next)

    def _write(self, bound: int) -> None:
        try:
            self._journal.set_value("seq", bound)
        except StorageError as problem:
            log.warning("sequence_not_kept", problem=problem.line())
        else:
            self._bound = bound
