"""Messages that could not become samples: the newest of them, and how many of each kind ever.

Of a payload the first 4 KiB are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edged.domain.stream.sample import Rejected

if TYPE_CHECKING:
    import sqlite3

PAYLOAD_BYTES = 4096


def rows_allowed(rows: int, max_bytes: int) -> int:
    """How many messages are kept: `rows`, but never more than a sixteenth of the log's bytes."""
    return max(1, min(rows, max_bytes // 16 // (PAYLOAD_BYTES + 512)))


def add(db: sqlite3.Connection, rejected: Sequence[Rejected], keep: int) -> None:
    """Store into the current transaction and drop the oldest beyond `keep`."""
    db.executemany(
        "INSERT INTO quarantine (ts, topic, reason, payload, detail) VALUES (?, ?, ?, ?, ?)",
        [(r.ts, r.topic, r.reason, r.payload[:PAYLOAD_BYTES], r.detail) for r in rejected[-keep:]],
    )
    db.execute("DELETE FROM quarantine WHERE number <= (SELECT max(number) FROM quarantine) - ?", (keep,))
    db.executemany(
        "INSERT INTO quarantine_reasons VALUES (?, ?)"
        " ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
        list(Counter(r.reason for r in rejected).items()),
    )


def any_before(db: sqlite3.Connection, moment: float) -> bool:
    """Whether a message is kept that came before this moment (Unix seconds)."""
    return bool(db.execute("SELECT 1 FROM quarantine WHERE ts < ? LIMIT 1", (moment,)).fetchone())


def drop_before(db: sqlite3.Connection, moment: float) -> None:
    """Drop the messages that came before this moment (Unix seconds); their count stays."""
    db.execute("DELETE FROM quarantine WHERE ts < ?", (moment,))


def newest(db: sqlite3.Connection, limit: int) -> list[Rejected]:
    """The newest `limit` messages, newest first."""
    found = db.execute(
        "SELECT ts, topic, reason, payload, detail FROM quarantine ORDER BY number DESC LIMIT ?", (limit,)
    )
    return [Rejected(*row) for row in found]


def counts(db: sqlite3.Connection) -> dict[str, int]:
    """Count all messages that were ever rejected, by reason."""
    return dict(db.execute("SELECT reason, count FROM quarantine_reasons ORDER BY reason"))
