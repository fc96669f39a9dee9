"""Messages of Protocol Buffers, read field by field where no parser is there or none tells positions.

Source: Protocol Buffers' encoding, https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

Content = bytes | mmap.mmap


# Wire types.
VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
_LARGEST = 10  # bytes of a number
_KEY_BYTES, _KEY_LIMIT = 5, 1 << 32


class Field(NamedTuple):
    """A field: its number and wire type, its first byte, and where its value begins and ends."""

    number: int
    kind: int
    start: int
    first: int
    last: int


def fields(content: Content, at: int, end: int) -> Iterator[Field]:
    """Every field between `at` and `end`; groups are passed over, with all that is in them.

    A key has 32 bits. Longer ones are refused, not shortened: parsers do not agree on what they name. Raises
    ValueError where this is no message. What comes before it was a field of one all the same.
    """
    groups = 0
    while at < end:
        start = at
        key, at = varint(content, at, end)
        if not 8 <= key < _KEY_LIMIT or at - start > _KEY_BYTES:
            raise ValueError("a field has no number that fields have")
        kind, length = key & 7, 0
        if kind == BYTES:
            length, at = varint(content, at, end)
        elif kind == VARINT:
            length = varint(content, at, end)[1] - at
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        elif kind in (GROUP, END_GROUP):
            groups += 1 if kind == GROUP else -1
        else:
            raise ValueError(f"there are no fields of wire type {kind}")
        if length > end - at or groups < 0:
            raise ValueError("it ends too early")
        if groups == 0 and kind != END_GROUP:
            yield Field(key >> 3, kind, start, at, at + length)
        at += length


def within(content: Content, outer: Field) -> Iterator[Field]:
    """The fields of a message that is a field."""
    if outer.kind != BYTES:
        raise ValueError("a number is where a message should be")
    return fields(content, outer.first, outer.last)


def value(content: Content, found: Field) -> bytes:
    """The bytes of a field's value."""
    return content[found.first : found.last]


def text(content: Content, found: Field) -> str:
    """The value of a field that is a string."""
    return value(content, found).decode()


def numbers(content: Content, found: Field) -> Iterator[int]:
    """The numbers of a field: one, or several that are packed."""
    at = found.first
    while at < found.last:
        number, at = varint(content, at, found.last)
        yield number


def varint(content: Content, at: int, end: int) -> tuple[int, int]:
    """A number of 7 bits a byte, the lowest first, and where what follows begins."""
    found = 0
    for i, byte in enumerate(content[at : min(end, at + _LARGEST)]):
        found |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return found, at + i + 1
    raise ValueError("a number in it has no end")


def message(number: int, length: int) -> bytes:
    """What stands before the value of a field of so many bytes."""
    return _encoded(number << 3 | BYTES) + _encoded(length)


def _encoded(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
