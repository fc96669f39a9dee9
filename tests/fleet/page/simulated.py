"""Many devices on a broker, as far as a page can see: retained topics, metrics, answers to commands.

`python -m tests.fleet.page.simulated PORT [COUNT]` keeps them going until interrupted.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

EVERY = 1.0


def client(port: int, name: str = "") -> mqtt.Client:
    """A connected client without a thread of its own."""
    made = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
    made.connect("127.0.0.1", port)
    return made


def states(n: int, now: float) -> dict[str, dict[str, Any]]:
    """What device `n` keeps at the broker."""
    level = "drift" if n % 10 == 3 else "none"
    last = {"level": level, "detector": "ks", "source": "inputs", "statistic": 0.4, "threshold": 0.2}
    return {
        "status": {"state": "online", "version": "0.9.0", "boot": 1, "seq": 1, "ts": now - 600},
        "state/model": {"version": 1 + n % 7, "since": now - 3600, "parent": n % 7, "source": "training",
                        "metrics": {"accuracy": 0.97}, "pinned": False, "on_hold": False},
        "state/training": {"engine": "portable", "runs": n, "failures": 0, "paused": None,
                           "on_hold": n % 20 == 5, "waiting_for": [],
                           "promotions": n, "rejections": 1, "rollbacks": 0,
                           "last": {"run": n, "ended": now - 3600, "outcome": "done"}},
        "state/drift": {"signals": int(level == "drift"), "last": last if level == "drift" else None,
                        "inputs": None},
        "state/buffer": {"rows": 1000, "bytes": 100_000, "evicted": 0, "on_hold": False, "windows": None,
                         "problem": "disk full: samples cannot be stored" if n % 50 == 7 else None,
                         "outbox": {"pending": 0, "bytes": 0, "dropped": 0}},
        "state/config": {"report": {"every": EVERY},
                         "commands": {"keys": ["fleet.pub"] if n % 25 == 9 else [],
                                      "require_signed": ["wipe", "rollback"]}},
    }  # fmt: skip


def metrics(n: int, seq: int, now: float) -> dict[str, Any]:
    """A report of device `n`."""
    return {
        "ts": now, "seq": seq, "boot": 1, "ingest": {"samples": 1000 + seq},
        "live": {"accuracy": 0.9 + (n * 7 % 100) / 1000, "labelled": 200},
        "training": {"running": {"step": seq % 200, "steps": 200} if n % 40 == 11 else None},
        "recovery": {"damaged_models": 0}, "host": {"temperature_c": 48.5, "throttled": False},
    }  # fmt: skip


class Simulated:
    """Devices `press-1` … `press-<count>`; `quiet` ones send no metrics."""

    def __init__(self, port: int, count: int, quiet: int = 0) -> None:
        self.count, self.quiet, self.seq = count, quiet, 1
        self._client = client(port, "simulated")
        self._client.on_message = self._answer
        self._client.subscribe("edged/+/request/+", qos=1)
        self._client.loop_start()
        now = time.time()
        for n in range(1, count + 1):
            for name, values in states(n, now).items():
                self.say(n, name, values, retain=True)

    def say(self, n: int, name: str, values: dict[str, Any], *, retain: bool = False) -> None:
        """Publish on a topic of device `n`, and wait for the broker."""
        payload = json.dumps(values)
        self._client.publish(f"edged/press-{n}/{name}", payload, qos=1, retain=retain).wait_for_publish(10)

    def report(self) -> None:
        """Metrics of all that are not quiet."""
        self.seq += 1
        for n in range(1, self.count + 1 - self.quiet):
            self.say(n, "metrics", metrics(n, self.seq, time.time()))

    def event(self, n: int, name: str, **fields: Any) -> None:
        """Something happened on device `n`."""
        self.seq += 1
        self.say(n, "events", {"event": name, "ts": time.time(), "seq": self.seq, "boot": 1, **fields})

    def _answer(self, link: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        """Devices answer; the second refuses, the third says nothing, `train` takes two answers."""
        base, _, command = message.topic.partition("/request/")
        n, asked = int(base.rpartition("-")[2]), json.loads(message.payload)
        same = {"transaction": asked["transaction"]}
        if n == 3:
            return
        if n == 2:
            answer: dict[str, Any] = {
                "status": "error",
                "state": "refused",
                "error": "no earlier model",
                "reason": "refused",
            }
        elif command == "train":
            link.publish(
                f"{base}/response/train", json.dumps(same | {"status": "ok", "state": "accepted", "data": {}})
            )
            step = {"command": "train", "state": "executing", "step": 10, "steps": 200}
            link.publish(f"{base}/progress/{asked['transaction']}", json.dumps(same | step))
            answer = {"status": "ok", "state": "successful", "data": {"run": 4, "promoted": None}}
        else:
            answer = {"status": "ok", "state": "successful", "data": {"from": 4, "to": 3}}
        link.publish(f"{base}/response/{command}", json.dumps(same | answer))

    def clear(self, device: str) -> None:
        """Take back what the broker keeps of a device."""
        self._client.publish(f"edged/{device}/status", b"", qos=1, retain=True).wait_for_publish(10)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


if __name__ == "__main__":
    fleet = Simulated(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200, quiet=3)
    while True:
        fleet.report()
        time.sleep(EVERY)
