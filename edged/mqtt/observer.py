"""Listening to a broker for a while, without disturbing anybody's session there."""

from __future__ import annotations

import os
import queue
import secrets
import socket
import time
from collections.abc import Iterator, Sequence

from edged.config import MqttConfig
from edged.errors import BrokerError
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session

CONNECT_SECONDS = 8.0
REMEDY = "start the broker, or correct mqtt.host, mqtt.port, mqtt.username, mqtt.password_file and mqtt.tls"


def observe(
    config: MqttConfig, filters: Sequence[str], seconds: float, remedy: str = REMEDY
) -> Iterator[ReceivedMessage]:
    """Yield what comes on these filters for some seconds, retained messages first.

    The connection has a client id of its own and leaves no session behind. Raises BrokerError when nobody
    listens there, or the broker does not accept us, with `remedy`; ConfigError when a filter,
    certificate or password is not valid.
    """
    where = config.host if config.host.startswith("/") else f"{config.host}:{config.port}"
    try:
        _knock(config)
    except OSError as problem:
        raise BrokerError(
            f"no broker there: {problem.strerror or problem}", where=where, remedy=remedy
        ) from None
    name = f"edged-observer-{os.getpid()}-{secrets.token_hex(4)}"
    session = Session(config, client_id=name, clean=True)
    came: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()
    session.subscribe(filters, 0, came.put)
    session.start()
    try:
        if not session.wait_ready(CONNECT_SECONDS):
            raise BrokerError(f"the broker answers, but {session.problem}", where=where, remedy=remedy)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                yield came.get(timeout=left)
            except queue.Empty:
                return
    finally:
        session.stop()


def _knock(mqtt: MqttConfig) -> None:
    """Connect and hang up, instead of trying for seconds where nobody listens; OSError there."""
    if not mqtt.host.startswith("/"):
        socket.create_connection((mqtt.host, mqtt.port), timeout=5).close()
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        probe.connect(mqtt.host)
