"""The check that every request passes first: its host is ours, and no foreign page sends it.

A page of any site can have a browser send requests to this machine, with or without reading the answers. It
cannot choose the headers Host, Origin and Sec-Fetch-Site, so these decide: Host must be a name of ours (else
a foreign name was made to lead here, DNS rebinding), and what changes anything must come from our own pages.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from edged.device.web.http.bodies import HttpError, refusal

SAFE = ("GET", "HEAD")
OURS = (b"same-origin", b"none")
SINGLE = (b"host", b"origin", b"authorization", b"cookie", b"content-length", b"content-type")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
STATIC_HEADERS = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
]
"""On every answer, errors included."""


class Guard:
    """Outermost layer of the application: rejects requests for other hosts or from foreign pages.

    It leaves the request's headers as a dictionary in `scope["edged.headers"]`, for the layers behind it.
    `hosts` are the names and addresses of this device, in lower case, without ports. With `addresses` any
    address is one of ours: no foreign name can lead here as an address, and ours may change. `refused` counts
    rejected requests by a stable word that names the reason.
    """

    def __init__(
        self, app: ASGIApp, hosts: Iterable[str], refused: Counter[str], *, addresses: bool = False
    ) -> None:
        self._app = app
        self._addresses = addresses
        self._hosts = frozenset(hosts)
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request or pass it on."""
        if scope["type"] != "http":
            return
        try:
            self._check(scope)
            await self._app(scope, receive, send)
        except HttpError as problem:
            self._refused[problem.kind] += 1
            await refusal(problem)(scope, receive, send)

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        raw: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(raw)
        if len(headers) != len(raw):
            _refuse_doubles(raw)
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy that believes the length would take the rest of the body for the next request.
            raise _wrong_headers("a request has a length or is sent in chunks, not both")
        scope["edged.headers"] = headers
        host = headers.get(b"host", b"")
        self._check_host(host)
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in OURS:
            _check_navigation(scope, headers)
        if scope["method"] not in SAFE:
            _check_origin(headers, host)

    def _check_host(self, host: bytes) -> None:
        name = _name_of(host)
        if name not in self._hosts and not (self._addresses and _is_address(name)):
            raise HttpError(
                421, "this device has another name", kind="host", remedy="web.allowed_hosts lists more names"
            )


def _name_of(host: bytes) -> str:
    """Return the name in a Host header, without its port.

    >>> _name_of(b"[::1]:8080"), _name_of(b"Localhost.:80"), _name_of(b"evil@localhost")
    ('::1', 'localhost', '')
    """
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
    else:
        name, colon, port = text.partition(":")
        port = colon + port
    if port and not (port[0] == ":" and port[1:].isdecimal() and port.isascii()):
        return ""
    return "" if "@" in name or "/" in name else name.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refuse_doubles(raw: list[tuple[bytes, bytes]]) -> None:
    names = Counter(name for name, _ in raw)
    double = next((name for name in SINGLE if names[name] > 1), None)
    if double is not None:
        raise _wrong_headers(f"the header {double.decode()} is there twice")


def _wrong_headers(what: str) -> HttpError:
    return HttpError(400, what, kind="headers", headers={"connection": "close"})


def _check_navigation(scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
    """Reject requests of foreign pages, except a link to our start page."""
    document = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    if not (scope["method"] == "GET" and document and scope["path"] == "/"):
        raise HttpError(403, "cross-site request", kind="foreign_site")


def _check_origin(headers: dict[bytes, bytes], host: bytes) -> None:
    """Reject unsafe requests of foreign pages; programs send no origin."""
    origin = headers.get(b"origin")
    if origin is None:
        return
    scheme, _, place = origin.partition(b"://")
    if scheme.lower() not in (b"http", b"https") or place.lower() != host.lower():
        raise HttpError(403, "cross-site request", kind="foreign_origin")
