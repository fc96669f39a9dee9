"""The application: every path with its route, all of them behind the guard."""

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
    from collections import Counter
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from edged.device.reporting.status import StatusCollector
    from edged.device.web.api.commands import Commands
    from edged.device.web.api.event_stream import EventStream
    from edged.device.web.api.inference import Inference
    from edged.device.web.api.metrics import Metrics
    from edged.device.web.http.authentication import Access
    from edged.device.web.http.routes import Endpoint
    from edged.device.web.page.page import Page

MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"


class StatusEndpoints:
    """Endpoints `/api/status` and `/metrics`; read on other threads, as the disk might be slow.

    Parameters
    ----------
    status, metrics, feed
        The sources of the figures.
    refused
        Requests that the guard rejected, by reason.
    """

    def __init__(
        self, status: StatusCollector, metrics: Metrics, feed: EventStream, refused: Counter[str]
    ) -> None:
        self._status = status
        self._metrics = metrics
        self._feed = feed
        self._refused = refused

    async def status(self, _: Request) -> Response:
        """Return the summary that `edged status` prints."""
        return as_json(await asyncio.to_thread(self._status.status))

    async def metrics(self, _: Request) -> Response:
        """Return the page that Prometheus scrapes."""
        page = await asyncio.to_thread(self._metrics.page, dict(self._refused), self._feed.streams)
        return Response(page, 200, {"cache-control": "no-store"}, CONTENT_TYPE)


def application(
    *,
    access: Access,
    hosts: Iterable[str],
    refused: Counter[str],
    inference: Inference,
    status: StatusEndpoints,
    commands: Commands,
    feed: EventStream,
    page: Page,
    more: Iterable[Route] = (),
) -> Guard:
    """Build the application: all routes, behind the guard."""
    control = GuardedRoute({"POST": commands.carry_out}, ("control", "infer"), access)
    routes = [
        *_protocol(inference, access),
        route("/metrics", GuardedRoute({"GET": status.metrics}, ("scrape",), access)),
        *_pages(page, access),
        route("/api/status", GuardedRoute({"GET": status.status}, ("read",), access)),
        route("/api/events", GuardedRoute({"GET": feed.stream}, ("read",), access)),
        route("/api/commands/{name}", control),
        *more,
    ]
    router = Router(routes, redirect_slashes=False, default=nothing_here)
    return Guard(_Shortcut(inference, access, router), hosts, refused)


class _Shortcut:
    """Passes inference requests to their route without matching patterns, all others to the router."""

    def __init__(self, inference: Inference, access: Access, router: Router) -> None:
        self._path = f"/v2/models/{inference.model}/infer"
        self._params = {"model": inference.model}
        self._infer = _infer(inference, access)
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == self._path:
            scope["path_params"] = self._params
            await self._infer(scope, receive, send)
        else:
            await self._router(scope, receive, send)


def _infer(inference: Inference, access: Access) -> GuardedRoute:
    return GuardedRoute({"POST": inference.infer}, ("infer",), access, json_only=False)


def _protocol(inference: Inference, access: Access) -> list[Route]:
    """Routes of the Open Inference Protocol."""

    def described(endpoint: Endpoint) -> GuardedRoute:
        return GuardedRoute({"GET": endpoint}, ("infer", "read"), access)

    return [
        route(f"{MODEL}/infer", _infer(inference, access)),
        route(f"{VERSION}/infer", _infer(inference, access)),
        route("/v2/health/live", GuardedRoute({"GET": inference.live}, (), access)),
        route("/v2/health/ready", GuardedRoute({"GET": inference.server_ready}, (), access)),
        route("/v2", described(inference.server_metadata)),
        route("/v2/", described(inference.server_metadata)),
        route(MODEL, described(inference.model_metadata)),
        route(VERSION, described(inference.model_metadata)),
        route(f"{MODEL}/ready", described(inference.model_ready)),
        route(f"{VERSION}/ready", described(inference.model_ready)),
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
