"""Raw arrays of float32, float16 or int16: nothing but the numbers, row by row."""

from __future__ import annotations

import numpy as np

from edged.config import StreamConfig
from edged.domain.stream.sample import Decoded, Reading
from edged.errors import RejectedSampleError
from edged.mqtt.codecs.objects import check_size, key_of


class ArrayCodec:
    """Decodes payloads of `features` numbers; with `stream.window` of up to a window's worth of such rows.

    With `window.rate` one row a message: rows have no times of their own to be put on a grid by.

    >>> from edged.config import StreamConfig
    >>> codec = ArrayCodec(StreamConfig(features=2, codec="int16"))
    >>> codec.decode("t", bytes([1, 0, 255, 255])).values.tolist()
    [1.0, -1.0]
    """

    def __init__(self, stream: StreamConfig) -> None:
        self._largest = stream.max_payload
        self._dtype = np.dtype(stream.codec).newbyteorder(stream.byte_order)
        self._width = stream.width
        self._row = self._width * self._dtype.itemsize
        self._most = 1 if stream.window is None or stream.window.rate is not None else stream.steps
        self._key = key_of(stream.key)

    def decode(self, topic: str, payload: bytes) -> Decoded:
        """The reading in a message, or its rows, oldest first.

        Raises RejectedSampleError: `too_big`, `shape`, `not_finite` or `key`.
        """
        check_size(payload, self._largest)
        rows, rest = divmod(len(payload), self._row)
        if rest or not 1 <= rows <= self._most:
            wanted = f"{self._row} bytes" if self._most == 1 else f"1 to {self._most} times {self._row} bytes"
            what = f"{len(payload)} bytes, expected {wanted}: {self._width} {self._dtype.name} a reading"
            raise RejectedSampleError("shape", what)
        values = np.frombuffer(payload, self._dtype).astype(np.float32).reshape(rows, self._width)
        if not np.isfinite(values).all():
            at = int(np.argmin(np.isfinite(values)))
            raise RejectedSampleError("not_finite", f"number {at} is no finite number")
        key = self._key(topic, None)
        if rows == 1:
            return Reading(key, values[0])
        return [Reading(key, row) for row in values]
