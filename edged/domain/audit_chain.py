"""The audit log as a chain: each line holds the SHA-256 of the line before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from edged.domain.lean_dataclasses import dataclass
from edged.errors import CorruptError

BEGINNING = "0" * 64  # `previous` of the first line


@dataclass(frozen=True)
class Link:
    """A place in the chain: the number of an entry, and the hexadecimal SHA-256 of its line."""

    seq: int = 0
    hash: str = BEGINNING

    def then(self, entry: Mapping[str, Any]) -> tuple[Link, bytes]:
        r"""Return the next link and its line, which holds the fields of `entry`.

        >>> Link().then({"ts": 1.0, "what": "command"})[1][:30]
        b'{"seq":1,"previous":"000000000'
        """
        fields = {"seq": self.seq + 1, "previous": self.hash, **entry}
        line = json.dumps(fields, separators=(",", ":")).encode()
        return Link(self.seq + 1, hash_of(line)), line + b"\n"


def hash_of(line: bytes) -> str:
    """Return the hexadecimal SHA-256 of a line without its end."""
    return hashlib.sha256(line).hexdigest()


def verify(data: bytes, before: Link, head: Link) -> list[Mapping[str, Any]]:
    """Return the entries of a log that follow the link `before` and end with `head`.

    Raises CorruptError with the number of the first line that does not follow from the one before it, or if
    the log does not end at `head`: lines were changed, moved, removed or added.
    """
    entries: list[Mapping[str, Any]] = []
    link = before
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        entries.append(_entry(line, number, link))
        link = Link(link.seq + 1, hash_of(line))
        if link.seq == head.seq and link != head:
            raise CorruptError("the line was changed", where=f"line {number}")
    if lines[-1]:
        raise CorruptError("the line is incomplete", where=f"line {len(lines)}")
    if link != head:
        what = "lines were added" if link.seq > head.seq else "lines were removed"
        raise CorruptError(
            f"the log ends with entry {link.seq}, edged wrote {head.seq}: {what}", where=f"line {len(lines)}"
        )
    return entries


def _entry(line: bytes, number: int, before: Link) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
        found = entry["seq"], entry["previous"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CorruptError("the line is not an entry", where=f"line {number}") from None
    if found[0] != before.seq + 1:
        raise CorruptError(f"expected entry {before.seq + 1}, found {found[0]!r:.40}", where=f"line {number}")
    if found[1] != before.hash:
        raise CorruptError("this line or the one before it was changed", where=f"line {number}")
    return dict(entry)
