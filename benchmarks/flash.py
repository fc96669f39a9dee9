"""Bytes that edged writes to its disk for each byte of payload, under a steady stream of samples.

A real mosquitto, the real daemon with its trainer, and a publisher that sends one message after the other
at an even rate. What is written is `write_bytes` of /proc/PID/io: pages handed to the disk, of the daemon
with every trainer that has ended, and of the trainer that still runs, until the daemon has ended and folded
its write-ahead logs. The journal of the file system is not in it. The first `--settle` seconds, in which the
databases, the bundle and the first model are made, do not count; `--settle 180` leaves out the burst that
training is allowed after a start (`training.max_write_rate`).

The state directory must be on a disk: on tmpfs nothing is ever written, and the program says so.

`python benchmarks/flash.py [--seconds S] [--rate R] [--form FORM ...] [--labels SHARE] [--dir DIR]
[--set KEY=VALUE ...] [--json] [--out FILE]`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import yaml
from output import Row, finish, options
from paho.mqtt.enums import CallbackAPIVersion

from edged.workbench.demo.broker import embedded_broker

CLASSES = 4
FIELDS = [f"{kind}.{axis}" for kind in ("vib", "temp", "current", "flow") for axis in ("a", "b", "c", "d")]
# Name of a form -> section `stream`.
FORMS: dict[str, dict[str, Any]] = {
    "json, 16 named fields": {"features": FIELDS, "ts": "ts"},
    "json, 16 numbers": {"features": 16},
    "json, 128 numbers": {"features": 128},
    "float32, 16 numbers": {"features": 16, "codec": "float32"},
}


def payloads(form: str, labels: float, seed: int = 0) -> Callable[[], bytes]:
    """What makes the next message of a form; `labels` is the share that carries one."""
    rng = np.random.default_rng(seed)
    width = 128 if "128" in form else 16
    centres = rng.normal(size=(CLASSES, width))

    def make() -> bytes:
        kind = int(rng.integers(CLASSES))
        x = centres[kind] + rng.normal(size=width)
        if form.startswith("float32"):
            return bytes(x.astype("<f4").tobytes())
        numbers = [round(value, 4) for value in x.tolist()]
        message: dict[str, Any] = {"x": numbers}
        if "named" in form:
            message = {"ts": round(time.time(), 3)}
            for name, value in zip(FIELDS, numbers, strict=True):
                group, axis = name.split(".")
                message.setdefault(group, {})[axis] = value
        if rng.random() < labels:
            message["y"] = kind
        return json.dumps(message, separators=(",", ":")).encode()

    return make


class Publisher:
    """Sends one message after the other at an even rate, at QoS 1, on a thread of its own; none at rate 0."""

    def __init__(self, port: int, rate: float, make: Callable[[], bytes]) -> None:
        self._rate, self._make = rate, make
        self.messages = self.payload_bytes = 0
        self._ending = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="flash-publisher")
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while self._rate and not self._ending.wait(max(0.0, due - time.monotonic())):
            payload = self._make()
            self._client.publish("flash/a", payload, qos=1)
            self.messages += 1
            self.payload_bytes += len(payload)
            due += 1 / self._rate

    def stop(self) -> None:
        """Send no more."""
        self._ending.set()
        self._thread.join(5)
        self._client.disconnect()
        self._client.loop_stop()


def written(pid: int, *, young: bool = True) -> int:
    """`write_bytes` of a process, its ended children included, and with `young` of the children that live."""
    total = 0
    for one in (pid, *(children(pid) if young else ())):
        try:
            text = Path(f"/proc/{one}/io").read_text(encoding="ascii")
        except OSError:
            continue  # it has just ended: its parent has its bytes
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("write_bytes"))
    return total


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(one) for one in (task / "children").read_text(encoding="ascii").split()]
    return found


def counts_here(folder: Path) -> bool:
    """Whether this file system counts what is written: tmpfs does not."""
    before = written(os.getpid(), young=False)
    probe = folder / "probe"
    with probe.open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    probe.unlink()
    return written(os.getpid(), young=False) - before >= 1 << 20


def merged(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """A configuration with `section.key=value` laid over it."""
    for setting in settings:
        key, _, value = setting.partition("=")
        *sections, name = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = yaml.safe_load(value)
    return values


@contextmanager
def streaming(
    name: str,
    folder: Path,
    rate: float,
    *,
    form: str = "json, 16 named fields",
    labels: float = 0.0,
    settings: Sequence[str] = (),
) -> Iterator[tuple[subprocess.Popen[bytes], Publisher, Path]]:
    """A broker, the daemon with its default configuration and `settings` over it, and a publisher.

    Yields the daemon's process, the publisher and the configuration's file.
    """
    with ExitStack() as stack:
        broker = stack.enter_context(embedded_broker("mosquitto"))
        values: dict[str, Any] = {
            "device": {"id": name},
            "mqtt": {"host": "127.0.0.1", "port": broker.port},
            "stream": {"topic": "flash/#", "classes": CLASSES, "label": "y", **FORMS[form]},
            "log": {"level": "error"},
        }
        if form.startswith("float32"):
            del values["stream"]["label"]
        config = folder / "edged.yaml"
        config.write_text(yaml.safe_dump(merged(values, settings)), encoding="utf-8")
        process = subprocess.Popen([sys.executable, "-m", "edged", "run", str(config)])
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        publisher = Publisher(broker.port, rate, payloads(form, labels))
        stack.callback(publisher.stop)
        yield process, publisher, config


def measure(form: str, args: Any) -> Row:
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        folder = Path(name)
        if not counts_here(folder):
            raise SystemExit(f"{folder} is not on a disk: name one with --dir")
        ours = written(os.getpid(), young=False)
        device = streaming("flash", folder, args.rate, form=form, labels=args.labels, settings=args.set)
        with device as (process, publisher, config):
            time.sleep(args.settle)
            return compare(form, process, publisher, config, args, ours)


def compare(
    form: str, process: subprocess.Popen[bytes], publisher: Publisher, config: Path, args: Any, ours: int
) -> Row:
    """What was sent and what was written in `--seconds`, the folding of the logs at the end included.

    A process that has ended leaves its count to its parent: `ours` is what that had before.
    """
    begin, sent, payload = written(process.pid), publisher.messages, publisher.payload_bytes
    started = time.monotonic()
    time.sleep(args.seconds)
    elapsed = time.monotonic() - started
    publisher.stop()
    messages, payload = publisher.messages - sent, publisher.payload_bytes - payload
    told = status(config)
    process.terminate()
    process.wait(30)
    bytes_written = written(os.getpid(), young=False) - ours - begin
    return {
        "form": form,
        "payload_bytes": round(payload / messages),
        "labels": args.labels,
        "samples_per_s": round(messages / elapsed, 1),
        "written_per_sample": round(bytes_written / messages),
        "ratio": round(bytes_written / payload, 2),
        "mb_per_day": round(bytes_written / elapsed * 86400 / 1e6),
        "runs": told["training"]["runs"],
        "settings": args.set,
    }


def status(config: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "edged", "status", str(config), "--json"], stdout=subprocess.PIPE, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def line(row: Row) -> str:
    return (
        f"{row['form']:<24} {row['payload_bytes']:>5} B of payload, {row['written_per_sample']:>6} written: "
        f"{row['ratio']:>6.2f}   {row['mb_per_day']:>7,} MB a day   {row['runs']} runs"
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--settle", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--form", action="append", choices=list(FORMS))
    parser.add_argument("--labels", type=float, default=0.0, help="share of messages with a label")
    parser.add_argument("--dir", help="where the state directory is made; else where temporary files go")
    parser.add_argument("--set", action="append", default=[], help="section.key=value of the configuration")
    args = parser.parse_args()
    finish("flash", [measure(form, args) for form in args.form or FORMS], args, line)


if __name__ == "__main__":
    main()
