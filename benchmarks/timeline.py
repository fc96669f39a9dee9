"""What the timeline of a device's page takes: first picture, zoom, count, memory, and serving beside it.

The real daemon with a sample log of a million samples (8 features, three classes, a quarter labelled), made
before it starts, and live samples over the broker at 50 a second. A reader looks as a page does: at the whole
log, then closer and closer around moments drawn at random, and counts each stretch. Milliseconds are those of
whole HTTP requests, `cpu_ms` the daemon's processor time for one; the first picture makes the index over key
and time. Memory (VmRSS) is that after the pictures less that before them. `p99_ratio` is the 99th percentile
of the time from a sample to its prediction with a page open, which asks for the newest minutes and all
sections every second, over that without, in turns.

`python benchmarks/timeline.py [--samples N] [--keys N] [--seconds S] [--rounds N] [--json] [--out FILE]`
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import yaml
from output import finish, options
from paho.mqtt.enums import CallbackAPIVersion
from resident import resident_mb

from edged.config.loader import load
from edged.device.startup.bootstrap import open_samples
from edged.domain.stream.sample import Batch
from edged.workbench.demo.broker import EmbeddedBroker, free_port

FEATURES = 8
RATE = 50  # live samples a second


def configured(folder: Path, broker: int, port: int) -> Path:
    """The configuration of the device."""
    values: dict[str, Any] = {
        "device": {"id": "bench"},
        "mqtt": {"host": "127.0.0.1", "port": broker},
        "stream": {
            "topic": "bench/#",
            "key": "topic:1",
            "features": FEATURES,
            "classes": ["a", "b", "c"],
            "ts": "ts",
        },
        "storage": {"max_bytes": "2GiB"},
        "training": {"every": None, "new_labels": 0},
        "web": {"listen": f"127.0.0.1:{port}"},
        "log": {"level": "error"},
    }
    path = folder / "edged.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def fill(path: Path, samples: int, keys: int) -> None:
    """Write the sample log: two samples a second up to now, of all keys in turn."""
    rng, part = np.random.default_rng(0), 5000
    begin = time.time() - samples / 2
    with open_samples(load(path)) as log:
        for first in range(1, samples + 1, part):
            offsets = np.arange(first, min(first + part, samples + 1))
            n = len(offsets)
            ts, place = np.asarray(begin + offsets * 0.5, np.float64), offsets // 3000 % 3
            x = np.sin(offsets[:, None] / np.arange(200, 200 + FEATURES)) + rng.normal(0, 0.1, (n, FEATURES))
            labels: list[float | tuple[float, ...] | None] = [
                float(c) if o % 4000 < 1000 else None for o, c in zip(offsets.tolist(), place, strict=True)
            ]
            named = [f"key-{o % keys}" for o in offsets.tolist()]
            log.commit(Batch(offsets, named, ts, ts, x.astype(np.float32), labels))


class Reader:
    """One browser's connection."""

    def __init__(self, port: int) -> None:
        self._link = HTTPConnection("127.0.0.1", port, timeout=60)

    def get(self, path: str, **query: object) -> tuple[Any, float]:
        """The answer, and the milliseconds that it took."""
        given = "&".join(f"{name.rstrip('_')}={value}" for name, value in query.items())
        began = time.perf_counter()
        self._link.request("GET", f"{path}?{given}", headers={"accept-encoding": "identity"})
        answer = self._link.getresponse()
        body = answer.read()
        took = 1e3 * (time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"{path}?{given}: {answer.status} {body[:200]!r}")
        return json.loads(body), took


