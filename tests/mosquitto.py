"""Brokers of tests: processes that a test can stop, kill and start again on the same port."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from edged.errors import BrokerError, UnavailableError
from edged.host.child_process import stop_process
from edged.workbench.demo.broker import (
    PATIENCE,
    STOP_SECONDS,
    await_broker,
    find_mosquitto,
    mosquitto_command,
)


class Process(ABC):
    """A broker in a child process. It can be started again on the same port after `stop` or `kill`."""

    name = ""
    protocol: Literal["5", "3.1.1"] = "5"
    start_seconds = PATIENCE

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Command line that starts the broker."""

    @property
    def pid(self) -> int:
        """Its process ID; 0 while it does not run."""
        return 0 if self._process is None else self._process.pid

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports that accept connections once it has started."""
        return (self.port,)

    @property
    def log(self) -> Path:
        """Output of the broker so far."""
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        """Start it and wait until it accepts connections; BrokerError with its last line if it ends."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.directory
            )
        try:
            for port in self.ports:
                await_broker(self._process, port, self.log, self.start_seconds)
        except BrokerError:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask the broker to end, and kill it if it does not."""
        if self._process is not None:
            stop_process(self._process, STOP_SECONDS)
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
        if find_mosquitto() is None:
            raise UnavailableError("mosquitto is not installed", remedy="`apt-get install mosquitto`")
        self._extra = list(extra)

    def command(self) -> list[str]:
        return mosquitto_command(self.directory, self.port, self._extra)


class Amqtt(Process):
    """The pure-Python broker, MQTT 3.1.1 only; UnavailableError when it is not installed."""

    name = "amqtt"
    protocol = "3.1.1"

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__(directory, port)
        if importlib.util.find_spec("amqtt") is None:
            raise UnavailableError("amqtt is not installed", remedy="`pip install 'edged[demo]'`")

    def command(self) -> list[str]:
        return [sys.executable, "-m", "edged.workbench.demo.broker", str(self.port)]
