from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import structlog

from edged.mqtt.client.session import Session
from tests.constants import section
from tests.mqtt.inbox import PATIENCE, Inbox, Log

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto


class Connect(Protocol):
    """Makes a started session; with `ready` it has its subscriptions confirmed."""

    def __call__(self, client_id: str, *, port: int = ..., ready: bool = ..., **options: Any) -> Session: ...


@pytest.fixture
def make_session() -> Iterator[Connect]:
    """Sessions that are stopped after the test; `config` holds settings of MqttConfig."""
    sessions: list[Session] = []

    def make(
        client_id: str,
        *,
        port: int = 0,
        ready: bool = True,
        config: dict[str, Any] | None = None,
        subscribe: tuple[str, Inbox] | None = None,
        **options: Any,
    ) -> Session:
        settings = {"host": "127.0.0.1", "port": port, "reconnect_max": 1, **(config or {})}
        session = Session(section("mqtt", settings), client_id=client_id, **options)
        sessions.append(session)
        if subscribe is not None:
            session.subscribe([subscribe[0]], 1, subscribe[1])
        session.start()
        assert not ready or session.wait_ready(PATIENCE)
        return session

    yield make
    for session in sessions:
        session.stop(1.0)


@pytest.fixture
def connect(broker: Mosquitto, make_session: Connect) -> Connect:
    """The same with the test's own broker."""

    def on_broker(client_id: str, *, port: int = broker.port, ready: bool = True, **options: Any) -> Session:
        return make_session(client_id, port=port, ready=ready, **options)

    return on_broker


@pytest.fixture
def log() -> Iterator[Log]:
    """Everything that is logged, on any thread."""
    kept = structlog.get_config()
    log = Log()
    structlog.configure(
        processors=[log],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    yield log
    structlog.configure(**kept)