class Viewer(threading.Thread):
    """An open page: the newest minutes and all sections, once a second."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self.ending = port, threading.Event()

    def run(self) -> None:
        """Look until the end."""
        reader = Reader(self._port)
        while not self.ending.wait(1.0):
            reader.get("/api/timeline", from_=time.time() - 300, to=time.time(), width=1000)
            reader.get("/api/page")


class Traffic:
    """Live samples, and how long their predictions take."""

    def __init__(self, broker: int) -> None:
        self._sent: dict[str, float] = {}
        self.took: list[float] = []
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_message = self._answered
        self._client.connect("127.0.0.1", broker)
        self._client.subscribe("edged/bench/predictions", qos=1)
        self._client.loop_start()
        self._rng = np.random.default_rng(1)

    def _answered(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        told = json.loads(message.payload)
        sent = self._sent.pop(f"{told['ts']:.6f}", None)
        if sent is not None:
            self.took.append(1e3 * (time.perf_counter() - sent))

    def run(self, seconds: float) -> list[float]:
        """Send for so long; milliseconds from each sample to its prediction."""
        self.took, ends = [], time.perf_counter() + seconds
        while time.perf_counter() < ends:
            ts = round(time.time(), 6)
            self._sent[f"{ts:.6f}"] = time.perf_counter()
            row = self._rng.normal(size=FEATURES).round(3).tolist()
            self._client.publish("bench/key-0", json.dumps({"x": row, "ts": ts}), qos=1)
            time.sleep(1 / RATE)
        time.sleep(0.5)
        return self.took

    def stop(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def cpu_ms(pid: int) -> float:
    """Milliseconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


def pictures(reader: Reader, rounds: int, pid: int) -> list[dict[str, Any]]:
    """The first picture, then zooms and counts."""
    rng, rows = np.random.default_rng(2), []
    told, took = reader.get("/api/timeline", key="key-0", width=1200)
    rows.append({"what": "first picture, with the index", "ms": round(took), "samples": told["samples"]})
    took = min(reader.get("/api/timeline", key="key-0", width=1200)[1] for _ in range(3))
    rows.append({"what": "whole log", "ms": round(took), "every": told["every"]})
    first, last = told["first"], told["last"]
    stretches = [
        {"key": "key-0", "from_": middle - span / 2, "to": middle + span / 2}
        for middle in rng.uniform(first, last, rounds)
        for span in np.geomspace((last - first) / 2, 60, 10)
    ]
    for what, path in (("zoom", "/api/timeline"), ("count", "/api/timeline/count")):
        before = cpu_ms(pid)
        found = [reader.get(path, **one)[1] for one in stretches]
        told = {"median_ms": round(statistics.median(found)), "max_ms": round(max(found))}
        spent = (cpu_ms(pid) - before) / len(stretches)
        rows.append({"what": what, **told, "cpu_ms": round(spent, 1), "of": len(stretches)})
    return rows


def serving(traffic: Traffic, port: int, seconds: float, rounds: int) -> dict[str, Any]:
    """The 99th percentile with the page open and without, in turns; medians of all rounds."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for seen in (False, True):
            viewer = Viewer(port)
            if seen:
                viewer.start()
            took = traffic.run(seconds)
            viewer.ending.set()
            if seen:
                viewer.join()
            found[seen].append(float(np.percentile(took, 99)))
            sys.stderr.write(f"page {'open' if seen else 'closed'}: p99 {found[seen][-1]:.2f} ms\n")
    closed, opened = (statistics.median(found[seen]) for seen in (False, True))
    return {
        "what": "serving", "p99_ms": round(closed, 2), "p99_ms_page_open": round(opened, 2),
        "p99_ratio": round(opened / closed, 2),
    }  # fmt: skip


def measure(folder: Path, broker: int, args: Any) -> list[dict[str, Any]]:
    """All rows."""
    port = free_port()
    path = configured(folder, broker, port)
    began = time.monotonic()
    fill(path, args.samples, args.keys)
    sys.stderr.write(f"log made in {time.monotonic() - began:.0f} s\n")
    process = subprocess.Popen([sys.executable, "-m", "edged.daemon", str(path)])
    traffic = Traffic(broker)
    try:
        while True:
            try:
                Reader(port).get("/api/status")
                break
            except OSError:
                time.sleep(0.1)
        traffic.run(20)
        before, reader = resident_mb(process.pid), Reader(port)
        rows = pictures(reader, args.rounds, process.pid)
        time.sleep(1)
        after = resident_mb(process.pid)
        rows.append({"what": "memory", "mb": round(after - before, 1), "of": round(before, 1)})
        rows.append(serving(traffic, port, args.seconds, args.rounds))
        rows.append({"what": "memory at the end", "mb": round(resident_mb(process.pid) - before, 1)})
        return rows
    finally:
        traffic.stop()
        process.terminate()
        process.wait(30)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with EmbeddedBroker("mosquitto") as broker, tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name), broker.port, args)
    finish("timeline", rows, args)


if __name__ == "__main__":
    main()
