"""What many streams in one daemon cost: memory, wake-ups while idle, ingest, and the time of a prediction.

A real mosquitto and the real daemon with 1, 10 and 100 streams of 8 features and an mlp. Memory is what is
resident of the daemon before and after every stream has predicted and trained once, and of daemon and trainer
together at its peak; the libraries that both have mapped count once. Wake-ups are the voluntary context
switches of all threads in a second without messages. Ingest is the rate at which messages are predicted and
committed that wait in the broker, spread over all streams; mosquitto_sub counts the predictions, which takes
less of a core than a client in Python. The time of a prediction is from publishing a message to
receiving its prediction, one at a time, in turn over all streams.

`python benchmarks/many.py [--streams N ...] [--messages M] [--train K] [--json] [--out FILE]`
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import yaml
from idle import cpu_seconds, wakes
from output import Row, finish, options
from paho.mqtt.enums import CallbackAPIVersion

from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.bundles.losses.named import CrossEntropy
from edged.bundles.request import BuildRequest
from edged.bundles.source.standardise import Statistics
from edged.workbench.demo.broker import embedded_broker

WIDTH = 8
EVERYTHING, PREDICTIONS = "edged/many/#", ("edged/many/predictions", "edged/many/+/predictions")
START_SECONDS = 300.0
SETTLE_SECONDS = 20.0
PREDICTIONS_TIMED = 2000  # of 400, four would make a p99


def configuration(folder: Path, port: int, streams: int) -> Path:
    """A configuration of so many streams; of one stream without a name where there are none."""
    if not (folder / "bundle").exists():
        standardise = Statistics.identity(WIDTH)
        request = BuildRequest(model=mlp(WIDTH, 2, (64,)), loss=CrossEntropy(), standardise=standardise)
        build(request, folder / "bundle")
    values: dict[str, Any] = {
        "device": {"id": "many"},
        "mqtt": {"host": "127.0.0.1", "port": port},
        "stream": {"features": WIDTH, "classes": ["low", "high"], "label": "y"},
        "model": {"bundle": "bundle"},
        "training": {"new_labels": 10**6, "every": None, "engine": "portable", "steps": 50},
        "report": {"every": "10s"},
    }
    if streams:
        values["streams"] = [{"name": f"s{n}", "stream": {"topic": f"in/{n}"}} for n in range(streams)]
    else:
        values["stream"]["topic"] = "in/0"
    path = folder / "edged.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def at_once(_client: object, _data: object, sock: Any) -> None:
    """Send without waiting: a message after an acknowledgement would wait 40 ms for that of the broker."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Hearer:
    """A client that counts predictions and answers."""

    def __init__(self, port: int) -> None:
        self.predictions = 0
        self.answers: list[Any] = []
        self.online = threading.Event()
        self._changed = threading.Condition()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.max_inflight_messages_set(1000)
        self._client.on_message = self._heard
        self._client.on_socket_open = at_once
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([(EVERYTHING, 1)])
        self._client.loop_start()

    def _heard(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            if message.topic.endswith("/predictions"):
                self.predictions += 1
            elif message.topic.endswith("/events"):
                self.answers.append(json.loads(message.payload))
            elif message.topic == "edged/many/status" and b"online" in message.payload:
                self.online.set()
            self._changed.notify_all()

    def wait(self, condition: Any, seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise SystemExit(f"not in {seconds:.0f} s: {self.predictions} predictions")

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Receive nothing meanwhile."""
        self._client.unsubscribe(EVERYTHING)
        yield
        self._client.subscribe([(EVERYTHING, 1)])

    def ended(self) -> int:
        """Training runs that have ended."""
        return sum(event["event"] == "training_finished" for event in self.answers)

    def send(self, topic: str, payload: str) -> None:
        self._client.publish(topic, payload, qos=1)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def daemon(config: Path, hearer: Hearer) -> Iterator[subprocess.Popen[bytes]]:
    with (config.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "edged", "run", str(config)], stdout=log, stderr=log
        )
    try:
        if not hearer.online.wait(START_SECONDS):
            raise SystemExit((config.parent / "log").read_text()[-2000:])
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        hearer.online.clear()


def resident(pid: int) -> float:
    """Memory of a process and its children, in MiB; a part of a file that several have mapped counts once."""
    own, files = 0, Counter[str]()
    for process in (pid, *children(pid)):
        with suppress(OSError):
            for place, kib, private in mappings(process):
                own += private
                files[place] = max(files[place], kib - private)
    return (own + files.total()) / 1024


def mappings(pid: int) -> Iterator[tuple[str, int, int]]:
    """File and offset of each mapping, the KiB that are resident, and those of them that no file has."""
    place, kib = "", 0
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            place = (
                f"{words[2]} {words[5]}"
                if len(words) > 5 and words[5].startswith("/")
                else f"{pid} {words[0]}"
            )
        elif words[0] == "Rss:":
            kib = int(words[1])
        elif words[0] == "Anonymous:":
            yield place, kib, int(words[1])


def children(pid: int) -> set[int]:
    """The processes that the threads of a process have started; not what is still a copy of itself."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(child) for child in task.read_text(encoding="ascii").split()}
    return {child for child in found if command_line(child) != command_line(pid)}


def command_line(pid: int) -> bytes:
    """How a process was started; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def message(rng: np.random.Generator) -> str:
    row = rng.normal(size=WIDTH).round(4)
    return json.dumps({"x": row.tolist(), "y": "high" if row[0] > 0 else "low"})


def measure(streams: int, messages: int, train: int) -> Row:
    rng, count = np.random.default_rng(0), max(1, streams)
    row: Row = {"streams": streams}
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        port = opened.enter_context(embedded_broker("mosquitto")).port
        config, hearer = configuration(Path(name), port, streams), Hearer(port)
        began = time.monotonic()
        with daemon(config, hearer) as process:
            row["start_s"] = round(time.monotonic() - began, 1)
            time.sleep(SETTLE_SECONDS)
            row["started_mb"] = round(resident(process.pid), 1)
            row["threads"] = len(wakes(process.pid))
            before, used = wakes(process.pid), cpu_seconds(process.pid)
            time.sleep(SETTLE_SECONDS)
            after = wakes(process.pid)
            woken = sum(after.values()) - sum(before.get(task, 0) for task in after)
            row["wakeups_per_s"] = round(woken / SETTLE_SECONDS, 1)
            row["idle_cpu_percent"] = round(100 * (cpu_seconds(process.pid) - used) / SETTLE_SECONDS, 2)
            times = []
            for turn in range(max(PREDICTIONS_TIMED, 2 * count)):
                sent, known = time.monotonic(), hearer.predictions
                hearer.send(f"in/{turn % count}", message(rng))
                hearer.wait(lambda known=known: hearer.predictions > known, 60)
                times.append(time.monotonic() - sent)
            row["p50_ms"], row["p99_ms"] = (round(1000 * v, 2) for v in np.percentile(times, (50, 99)))
            flood = [(f"in/{turn % count}", message(rng)) for turn in range(messages)]
            row["messages_per_s"] = round(messages / flooded(port, hearer, flood), 1)
            row["fed_mb"] = round(resident(process.pid), 1)
            if train:
                row |= trained(process.pid, hearer, min(train, count), streams)
    hearer.close()
    return row


def flooded(port: int, hearer: Hearer, messages: list[tuple[str, str]]) -> float:
    """Seconds until all these messages are predicted, which are sent as fast as can be."""
    with hearer.deaf():
        topics = [part for topic in PREDICTIONS for part in ("-t", topic)]
        count = [
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            "-F",
            "%l",
            "-p",
            str(port),
            *topics,
            "-C",
            str(len(messages)),
            "-d",
        ]
        lines = iter(subprocess.Popen(count, stdout=subprocess.PIPE, text=True).stdout or ())
        next(line for line in lines if "SUBACK" in line)
        began = time.monotonic()
        for topic, payload in messages:
            hearer.send(topic, payload)
        for _ in lines:
            pass
        return time.monotonic() - began


def trained(pid: int, hearer: Hearer, count: int, streams: int) -> Row:
    """Have so many streams train, and watch the memory of daemon and trainer."""
    for n in range(count):
        hearer.send(f"edged/many/{f's{n}/' if streams else ''}request/train", "{}")
    peak, until = 0.0, time.monotonic() + 60.0 * count
    while hearer.ended() < count and time.monotonic() < until:
        peak = max(peak, resident(pid))
        time.sleep(0.05)
    return {"trained": hearer.ended(), "peak_mb": round(peak, 1)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--streams", type=int, action="append", help="0 is one without a name; 0, 1, 10, 100")
    parser.add_argument("--messages", type=int, default=20_000, help="of the flood")
    parser.add_argument("--train", type=int, default=3, help="streams that train once")
    args = parser.parse_args()
    rows = [measure(n, args.messages, args.train) for n in args.streams or (0, 1, 10, 100)]
    finish("many", rows, args)


if __name__ == "__main__":
    main()
