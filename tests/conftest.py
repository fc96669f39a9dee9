"""Fixtures for all tests: a broker of the test's own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from edged.demo.broker import Mosquitto, find_mosquitto, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeBroker = Callable[..., Mosquitto]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores it, and so would every program that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def make_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBroker]:
    """Starts mosquitto processes, with further configuration lines; `directory`, `port`, `log`.

    Each can be stopped, killed and started again on the same port.
    """
    if find_mosquitto() is None:
        pytest.fail("mosquitto is not installed: run the tests with `make test`, which installs it")
    running: list[Mosquitto] = []

    def make(*extra: str, directory: Path | None = None) -> Mosquitto:
        home = directory or tmp_path_factory.mktemp("broker")
        broker = Mosquitto(home, free_port(), extra or ("allow_anonymous true",))
        running.append(broker)
        broker.start()
        return broker

    yield make
    for broker in running:
        broker.stop()


@pytest.fixture
def broker(make_broker: MakeBroker) -> Mosquitto:
    """A mosquitto process on a free loopback port, open to everybody."""
    return make_broker()
