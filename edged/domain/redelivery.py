"""Which redeliveries are stored already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


class Redelivery:
    """Recognises messages that were stored but whose acknowledgement never reached the broker.

    A redelivery carries the DUP flag, the same packet id and the same content as one of the newest
    `window` stored messages: more cannot be unacknowledged at once. Fixed memory: one checksum and
    one position for each of the 65,536 packet ids.
    """

    def __init__(self, recent: Sequence[tuple[int, int]], window: int) -> None:
        self._checksums = np.zeros(1 << 16, np.int64)
        self._positions = np.full(1 << 16, -(1 << 62), np.int64)
        self._count = 0
        self._window = window
        self.stored(recent)

    def seen(self, mid: int, checksum: int) -> bool:
        """Whether a redelivery with this packet id and this content has been stored already."""
        if self._count - self._positions[mid] > self._window:
            return False
        return bool(self._checksums[mid] == checksum)

    def stored(self, packets: Sequence[tuple[int, int] | None]) -> None:
        """These are durable now, oldest first."""
        known = [packet for packet in packets if packet is not None and packet[0]]
        if not known:
            return
        mids, checksums = np.array(known, np.int64).T
        self._checksums[mids] = checksums
        self._positions[mids] = self._count + np.arange(len(known))
        self._count += len(known)
