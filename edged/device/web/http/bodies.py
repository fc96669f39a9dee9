"""Bodies of requests and answers, within limits; errors; limits for clients."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope

from edged.errors import EdgedError

MAX_BODY = 1024**2  # bytes of a request, also inflated
MAX_ROWS = 1024  # rows or records in one request
MAX_REQUESTS = 64  # in progress; further ones get 503
MAX_CONNECTIONS = 128  # open on one socket, idle ones included; further ones are closed without a response
MAX_STREAMS = 20  # open event streams; further ones get 503
MAX_HEAD = 32 * 1024  # bytes of the first line and the headers of a request
ANSWER_SECONDS = 10.0  # longest wait for a prediction or a command's response
CLIENT_SECONDS = 60.0  # longest wait for a client to send its next request, or to take its answer

JSON = "application/json"
WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # what zlib calls them


class HttpError(EdgedError):
    """An HTTP error with its status; `kind` is a stable word for counters."""

    def __init__(
        self, status: int, what: str, *, kind: str, remedy: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.kind = kind
        self.headers = headers
        super().__init__(what, remedy=remedy)


def refusal(problem: HttpError) -> Response:
    """Return the response for an error."""
    return Response(json_bytes({"error": problem.line()}), problem.status, problem.headers, JSON)


def json_bytes(values: object) -> bytes:
    """Return values as JSON."""
    return json.dumps(values, separators=(",", ":"), default=float).encode()


def as_json(values: object, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    return Response(json_bytes(values), status, None, JSON)


async def read_body(scope: Scope, receive: Receive, largest: int = MAX_BODY) -> bytes:
    """Read and decompress the body of a request, at most `largest` bytes.

    Raises HttpError: 413 when it is larger, 415 for an encoding that is not known, 400 when it is damaged.
    Raises ClientDisconnect when the client is gone.
    """
    headers: dict[bytes, bytes] = scope["edged.headers"]
    length = headers.get(b"content-length")
    if length is not None and int(length) > largest:
        raise _too_large(largest)
    gathered = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        gathered += message["body"]
        more = message["more_body"]
        if len(gathered) > largest:
            raise _too_large(largest)
    body, encoding = bytes(gathered), headers.get(b"content-encoding")
    return body if encoding is None or encoding.lower() == b"identity" else inflate(body, encoding, largest)


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


def _too_large(largest: int) -> HttpError:
    return HttpError(
        413,
        f"the request has more than {largest} bytes",
        kind="size",
        headers={"connection": "close"},
    )
