"""Readings that come to the sample log by another way than the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.domain.stream.sample import Reading
    from edged.errors import EdgedError


@dataclass(eq=False, frozen=True)
class Submission:
    """Readings that are taken together or not at all.

    `received` is monotonic seconds. The ingest thread calls `placed` with the offset of the first
    sample, before they are predicted, and `stored` once they are on the disk; or `refused`, and not `stored`:
    before `placed` nothing was taken, after it an error that nobody foresaw leaves open what is on the disk.
    """

    readings: list[Reading]
    received: float
    placed: Callable[[int], None]
    stored: Callable[[], None]
    refused: Callable[[EdgedError], None]
