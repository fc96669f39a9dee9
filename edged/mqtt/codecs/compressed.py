"""Compressed payloads: zstd (RFC 8878) or gzip (RFC 1952), inflated no further than allowed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from edged.errors import RejectedSampleError
from edged.mqtt.codecs.objects import check_size

LARGEST_WINDOW = 8 * 1024**2  # what RFC 8878 wants every decoder to support
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_GZIP_BITS = 31  # zlib's number for a gzip header and the largest window
_RLE, _RESERVED = 1, 3  # types of blocks of zstd

Inflate = Callable[[bytes, int], bytes]
T_co = TypeVar("T_co", covariant=True)


class Decoder(Protocol[T_co]):
    """Decodes messages of one format."""

    def decode(self, topic: str, payload: bytes) -> T_co:
        """Decode one message of a topic."""


class Compressed(Decoder[T_co]):
    """Decompresses payloads for another codec.

    `compression` is `zstd`, `gzip`, or `auto` for either or neither, as a payload's first bytes say;
    `largest` the bytes that a payload may have, compressed and inflated.
    """

    def __init__(self, codec: Decoder[T_co], compression: str, largest: int) -> None:
        self._codec = codec
        self._inflate: Inflate = {"zstd": zstd(), "gzip": gzip, "auto": _either(zstd())}[compression]
        self._largest = largest

    def decode(self, topic: str, payload: bytes) -> T_co:
        """Decompress a message, and decode it.

        Raises RejectedSampleError: `compression` for what cannot be inflated, else as the codec says.
        """
        check_size(payload, self._largest)
        return self._codec.decode(topic, self._inflate(payload, self._largest))


def gzip(payload: bytes, largest: int) -> bytes:
    """Decompress a gzip payload.

    Raises RejectedSampleError: `compression`, or `too_big` as soon as more than `largest` bytes come out.
    """
    inflater = zlib.decompressobj(_GZIP_BITS)
    try:
        data = inflater.decompress(payload, largest + 1)
    except zlib.error as problem:
        raise RejectedSampleError("compression", f"not gzip: {problem}") from None
    if len(data) > largest:
        raise _too_big(largest)
    if not inflater.eof or inflater.unused_data:
        raise RejectedSampleError("compression", "gzip data is cut off, or something follows it")
    return data


def zstd() -> Inflate:
    """A function that inflates payloads of one zstd frame."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)

    def inflate(payload: bytes, largest: int) -> bytes:
        try:
            frame = zstandard.get_frame_parameters(payload)
            if frame.window_size > LARGEST_WINDOW:
                raise _too_big(largest)
            _check_whole(payload, zstandard.frame_header_size(payload), checksum=frame.has_checksum)
            with decompressor.stream_reader(payload) as reader:
                data = reader.read(largest + 1)
        except zstandard.ZstdError as problem:
            raise RejectedSampleError("compression", f"not zstd: {problem}") from None
        if len(data) > largest:
            raise _too_big(largest)
        return data

    return inflate


def _check_whole(payload: bytes, at: int, *, checksum: bool) -> None:
    """The library takes a frame that is cut off for one that is shorter: count its blocks.

    A block begins with three bytes: whether it is the last, its type, its size (RFC 8878, 3.1.1.2).
    """
    last = False
    while not last and at + 3 <= len(payload):
        head = int.from_bytes(payload[at : at + 3], "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        if kind == _RESERVED:
            raise RejectedSampleError("compression", "zstd data with a block of a reserved type")
        at += 3 + (1 if kind == _RLE else size)
    if not last or at + (4 if checksum else 0) != len(payload):
        raise RejectedSampleError("compression", "zstd data is cut off, or something follows it")


def _either(zstd_inflate: Inflate) -> Inflate:
    def inflate(payload: bytes, largest: int) -> bytes:
        if payload.startswith(_ZSTD):
            return zstd_inflate(payload, largest)
        return gzip(payload, largest) if payload.startswith(_GZIP) else payload

    return inflate


def _too_big(largest: int) -> RejectedSampleError:
    return RejectedSampleError("too_big", f"inflates to more than {largest} bytes")
