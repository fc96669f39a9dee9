"""What a device's part in a fleet costs in memory: two daemons side by side, one of them in a fleet.

Both are processes at the same broker with the same bundle, samples and trainings of their own. The one in the
fleet besides trains in rounds of `edged fleet run` and takes their models. Memory is the resident set of the
daemon (VmRSS). Trainers are processes of their own, and end.

`python benchmarks/member.py [--messages N] [--rounds N] [--json] [--out FILE]`
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import yaml
from output import finish, options
from paho.mqtt.enums import CallbackAPIVersion
from resident import resident_mb

from edged.workbench.demo.broker import EmbeddedBroker

FEATURES, CLASSES, HIDDEN = 64, 6, (128, 64)
ALONE, MEMBER = "alone", "member"
FLEET = "plant"


class Watch:
    """Publishes samples and commands for both daemons, and counts what they tell."""

    def __init__(self, port: int) -> None:
        self.predictions = dict.fromkeys((ALONE, MEMBER), 0)
        self.events: dict[str, list[str]] = {ALONE: [], MEMBER: []}
        self.online: set[str] = set()
        self._changed = threading.Condition()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.max_inflight_messages_set(500)
        self._client.max_queued_messages_set(0)
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        for topic in ("status", "predictions", "events"):
            self._client.subscribe(f"edged/+/{topic}", qos=1)
        self._client.loop_start()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        _, name, kind = message.topic.split("/")
        with self._changed:
            if kind == "predictions":
                self.predictions[name] += 1
            elif kind == "events":
                self.events[name].append(json.loads(message.payload)["event"])
            elif json.loads(message.payload)["state"] == "online":
                self.online.add(name)
            self._changed.notify_all()

    def feed(self, count: int) -> None:
        """Labelled samples for both, until both have predicted them."""
        rng = np.random.default_rng(self.predictions[ALONE])
        target = self.predictions[ALONE] + count
        for i in range(count):
            x = rng.normal(size=FEATURES).round(4)
            line = json.dumps({"x": x.tolist(), "y": int(np.argmax(x[:CLASSES]))})
            self._client.publish("foot/a", line, qos=1)
            if i % 100 == 99:
                time.sleep(0.05)
        self.until(lambda: min(self.predictions.values()) >= target, 120)

    def train(self, name: str) -> None:
        """Have a daemon train by itself, until that run has ended."""
        before = self.events[name].count("training_finished")
        self._client.publish(f"edged/{name}/request/train", json.dumps({"steps": 200}), qos=1)
        self.until(lambda: self.events[name].count("training_finished") > before, 60)

    def until(self, condition: Callable[[], Any], seconds: float) -> None:
        """Wait for messages; SystemExit when that takes too long."""
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise SystemExit(f"waited {seconds} s in vain; {self.predictions}, {self.events}")


def run(stack: ExitStack, *command: str) -> subprocess.Popen[bytes]:
    """A program of edged's that ends with the stack."""
    process = subprocess.Popen([sys.executable, "-m", "edged", *command])
    stack.callback(process.wait, 20)
    stack.callback(process.terminate)
    return process


def written(path: Path, values: dict[str, Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(path)


def device(folder: Path, name: str, port: int, bundle: Path, more: dict[str, Any]) -> str:
    """The configuration of a daemon."""
    return written(folder / name / "edged.yaml", {
        "device": {"id": name},
        "mqtt": {"host": "127.0.0.1", "port": port},
        "stream": {"topic": "foot/#", "features": FEATURES, "classes": CLASSES, "label": "y"},
        "model": {"bundle": str(bundle)},
        "storage": {"dir": str(folder / name / "state")},
        "training": {"every": None, "new_labels": 0, "resident": 0, "learning_rate": 0.01},
        "gate": {"min_gain": -1, "max_regret": 1, "probation": 0},
        "log": {"level": "error"},
        **more,
    })  # fmt: skip


def coordinator(folder: Path, port: int, bundle: Path, rounds: int) -> str:
    """The configuration of a coordinator for a fleet of one."""
    return written(folder / "site" / "fleet.yaml", {
        "fleet": FLEET, "model": str(bundle), "dir": str(folder / "site" / "state"),
        "mqtt": {"host": "127.0.0.1", "port": port},
        "round": {
            "devices": 1, "quorum": 1.0, "deadline": "60s", "window": "1s", "every": "1s", "rounds": rounds,
        },
        "choose": {"everyone": True},
        "train": {"epochs": 2, "learning_rate": 0.01, "batch_size": 32, "clip_norm": 5.0},
        "gate": {"stages": [1.0], "wait": "30s", "mean": 10.0, "worst": 10.0},
    })  # fmt: skip


def measure(messages: int, rounds: int) -> list[dict[str, Any]]:
    from edged.bundles.build import build
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics

    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker("mosquitto"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bundle = build(
            mlp(FEATURES, CLASSES, HIDDEN), folder / "bundle", loss="cross_entropy",
            standardise=Statistics.identity(FEATURES),
        ).path  # fmt: skip
        fleet = {"fleet": {"name": FLEET, "resend": "1s", "spread": 0.2, "min_new_samples": 0}}
        daemons = {
            name: run(stack, "run", device(folder, name, broker.port, bundle, more))
            for name, more in ((ALONE, {}), (MEMBER, fleet))
        }
        watch = Watch(broker.port)

        def note(what: str) -> None:
            alone, member = (round(resident_mb(daemons[name].pid), 1) for name in (ALONE, MEMBER))
            rows.append(
                {"what": what, "alone_mb": alone, "member_mb": member, "adds": round(member - alone, 1)}
            )
            sys.stderr.write(f"{rows[-1]}\n")

        watch.until(lambda: len(watch.online) == len(daemons), 30)
        watch.feed(messages)
        note(f"serving, {messages:,} messages")
        for name in daemons:
            watch.train(name)
        note("after a training of their own")
        run(stack, "fleet", "run", coordinator(folder, broker.port, bundle, rounds))
        for number in range(1, rounds + 1):
            watch.until(lambda: watch.events[MEMBER].count("fleet_model") >= number, 120)  # noqa: B023
            watch.feed(200)
            note(f"after round {number}")
    return rows


def main() -> None:
    """Entry point."""
    parser = options(__doc__)
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    finish("member", measure(args.messages, args.rounds), args)


if __name__ == "__main__":
    main()
