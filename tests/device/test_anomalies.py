"""Anomalies on a running device: told over MQTT, kept out of the training data, accepted by command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.running_device import Device, Listener, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

WIDTH = 4
PATIENCE = 120.0  # seconds, for a machine that has much else to do


class Pumps:
    """Sends readings of two pumps in turn, and waits until they are answered."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._rng = np.random.default_rng(0)
        self._mixing = self._rng.normal(size=(1, WIDTH))
        self._sent = 0

    def send(self, n: int, shift: float = 0.0) -> None:
        """`n` readings, those of pump p1 shifted."""
        x = self._rng.normal(size=(n, 1)) @ self._mixing + self._rng.normal(0, 0.05, (n, WIDTH))
        for i, row in enumerate(x):
            moved = row + (shift * np.array([1, -1, 1, -1]) if i % 2 else 0)
            self._listener.send(
                f"sensors/p{i % 2}", {"x": moved.round(4).tolist(), "ts": float(self._sent + i)}
            )
        self._sent += n
        self._listener.wait(lambda: len(self._listener.messages["predictions"]) >= self._sent, PATIENCE)


def latest(listener: Listener) -> Any:
    return listener.messages["metrics"][-1]["anomaly"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_alarm_is_an_event_stays_until_it_is_accepted_and_survives_a_restart(
    broker: Broker, tmp_path: Path
) -> None:
    device = Device(
        tmp_path, broker.port, {"features": WIDTH, "task": "reconstruct", "ts": "ts"},
        gate={"min_holdout": 5, "holdout": 0.1}, training={"new_labels": 300, "steps": 200},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        pumps = Pumps(listener)
        pumps.send(500)
        listener.wait(lambda: listener.events("model_promoted"), PATIENCE)
        pumps.send(400)
        listener.wait(lambda: listener.messages["metrics"] and latest(listener)["threshold"], PATIENCE)
        pumps.send(60, shift=5.0)
        listener.wait(lambda: listener.events("anomaly"), PATIENCE)
        (start,) = listener.events("anomaly")
        assert (start["key"], start["state"]) == ("p1", "start")
        assert start["peak"] > 2
        assert 900 < start["since"] < 925
        listener.wait(lambda: latest(listener)["standing"] == ["p1"], PATIENCE)
        assert latest(listener)["flagged"] >= 28
    with running(device, broker.port) as listener:
        listener.wait(lambda: listener.messages["metrics"], PATIENCE)
        assert latest(listener)["standing"] == ["p1"]
        refused = listener.request("accept", key="p0")
        assert (refused["status"], refused["reason"]) == ("error", "refused")
        assert "key: 3 is no string" in listener.request("accept", key=3)["error"]
        assert listener.request("accept", key="p1")["data"] == {"accepted": 1}
        again = Pumps(listener)
        again.send(20, shift=5.0)
        listener.wait(lambda: listener.events("anomaly"), PATIENCE)
        (end,) = listener.events("anomaly")
        assert (end["key"], end["state"], end["accepted"]) == ("p1", "end", True)
        listener.wait(lambda: latest(listener)["standing"] == [], PATIENCE)
