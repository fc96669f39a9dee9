"""The application: every path with its door. What is added here passes the guard like all the rest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Router

from edged.device.web.api.prometheus_text import CONTENT_TYPE
from edged.device.web.http.assets import Assets
from edged.device.web.http.errors import as_json
from edged.device.web.http.guard import Guard
from edged.device.web.http.login import Login
from edged.device.web.http.routes import GuardedRoute, nothing_here, route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from edged.device.web.api.commands import Commands
    from edged.device.web.api.event_stream import EventStream
    from edged.device.web.api.inference import Inference
    from edged.device.web.api.metrics import Metrics
    from edged.device.web.http.authentication import Access
    from edged.device.web.page.page import Page

MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"


class StatusEndpoints:
    """Endpoints that read from the parts of the daemon; on other threads, as a disk may keep them waiting."""

    def __init__(self, status: Callable[[], dict[str, Any]], metrics: Metrics, feed: EventStream) -> None:
        self._status = status
        self._metrics = metrics
        self._feed = feed
        self.guard: Guard | None = None

    async def status(self, _: Request) -> Response:
        """What `edged status` prints."""
        return as_json(await asyncio.to_thread(self._status))

    async def metrics(self, _: Request) -> Response:
        """What Prometheus scrapes."""
        refused = {} if self.guard is None else dict(self.guard.refused)
        page = await asyncio.to_thread(self._metrics.page, refused, self._feed.streams)
        return Response(page, 200, {"cache-control": "no-store"}, CONTENT_TYPE)


def application(
    *,
    access: Access,
    hosts: Iterable[str],
    inference: Inference,
    reports: StatusEndpoints,
    commands: Commands,
    feed: EventStream,
    page: Page,
    more: Iterable[Route] = (),
) -> Guard:
    """All of it, behind the guard."""
    routes = [
        *_protocol(inference, access),
        route("/metrics", GuardedRoute({"GET": reports.metrics}, ("scrape",), access)),
        *_pages(page, access),
        route("/api/status", GuardedRoute({"GET": reports.status}, ("read",), access)),
        route("/api/events", GuardedRoute({"GET": feed.stream}, ("read",), access)),
        route(
            "/api/commands/{name}", GuardedRoute({"POST": commands.carry_out}, ("control", "infer"), access)
        ),
        *more,
    ]
    router = Router(routes, redirect_slashes=False, default=nothing_here)
    guard = Guard(_Shortcut(inference, access, router), hosts)
    reports.guard = guard
    return guard


class _Shortcut:
    """Passes what is asked thousands of times a second to its door without matching patterns; the rest on."""

    def __init__(self, inference: Inference, access: Access, router: Router) -> None:
        self._path = f"/v2/models/{inference.model}/infer"
        self._params = {"model": inference.model}
        self._door = _infer(inference, access)
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == self._path:
            scope["path_params"] = self._params
            await self._door(scope, receive, send)
        else:
            await self._router(scope, receive, send)


def _infer(inference: Inference, access: Access) -> GuardedRoute:
    return GuardedRoute({"POST": inference.infer}, ("infer",), access, json_only=False)


def _protocol(inference: Inference, access: Access) -> list[Route]:
    """The Open Inference Protocol."""

    def told(endpoint: Callable[[Request], Any]) -> GuardedRoute:
        return GuardedRoute({"GET": endpoint}, ("infer", "read"), access)

    return [
        route(f"{MODEL}/infer", _infer(inference, access)),
        route(f"{VERSION}/infer", _infer(inference, access)),
        route("/v2/health/live", GuardedRoute({"GET": inference.live}, (), access)),
        route("/v2/health/ready", GuardedRoute({"GET": inference.server_ready}, (), access)),
        route("/v2", told(inference.server_metadata)),
        route("/v2/", told(inference.server_metadata)),
        route(MODEL, told(inference.model_metadata)),
        route(VERSION, told(inference.model_metadata)),
        route(f"{MODEL}/ready", told(inference.model_ready)),
        route(f"{VERSION}/ready", told(inference.model_ready)),
    ]


def _pages(page: Page, access: Access) -> list[Route]:
    assets, login = Assets(), Login(access)
    return [
        route("/", GuardedRoute({"GET": page.start}, (), access)),
        route("/api/page", GuardedRoute({"GET": page.sections}, ("read",), access)),
        route("/api/report", GuardedRoute({"GET": page.report}, ("read",), access)),
        route("/static/{name}", GuardedRoute({"GET": assets.file}, (), access)),
        route("/api/session", GuardedRoute({"GET": login.session}, (), access)),
        route("/api/login", GuardedRoute({"POST": login.begin}, (), access)),
        route("/api/logout", GuardedRoute({"POST": login.end}, (), access)),
    ]
