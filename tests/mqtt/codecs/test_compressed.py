"""Compressed payloads: what comes out of them is bounded, whatever they announce."""

from __future__ import annotations

import gzip
import struct
import time
import tracemalloc
import zlib
from functools import cache
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.config import StreamConfig
from edged.domain.stream.sample import LabelReading, Reading
from edged.errors import RejectedSampleError
from edged.mqtt.codecs import label_codec, sample_codec

PLAIN = b'{"x": [1, 2, 3]}'
EXPECTED = Reading("t", [1.0, 2.0, 3.0])
ZSTD = zstandard.ZstdCompressor().compress(PLAIN)
GZIP = gzip.compress(PLAIN, mtime=0)


def decode(payload: bytes, compression: str, **more: Any) -> Any:
    return sample_codec(StreamConfig(features=3, compression=compression, **more)).decode("t", payload)


def reason(payload: bytes, compression: str, **more: Any) -> str:
    with pytest.raises(RejectedSampleError) as caught:
        decode(payload, compression, **more)
    return caught.value.reason


def streamed(data: bytes, **options: Any) -> bytes:
    """A frame without its content's size."""
    compressor = zstandard.ZstdCompressor(**options).compressobj()
    return compressor.compress(data) + compressor.flush()


def test_compressed_messages_are_read() -> None:
    assert decode(ZSTD, "zstd") == decode(GZIP, "gzip") == EXPECTED
    assert [decode(payload, "auto") for payload in (ZSTD, GZIP, PLAIN)] == [EXPECTED] * 3
    assert decode(streamed(PLAIN, write_checksum=True), "zstd") == EXPECTED
    assert decode(streamed(PLAIN, level=19), "zstd") == EXPECTED


def test_labels_are_compressed_like_samples() -> None:
    stream = StreamConfig.model_validate(
        {"features": 3, "compression": "gzip", "label": {"topic": "l", "join": "id"}, "classes": 2}
    )
    assert label_codec(stream).decode("l", gzip.compress(b'{"id": "a", "label": 1}')) == LabelReading(
        1.0, id="a"
    )


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_what_is_not_compressed_is_refused(compression: str, payload: bytes) -> None:
    assert reason(payload, compression) == "compression"


@pytest.mark.parametrize(("compression", "payload"), [("zstd", ZSTD), ("gzip", GZIP)])
def test_what_is_cut_off_or_goes_on_is_refused(compression: str, payload: bytes) -> None:
    assert {reason(payload[:size], compression) for size in range(len(payload))} == {"compression"}
    assert reason(payload + b"\x00", compression) == reason(payload * 2, compression) == "compression"
    whole = streamed(PLAIN * 500, write_checksum=True)
    assert {reason(whole[:size], "zstd") for size in range(0, len(whole), 3)} == {"compression"}


@cache
def bombs() -> dict[str, bytes]:
    """Small payloads that want to be a gigabyte."""
    ten_mb = b"\x00" * 10_000_000
    rle = struct.pack("<I", (128 * 1024) << 3 | 1 << 1)[:3] + b"\x00"
    return {
        "gzip": gzip.compress(ten_mb * 4),
        "gzip of gzip": gzip.compress(gzip.compress(ten_mb)),
        "zstd": zstandard.ZstdCompressor().compress(ten_mb * 4),
        "zstd without a size": streamed(ten_mb * 4),
        "zstd of runs": b"\x28\xb5\x2f\xfd\x00\x58" + rle * 8000 + b"\x01\x00\x00",
        "zstd with a window of 2 GiB": b"\x28\xb5\x2f\xfd\x00\xa8" + rle * 100 + b"\x01\x00\x00",
        "zstd that announces 2^60": b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\x00\x00",
    }


@pytest.mark.parametrize("name", bombs())
def test_bombs_are_stopped_while_they_inflate(name: str) -> None:
    payload = bombs()[name]
    assert len(payload) < 64 * 1024
    decode(GZIP, "auto")  # imports what it needs
    tracemalloc.start()
    started = time.thread_time()
    expected = "not_json" if name == "gzip of gzip" else "too_big"
    found = reason(payload, "auto")
    seconds, (_, peak) = time.thread_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == expected
    assert seconds < 0.2
    assert peak < 4_000_000, "the window of 8 MiB is the library's own memory, the rest is ours"


def test_the_limit_holds_exactly() -> None:
    for size, fits in ((1000, True), (1001, False)):
        plain = PLAIN + b" " * (size - len(PLAIN))
        for compression, payload in (("gzip", zlib_gzip(plain)), ("zstd", streamed(plain))):
            if fits:
                assert decode(payload, compression, max_payload=1000) == EXPECTED
            else:
                assert reason(payload, compression, max_payload=1000) == "too_big"


def zlib_gzip(data: bytes) -> bytes:
    """What a sensor's own zlib writes as gzip."""
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()
