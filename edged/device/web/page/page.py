"""The page at `/`: rendered as a whole, then updated section by section; and its static files."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterable
from html import escape
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from edged.charts.html import DESIGN, design
from edged.device.learning.label_reviews import LabelReviews
from edged.device.live_pipeline import LivePipeline
from edged.device.reporting.status import StatusCollector
from edged.device.web.http.authentication import Pass
from edged.device.web.http.bodies import JSON, HttpError, as_json, json_bytes
from edged.device.web.page.history import PageState
from edged.device.web.page.snapshot import Snapshot
from edged.host.vitals import VitalsReader

HTML = "text/html; charset=utf-8"
NO_STORE = {"cache-control": "no-store"}
STATIC = Path(__file__).with_name("static")
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
SHORT = 300  # bytes of the parameter `only`


class Page:
    """Endpoints of the page and its data; modules that write HTML are imported on first use."""

    def __init__(
        self,
        pipeline: LivePipeline,
        status: StatusCollector,
        state: PageState,
        vitals: VitalsReader,
        reviews: LabelReviews,
        streams: Collection[str] = (),
    ) -> None:
        self._streams = streams
        self._pipeline = pipeline
        self._status = status
        self._state = state
        self._vitals = vitals
        self._reviews = reviews

    async def start(self, request: Request) -> Response:
        """Return the whole page, or a login form to browsers without the scope `read`."""
        shown: Pass = request.scope["edged.pass"]
        if "read" not in shown.scopes:
            return _html(_document("edged", _login("Log in"), shown))
        return _html(await asyncio.to_thread(self._whole, shown))

    async def sections(self, request: Request) -> Response:
        """Return the contents of all sections, or of those that `?only=model,training` names."""
        only = request.query_params.get("only", "")
        if len(only) > SHORT:
            raise HttpError(400, "only: too many names", kind="request")
        shown: Pass = request.scope["edged.pass"]
        body = await asyncio.to_thread(self._insides, shown, only.split(",") if only else None)
        return Response(json_bytes(body), 200, NO_STORE, JSON)

    async def status(self, _: Request) -> Response:
        """Return the summary that `edged status` prints."""
        return as_json((await asyncio.to_thread(self._status.status)).to_json())

    async def report(self, request: Request) -> Response:
        """Return the report of the device as a download: one self-contained HTML file."""
        text = await asyncio.to_thread(self._report, request.scope["edged.pass"])
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in self._pipeline.config.device.id)
        attached = {"content-disposition": f'attachment; filename="edged-{name}.html"'}
        return _html(text, **attached)

    # ---- on another thread: these might wait for the disk ------------------------------------

    def _view(self, shown: Pass) -> Snapshot:
        from edged.device.web.page.snapshot import read_snapshot

        return read_snapshot(
            self._pipeline, self._status, self._state, self._vitals, shown.scopes, self._reviews
        )

    def _insides(self, shown: Pass, only: Iterable[str] | None) -> dict[str, str]:
        from edged.device.web.page.sections import SECTIONS

        view = self._view(shown)
        names = SECTIONS if only is None else [name for name in only if name in SECTIONS]
        return {name: SECTIONS[name][1](view) for name in names}

    def _whole(self, shown: Pass) -> str:
        from edged.device.web.page.sections import SECTIONS

        parts = []
        for name, inside in self._insides(shown, None).items():
            hidden = "" if inside else " hidden"
            parts.append(
                f'<section id="{name}" aria-labelledby="{name}-head"{hidden}>'
                f'<h2 id="{name}-head">{escape(SECTIONS[name][0])}</h2>'
                f'<div class="inside">{inside}</div></section>'
            )
        if shown.csrf is None and "control" not in shown.scopes:
            parts.insert(3, _login("Log in for control"))
        config = self._pipeline.config
        title = f"{config.device.id} {config.name}" if config.name else config.device.id
        body = f'{_switch(self._streams, config.name)}<div class="grid">{"".join(parts)}</div>'
        return _document(title, body, shown)

    def _report(self, shown: Pass) -> str:
        from edged.device.web.page.sections import report

        return report(self._view(shown))


def _switch(streams: Collection[str], here: str) -> str:
    """Return the links to the streams of the device; nothing where it has one."""
    if not streams:
        return ""
    marks = {here: ' aria-current="page"'}
    links = (
        f'<a href="/streams/{escape(name)}/"{marks.get(name, "")}>{escape(name)}</a>'
        for name in sorted(streams)
    )
    return f'<nav id="streams" aria-label="Streams">{" ".join(links)}</nav>'


def _login(head: str) -> str:
    return (
        f'<section id="login" aria-labelledby="login-head"><h2 id="login-head">{head}</h2><form>'
        '<label for="code">Code</label> <input id="code" autocomplete="one-time-code"'
        ' autocapitalize="characters" aria-describedby="login-how" required> <button>Log in</button>'
        '<p id="login-how"><code>edged web pair CONFIG</code> on the device shows a code.</p>'
        "</form></section>"
    )


def _who(shown: Pass) -> str:
    does = (
        "controlling" if "control" in shown.scopes else "labelling" if "infer" in shown.scopes else "reading"
    )
    return f'<span id="who">You are {does} as {escape(shown.name)}</span> '


def _document(title: str, body: str, shown: Pass) -> str:
    """Return the frame of a page: title, connection state, messages, the confirmation dialog."""
    csrf = "" if shown.csrf is None else f' data-csrf="{escape(shown.csrf)}"'
    leave = "" if shown.csrf is None else f'{_who(shown)}<button type="button" id="leave">Log out</button>'
    live = ' data-live=""' if "read" in shown.scopes else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} – edged</title>"
        '<link rel="icon" href="/static/icon.svg"><link rel="stylesheet" href="/static/design.css">'
        '<link rel="stylesheet" href="/static/page.css">'
        '<script type="module" src="/static/suspects.js"></script>'
        '<script type="module" src="/static/map.js"></script>'
        '<script type="module" src="/static/page.js"></script>'
        f'<script type="module" src="/static/teach.js"></script></head><body{csrf}{live}>'
        f'<header><h1>{escape(title)}</h1><p id="line" role="status"></p>{leave}</header><main>{body}</main>'
        '<p id="said" role="status" aria-live="polite"></p>'
        '<dialog id="ask" aria-labelledby="ask-head" aria-describedby="ask-text"><form method="dialog">'
        '<h2 id="ask-head"></h2><p id="ask-text"></p><div class="buttons"><button value="no">Cancel</button>'
        '<button value="yes" id="ask-yes" class="main">Confirm</button></div></form></dialog></body></html>\n'
    )


def _html(text: str, **more: str) -> Response:
    return Response(text, 200, NO_STORE | more, HTML)


class Assets:
    """Endpoint `/static/<name>`: the files in `STATIC` and the shared design, read once."""

    def __init__(self) -> None:
        found = (path for path in STATIC.iterdir() if path.suffix in TYPES)
        self._files = {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in found}
        self._files[DESIGN] = (design().encode(), TYPES[".css"])

    async def file(self, request: Request) -> Response:
        """Return the file with this name, with an ETag for browser caches."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            raise HttpError(404, "path not found", kind="path")
        body, media = found
        headers: dict[bytes, bytes] = request.scope["edged.headers"]
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        more = {"etag": tag, "cache-control": "no-cache"}
        if headers.get(b"if-none-match") == tag.encode():
            return Response(status_code=304, headers=more)
        return Response(body, 200, more, media)
