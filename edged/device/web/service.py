"""The web application of the device, on an event loop in a thread of its own: every path with its scopes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from numpy.typing import NDArray
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import RedirectResponse
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from edged.config import WebConfig
from edged.device.fleet_member.local_rounds import LocalRounds
from edged.device.reports import Report, StreamMetrics
from edged.device.web.api.commands import Commands
from edged.device.web.api.event_stream import EventStream
from edged.device.web.api.inference import Inference
from edged.device.web.api.ingest import IngestEndpoints
from edged.device.web.api.label_reviews import LabelEndpoints
from edged.device.web.api.metrics import Metrics
from edged.device.web.api.timeline import TimelineEndpoints
from edged.device.web.bridge import ServingBridge, soon
from edged.device.web.front import WebParts
from edged.device.web.http.authentication import Access, Tokens
from edged.device.web.http.authentication import Scope as Right
from edged.device.web.http.bodies import HttpError, refusal
from edged.device.web.http.guard import Guard
from edged.device.web.http.listener import HttpListener
from edged.device.web.http.routes import Endpoint, GuardedRoute, Login, nothing_here
from edged.device.web.http.sockets import Sockets, names_of
from edged.device.web.page.history import Baseline, PageState
from edged.device.web.page.page import Assets, Page
from edged.domain.judging.predictions import Predictions
from edged.errors import StorageError
from edged.host.vitals import VitalsReader
from edged.logs import get_logger
from edged.storage.web_access import Pairing

GZIP_FROM = 512  # bytes of an answer: below, compressing takes longer than it saves
GZIP_LEVEL = 1
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
HELPERS = 2  # threads for calls that might wait for the disk
HISTORY = "page_history"  # in the registry: quality over time, for the next start
REPLACE_SECONDS = 10.0  # for a stream to end or begin while the others are served
KEEP_SECONDS = 3600.0  # between two times that it is stored

STREAMS, MODELS = "/streams/", "/v2/models/"
MODEL = MODELS + "{model}"
VERSION = MODEL + "/versions/{version}"

log = get_logger("edged.web")


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


class Site:
    """What the web server knows of one stream: its endpoints, behind the guard in `app`.

    `sites` are those of all streams of the device, by their names; `thread` makes predictions. It answers
    from its creation on, which is on the event loop.
    """

    def __init__(self, parts: WebParts, access: Access, sites: Mapping[str, Site], thread: Executor) -> None:
        config, pipeline, status = parts.config, parts.pipeline, parts.status
        device = pipeline.config
        self._pipeline = pipeline
        self.feed = EventStream()
        self.bridge = ServingBridge(pipeline.serving, pipeline.ingestor, thread)
        self.inference = Inference(
            model=device.name or config.model_name or device.device.id,
            schema=pipeline.schema,
            predictor=pipeline.predictor,
            bridge=self.bridge,
        )
        refused: Counter[str] = Counter()
        self.metrics = Metrics(
            pipeline,
            status,
            inference=self.inference,
            bridge=self.bridge,
            feed=self.feed,
            refused=refused,
            everybody=lambda: {name: site.metrics for name, site in dict(sites).items()},
        )
        self._page = PageState(pipeline.registry.get_value(HISTORY))
        self._timeline = TimelineEndpoints(pipeline, self._page)
        self._baseline: Baseline | None = None
        self._kept = pipeline.clock.monotonic()
        vitals = VitalsReader(device.storage.dir)
        endpoints = Endpoints(
            access=access,
            inference=self.inference,
            metrics=self.metrics,
            commands=Commands(parts.inbox, device.topic_root, self.feed, self._page),
            ingest=IngestEndpoints(device.stream, self.bridge),
            reviews=LabelEndpoints(parts.reviews),
            feed=self.feed,
            page=Page(pipeline, status, self._page, vitals, parts.reviews, sites if device.name else ()),
            timeline=self._timeline,
        )
        more = _round_routes(parts.rounds, pipeline.schema.task, access)
        router = Router([*routes(endpoints), *more], redirect_slashes=False, default=nothing_here)
        packed = GZipMiddleware(router, GZIP_FROM, GZIP_LEVEL)
        self.app = Guard(packed, _hosts(config), refused, addresses=not config.is_local)
        self._loop = asyncio.get_running_loop()

    # ---- on any thread -----------------------------------------------------------------------

    def reported(self, report: Report) -> None:
        """Pass on a report of the daemon; from any thread."""
        self.metrics.reported(report)
        self._page.reported(report)
        if isinstance(report.message, StreamMetrics):
            self._record_quality(report.ts, report.message.live.mean)
        self.feed.publish(report.topic, report.to_json())

    def predicted(self, payloads: list[bytes]) -> None:
        """Stream predictions as they are published; on the thread that answers."""
        self.feed.predicted(payloads)

    def answered(self, made: Predictions, keys: Sequence[str], ts: NDArray[Any]) -> None:
        """Pass on the predictions of samples `(n,)`; on the thread that answers."""
        self._page.answered(keys, ts, made, self._pipeline.clock.monotonic())

    # ---- the history of the page -------------------------------------------------------------

    def _record_quality(self, ts: float, live: float | None) -> None:
        """Add a point to quality over time; on a helper thread, as the initial model might be slow."""
        soon(self._loop, self._loop.run_in_executor, None, self._measure, ts, live)

    def _measure(self, ts: float, live: float | None) -> None:
        if self._baseline is None:
            self._baseline = Baseline(self._pipeline)
        predictor = self._pipeline.predictor
        if predictor.schema.task != "classify" and predictor.champion.scale is None:
            return  # errors before the first trained model have another unit
        frozen = self._baseline.quality()
        self._page.measured(ts, live, None if live is None else frozen)
        if self._pipeline.clock.monotonic() - self._kept >= KEEP_SECONDS:
            self._store_history()

    def _store_history(self) -> None:
        """Store the history for the next start; if the disk refuses it, the newest hour is lost."""
        self._kept = self._pipeline.clock.monotonic()
        try:
            self._pipeline.registry.set_value(HISTORY, self._page.dump())
        except StorageError as problem:
            log.warning("history_not_kept", problem=problem.line())

    # ---- on the thread of the server ---------------------------------------------------------

    def stop(self) -> None:
        """Close event streams, and store the history of the page."""
        self._store_history()
        self.feed.stop()

    async def close(self) -> None:
        """Release what requests have opened, after the last of them."""
        await self._timeline.close()


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


class Web:
    """The applications behind the sockets; `WebServer` starts and stops them, and passes news to them.

    `parts` are those of each stream, by its name; without names there is one. Make it on the event loop.
    """

    def __init__(self, parts: Mapping[str, WebParts], tokens: Tokens, sockets: Sockets) -> None:
        one = next(iter(parts.values()))
        config, device, clock = one.config, one.pipeline.config, one.pipeline.clock
        self._access = Access(
            tokens,
            closed=not config.is_local,
            clock=clock,
            signed="label" not in device.commands.unsigned(),
            pairing=Pairing(device.device_dir, clock),
        )
        self._thread = ThreadPoolExecutor(1, "web-predict")
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(HELPERS, "web-helper"))
        self.sites: dict[str, Site] = {}
        for name, own in parts.items():
            self.sites[name] = Site(own, self._access, self.sites, self._thread)
        app = Switch(self.sites) if device.name else self.sites[""].app
        self._listener = HttpListener(app, sockets)
        self._ended = False

    # ---- on any thread -----------------------------------------------------------------------

    def stop(self) -> None:
        """End `run`: event streams at once, requests within a second."""
        for site in list(self.sites.values()):
            site.inference.ready = False
        self._ended = True
        soon(self._loop, self._end)

    def replace(self, name: str, parts: WebParts | None) -> None:
        """Serve a stream that was added or started again; None: it has ended."""
        asyncio.run_coroutine_threadsafe(self._replace(name, parts), self._loop).result(REPLACE_SECONDS)

    async def _replace(self, name: str, parts: WebParts | None) -> None:
        gone = self.sites.pop(name, None)
        if gone is not None:
            gone.inference.ready = False
            gone.stop()
            await gone.close()
        if parts is not None:
            self.sites[name] = Site(parts, self._access, self.sites, self._thread)

    # ---- on its own thread -------------------------------------------------------------------

    async def run(self, begun: Callable[[], None]) -> None:
        """Answer requests until `stop`, which can be called before; call `begun` when it can."""
        begun()
        try:
            if not self._ended:
                await self._listener.serve()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
            for site in list(self.sites.values()):
                site.stop()
                await site.close()

    def _end(self) -> None:
        for site in self.sites.values():
            site.feed.stop()
        self._listener.stop()


def _hosts(config: WebConfig) -> set[str]:
    """Names and addresses that requests can give as host."""
    if not config.is_local:
        return set(names_of(config))
    address = config.address
    listen = set() if address is None else {address[0].lower()}
    return {*LOCAL_HOSTS, *listen, *config.allowed_hosts}


def _round_routes(rounds: LocalRounds | None, task: str, access: Access) -> list[Route]:
    """Return the routes for rounds of a fleet; their module is only imported for a fleet."""
    if rounds is None:
        return []
    from edged.device.web.api.fleet_rounds import RoundEndpoints

    return RoundEndpoints(rounds, task).routes(access)
