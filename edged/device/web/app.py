"""The application: every path with its method and scopes, all of them behind the guard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.routing import Route, Router

from edged.device.web.http.guard import Guard
from edged.device.web.http.routes import GuardedRoute, Login, nothing_here
from edged.device.web.page.page import Assets

if TYPE_CHECKING:
    from collections import Counter

    from starlette.types import ASGIApp, Receive, Scope, Send

    from edged.device.web.api.commands import Commands
    from edged.device.web.api.event_stream import EventStream
    from edged.device.web.api.inference import Inference
    from edged.device.web.api.ingest import IngestEndpoints
    from edged.device.web.api.label_reviews import LabelEndpoints
    from edged.device.web.api.metrics import Metrics
    from edged.device.web.api.timeline import TimelineEndpoints
    from edged.device.web.http.authentication import Access
    from edged.device.web.http.authentication import Scope as Right
    from edged.device.web.http.routes import Endpoint
    from edged.device.web.page.page import Page

MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"


@dataclass(frozen=True)
class Endpoints:
    """What answers to the paths, and who may ask."""

    access: Access
    inference: Inference
    metrics: Metrics
    commands: Commands
    ingest: IngestEndpoints
    reviews: LabelEndpoints
    feed: EventStream
    page: Page
    timeline: TimelineEndpoints


def application(
    endpoints: Endpoints,
    *,
    hosts: Iterable[str],
    addresses: bool,
    refused: Counter[str],
    more: Iterable[Route] = (),
) -> Guard:
    """Build the application: all routes, behind the guard; `refused` counts what they reject, by reason.

    `hosts` are names of this device; with `addresses` it answers under any address.
    """
    own = routes(endpoints)
    router = Router([*own, *more], redirect_slashes=False, default=nothing_here)
    shortcut = _Shortcut(endpoints.inference.model, own[0].app, router)
    return Guard(shortcut, hosts, refused, addresses=addresses)


def routes(endpoints: Endpoints) -> list[Route]:
    """Every path, that of inference first; docs/openapi.json is made from them."""
    login = Login(endpoints.access)
    infer = GuardedRoute("POST", endpoints.inference.infer, ("infer",), endpoints.access, json_only=False)
    samples = GuardedRoute("POST", endpoints.ingest.samples, ("ingest",), endpoints.access, json_only=False)
    labels = GuardedRoute("POST", endpoints.ingest.labels, ("ingest",), endpoints.access, json_only=False)
    index = GuardedRoute(
        "POST", endpoints.inference.repository_index, ("infer", "read"), endpoints.access, json_only=False
    )

    def get(path: str, endpoint: Endpoint, *rights: Right) -> Route:
        return Route(path, GuardedRoute("GET", endpoint, rights, endpoints.access))

    def post(path: str, endpoint: Endpoint, *rights: Right) -> Route:
        return Route(path, GuardedRoute("POST", endpoint, rights, endpoints.access))

    return [
        Route(f"{MODEL}/infer", infer),
        Route(f"{VERSION}/infer", infer),
        Route("/v2/repository/index", index),
        Route("/v1/samples", samples),
        Route("/v1/labels", labels),
        get("/v2/health/live", endpoints.inference.live),
        get("/v2/health/ready", endpoints.inference.server_ready),
        get("/v2", endpoints.inference.server_metadata, "infer", "read"),
        get("/v2/", endpoints.inference.server_metadata, "infer", "read"),
        get(MODEL, endpoints.inference.model_metadata, "infer", "read"),
        get(VERSION, endpoints.inference.model_metadata, "infer", "read"),
        get(f"{MODEL}/ready", endpoints.inference.model_ready, "infer", "read"),
        get(f"{VERSION}/ready", endpoints.inference.model_ready, "infer", "read"),
        get("/metrics", endpoints.metrics.scrape, "scrape"),
        get("/", endpoints.page.start),
        get("/api/page", endpoints.page.sections, "read"),
        get("/api/report", endpoints.page.report, "read"),
        get("/api/timeline", endpoints.timeline.picture, "read"),
        get("/api/timeline/count", endpoints.timeline.count, "read"),
        get("/static/{name}", Assets().file),
        get("/api/session", login.session),
        post("/api/login", login.begin),
        post("/api/logout", login.log_out),
        get("/api/labels/suspects", endpoints.reviews.suspects, "read"),
        get("/api/labels/map", endpoints.reviews.points, "read"),
        get("/api/labels/samples/{offset}", endpoints.reviews.sample, "read"),
        get("/api/status", endpoints.page.status, "read"),
        get("/api/events", endpoints.feed.stream, "read"),
        post("/api/commands/{name}", endpoints.commands.carry_out, "control", "infer"),
    ]


class _Shortcut:
    """Passes inference requests to their route without matching patterns, all others to the router."""

    def __init__(self, model: str, infer: ASGIApp, router: Router) -> None:
        self._path = f"/v2/models/{model}/infer"
        self._params = {"model": model}
        self._infer = infer
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == self._path:
            scope["path_params"] = self._params
            await self._infer(scope, receive, send)
        else:
            await self._router(scope, receive, send)
