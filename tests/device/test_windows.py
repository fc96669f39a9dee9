"""Windows, end to end: a real broker, readings one by one, the real daemon, and its end by kill -9."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.config.loader import load
from edged.storage.samples.log import SampleLog
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

SIZE, STRIDE, KEYS = 16, 8, ("a", "b")
STREAM: dict[str, Any] = {
    "features": 3, "classes": 2, "label": "y", "id": "id", "ts": "ts",
    "window": {"size": SIZE, "stride": STRIDE, "rate": 50},
}  # fmt: skip
T0 = 1_767_225_600.0
N = 340
X = np.random.default_rng(0).normal(size=(len(KEYS), N, 3)).astype(np.float32)


def feed(listener: Listener, first: int, stop: int) -> None:
    """Readings `first` to `stop` of every key, every tenth labelled, until the broker has them."""
    for i in range(first, stop):
        for k, key in enumerate(KEYS):
            message: dict[str, Any] = {"x": X[k, i].tolist(), "ts": T0 + i / 50, "id": f"{key}{i}"}
            message |= {"y": i % 2} if i % 10 == 0 else {}
            if (i, key) == (stop - 1, KEYS[-1]):
                listener.publish(f"sensors/{key}", json.dumps(message))
            else:
                listener.send(f"sensors/{key}", message)


def ends(upto: int = N) -> list[str]:
    """Ids of the readings that complete a window."""
    return [f"{key}{end}" for key in KEYS for end in range(SIZE - 1, upto, STRIDE)]


def stored(device: Device) -> dict[str, list[bytes]]:
    """The windows of every key in the sample log, in order."""
    schema = load(device.path).stream.to_schema()
    found = defaultdict(list)
    with closing(SampleLog.open(device.state / "samples.db", schema, readonly=True)) as log:
        for key, x in log._db.execute("SELECT key, x FROM samples ORDER BY offset"):  # noqa: SLF001
            found[key].append(x)
    return found


@pytest.mark.slow
def test_every_window_is_stored_once_over_a_kill_and_predicted(broker: Mosquitto, tmp_path: Path) -> None:
    device = Device(
        tmp_path, broker.port, STREAM, serving={"qos": 1}, training={"every": None, "new_labels": 0}
    )
    before, killed = 100, 220
    with running(device, broker.port) as listener:
        feed(listener, 0, before)
        listener.wait(lambda: len(listener.messages["predictions"]) >= len(ends(before)), 60)
        assert sorted(p["id"] for p in listener.messages["predictions"]) == sorted(ends(before))
        wait_until(lambda: sum(map(len, stored(device).values())) == len(ends(before)))  # and acknowledged
        feed(listener, before, killed)
        listener.wait(lambda: len(listener.messages["predictions"]) > len(ends(before)), 60)
        device.stop(signal.SIGKILL)
        feed(listener, killed, killed + 20)
    with running(device, broker.port) as later:
        feed(later, killed + 20, N)
        later.wait(lambda: {f"{key}{N - 5}" for key in KEYS} <= {p["id"] for p in predictions(later)}, 60)
        later.wait(lambda: any(m["ingest"]["windows"]["cut"] for m in later.messages["metrics"]), 20)
        wait_until(lambda: sum(map(len, stored(device).values())) == len(ends()))
        metrics = later.messages["metrics"][-1]["ingest"]["windows"]
    assert metrics.keys() == {"cut", "gaps", "out_of_order", "forgotten"}
    assert (metrics["gaps"], metrics["out_of_order"]) == (0, 0)
    for k, key in enumerate(KEYS):
        wanted = [X[k, s : s + SIZE].tobytes() for s in range(0, N - SIZE + 1, STRIDE)]
        assert stored(device)[key] == wanted, "each window once, in order, as if nothing had happened"
    times = Counter(p["id"] for p in predictions(listener) + predictions(later))
    assert set(times) <= set(ends())
    on_the_way = set(ends(killed + 20)) - set(ends(before))
    assert set(ends()) - set(times) <= on_the_way, "only what was on its way at the kill is unanswered"
    again = {name for name, count in times.items() if count > 1}
    assert not again & set(ends(before)), "what was acknowledged is not predicted again"
    assert later.messages["state/buffer"][-1]["windows"].keys() == metrics.keys()


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_no_window_is_lost_or_doubled_over_many_kills(broker: Mosquitto, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM, training={"every": None, "new_labels": 0})
    listener, rng, step = Listener(broker.port, "edged/rig"), np.random.default_rng(1), N // 20
    with closing(listener):
        for kill in range(20):
            device.start()
            listener.wait(lambda: births(listener) > kill, 120)  # noqa: B023  called at once
            feed(listener, kill * step, (kill + 1) * step)
            threading.Event().wait(rng.uniform(0, 0.1))  # somewhere in the middle of the work
            device.stop(signal.SIGKILL)
        device.start()
        wait_until(lambda: sum(map(len, stored(device).values())) >= len(ends(20 * step)), 60)
        device.stop()
    for k, key in enumerate(KEYS):
        wanted = [X[k, s : s + SIZE].tobytes() for s in range(0, 20 * step - SIZE + 1, STRIDE)]
        assert stored(device)[key] == wanted


def births(listener: Listener) -> int:
    """How often the daemon has come online."""
    return len({s["boot"] for s in listener.messages["status"] if s["state"] == "online"})


def predictions(listener: Listener) -> list[dict[str, Any]]:
    return listener.messages["predictions"]
