"""One edged daemon in a test: its configuration, its process, and a client that listens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import yaml
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.commands import edged
from tests.constants import FILE, split
from tests.forked import Forked, ForkServer, may_fork

START_SECONDS = 120.0
DAEMONS = ForkServer("daemon")


class Listener:
    """A plain paho client that keeps every message under the device's root."""

    def __init__(self, port: int, root: str, version: int = mqtt.MQTTv5) -> None:
        self.root = root
        self.messages: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.raw: dict[str, list[bytes]] = defaultdict(list)
        self._changed = threading.Condition()
        self._subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion(version))
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.connect("127.0.0.1", port)
        self._client.subscribe(f"{root}/#", qos=1)
        self._client.loop_start()
        assert self._subscribed.wait(10)

    def _on_subscribe(self, *_: object) -> None:
        self._subscribed.set()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        topic = message.topic.removeprefix(f"{self.root}/")
        if topic.startswith("request/"):
            return  # what tests send themselves, and be it no JSON
        with self._changed:
            if not message.payload:
                self.messages.pop(topic, None)  # a retained one is taken back
            elif topic.startswith("weights/"):
                self.raw[topic].append(bytes(message.payload))
            else:
                self.messages[topic].append(json.loads(message.payload))
            self._changed.notify_all()

    def wait(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        """Until `condition()` holds; it is looked at after every message."""
        assert self.comes(condition, seconds), self.summary()

    def comes(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Tell whether `condition()` holds in time; it is looked at after every message."""
        with self._changed:
            return bool(self._changed.wait_for(condition, seconds))

    def summary(self) -> str:
        """What has come, for a failing test."""
        events = [e["event"] for e in self.messages["events"]]
        return f"{ ({t: len(m) for t, m in self.messages.items()}) } events {events[-20:]}"

    def events(self, name: str) -> list[dict[str, Any]]:
        """All events of one kind."""
        return [e for e in self.messages["events"] if e["event"] == name]

    def publish(self, topic: str, payload: str | bytes, *, retain: bool = False) -> None:
        """Publish at QoS 1 and wait for the broker."""
        self._client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(10)

    def send(self, topic: str, values: dict[str, Any]) -> None:
        """Publish JSON at QoS 1 without waiting."""
        self._client.publish(topic, json.dumps(values), qos=1)

    def request(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        before = len(self.messages[f"response/{command}"])
        self.publish(f"{self.root}/request/{command}", json.dumps(fields))
        self.wait(lambda: len(self.messages[f"response/{command}"]) > before)
        return self.messages[f"response/{command}"][before]

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


class Device:
    """A configuration file and the daemon that runs on it; constants may be among the keys."""

    def __init__(self, folder: Path, port: int, stream: dict[str, Any], **sections: Any) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.path = folder / "edged.yaml"
        self.log = folder / "edged.log"
        values: dict[str, Any] = {
            "device": {"id": "rig"},
            "mqtt": {"host": "127.0.0.1", "port": port, "reconnect_max": "1s"},
            "stream": {"topic": "sensors/#", "key": "topic:1"} | stream,
            "report": {"every": "100ms"},
        } | sections
        self.values, self.constants = split(values)
        self.path.write_text(yaml.safe_dump(self.values), encoding="utf-8")
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.interpreter = (
            False  # whether the daemon has one of its own: its memory and its start are measured
        )
        self.wrapper: list[str] = []  # the command that the daemon is run by, such as strace

    def start(self, **environment: str) -> None:
        """Start the daemon, forked where that makes no difference."""
        wanted = os.environ | environment
        if not self.wrapper and not self.interpreter and may_fork(wanted):
            self.process = DAEMONS.start([str(self.path)], wanted, self.log, self.log, self.constants)
            return
        command = ["edged", "run"]
        if self.constants:
            self.path.with_name(FILE).write_text(json.dumps(self.constants), encoding="utf-8")
            command = ["tests.constants"]
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                [*self.wrapper, sys.executable, "-m", *command, str(self.path)],
                stdout=sink, stderr=sink, env=wanted,
            )  # fmt: skip

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the daemon; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def cli(self, *arguments: str) -> Any:
        """Run a command with `--json`; its answer."""
        answer = edged(*arguments, "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)


@contextmanager
def running(device: Device, port: int, root: str = "edged/rig", **environment: str) -> Iterator[Listener]:
    """The daemon up and connected; stopped in any case."""
    listener = Listener(port, root)
    device.start(**environment)
    try:
        _wait_until_online(device, listener)
        yield listener
    finally:
        if device.process is not None and device.process.poll() is None:
            device.stop()
        listener.close()


def _wait_until_online(device: Device, listener: Listener) -> None:
    """Wait for the status `online`; a daemon that ends before fails the test at once, with its log."""
    deadline = time.monotonic() + START_SECONDS
    while not listener.comes(lambda: any(s["state"] == "online" for s in listener.messages["status"]), 1.0):
        assert device.process is not None
        ended = device.process.poll()
        assert ended is None, f"exit code {ended}:\n{device.log.read_text(errors='replace')[-2000:]}"
        assert time.monotonic() < deadline, listener.summary()


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Poll something that tells nobody when it changes, such as a file."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        threading.Event().wait(0.02)
