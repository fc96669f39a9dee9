"""A broker of one's own on a loopback port: mosquitto where it is installed, else amqtt.

`python -m edged.workbench.demo.broker PORT` is amqtt as a process, until its standard input ends.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edged.errors import BrokerError, UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = Literal["mosquitto", "amqtt"]

HOST = "127.0.0.1"
SERVER_PORTS = range(20_000, 32_768)  # below those that Linux gives to outgoing connections
START_SECONDS = 15.0
STOP_SECONDS = 5.0
ATTEMPTS = 3
REMEDY = "install one of them: `apt-get install mosquitto` or `pip install 'edged[demo]'`"
# Debian keeps daemons out of a user's PATH.
_SBIN = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"))


def free_port() -> int:
    """A loopback port that nobody uses, and that no outgoing connection is given before a server takes it."""
    while True:
        port = secrets.choice(SERVER_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


def find_mosquitto() -> str | None:
    """Path of the mosquitto program, None where it is not installed."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=_SBIN)


class Process(ABC):
    """A broker in a child process. It can be started again on the same port after `stop` or `kill`."""

    name = ""
    protocol: Literal["5", "3.1.1"] = "5"
    start_seconds = START_SECONDS

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Command line that starts the broker."""

    @property
    def pid(self) -> int:
        """Its process id; 0 while it does not run."""
        return 0 if self._process is None else self._process.pid

    @property
    def log(self) -> Path:
        """Output of the broker so far."""
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        """Start it and wait until it takes connections; BrokerError with its last words if it ends."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.directory
            )
        deadline = time.monotonic() + self.start_seconds
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise BrokerError(f"{self.name} did not start: {self._last_words()}", where=str(self.log))
            time.sleep(0.01)

    def _listens(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        """Stop the broker in good order."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the broker."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


class Mosquitto(Process):
    """Mosquitto; `extra` are lines of its configuration. UnavailableError when it is not installed."""

    name = "mosquitto"

    def __init__(self, directory: Path, port: int, extra: Sequence[str] = ("allow_anonymous true",)) -> None:
        super().__init__(directory, port)
        program = find_mosquitto()
        if program is None:
            raise UnavailableError("mosquitto is not installed", remedy="`apt-get install mosquitto`")
        self._program = program
        self._extra = list(extra)

    def command(self) -> list[str]:
        """Write the configuration and start with it."""
        lines = [
            "log_dest stderr",
            "log_type error",
            "log_type warning",
            "max_queued_messages 0",
            "set_tcp_nodelay true",
            *(["user root"] if os.geteuid() == 0 else []),
            f"listener {self.port} {HOST}",
            *self._extra,
        ]
        path = self.directory / "mosquitto.conf"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [self._program, "-c", str(path)]


class Amqtt(Process):
    """The pure-Python broker, MQTT 3.1.1 only; UnavailableError when it is not installed."""

    name = "amqtt"
    protocol = "3.1.1"

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__(directory, port)
        if importlib.util.find_spec("amqtt") is None:
            raise UnavailableError("amqtt is not installed", remedy="`pip install 'edged[demo]'`")

    def command(self) -> list[str]:
        """How this module is started as a process; it ends with us, when its standard input does."""
        return [sys.executable, "-m", "edged.workbench.demo.broker", str(self.port)]


class EmbeddedBroker:
    """A broker for as long as the `with` block lasts: `name`, `host`, `port`, `protocol`.

    The first that is installed when `kind` is absent; UnavailableError when there is none.
    """

    host = HOST

    def __init__(self, kind: Kind | None = None) -> None:
        self.name = kind or available()
        self._kind = Mosquitto if self.name == "mosquitto" else Amqtt
        self.protocol = self._kind.protocol
        self._stack = ExitStack()
        self._process: Process | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edged-broker-")))
            self._process = self._start(directory)
            stack.callback(self._process.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._process = None

    def _start(self, directory: Path) -> Process:
        for left in reversed(range(ATTEMPTS)):
            process = self._kind(directory, free_port())
            try:
                process.start()
            except BrokerError:
                # Somebody may have taken the port meanwhile.
                if not left:
                    raise
            else:
                return process
        raise AssertionError

    @property
    def port(self) -> int:
        """Port of the broker on the loopback interface."""
        if self._process is None:
            raise BrokerError("the embedded broker is not running", remedy="use it in a `with` block")
        return self._process.port


def available() -> Kind:
    """The broker that is installed here, mosquitto before amqtt; UnavailableError when there is none."""
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
