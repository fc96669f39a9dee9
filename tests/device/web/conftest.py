"""One daemon with everything configured, for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edged.clock import SystemClock
from edged.storage.web_access import Pairing
from edged.workbench.demo.broker import free_port
from tests.device.web.client import TOKENS, Client, token_files, web_device
from tests.mosquitto import Mosquitto
from tests.running_device import Device, Listener, running


@dataclass
class Site:
    """A daemon with tokens for all scopes, a broker, and clients."""

    broker: Mosquitto
    device: Device
    listener: Listener
    port: int
    client: Client
    unix: Client

    def using(self, scope: str) -> Client:
        """A client with the token of a scope."""
        return self.client.using(TOKENS[scope])

    def code(self, *scopes: str) -> str:
        """A code for a browser with these scopes."""
        return Pairing(self.device.state, SystemClock()).new_code(scopes)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """It runs until the end of the tests."""
    folder = tmp_path_factory.mktemp("site")
    broker = Mosquitto(tmp_path_factory.mktemp("broker"), free_port(), ("allow_anonymous true",))
    broker.start()
    port = free_port()
    socket = folder / "edged.sock"
    device = web_device(
        folder, broker.port, port,
        {"tokens": token_files(folder), "unix_socket": str(socket)},
    )  # fmt: skip
    try:
        with running(device, broker.port) as listener:
            yield Site(broker, device, listener, port, Client(port), Client(port, socket))
    finally:
        broker.stop()


@contextmanager
def untrained(site: Site, folder: Path, name: str, **sections: Any) -> Iterator[Site]:
    """Another device, which does not train whatever is labelled; for whoever may open its Unix socket."""
    port, socket = free_port(), folder / "edged.sock"
    device = Device(
        folder, site.broker.port, {"features": 2, "classes": ["low", "high"], "id": "id"},
        device={"id": name},
        web={"listen": None, "unix_socket": str(socket)}, training={"new_labels": 10**6, "every": None},
        model={"bundle": str(site.device.state / "bundle")}, **sections,
    )  # fmt: skip
    with running(device, site.broker.port, f"edged/{name}") as listener:
        yield Site(site.broker, device, listener, port, Client(port), Client(port, socket))


@pytest.fixture(scope="session")
def still(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A device that does not train."""
    with untrained(site, tmp_path_factory.mktemp("still"), "still") as made:
        yield made
