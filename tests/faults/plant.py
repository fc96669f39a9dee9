"""A daemon under load from a real broker that is killed again and again, and what became of every message."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edged.domain.stream.schema import Schema
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog
from tests.running_device import Device, Listener, wait_until

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTH = 6
CLASSES = ("0", "1")
STREAM: dict[str, Any] = {"features": WIDTH, "classes": 2, "label": "y", "id": "id"}
TRAINING: dict[str, Any] = {
    "every": None, "new_labels": 60, "steps": 400, "steps_per": 60,
    "checkpoint_every": 50, "engine": "portable", "max_failures": 0, "retry_after": "50ms",
}  # fmt: skip


def rows(first: int, n: int) -> NDArray[np.float32]:
    """Rows `(n, 6)` from number `first` on; the number itself stands in the last two columns."""
    number = np.arange(first, first + n)
    x: NDArray[np.float32] = np.sin(number[:, None] * np.array([0.7, 1.3, 2.1, 3.7, 0, 0])).astype(np.float32)
    x[:, 4], x[:, 5] = number // 4096, number % 4096
    return x


class Gateway:
    """Publishes numbered rows at QoS 1, at a steady rate, until it is told to stop."""

    def __init__(self, port: int, rate: float, first: int = 0) -> None:
        self.published = self._first = first
        self._rate = rate
        self._ending = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.max_queued_messages_set(0)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        began, group, last = time.monotonic(), 10, None
        while not self._ending.is_set():
            x = rows(self.published, group)
            for i, values in enumerate(x.tolist(), self.published):
                payload = json.dumps({"id": str(i), "x": values, "y": int(values[0] > 0)})
                last = self._client.publish(f"sensors/{i % 3}", payload, qos=1)
            self.published += group
            due = began + (self.published - self._first) / self._rate
            self._ending.wait(max(0.0, due - time.monotonic()))
        if last is not None:
            last.wait_for_publish(30)

    def stop(self) -> int:
        """Publish no more; how many rows went out, each acknowledged by the broker."""
        self._ending.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()
        return self.published


class Readiness(NamedTuple):
    """Of one restart, in seconds: until the daemon said online, and what its process had used by then.

    `waited` is how long its main thread was ready to run while other processes had the processors.
    """

    wall: float
    processor: float
    waited: float


@dataclass
class Tally:
    """What happened in a campaign of kills; `ready` has those restarts that were waited for."""

    daemon_kills: int = 0
    trainer_kills: int = 0
    ready: list[Readiness] = field(default_factory=list)
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    runs: int = 0
    promotions: int = 0

    @property
    def kills(self) -> int:
        """Of both processes."""
        return self.daemon_kills + self.trainer_kills

    def line(self) -> str:
        """For the log of the long form."""
        wall, processor, waited = np.array(self.ready).T
        return (
            f"{self.daemon_kills} kills of the daemon, {self.trainer_kills} of the trainer; "
            f"{self.rows} rows, {self.lost} lost, {self.doubled} stored twice; "
            f"{self.runs} runs, {self.promotions} promotions; of {len(self.ready)} restarts, in seconds "
            f"(median, 95 %, worst): online again after {spread(wall)}, with a processor to run on "
            f"{spread(wall - waited)}; processor time {spread(processor)}"
        )


def spread(values: NDArray[np.float64]) -> str:
    """Median, 95th percentile and maximum."""
    return ", ".join(f"{value:.2f}" for value in np.percentile(values, (50, 95, 100)))


def trainer_of(daemon: int) -> int | None:
    """Process id of the trainer that a daemon has at the moment."""
    try:
        children = Path(f"/proc/{daemon}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text(encoding="ascii").split()]
        return next((p for p in pids if b"edged.trainer" in Path(f"/proc/{p}/cmdline").read_bytes()), None)
    except (FileNotFoundError, ProcessLookupError):
        return None


def campaign(device: Device, listener: Listener, gateway: Gateway, kills: int, seed: int) -> Tally:
    """Kill -9 now the daemon, now its trainer, at random moments, then let everything arrive."""
    rng, tally = random.Random(seed), Tally()
    pause = threading.Event()  # never set: something to wait on
    number = 0
    while tally.kills < kills:
        assert device.process is not None
        number += 1
        found = None
        if number % 2 == 0:
            # After many kills in a row the next run would wait for its turn: a command does not.
            listener.send("edged/rig/request/train", {})
            found = trainer(device)
        pause.wait(rng.uniform(0.0, 2.0))
        if found is not None:
            tally.trainer_kills += kill(found)
            continue
        device.process.kill()
        device.process.wait()
        tally.daemon_kills += 1
        if not tally.ready or rng.random() < 0.5:
            tally.ready.append(_restart(device, listener))
        else:
            device.start()
    assert device.process is not None
    if device.process.poll() is not None:
        _restart(device, listener)
    done = len(trained(listener))
    listener.send("edged/rig/request/train", {})  # by itself one may wait after a kill
    listener.wait(lambda: len(trained(listener)) > done, 100.0)
    tally.rows = gateway.stop()
    _settle(device, tally)
    tally.runs = len(trained(listener))
    tally.promotions = len(listener.events("model_promoted"))
    return tally


def trained(listener: Listener) -> list[dict[str, Any]]:
    """Runs that ended well."""
    return [e for e in listener.events("training_finished") if e["outcome"] == "done"]


def trainer(device: Device, seconds: float = 20.0) -> int | None:
    """The trainer as soon as there is one."""
    assert device.process is not None
    found: list[int] = []

    def look() -> bool:
        pid = trainer_of(device.process.pid) if device.process is not None else None
        found.extend([pid] if pid is not None else [])
        return bool(found)

    try:
        wait_until(look, seconds)
    except AssertionError:
        return None
    return found[0]


def kill(pid: int) -> bool:
    """Whether it was still there to be killed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _restart(device: Device, listener: Listener) -> Readiness:
    """Start the daemon and wait until it says online."""
    births = listener.messages["status"]
    device.interpreter = True
    seen, started = len(births), time.monotonic()
    device.start()
    listener.wait(lambda: any(m["state"] == "online" for m in births[seen:]), 60.0)
    took = time.monotonic() - started
    assert device.process is not None
    return Readiness(took, *processor_seconds(device.process.pid))


def processor_seconds(pid: int) -> tuple[float, float]:
    """What a process has used, without its children, and how long its main thread waited for a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used, int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def _settle(device: Device, tally: Tally) -> None:
    """Wait until every row is there, or nothing comes any more; then count."""
    path, schema = device.state / "samples.db", Schema((), WIDTH, "classify", CLASSES)
    with SampleLog.open(path, schema, readonly=True) as log:
        wait_until(lambda: log.counters().samples >= tally.rows, 120.0)
    assert device.stop() == 0
    with SampleLog.open(path, schema, readonly=True) as log:
        stored = log.rows(np.arange(1, log.next_offset())).x
    numbers = (stored[:, 4].astype(np.int64) * 4096 + stored[:, 5].astype(np.int64)).tolist()
    tally.lost = tally.rows - len(set(numbers))
    tally.doubled = len(numbers) - len(set(numbers))


def whole(device: Device) -> None:
    """After all of it the registry is consistent, and the newest checkpoint can be read."""
    with Registry.open(device.state) as registry:
        champion = registry.champion()
        assert champion is not None
        registry.verify(champion)
        assert [r.version for r in registry.records() if r.status == "champion"] == [champion]
    checkpoints = Checkpoints(device.state / "checkpoints", 3)
    assert checkpoints.latest() is not None
    assert not checkpoints.damaged
