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
    `window` stored messages: more cannot be unacknowledged at once. `recent` are those of the newest
    messages, oldest first.

    >>> known = Redelivery([(7, 1234)], window=100)
    >>> known.seen((7, 1234)), known.seen((7, 99))
    (True, False)
    """

    def __init__(self, recent: Sequence[Packet], window: int) -> None:
        self._mids = np.zeros(window, np.uint16)  # 0, which is no message's, where there is none yet
        self._checksums = np.zeros(window, np.uint32)
        self._count = 0
        self._window = window
        self.stored(recent)

    def seen(self, packet: Packet) -> bool:
        """Whether a message with the DUP flag has been stored already."""
        mid, content = packet
        places = np.flatnonzero(self._mids == mid)
        if not len(places):
            return False
        newest = places[((self._count - 1 - places) % self._window).argmin()]
        return bool(self._checksums[newest] == content)

    def stored(self, packets: Sequence[Packet | None]) -> None:
        """These are durable now, oldest first."""
        known = [packet for packet in packets if packet is not None and packet[0]]
        if not known:
            return
        self._count += max(0, len(known) - self._window)
        mids, checksums = np.array(known[-self._window :], np.int64).T
        places = (self._count + np.arange(len(mids))) % self._window
        self._mids[places], self._checksums[places] = mids, checksums
        self._count += len(mids)
