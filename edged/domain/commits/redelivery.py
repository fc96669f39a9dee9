"""Recognising messages that the broker delivers once more although they are stored already."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

Packet = tuple[int, int]


def checksum(topic: str, payload: bytes) -> int:
    """CRC-32 of a message's topic and payload."""
    return zlib.crc32(payload, zlib.crc32(topic.encode()))


class Redelivery:
    """Recognises messages that were stored but whose acknowledgement never reached the broker.

    A redelivery carries the DUP flag, the same packet id and the same content as one of the newest
    `window` stored messages: more cannot be unacknowledged at once. Fixed memory: one checksum and
    one position for each of the 65,536 packet ids. `recent` are those of the newest messages, oldest first.

    >>> known = Redelivery([(7, 1234)], window=100)
    >>> known.seen((7, 1234)), known.seen((7, 99))
    (True, False)
    """

    def __init__(self, recent: Sequence[Packet], window: int) -> None:
        self._checksums = np.zeros(1 << 16, np.uint32)
        # Counted from 1: pages of zeros that nobody has written to take no memory.
        self._positions = np.zeros(1 << 16, np.int64)
        self._count = 1
        self._window = window
        self.stored(recent)

    def seen(self, packet: Packet) -> bool:
        """Whether a message with the DUP flag has been stored already."""
        mid, content = packet
        position = self._positions[mid]
        known = position > 0 and self._count - position <= self._window
        return bool(known and self._checksums[mid] == content)

    def stored(self, packets: Sequence[Packet | None]) -> None:
        """These are durable now, oldest first."""
        known = [packet for packet in packets if packet is not None and packet[0]]
        if not known:
            return
        mids, checksums = np.array(known, np.int64).T
        self._checksums[mids] = checksums
        self._positions[mids] = self._count + np.arange(len(known))
        self._count += len(known)
