"""Which of several streams an HTTP request is about, and the pages that cover all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.responses import RedirectResponse, Response

from edged.device.web.api.prometheus_text import CONTENT_TYPE, PrometheusText
from edged.device.web.http.errors import HttpError, refusal

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from edged.device.web.service import Site

STREAMS, MODELS = "/streams/", "/v2/models/"


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
        elif path == "/metrics":
            await self._metrics(scope, receive, send)
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
        else:  # the server's own: health, metadata, static files
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

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The metrics of all streams, for whom the application of one of them lets in."""
        sites, status = dict(self._sites), list[int]()

        async def heard(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
            if status != [200]:
                await send(message)

        await sites[min(sites)].app(scope, receive, heard)
        if status == [200]:
            text = await asyncio.to_thread(all_metrics, sites)
            await Response(text, 200, {"cache-control": "no-store"}, CONTENT_TYPE)(scope, receive, send)


def all_metrics(sites: Mapping[str, Site]) -> str:
    """Write the figures of all streams, each with the label `stream`, and those of the device once."""
    page = PrometheusText()
    sites[min(sites)].metrics.of_device(page)
    for name in sorted(sites):
        page.add(sites[name].metrics.of_stream(PrometheusText(stream=name)))
    return page.text()
