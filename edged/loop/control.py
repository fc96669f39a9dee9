"""Steering over MQTT: `request/<command>` in, `response/<command>` out."""

from __future__ import annotations

import collections
import json
import queue
import threading
import zlib
from typing import TYPE_CHECKING, Any, Protocol

from edged.errors import ConfigError, EdgedError, RefusedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = get_logger("edged.control")

Request = dict[str, Any]
IDLE_SECONDS = 0.5
MAX_PAYLOAD = 64 * 1024
MAX_WAITING = 100


class Delivery(Protocol):
    """A command as the session hands it over."""

    topic: str
    payload: bytes
    mid: int
    dup: bool
    retain: bool

    @property
    def response_topic(self) -> str | None:
        """Where the asker wants the answer (MQTT 5)."""

    @property
    def correlation(self) -> bytes | None:
        """What the asker wants echoed (MQTT 5)."""


class Control:
    """Takes commands one at a time on a thread of its own and answers each exactly once.

    `commands` maps a name to a function from the request's fields to the answer's data.
    `answer(command, payload, delivery)` publishes.
    """

    def __init__(
        self,
        commands: Mapping[str, Callable[[Request], Request]],
        *,
        answer: Callable[[str, bytes, Any], None],
        acknowledge: Callable[[list[Any]], None],
    ) -> None:
        self._commands = commands
        self._answer = answer
        self._acknowledge = acknowledge
        self._queue: queue.Queue[Delivery | None] = queue.Queue(MAX_WAITING)
        self._seen: collections.deque[tuple[int, int]] = collections.deque(maxlen=2 * MAX_WAITING)
        self._thread = threading.Thread(target=self._loop, name="control", daemon=True)

    def start(self) -> None:
        """Begin to take commands."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the present command."""
        self._queue.put(None)
        self._thread.join(timeout)

    def receive(self, delivery: Delivery) -> None:
        """Pass over a command that was carried out before its connection broke; else take it."""
        seen = (delivery.mid, zlib.crc32(delivery.payload, zlib.crc32(delivery.topic.encode())))
        if delivery.dup and delivery.mid and seen in self._seen:
            self._acknowledge([delivery])
            return
        self._seen.append(seen)
        self._take(delivery)

    def _take(self, delivery: Delivery) -> None:
        """Take a command from the network thread; beyond 100 waiting ones it is refused."""
        try:
            self._queue.put_nowait(delivery)
        except queue.Full:
            problem = RefusedError(f"{MAX_WAITING} commands are waiting already")
            self._reply(delivery, _fields(delivery.payload), problem)

    def _loop(self) -> None:
        while (delivery := self._queue.get()) is not None:
            try:
                self._handle(delivery)
            except Exception:
                log.exception("command_failed", topic=delivery.topic)
                problem = EdgedError("internal error, see the device's log")
                self._reply(delivery, _fields(delivery.payload), problem)

    def _handle(self, delivery: Delivery) -> None:
        request: Request = {}
        try:
            request = parse(delivery.payload)
            if delivery.retain:
                raise RefusedError(
                    "retained commands are not carried out",
                    remedy="publish it without the retain flag and clear the retained one",
                )
            command = self._commands.get(_name(delivery.topic))
            if command is None:
                raise ConfigError(
                    f"unknown command; known: {', '.join(sorted(self._commands))}",
                    where=_name(delivery.topic),
                )
            self._reply(delivery, request, command(request))
        except EdgedError as problem:
            self._reply(delivery, request, problem)

    def _reply(self, delivery: Delivery, request: Request, outcome: Request | EdgedError) -> None:
        if isinstance(outcome, EdgedError):
            log.warning("command_refused", topic=delivery.topic, problem=outcome.line())
            answer: Request = {
                "status": "error",
                "error": outcome.line(),
                "reason": "refused" if isinstance(outcome, RefusedError) else "failed",
            }
        else:
            answer = {"status": "ok", "data": outcome}
        if "transaction" in request:
            answer["transaction"] = request["transaction"]
        self._answer(_name(delivery.topic), json.dumps(answer, default=float).encode(), delivery)
        self._acknowledge([delivery])


def _name(topic: str) -> str:
    return topic.rpartition("/request/")[2]


def _fields(payload: bytes) -> Request:
    """What the answer to a request that failed may echo."""
    try:
        return parse(payload)
    except ConfigError:
        return {}


def parse(payload: bytes) -> Request:
    """The fields of a request; an empty payload is an empty request.

    Raises
    ------
    ConfigError
        When it is no JSON object.
    """
    if len(payload) > MAX_PAYLOAD:
        raise ConfigError(f"a command may have {MAX_PAYLOAD} bytes, this one has {len(payload)}")
    if not payload.strip():
        return {}
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as problem:
        raise ConfigError("the command is not JSON", remedy='send {} or {"transaction": "1"}') from problem
    if not isinstance(fields, dict):
        raise ConfigError("the command is not a JSON object", remedy='send {} or {"transaction": "1"}')
    return fields
