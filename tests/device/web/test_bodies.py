"""Bodies within their limits, compressed or not."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from edged.device.web.http.bodies import HttpError, inflate, read_body

LARGEST = 1000


def read(parts: Sequence[bytes | None], **headers: str) -> bytes:
    """The body that arrives in these parts; None is a client that leaves."""
    messages: list[dict[str, Any]] = [
        {"type": "http.disconnect"}
        if part is None
        else {"type": "http.request", "body": part, "more_body": i < len(parts) - 1}
        for i, part in enumerate(parts)
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return asyncio.run(read_body({"type": "http", "edged.headers": named}, receive, LARGEST))


def status_of(parts: Sequence[bytes | None], **headers: str) -> int:
    with pytest.raises(HttpError) as caught:
        read(parts, **headers)
    return caught.value.status


def test_a_body_comes_in_one_part_or_many() -> None:
    assert read([b"abc"]) == b"abc"
    assert read([b"a", b"", b"bc"]) == b"abc"
    assert read([b""]) == b""


def test_a_body_that_is_too_large_is_not_read_to_its_end() -> None:
    assert status_of([b"never read"], content_length="1001") == 413
    assert status_of([b"x" * 1001]) == 413
    assert status_of([b"x" * 600, b"x" * 600, b"never read"]) == 413
    assert read([b"x" * 500, b"x" * 500]) == b"x" * 1000


def test_a_client_that_leaves_is_noticed() -> None:
    with pytest.raises(ClientDisconnect):
        read([b"a", None])


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip", "deflate"])
def test_compressed_bodies_are_inflated(encoding: str) -> None:
    pack = zlib.compress if encoding == "deflate" else gzip.compress
    assert read([pack(b"x" * 1000)], content_encoding=encoding) == b"x" * 1000


def test_a_bomb_is_not_inflated_beyond_the_limit() -> None:
    bomb = gzip.compress(b"\0" * 900_000)
    assert len(bomb) < LARGEST
    assert status_of([bomb], content_encoding="gzip") == 413


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"no gzip", id="plain"),
        pytest.param(gzip.compress(b"abc")[:-1], id="cut off"),
        pytest.param(gzip.compress(b"a") + b"x", id="a byte more"),
        pytest.param(gzip.compress(b"a") * 2, id="two streams"),
        pytest.param(b"", id="empty"),
    ],
)
def test_what_is_cut_off_or_followed_by_something_is_refused(body: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        inflate(body, b"gzip", LARGEST)
    assert caught.value.status == 400


def test_unknown_encodings_are_415() -> None:
    assert status_of([b"x"], content_encoding="br") == 415
    assert read([b"x"], content_encoding="identity") == b"x"
