"""Commands over HTTP: those commands over MQTT that belong on a page.

They pass the same journal, rate limit and signatures. Commands that write the configuration, erase data, or
name paths and URLs are not available.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from edged.device.commands.answers import HttpCommand
from edged.device.commands.inbox import CommandInbox
from edged.device.web.api.event_stream import EventStream
from edged.device.web.bridge import answer_within, soon
from edged.device.web.http.authentication import Pass
from edged.device.web.http.bodies import HttpError, as_json, read_body
from edged.device.web.http.routes import require
from edged.device.web.page.history import PageState
from edged.domain.commands.rules import MAX_PAYLOAD, parse
from edged.domain.commands.rules import Request as Fields
from edged.errors import ConfigError

COMMANDS = (
    "accept", "cancel", "checkpoint", "class.add", "class.merge", "class.remove", "drift.reset", "evaluate",
    "label", "label.undo", "labels.confirm", "pause", "pin", "promote", "resume", "rollback", "train",
    "unpin",
)  # fmt: skip
ANYBODY_WHO_INFERS = ("label", "labels.confirm")


class Commands:
    """Endpoint `/api/commands/<name>`: passes commands to the inbox, as if they came from the broker.

    The first answer is the response; `feed` streams the later ones as `response/<name>`. `root` is the first
    part of the device's topics.
    """

    def __init__(self, inbox: CommandInbox, root: str, feed: EventStream, page: PageState) -> None:
        self._inbox = inbox
        self._root = root
        self._feed = feed
        self._page = page

    async def carry_out(self, request: Request) -> Response:
        """Execute a command: 200 with its answer, 202 while it continues, 400 or 409 with the reason."""
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
        payload, fields = _named(await read_body(request.scope, request.receive, MAX_PAYLOAD))
        answer = await self._answer(name, payload, fields, token="control" in shown.scopes)
        state = answer["state"]
        status = {"successful": 200, "accepted": 202, "executing": 202, "refused": 409}.get(state, 400)
        return as_json(answer, status)

    async def _answer(self, name: str, payload: bytes, fields: Fields, *, token: bool) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        first: asyncio.Future[dict[str, Any]] = loop.create_future()

        def receive(encoded: bytes) -> None:
            answer = json.loads(encoded)
            if answer["state"] == "successful":
                self._page.command_succeeded(name, fields, answer["data"])
            if first.done():
                self._feed.publish(f"response/{name}", answer)
            else:
                first.set_result(answer)

        topic = f"{self._root}/request/{name}"
        self._inbox.receive(HttpCommand(topic, payload, partial(soon, loop, receive), token=token))
        return await answer_within(first)


def _named(payload: bytes) -> tuple[bytes, Fields]:
    """Return the payload with a transaction, which tells its answers from others, and its fields.

    A signed payload has its own transaction, and no byte of it can change.
    """
    try:
        fields = parse(payload)
    except ConfigError as problem:
        raise HttpError(400, problem.line(), kind="request") from None
    if "transaction" in fields or "signature" in fields:
        return payload, fields
    return json.dumps({**fields, "transaction": f"web-{secrets.token_hex(8)}"}).encode(), fields
