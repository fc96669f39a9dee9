"""How far the import of a file has come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImportProgress:
    """One file: `samples` of it are stored, all of them once `finished` (Unix seconds) is known.

    `file` is the SHA-256 of its content, `options` that of the format and the stream that it is read for.
    """

    file: str
    options: str
    name: str
    samples: int = 0
    finished: float | None = None
