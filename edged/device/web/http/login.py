"""Login of browsers: a token is sent once, in the body of a request, and exchanged for a session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from edged.device.web.http.authentication import SESSION_SECONDS
from edged.device.web.http.bodies import read_body
from edged.device.web.http.errors import HttpError, as_json
from edged.device.web.http.routes import address_of, session_cookie, session_of, too_many_attempts

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

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
        self._end_of(request.scope)  # a browser has one session: its token may have been the wrong one
        session, granted = found
        response = as_json(_told(granted))
        name, secure = session_cookie(request.scope)
        response.set_cookie(
            name, session, int(SESSION_SECONDS), secure=secure, httponly=True, samesite="strict"
        )
        return response

    async def end(self, request: Request) -> Response:
        """End the session of this browser."""
        self._end_of(request.scope)
        response = Response(status_code=204)
        name, secure = session_cookie(request.scope)
        response.delete_cookie(name, secure=secure, httponly=True, samesite="strict")
        return response

    def _end_of(self, scope: Scope) -> None:
        session = session_of(scope)
        if session is not None:
            self._access.sessions.end(session)


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
