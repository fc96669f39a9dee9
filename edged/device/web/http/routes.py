"""Routes: the endpoints of a path, the scopes that they need, how requests are identified, and the login."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edged.device.web.http.authentication import LOCAL, Access, Pass
from edged.device.web.http.authentication import Scope as Right
from edged.device.web.http.bodies import JSON, HttpError, as_json, read_body, refusal
from edged.device.web.http.guard import SAFE
from edged.errors import EdgedError, RefusedError, StorageError
from edged.logs import get_logger
from edged.storage.web_access import SESSION_SECONDS

Endpoint = Callable[[Request], Awaitable[Response]]


log = get_logger("edged.web")

COOKIE, SECURE_COOKIE = "edged_session", "__Host-edged_session"
CSRF_HEADER = b"x-csrf-token"
LONGEST_LOGIN = 4096  # bytes of a request
UNIX = "edged.unix"  # in the scope of requests over the Unix socket; their lack of an address proves nothing


class GuardedRoute:
    """Endpoint of one path: checks method, scope and, for `/api`, that no form can have sent the request.

    `method` is `GET`, which answers HEAD too, or `POST`; of the scopes in `rights` one is needed, none for a
    public path. With `json_only` unsafe requests must have the content type JSON, which no form can send.
    """

    def __init__(
        self,
        method: str,
        endpoint: Endpoint,
        rights: Sequence[Right],
        access: Access,
        *,
        json_only: bool = True,
    ) -> None:
        self.method, self.endpoint, self.rights = method, endpoint, tuple(rights)
        self._methods = SAFE if method == "GET" else (method,)
        self._access = access
        self._json_only = json_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it to its endpoint."""
        method, headers = scope["method"], scope["edged.headers"]
        if method not in self._methods:
            allow = {"allow": ", ".join(self._methods)}
            raise HttpError(405, f"{method} is not for this path", kind="method", headers=allow)
        if method not in SAFE and self._json_only and not _is_json(headers):
            raise HttpError(
                415, "the request must be declared as JSON", kind="media", remedy=f"content-type: {JSON}"
            )
        scope["edged.pass"] = self._let_in(scope, headers)
        try:
            response = await self.endpoint(Request(scope, receive, send))
        except ClientDisconnect:
            return
        except HttpError:
            raise
        except EdgedError as problem:
            raise http_error(problem) from problem
        await response(scope, receive, send)

    def _let_in(self, scope: Scope, headers: dict[bytes, bytes]) -> Pass:
        shown = identify(self._access, scope, headers)
        if self.rights:
            require(shown, self.rights)
        if shown.csrf is not None and scope["method"] not in SAFE:
            given = headers.get(CSRF_HEADER, b"")
            if not hmac.compare_digest(given, shown.csrf.encode()):
                raise HttpError(403, "the CSRF token is missing or wrong", kind="csrf")
        return shown


def require(shown: Pass, rights: Sequence[Right]) -> None:
    """Reject requests without any of these scopes: 401 without a token, 403 with another token."""
    if any(right in shown.scopes for right in rights):
        return
    wanted = " or ".join(rights)
    if shown.known:
        raise HttpError(403, f"this needs the scope {wanted}", kind="scope")
    raise HttpError(
        401,
        f"this needs a token with the scope {wanted}",
        kind="no_token",
        remedy="web.tokens names the files; edged web pair CONFIG shows a code for a browser",
        headers={"www-authenticate": "Bearer"},
    )


def identify(access: Access, scope: Scope, headers: dict[bytes, bytes]) -> Pass:
    """Return the permissions of a request by its socket, token or cookie.

    Raises HttpError: 401 for a token that is wrong, 429 when there were too many of them.
    """
    if scope.get(UNIX):
        return LOCAL
    authorization = headers.get(b"authorization")
    if authorization is not None:
        return _of_token(access, authorization, address_of(scope))
    name = session_of(scope)
    found = None if name is None else access.of_session(name)
    return access.anybody if found is None else found


def _of_token(access: Access, authorization: bytes, address: str) -> Pass:
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    found = access.of_token(token.strip()) if scheme.lower() == "bearer" else None
    if found is not None:
        return found
    raise wrong_token(access, address)


def wrong_token(access: Access, address: str) -> HttpError:
    """Count a wrong token or code; return the 401 error, or 429 for too many of them."""
    if access.attempts.failed(address):
        return HttpError(401, "invalid token or code", kind="token", headers={"www-authenticate": "Bearer"})
    return HttpError(
        429,
        "too many wrong tokens and codes",
        kind="attempts",
        remedy="wait a minute",
        headers={"retry-after": "60"},
    )


def address_of(scope: Scope) -> str:
    """Return the address of the client; empty for a Unix socket."""
    client: Any = scope["client"]
    return "" if client is None else str(client[0])


def session_cookie(scope: Scope) -> tuple[str, bool]:
    """Return the name of the cookie with the session, and whether it is only sent over TLS."""
    return (SECURE_COOKIE, True) if scope["scheme"] == "https" else (COOKIE, False)


def session_of(scope: Scope) -> str | None:
    """Return the session in the Cookie header of a request; None if there is none."""
    cookie: bytes | None = scope["edged.headers"].get(b"cookie")
    if cookie is None:
        return None
    return cookie_parser(cookie.decode("latin-1")).get(session_cookie(scope)[0])


def http_error(problem: EdgedError) -> HttpError:
    """Convert an error of edged to an HTTP error."""
    status = 409 if isinstance(problem, RefusedError) else 503 if isinstance(problem, StorageError) else 400
    return HttpError(status, problem.line(), kind="refused" if status == 409 else "failed")


def _is_json(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == JSON.encode()


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a path without a route with 404."""
    await refusal(HttpError(404, "path not found", kind="path"))(scope, receive, send)


class Login:
    """Endpoints `/api/login` and `/api/logout`: a code is sent once, for a session."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def begin(self, request: Request) -> Response:
        """Exchange `{"code": …}`, a pairing code, for a session cookie, its scopes and its CSRF token."""
        code, address = await _code(request), address_of(request.scope)
        if self._access.attempts.exhausted(address):
            raise wrong_token(self._access, address)  # a code is short: those who guess do not go on
        found = await asyncio.to_thread(self._access.login, code)
        if found is None:
            raise wrong_token(self._access, address)
        cookie, granted = found
        await self._log_out(request.scope)  # a browser has one session
        response = as_json({"scopes": sorted(granted.scopes), "csrf": granted.csrf})
        name, secure = session_cookie(request.scope)
        response.set_cookie(
            name, cookie, int(SESSION_SECONDS), secure=secure, httponly=True, samesite="strict"
        )
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session of this browser."""
        await self._log_out(request.scope)
        response = Response(status_code=204)
        name, secure = session_cookie(request.scope)
        response.delete_cookie(name, secure=secure, httponly=True, samesite="strict")
        return response

    async def _log_out(self, scope: Scope) -> None:
        session = session_of(scope)
        if session is not None:
            await asyncio.to_thread(self._access.logout, session)


async def _code(request: Request) -> str:
    body = await read_body(request.scope, request.receive, LONGEST_LOGIN)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    code = fields.get("code") if isinstance(fields, dict) else None
    if not isinstance(code, str):
        raise HttpError(400, 'expected {"code": …}', kind="request")
    return code
