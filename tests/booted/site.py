"""What is around edged in the container: a broker with accounts, a configuration, a listener."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import yaml

from tests.booted.machine import until

if TYPE_CHECKING:
    from tests.booted.machine import Container

PASSWORD = "only-in-the-credential-store"  # noqa: S105  of a broker that lives for ten minutes
UNIT = "edged.service"
ROOT = "edged/rig"
BROKER = """
listener 1883 127.0.0.1
allow_anonymous false
password_file /etc/mosquitto/passwords
max_queued_messages 0
max_inflight_messages 2000
autosave_interval 5
"""
CONFIG: dict[str, Any] = {
    "device": {"id": "rig"},
    "mqtt": {"host": "127.0.0.1", "username": "rig"},
    "stream": {
        "topic": "sensors/#", "key": "topic:1", "id": "id",
        "features": 8, "task": "classify", "classes": 2, "label": "y",
    },
    "model": {"bundle": "/etc/edged/bundle"},
    # Nothing by itself: each step knows which run is its own.
    "training": {
        "every": None, "new_labels": 0, "steps": 20_000,
    },
    "report": {"every": "1s"},
    "storage": {"dir": "/var/lib/edged"},  # as the template has it
}  # fmt: skip


class Site:
    """The broker, the configuration, and what edged has published since `listen`."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.sent = 0
        self._events: list[dict[str, Any]] = []
        self._listener: subprocess.Popen[str] | None = None

    # ---- what is there before edged -----------------------------------------------------

    def serve_mqtt(self) -> None:
        """A broker with an account for each side."""
        self.container.write("/etc/mosquitto/conf.d/booted.conf", BROKER)
        for number, name in enumerate(("rig", "sensors")):
            create = ["-c"] if number == 0 else []
            self.container.run("mosquitto_passwd", "-b", *create, "/etc/mosquitto/passwords", name, PASSWORD)
        self.container.run("chown", "mosquitto:", "/etc/mosquitto/passwords")
        self.container.run("systemctl", "restart", "mosquitto")

    def configure(self, **sections: dict[str, Any]) -> None:
        """The configuration, the bundle, and the password where the unit looks for it."""
        told = {name: {**CONFIG.get(name, {}), **sections.get(name, {})} for name in {**CONFIG, **sections}}
        self.container.write("/etc/edged/edged.yaml", yaml.safe_dump(told))
        self.container.run("cp", "-r", "/mnt/bundle", "/etc/edged/")
        self.container.write("/etc/credstore/edged.mqtt-password", f"{PASSWORD}\n", 0o600)

    # ---- messages ---------------------------------------------------------------------

    def listen(self) -> None:
        """Keep all events from now on."""
        account = ["-u", "sensors", "-P", PASSWORD, "-V", "5", "-q", "1", "-t", f"{ROOT}/events"]
        command = self.container.command("mosquitto_sub", "-h", "127.0.0.1", "-i", "listener", "-c", *account)
        self._listener = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, args=(self._listener,), daemon=True).start()

    def _read(self, listener: subprocess.Popen[str]) -> None:
        assert listener.stdout is not None
        for line in listener.stdout:
            self._events.append(json.loads(line))

    def close(self) -> None:
        """End the listener."""
        if self._listener is not None:
            self._listener.terminate()
            self._listener.wait(10)

    def events(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of one kind with these values."""
        named = [event for event in list(self._events) if event["event"] == name]
        return [event for event in named if all(event.get(key) == value for key, value in fields.items())]

    def publish(self, rows: int, rate: float) -> subprocess.Popen[bytes]:
        """Sensors that send the next rows, beside what else goes on."""
        first, self.sent = self.sent, self.sent + rows
        told = [PASSWORD, str(first), str(self.sent), str(rate)]
        command = self.container.command("/opt/edged/bin/python3", "/mnt/publish.py", *told)
        # Of a python that is replaced while it runs: all that it needs is imported by then.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def order_training(self) -> None:
        """Send the command `train`."""
        account = ["-h", "127.0.0.1", "-u", "sensors", "-P", PASSWORD, "-q", "1"]
        self.container.run("mosquitto_pub", *account, "-t", f"{ROOT}/request/train", "-m", "{}")

    # ---- edged ------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What `edged status` says."""
        code, text = self.container.attempt("edged", "status", "/etc/edged/edged.yaml", "--json")
        assert code == 0, text
        found: dict[str, Any] = json.loads(text)
        return found

    def version(self) -> str:
        """Of the daemon that was started last, which is the one that is installed."""
        installed = self.container.run("edged", "--version").split()[-1]
        until(lambda: self.events("started")[-1]["version"] == installed, 30, f"a daemon of {installed}")
        return installed

    def all_stored(self, seconds: float = 90) -> str:
        """Until every row that was sent is in the sample log, each once; how many, in words."""
        until(lambda: self.status()["samples"] >= self.sent, seconds, f"{self.sent} samples stored")
        stored = self.status()["samples"]
        assert stored == self.sent, f"{stored} samples of {self.sent} rows: some are there twice"
        return f"{stored} samples of {self.sent} rows sent"

    def pid(self) -> int:
        """Of the daemon, as numbered inside."""
        return int(self.container.show(UNIT, "MainPID")["MainPID"])

    def restarts(self) -> int:
        """How often systemd has started it anew by itself."""
        return int(self.container.show(UNIT, "NRestarts")["NRestarts"])

    def active(self) -> bool:
        """Whether it has said that it is ready."""
        return self.container.show(UNIT, "ActiveState")["ActiveState"] == "active"

    def until_back(self, before: int, seconds: float) -> float:
        """Until another process than `before` is ready; how long that took."""
        return until(
            lambda: self.active() and self.pid() not in (0, before), seconds, "another daemon is ready"
        )
