"""The ClientApp: carries rounds between Flower and the edged daemon of this machine, and does nothing else.

It needs Flower and the standard library alone. The daemon trains, and says when not; it has
`fleet.flower: true` and `web.unix_socket`, whose path this node's configuration names as `edged-socket`.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

SOCKET = "/run/edged/edged.sock"
LOOKS = (0.05, 1.0)  # seconds between two looks for an answer, at first and at most
TIMEOUT = 30.0  # of one request

app = ClientApp()


class Daemon(http.client.HTTPConnection):
    """The daemon behind a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Connect to the Unix socket of the daemon."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self._path)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer; status 0 when there is none, as while the daemon starts anew."""
        try:
            self.request(method, path, body, {"content-type": "application/octet-stream"})
            answer = self.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as problem:
            self.close()
            return 0, json.dumps({"error": f"the daemon does not answer: {problem!r}"}).encode()


@app.query()  # type: ignore[untyped-decorator]
def state(message: Message, context: Context) -> Message:
    """Reply with the device's state."""
    daemon = _daemon(context)
    return _reply(message, _state(daemon))


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Have the daemon train in a round, and bring its update; else the newest that is still to be brought."""
    daemon = _daemon(context)
    found = _carried(daemon, message, "update")
    if "declined" in found:
        status, late = daemon.ask("GET", "/api/fleet/update")
        found |= {"update": late} if status == 200 else {}
    return _reply(message, found | _state(daemon))


@app.evaluate()  # type: ignore[untyped-decorator]
def evaluate(message: Message, context: Context) -> Message:
    """Have the daemon try the fleet's model, and bring what it makes of it."""
    daemon = _daemon(context)
    return _reply(message, _carried(daemon, message, "evaluation") | _state(daemon))


def _daemon(context: Context) -> Daemon:
    return Daemon(str(context.node_config.get("edged-socket", SOCKET)))


def _carried(daemon: Daemon, message: Message, kind: str) -> dict[str, Any]:
    told = message.content["edged"]
    round_line, receipts, seconds = bytes(told["round"]), bytes(told["receipts"]), float(told["seconds"])
    until = time.monotonic() + seconds
    token = json.loads(round_line)["id"]
    body = b"\n".join((round_line, receipts, bytes(told["model"])))
    pause, status, answer = LOOKS[0], 0, b""
    while status in (0, 202) and time.monotonic() < until:
        if status == 0:
            status, answer = daemon.ask("POST", "/api/fleet/rounds", body)
        else:
            status, answer = daemon.ask("GET", f"/api/fleet/rounds/{token}/{kind}")
        if status != 200:
            time.sleep(pause)
            pause = min(LOOKS[1], 1.5 * pause)
    if status == 200:
        return {kind: answer}
    return {"declined": f"nothing came in {seconds:g} s" if status == 202 else _problem(status, answer)}


def _state(daemon: Daemon) -> dict[str, Any]:
    status, answer = daemon.ask("GET", "/api/fleet/state")
    return {"state": answer} if status == 200 else {"problem": _problem(status, answer)}


def _problem(status: int, answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the daemon answered {status}"


def _reply(message: Message, values: dict[str, Any]) -> Message:
    return Message(content=RecordDict({"edged": ConfigRecord(values)}), reply_to=message)
