"""What the daemon costs: memory after 100,000 messages and after 20 swaps, and time to the first prediction.

The real daemon as a process, serving the standard network for 16 features, fed by a publisher process.
Memory is the resident set of the daemon process (VmRSS); trainers are processes of their own and end.

`python benchmarks/footprint.py [--messages N] [--swaps N] [--json] [--out FILE]`
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import yaml
from output import finish, options
from paho.mqtt.enums import CallbackAPIVersion
from resident import resident_mb

from edged.workbench.demo.broker import embedded_broker

FEATURES = 16
STARTS = 5
WAITING = 20_000  # messages on their way at most: paho has 65,535 packet ids, and drops what finds none
ROOT = "edged/foot"


class Client:
    """Publishes samples and commands, and watches predictions and answers."""

    def __init__(self, port: int) -> None:
        self.predictions = 0
        self.first = threading.Event()
        self.answers: list[dict[str, Any]] = []
        self.promoted = 0
        self.online = False
        self._changed = threading.Condition()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.max_inflight_messages_set(500)
        self._client.max_queued_messages_set(0)
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        for topic in ("status", "predictions", "response/#", "events"):
            self._client.subscribe(f"{ROOT}/{topic}", qos=1)
        self._client.loop_start()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            if message.topic.endswith("predictions"):
                self.predictions += 1
                self.first.set()
            elif message.topic.endswith("status"):
                self.online = json.loads(message.payload)["state"] == "online"
            elif message.topic.endswith("events"):
                self.promoted += json.loads(message.payload)["event"] == "model_promoted"
            else:
                self.answers.append(json.loads(message.payload))
            self._changed.notify_all()

    def wait_online(self) -> None:
        """Until the daemon has connected and subscribed."""
        self._until(lambda: self.online, 30)

    def feed(self, count: int, rate: float = 8000.0) -> None:
        """Publish labelled samples and wait for their predictions."""
        rng = np.random.default_rng(self.predictions)
        target, began = self.predictions + count, time.monotonic()
        for i in range(count):
            x = rng.normal(size=FEATURES).round(4)
            self._client.publish("foot/a", json.dumps({"x": x.tolist(), "y": int(x[0] > 0)}), qos=1)
            if i % 100 == 0:
                time.sleep(max(0.0, began + i / rate - time.monotonic()))
                self._until(lambda: target - count + i < self.predictions + WAITING, 120)  # noqa: B023
        self._until(lambda: self.predictions >= target, 120)

    def request(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a command; its answer."""
        before = len(self.answers)
        self._client.publish(f"{ROOT}/request/{command}", json.dumps(fields), qos=1)
        self._until(lambda: len(self.answers) > before, 30)
        return self.answers[before]

    def train(self) -> None:
        """Have it train until a candidate is promoted."""
        before = self.promoted
        self.request("train", steps=200)
        self._until(lambda: self.promoted > before, 30)

    def _until(self, condition: Any, seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise SystemExit(
                    f"waited {seconds} s in vain; {self.predictions} predictions, {self.answers[-1:]}"
                )

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def start(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "edged", "run", str(path)])


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


def time_to_first(path: Path, port: int) -> float:
    """Seconds from starting the process to the first prediction; a sample waits in the queue."""
    client = Client(port)
    client._client.publish("foot/a", json.dumps({"x": [0.5] * FEATURES, "y": 1}), qos=1)  # noqa: SLF001
    began = time.monotonic()
    process = start(path)
    if not client.first.wait(30):
        raise SystemExit("no prediction came")
    elapsed = time.monotonic() - began
    stop(process)
    client.close()
    return elapsed


def measure(messages: int, swaps: int) -> list[dict[str, Any]]:
    with embedded_broker("mosquitto") as broker, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edged.yaml"
        path.write_text(yaml.safe_dump({
            "device": {"id": "foot"},
            "mqtt": {"host": "127.0.0.1", "port": broker.port},
            "stream": {"topic": "foot/#", "features": FEATURES, "classes": 2, "label": "y"},
            "training": {"every": None, "new_labels": 0},
            "gate": {"min_gain": -1},
            "log": {"level": "error"},
        }), encoding="utf-8")  # fmt: skip
        process, client = start(path), Client(broker.port)
        rows: list[dict[str, Any]] = []

        def note(what: str) -> None:
            rows.append({"what": what, "mb": round(resident_mb(process.pid), 1)})
            sys.stderr.write(f"{rows[-1]['what']}: {rows[-1]['mb']} MB\n")

        client.wait_online()
        client.feed(100)
        note("serving, 100 messages")
        client.feed(messages - 100)
        note(f"serving, {messages:,} messages")
        for number in range(1, swaps + 1):
            client.train()
            client.feed(50)
            if number % 5 == 0:
                note(f"after {number} trainings and swaps")
        client.feed(messages // 2)
        note(f"after that and {messages // 2:,} more messages")
        stop(process)
        client.close()
        starts = [time_to_first(path, broker.port) for _ in range(STARTS)]
    rows.append({"what": "start to first prediction", "seconds": round(statistics.median(starts), 3),
                 "slowest_seconds": round(max(starts), 3)})  # fmt: skip
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--swaps", type=int, default=20)
    args = parser.parse_args()
    finish("footprint", measure(args.messages, args.swaps), args)


if __name__ == "__main__":
    main()
