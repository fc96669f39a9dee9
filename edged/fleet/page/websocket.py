"""The WebSocket protocol (RFC 6455), as far as a server needs it that passes bytes on."""

from __future__ import annotations

import base64
import hashlib
from typing import NamedTuple

from edged.errors import EdgedError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
LARGEST = 1024 * 1024
"""Bytes of a frame that a browser may send: a command has 64 KiB at most."""

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # section 1.3


class FrameError(EdgedError):
    """What came is no frame that a client may send; `code` is for the closing frame (section 7.4.1)."""

    def __init__(self, code: int, what: str) -> None:
        self.code = code
        super().__init__(what)


class Frame(NamedTuple):
    """One frame: `opcode` and unmasked `payload`."""

    opcode: int
    payload: bytes


def accept_key(key: str) -> str:
    """What a server answers to a client's key (section 4.2.2).

    >>> accept_key("dGhlIHNhbXBsZSBub25jZQ==")
    's3pPLMBiTxaQ9kYGzzhZRbK+xOo='
    """
    return base64.b64encode(hashlib.sha1(f"{key}{_GUID}".encode(), usedforsecurity=False).digest()).decode()


def good_key(key: str) -> bool:
    """Whether a client's key is 16 bytes in Base64."""
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        return False


def frame(opcode: int, payload: bytes) -> bytes:
    """One whole frame from a server, which masks nothing."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, size))
    elif size < 65536:
        head = bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big")
    return head + payload


def close_frame(code: int) -> bytes:
    """The last frame."""
    return frame(CLOSE, code.to_bytes(2, "big"))


class Frames:
    """Cuts what a client sends into frames.

    Parts of a message come as they are, since the bytes of MQTT have no borders of messages.
    """

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        Raises
        ------
        FrameError
            When a frame breaks the protocol or is too large. Nothing more can be read then.
        """
        self._held += data
        found = []
        while (one := self._next()) is not None:
            found.append(one)
        return found

    def _next(self) -> Frame | None:
        held = self._held
        if len(held) < 2:
            return None
        size, start = self._size(held[0], held[1])
        if size is None or len(held) < start + 4 + size:
            return None
        mask, body = held[start : start + 4], held[start + 4 : start + 4 + size]
        opcode = held[0] & 0x0F
        del held[: start + 4 + size]
        return Frame(opcode, _unmasked(bytes(body), bytes(mask)))

    def _size(self, first: int, second: int) -> tuple[int | None, int]:
        """Bytes of the payload, None while that is not known, and where the mask begins."""
        opcode, short = first & 0x0F, second & 0x7F
        if first & 0x70 or opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise FrameError(1002, "a frame of an unknown kind")
        if not second & 0x80:
            raise FrameError(1002, "a frame that is not masked")
        if opcode >= CLOSE and (short > 125 or not first & 0x80):
            raise FrameError(1002, "a control frame that is long or in parts")
        if opcode == TEXT:
            raise FrameError(1003, "text: MQTT is binary")
        width = {126: 2, 127: 8}.get(short, 0)
        if len(self._held) < 2 + width:
            return None, 2
        size = int.from_bytes(self._held[2 : 2 + width], "big") if width else short
        if size > LARGEST:
            raise FrameError(1009, "a frame that is too large")
        return size, 2 + width


def _unmasked(body: bytes, mask: bytes) -> bytes:
    """Section 5.3: each byte with that of the mask, over and over.

    >>> _unmasked(bytes([0x7F, 0x9F, 0x4D, 0x51, 0x58]), bytes([0x37, 0xFA, 0x21, 0x3D]))
    b'Hello'
    """
    size = len(body)
    keys = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(body, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")
