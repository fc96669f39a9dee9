"""Log lines with fields for systemd's journal, which can be searched for them.

Source: systemd's "Native Journal Protocol". A line's own text stays what it is without a journal.
"""

from __future__ import annotations

import json
import os
import re
import socket
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

SOCKET = "/run/systemd/journal/socket"
PATIENCE_S = 1.0
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_UNFIT = re.compile(r"[^A-Z0-9_]")
_LONGEST_NAME = 64  # journald drops fields with longer names


def is_journal(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Whether what is written to `stream` goes to the journal; see `JOURNAL_STREAM` in systemd.exec(5)."""
    told = (os.environ if environ is None else environ).get("JOURNAL_STREAM", "")
    try:
        there = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return told == f"{there.st_dev}:{there.st_ino}"


def fields(event: Mapping[str, object], line: str) -> dict[str, str]:
    """What the journal is told of an event: `EDGED_EVENT`, `EDGED_LOGGER` and one field for each of its own.

    >>> fields({"level": "warning", "event": "repaired", "rows": 3}, "{...}")["EDGED_ROWS"]
    '3'
    """
    level = str(event.get("level", "info"))
    told = {"MESSAGE": line, "PRIORITY": str(_PRIORITIES.get(level, 6)), "SYSLOG_IDENTIFIER": "edged"}
    for name, value in event.items():
        if name not in ("ts", "level") and value is not None:
            field = f"EDGED_{_UNFIT.sub('_', name.upper())}"[:_LONGEST_NAME]
            told[field] = value if isinstance(value, str) else json.dumps(value)
    return told


def encode(told: Mapping[str, str]) -> bytes:
    r"""One datagram: a text with line breaks is preceded by its length.

    >>> encode({"PRIORITY": "6", "MESSAGE": "a\nb"})
    b'PRIORITY=6\nMESSAGE\n\x03\x00\x00\x00\x00\x00\x00\x00a\nb\n'
    """
    parts = []
    for name, text in told.items():
        data = text.encode(errors="replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


class JournalLogger:
    """The last link of structlog's chain: hands one event to the journal.

    What the journal does not take, such as a line that is too long, goes to `stream` as text.
    """

    def __init__(self, stream: TextIO, address: str | None = None) -> None:
        self._stream = stream
        self._address = address or SOCKET

    def __call__(self, *_: object) -> Self:
        """Itself: it is its own factory."""
        return self

    def msg(self, line: str, event: Mapping[str, object]) -> None:
        """Write one event."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as journal:
                journal.settimeout(PATIENCE_S)
                journal.sendto(encode(fields(event, line)), self._address)
        except OSError:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg
