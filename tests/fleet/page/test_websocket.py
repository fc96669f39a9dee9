"""Frames of websockets, cut and put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.fleet.page.websocket import (
    BINARY,
    CLOSE,
    LARGEST,
    PING,
    TEXT,
    Frame,
    FrameError,
    Frames,
    close_frame,
    frame,
    good_key,
)

MASK = b"\x01\x80\xff\x37"


def masked(opcode: int, payload: bytes, *, first: int = 0x80) -> bytes:
    """As a client sends it, from the description in section 5.2 of RFC 6455."""
    size = len(payload)
    if size < 126:
        head = bytes((first | opcode, 0x80 | size))
    elif size < 65536:
        head = bytes((first | opcode, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first | opcode, 0x80 | 127)) + size.to_bytes(8, "big")
    return head + MASK + bytes(byte ^ MASK[n % 4] for n, byte in enumerate(payload))


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_frames_come_out_however_they_are_cut(payloads: list[bytes], step: int) -> None:
    stream = b"".join(masked(BINARY, payload) for payload in payloads)
    frames = Frames()
    found = [f for at in range(0, len(stream), step) for f in frames.feed(stream[at : at + step])]
    assert found == [Frame(BINARY, payload) for payload in payloads]


@pytest.mark.parametrize("size", [125, 126, 65535, 65536, LARGEST])
def test_frames_of_every_size(size: int) -> None:
    payload = bytes(size)
    assert Frames().feed(masked(BINARY, payload)) == [Frame(BINARY, payload)]
    sent = frame(BINARY, payload)
    assert sent.endswith(payload)
    assert len(sent) - size == (2 if size < 126 else 4 if size < 65536 else 10)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, b"x"), 1002),  # not masked
        (masked(BINARY, b"x", first=0xC0), 1002),  # compressed, which nobody has agreed on
        (masked(0x3, b"x"), 1002),
        (masked(PING, bytes(126)), 1002),
        (masked(CLOSE, b"", first=0), 1002),  # a control frame in parts
        (masked(TEXT, b"x"), 1003),
        (bytes((0x82, 0xFF)) + (LARGEST + 1).to_bytes(8, "big"), 1009),  # before any of it is there
    ],
)
def test_what_no_client_may_send(data: bytes, code: int) -> None:
    with pytest.raises(FrameError) as told:
        Frames().feed(data)
    assert told.value.code == code
    assert close_frame(code) == bytes((0x88, 2)) + code.to_bytes(2, "big")


def test_keys_are_16_bytes() -> None:
    assert good_key("dGhlIHNhbXBsZSBub25jZQ==")
    assert not any(good_key(key) for key in ("", "dGhl", "dGhlIHNhbXBsZSBub25jZQ", "ü"))
