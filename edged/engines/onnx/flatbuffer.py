"""Tables of a FlatBuffer, read field by field (flatbuffers.dev, "Internals").

A vtable before each table says where its fields lie. Bytes that end too early, or point outside of
themselves, raise struct.error, IndexError or ValueError.
"""

from __future__ import annotations

import struct


def root(content: bytes, identifier: bytes) -> FlatTable:
    """The outermost table; ValueError where the file begins otherwise."""
    if content[4:8] != identifier:
        raise ValueError("it has another beginning")
    return FlatTable(content, struct.unpack_from("<I", content)[0])


class FlatTable:
    """A table at a position; a field that is absent is 0, empty or None."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at
        self._vtable = at - self._read("<i", at)
        self._length = self._read("<H", self._vtable)

    def _read(self, form: str, at: int) -> int:
        if at < 0:
            raise IndexError(at)
        value: int = struct.unpack_from(form, self._content, at)[0]
        return value

    def _field(self, number: int) -> int | None:
        entry = 4 + 2 * number
        offset = self._read("<H", self._vtable + entry) if entry < self._length else 0
        return self._at + offset if offset else None

    def number(self, number: int, form: str) -> int:
        """A number in this format of `struct`."""
        at = self._field(number)
        return 0 if at is None else self._read(form, at)

    def table(self, number: int) -> FlatTable | None:
        """A field that is another table."""
        at = self._field(number)
        return None if at is None else FlatTable(self._content, at + self._read("<I", at))

    def vector(self, number: int) -> tuple[int, int]:
        """First byte of a vector, and how many elements it has."""
        at = self._field(number)
        if at is None:
            return 0, 0
        start = at + self._read("<I", at)
        length = self._read("<I", start)
        if length > len(self._content):
            raise IndexError(length)
        return start + 4, length

    def raw(self, number: int) -> bytes:
        """A vector of bytes."""
        start, length = self.vector(number)
        return self._content[start : start + length]

    def text(self, number: int) -> str:
        """A field that is a string."""
        return self.raw(number).decode()

    def longs(self, number: int) -> tuple[int, ...]:
        """A vector of int64."""
        start, length = self.vector(number)
        return struct.unpack_from(f"<{length}q", self._content, start)

    def tables(self, number: int) -> list[FlatTable]:
        """A vector of tables."""
        start, length = self.vector(number)
        places = [start + 4 * i for i in range(length)]
        return [FlatTable(self._content, at + self._read("<I", at)) for at in places]
