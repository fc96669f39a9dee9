"""A broker on a loopback port: mosquitto where it is installed, else amqtt.

`python -m edged.workbench.demo.broker PORT` is amqtt as a process, until its standard input ends.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edged.errors import BrokerError, UnavailableError
from edged.host.child_process import stop_process

Kind = Literal["mosquitto", "amqtt"]

HOST = "127.0.0.1"
SERVER_PORTS = range(20_000, 32_768)  # below those that Linux gives to outgoing connections
PATIENCE = 15.0
STOP_SECONDS = 5.0
REMEDY = "install one of them: `apt-get install mosquitto` or `pip install 'edged[demo]'`"
# Debian keeps daemons out of a user's PATH.
_SBIN = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"))


@dataclass(frozen=True)
class EmbeddedBroker:
    """Address of a running broker, and the newest version of MQTT that it speaks."""

    name: Kind
    port: int
    host: str = HOST

    @property
    def protocol(self) -> Literal["5", "3.1.1"]:
        """Version of MQTT."""
        return "5" if self.name == "mosquitto" else "3.1.1"


@contextmanager
def embedded_broker(kind: Kind | None = None, extra: Sequence[str] = ()) -> Iterator[EmbeddedBroker]:
    """Run a broker until the block ends; the first installed one when `kind` is absent.

    `extra` are lines of mosquitto's configuration. Raises UnavailableError when no broker is installed,
    BrokerError with its last line when it does not start.
    """
    broker = EmbeddedBroker(kind or available(), free_port())
    with tempfile.TemporaryDirectory(prefix="edged-broker-") as folder:
        command = [sys.executable, "-m", "edged.workbench.demo.broker", str(broker.port)]
        if broker.name == "mosquitto":
            command = mosquitto_command(Path(folder), broker.port, ["allow_anonymous true", *extra])
        log = Path(folder, "broker.log")
        with (
            log.open("wb") as sink,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sink, stderr=sink) as process,
        ):
            try:
                await_broker(process, broker.port, log)
                yield broker
            finally:
                stop_process(process, STOP_SECONDS)


def mosquitto_command(folder: Path, port: int, extra: Sequence[str]) -> list[str]:
    """Write mosquitto's configuration into `folder`, with `extra` lines, and return its command line."""
    program = find_mosquitto()
    if program is None:
        raise UnavailableError("mosquitto is not installed", remedy="`apt-get install mosquitto`")
    logged = ["log_dest stderr", "log_type error", "log_type warning"]
    user = ["user root"] if os.geteuid() == 0 else []
    lines = [*logged, *user, "max_queued_messages 0", "set_tcp_nodelay true", f"listener {port} {HOST}"]
    path = folder / "mosquitto.conf"
    path.write_text("\n".join([*lines, *extra]) + "\n", encoding="utf-8")
    return [program, "-c", str(path)]


def await_broker(process: subprocess.Popen[bytes], port: int, log: Path, seconds: float = PATIENCE) -> None:
    """Wait until a broker accepts connections; BrokerError when it ends or `seconds` pass before."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            socket.create_connection((HOST, port), timeout=1.0).close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines() or ["no output"]
            raise BrokerError(f"the broker did not start: {lines[-1]}", where=str(log))
        time.sleep(0.01)


def free_port() -> int:
    """Return an unused loopback port outside the range of outgoing connections."""
    while True:
        port = secrets.choice(SERVER_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


def find_mosquitto() -> str | None:
    """Return the path of the mosquitto program, None if it is not installed."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=_SBIN)


def available() -> Kind:
    """Return the broker that is installed here, mosquitto before amqtt; UnavailableError without one."""
    if find_mosquitto() is not None:
        return "mosquitto"
    if importlib.util.find_spec("amqtt") is not None:
        return "amqtt"
    raise UnavailableError("neither mosquitto nor amqtt is installed", remedy=REMEDY)


async def _serve(port: int) -> None:
    """Run amqtt on a loopback port until standard input ends."""
    from amqtt.broker import Broker

    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{HOST}:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
