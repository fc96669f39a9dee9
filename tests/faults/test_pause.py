"""Training that fails again and again in a running daemon: it pauses, says so, and serving goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.plant import STREAM, TRAINING, kill, rows, trainer
from tests.running_device import Device, Listener, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


def feed(listener: Listener, first: int, n: int) -> None:
    for i, values in enumerate(rows(first, n).tolist(), first):
        listener.send("sensors/a", {"id": str(i), "x": values, "y": int(values[0] > 0)})
    listener.wait(lambda: len(listener.messages["predictions"]) >= n, 60)


def paused(listener: Listener) -> list[dict[str, Any]]:
    return [s["paused"] for s in listener.messages["state/training"] if s["paused"]]


def test_three_failures_pause_training_in_the_daemon_and_over_its_restart(
    broker: Broker, tmp_path: Path
) -> None:
    training = TRAINING | {"max_failures": 3, "steps": 100, "checkpoint_every": 1000}
    device = Device(tmp_path, broker.port, STREAM, training=training, model={"hidden": [8]})
    with running(device, broker.port) as listener:
        feed(listener, 0, 100)
        while not listener.events("training_paused"):
            found = trainer(device, 1.0)
            if found is not None:
                kill(found)
        event = listener.events("training_paused")[0]
        assert (event["failures"], event["reason"]) == (3, "the trainer was killed by SIGKILL")
        listener.wait(lambda: paused(listener), 10)
        assert paused(listener)[-1]["remedy"] == event["remedy"]
        feed(listener, 100, 100)
        status = device.cli("status", str(device.path))
        assert status["training"]["paused"]["reason"] == event["reason"]
    with running(device, broker.port) as listener:
        listener.wait(lambda: paused(listener), 10)
        feed(listener, 200, 100)
        assert not listener.events("training_started")
        assert listener.request("train")["status"] == "ok"
        listener.wait(lambda: listener.events("training_resumed"), 120)
        listener.wait(lambda: listener.messages["state/training"][-1]["paused"] is None, 10)
    assert device.cli("status", str(device.path))["training"]["paused"] is None
