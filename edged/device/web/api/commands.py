"""Commands over HTTP: the same as over MQTT, as far as they belong on a page.

They go through the same journal, rate limit and signatures. What would write the configuration, erase, or
name paths and URLs is not among them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Any

from edged.device.web.http.bodies import read_body
from edged.device.web.http.errors import HttpError, as_json
from edged.device.web.http.routes import require
from edged.device.web.loop_bridge import LocalCommand, soon
from edged.domain.commands.rules import MAX_PAYLOAD, parse
from edged.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from edged.device.web.api.event_stream import EventStream
    from edged.device.web.http.authentication import Pass

COMMANDS = (
    "accept", "cancel", "checkpoint", "drift.reset", "evaluate", "label", "pause", "pin", "promote", "resume",
    "rollback", "train", "unpin",
)  # fmt: skip
ANYBODY_WHO_INFERS = ("label",)


class Commands:
    """Endpoint `/api/commands/<name>`.

    Parameters
    ----------
    receive
        Takes a command as if a broker had delivered it.
    root
        Of the device's topics.
    feed
        Tells of answers that come later: `response/<name>`.
    timeout
        Seconds until a command without an answer is given up.
    done
        Is told what was carried out: `done(name, request, answer)`.
    """

    def __init__(
        self,
        receive: Callable[[LocalCommand], None],
        root: str,
        feed: EventStream,
        timeout: float,
        done: Callable[[str, dict[str, Any], dict[str, Any]], None],
    ) -> None:
        self._receive = receive
        self._root = root
        self._feed = feed
        self._done = done
        self._timeout = timeout

    async def carry_out(self, request: Request) -> Response:
        """Carry a command out: 200 with its answer, 202 when it goes on, 400 or 409 with why not."""
        name: str = request.path_params["name"]
        if name not in COMMANDS:
            raise HttpError(
                404,
                f"{name[:40]!r} is no command here",
                kind="path",
                remedy="here are " + ", ".join(COMMANDS),
            )
        shown: Pass = request.scope["edged.pass"]
        if name not in ANYBODY_WHO_INFERS:
            require(shown, ("control",))
        payload = await read_body(request.scope, request.receive, MAX_PAYLOAD)
        answer = await self._answer(name, *_named(payload))
        state = answer["state"]
        status = {"successful": 200, "accepted": 202, "executing": 202, "refused": 409}.get(state, 400)
        return as_json(answer, status)

    async def _answer(self, name: str, payload: bytes, request: dict[str, Any]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        first: asyncio.Future[dict[str, Any]] = loop.create_future()

        def told(payload: bytes) -> None:
            answer = json.loads(payload)
            if answer["state"] == "successful":
                self._done(name, request, answer["data"])
            if first.done():
                self._feed.say(f"response/{name}", answer)
            else:
                first.set_result(answer)

        def answered(payload: bytes) -> None:
            soon(loop, told, payload)

        self._receive(LocalCommand(f"{self._root}/request/{name}", payload, answered))
        try:
            return await asyncio.wait_for(asyncio.shield(first), self._timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise HttpError(503, f"no answer within {self._timeout:g} s", kind="timeout") from None


def _named(payload: bytes) -> tuple[bytes, dict[str, Any]]:
    """The request under a transaction, so that its later answers can be told from others; and its fields.

    One that is signed has its own, and not a byte of it may change.
    """
    try:
        fields = parse(payload)
    except ConfigError as problem:
        raise HttpError(400, problem.line(), kind="request") from None
    if "transaction" in fields or "signature" in fields:
        return payload, fields
    return json.dumps({**fields, "transaction": f"web-{secrets.token_hex(8)}"}).encode(), fields
