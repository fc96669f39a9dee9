"""The application: every path with its method and scopes, behind the guard; the switch between streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.responses import RedirectResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from edged.device.web.api.commands import Commands
from edged.device.web.api.event_stream import EventStream
from edged.device.web.api.inference import Inference
from edged.device.web.api.ingest import IngestEndpoints
from edged.device.web.api.label_reviews import LabelEndpoints
from edged.device.web.api.metrics import Metrics
from edged.device.web.api.timeline import TimelineEndpoints
from edged.device.web.http.authentication import Access
from edged.device.web.http.authentication import Scope as Right
from edged.device.web.http.bodies import HttpError, refusal
from edged.device.web.http.routes import Endpoint, GuardedRoute, Login
from edged.device.web.page.page import Assets, Page

if TYPE_CHECKING:
    from edged.device.web.service import Site


STREAMS, MODELS = "/streams/", "/v2/models/"
MODEL = MODELS + "{model}"
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


def routes(endpoints: Endpoints) -> list[Route]:
    """Return every path; docs/openapi.json is made from them."""
    login = Login(endpoints.access)
    infer = GuardedRoute("POST", endpoints.inference.infer, ("infer",), endpoints.access, json_only=False)
    samples = GuardedRoute("POST", endpoints.ingest.samples, ("ingest",), endpoints.access, json_only=False)
    labels = GuardedRoute("POST", endpoints.ingest.labels, ("ingest",), endpoints.access, json_only=False)

    def get(path: str, endpoint: Endpoint, *rights: Right) -> Route:
        return Route(path, GuardedRoute("GET", endpoint, rights, endpoints.access))

    def post(path: str, endpoint: Endpoint, *rights: Right) -> Route:
        return Route(path, GuardedRoute("POST", endpoint, rights, endpoints.access))

    return [
        Route(f"{MODEL}/infer", infer),
        Route(f"{VERSION}/infer", infer),
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
        post("/api/login", login.begin),
        post("/api/logout", login.log_out),
        get("/api/labels/suspects", endpoints.reviews.suspects, "read"),
        get("/api/labels/map", endpoints.reviews.points, "read"),
        get("/api/labels/samples/{offset}", endpoints.reviews.sample, "read"),
        get("/api/status", endpoints.page.status, "read"),
        get("/api/events", endpoints.feed.stream, "read"),
        post("/api/commands/{name}", endpoints.commands.carry_out, "control", "infer"),
    ]


class Switch:
    """Passes a request to the application of its stream, as if that were the only one.

    The stream is named by the path, `/streams/<name>/…` or `/v2/models/<name>…`, or by the parameter
    `stream`. `/` leads to the first one; `/metrics` is of all of them. `sites` may change.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._sites = sites

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        if not self._sites:
            await refusal(HttpError(503, "no stream runs", kind="path"))(scope, receive, send)
        elif path == "/":
            await RedirectResponse(f"{STREAMS}{min(self._sites)}/", 307)(scope, receive, send)
        elif path.startswith(STREAMS):
            name, slash, rest = path.removeprefix(STREAMS).partition("/")
            if not slash and name in self._sites:
                await RedirectResponse(f"{STREAMS}{name}/", 307)(scope, receive, send)
                return
            await self._pass(name, {**scope, "path": f"/{rest}"}, receive, send)
        elif path.startswith(MODELS):
            await self._pass(path.removeprefix(MODELS).partition("/")[0], scope, receive, send)
        elif path.startswith(("/v1/", "/api/")):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("stream", [""])[-1]
            await self._pass(given, scope, receive, send)
        else:  # the server's own: health, metadata, metrics of all streams, static files
            await self._pass(min(self._sites), scope, receive, send)

    async def _pass(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        site = self._sites.get(name)
        if site is None:
            said = f"there is no stream {name[:60]!r}" if name else "this device has several streams"
            remedy = f"name one of {', '.join(sorted(self._sites))}, in the path or as ?stream="
            problem = HttpError(404 if name else 400, said, kind="stream", remedy=remedy)
            await refusal(problem)(scope, receive, send)
            return
        await site.app(scope, receive, send)
