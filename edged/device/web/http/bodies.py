"""Bodies of requests and answers: read and decompressed within a limit, compressed on request."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from edged.device.web.http.errors import HttpError

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

GZIP_FROM = 512  # bytes of an answer: below, deflating takes longer than it saves
WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # what zlib calls them


async def read_body(scope: Scope, receive: Receive, largest: int) -> bytes:
    """Read and decompress the body of a request, at most `largest` bytes.

    Raises HttpError: 413 when it is larger, 415 for an encoding that is not known, 400 when it is damaged.
    Raises ClientDisconnect when the client is gone.
    """
    headers: dict[bytes, bytes] = scope["edged.headers"]
    length = headers.get(b"content-length")
    if length is not None and int(length) > largest:
        raise _too_large(largest)
    message = await receive()
    if message["type"] == "http.request" and not message["more_body"]:
        body: bytes = message["body"]  # as nearly every request comes
        if len(body) > largest:
            raise _too_large(largest)
    else:
        body = await _gather(message, receive, largest)
    encoding = headers.get(b"content-encoding")
    return body if encoding is None or encoding.lower() == b"identity" else inflate(body, encoding, largest)


async def _gather(message: Message, receive: Receive, largest: int) -> bytes:
    gathered = bytearray()
    while True:
        if message["type"] != "http.request":
            raise ClientDisconnect
        gathered += message["body"]
        if len(gathered) > largest:
            raise _too_large(largest)
        if not message["more_body"]:
            return bytes(gathered)
        message = await receive()


def inflate(body: bytes, encoding: bytes, largest: int) -> bytes:
    """Decompress a body, and stop at the limit."""
    window = WINDOWS.get(encoding.strip().lower())
    if window is None:
        raise HttpError(
            415, f"content-encoding {encoding[:20].decode('latin-1')!r} is not known", kind="media"
        )
    inflater = zlib.decompressobj(window)
    try:
        inflated = inflater.decompress(body, largest + 1)
    except zlib.error as problem:
        raise HttpError(
            400, f"the body is no {encoding[:20].decode('latin-1')}: {problem}", kind="request"
        ) from None
    if len(inflated) > largest:
        raise _too_large(largest)
    if not inflater.eof or inflater.unused_data:
        raise HttpError(400, "the compressed body is cut off, or something follows it", kind="request")
    return inflated


def deflated(body: bytes, accepts: bytes | None) -> bytes | None:
    """Compress a body with gzip if the client accepts it and it saves time; else return None."""
    if accepts is None or len(body) < GZIP_FROM or not _accepts_gzip(accepts):
        return None
    deflater = zlib.compressobj(1, zlib.DEFLATED, WINDOWS[b"gzip"])
    return deflater.compress(body) + deflater.flush()


def respond(asked: Mapping[bytes, bytes], body: bytes, media: str, headers: Mapping[str, str]) -> Response:
    """Return the answer to a request with the headers `asked`, compressed if `deflated` compresses it."""
    short = deflated(body, asked.get(b"accept-encoding"))
    if short is not None:
        body, headers = short, {**headers, "content-encoding": "gzip", "vary": "accept-encoding"}
    return Response(body, 200, headers, media)


def _accepts_gzip(accepts: bytes) -> bool:
    for item in accepts.lower().split(b","):
        name, _, quality = item.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def _too_large(largest: int) -> HttpError:
    return HttpError(
        413,
        f"the request has more than {largest} bytes",
        kind="size",
        remedy="web.limits.body",
        headers={"connection": "close"},
    )
