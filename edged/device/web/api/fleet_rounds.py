"""Rounds of a fleet that another program carries: with `fleet.flower`, on the Unix socket only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edged.device.fleet_member.local_transport import LocalTransport
from edged.device.web.http.authentication import Access
from edged.device.web.http.bodies import HttpError, as_json, read_body
from edged.device.web.http.routes import UNIX, GuardedRoute
from edged.domain.federated.messages import LARGEST_JSON, LARGEST_MODEL, RoundAnnouncement
from edged.errors import EdgedError, RefusedError

if TYPE_CHECKING:
    from edged.device.web.http.routes import Endpoint

ROUNDS = "/api/fleet/rounds"
OCTETS = "application/octet-stream"


class RoundEndpoints:
    """Endpoints below `/api/fleet`."""

    def __init__(self, transport: LocalTransport) -> None:
        self._transport = transport

    def routes(self, access: Access) -> list[Route]:
        """Return all routes below `/api/fleet`."""
        found = {
            "/api/fleet/state": self.state,
            "/api/fleet/update": self.newest,
            f"{ROUNDS}/{{id}}/update": _asked(self._transport.update),
            f"{ROUNDS}/{{id}}/evaluation": _asked(self._transport.evaluation),
        }
        routes = [Route(path, GuardedRoute("GET", get, ("control",), access)) for path, get in found.items()]
        hand_in = GuardedRoute("POST", self.hand_in, ("control",), access, json_only=False)
        return [*routes, Route(ROUNDS, hand_in)]

    async def state(self, request: Request) -> Response:
        """Return the state of the device for the fleet."""
        _local(request)
        state = self._transport.state()
        if not state:
            raise HttpError(503, "the device has not reported its state yet", kind="early")
        return Response(state, media_type="application/json")

    async def newest(self, request: Request) -> Response:
        """Return the newest update that has no receipt."""
        _local(request)
        blob = self._transport.newest()
        if blob is None:
            raise HttpError(404, "there is no update", kind="path")
        return Response(blob, media_type=OCTETS)

    async def hand_in(self, request: Request) -> Response:
        """Receive a round: a line that announces it, a line with receipts or nothing, and the model."""
        _local(request)
        limit = LARGEST_MODEL + 2 * LARGEST_JSON
        line, _, rest = (await read_body(request.scope, request.receive, limit)).partition(b"\n")
        receipts, _, model = rest.partition(b"\n")
        try:
            announced = RoundAnnouncement.read(line)
            await asyncio.to_thread(self._transport.hand_in, announced, receipts, model)
        except RefusedError:
            raise
        except EdgedError as problem:
            raise HttpError(400, problem.line(), kind="request") from None
        return as_json({"id": announced.id}, 202)


def _asked(found: Callable[[str], bytes | None]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        _local(request)
        blob = found(request.path_params["id"])
        return as_json({}, 202) if blob is None else Response(blob, media_type=OCTETS)

    return endpoint


def _local(request: Request) -> None:
    if not request.scope.get(UNIX):
        raise HttpError(403, "rounds are handed in over the Unix socket", kind="scope")
