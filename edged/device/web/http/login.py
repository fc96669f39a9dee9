"""Login of browsers: a token is sent once, in the body of a request, and exchanged for a session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from edged.device.web.http.authentication import SESSION_SECONDS
from edged.device.web.http.bodies import read_body
from edged.device.web.http.errors import HttpError, as_json
from edged.device.web.http.routes import COOKIE, SECURE_COOKIE, address_of, session_of, too_many_attempts

if TYPE_CHECKING:
    from starlette.requests import Request

    from edged.device.web.http.authentication import Access, Pass

LARGEST = 4096  # bytes of a request


class Login:
    """Endpoints `/api/session` and `/api/login`, `/api/logout`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def session(self, request: Request) -> Response:
        """Return the scopes of this browser, and the CSRF token that its requests must carry."""
        return as_json(_told(request.scope["edged.pass"]))

    async def begin(self, request: Request) -> Response:
        """Exchange `{"token": …}` for a session cookie."""
        address = address_of(request.scope)
        if self._access.attempts.exhausted(address):
            raise too_many_attempts()
        found = self._access.login(await _token(request), address)
        if found is None:
            raise HttpError(401, "invalid token", kind="token")
        self._end_of(request)  # a browser has one session: its token may have been the wrong one
        name, granted = found
        secure = request.scope["scheme"] == "https"
        response = as_json(_told(granted))
        response.set_cookie(
            SECURE_COOKIE if secure else COOKIE,
            name,
            max_age=int(SESSION_SECONDS),
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )
        return response

    async def end(self, request: Request) -> Response:
        """End the session of this browser."""
        secure = request.scope["scheme"] == "https"
        self._end_of(request)
        response = Response(status_code=204)
        response.delete_cookie(
            SECURE_COOKIE if secure else COOKIE, path="/", secure=secure, httponly=True, samesite="strict"
        )
        return response

    def _end_of(self, request: Request) -> None:
        cookie: bytes | None = request.scope["edged.headers"].get(b"cookie")
        name = None if cookie is None else session_of(cookie, secure=request.scope["scheme"] == "https")
        if name is not None:
            self._access.sessions.end(name)


def _told(granted: Pass) -> dict[str, Any]:
    return {"scopes": sorted(granted.scopes), "csrf": granted.csrf}


async def _token(request: Request) -> str:
    body = await read_body(request.scope, request.receive, LARGEST)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    token = fields.get("token") if isinstance(fields, dict) else None
    if not isinstance(token, str):
        raise HttpError(400, 'expected {"token": …}', kind="request")
    return token
