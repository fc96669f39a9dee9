"""Labels that a source falsifies on a running device: told, set aside over a restart, and released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.running_device import Device, Listener, running

if TYPE_CHECKING:
    from edged.workbench.demo.broker import Mosquitto as Broker

PATIENCE = 120.0  # seconds, for a machine that has much else to do
CLASSES = ("ok", "worn", "broken")
STREAM: dict[str, Any] = {
    "features": 4, "classes": list(CLASSES), "id": "id", "label_topic": "labels/#", "context": [],
}  # fmt: skip


class Machine:
    """Sends samples of three classes; two people label them, of whom one may lie about one class."""

    def __init__(self, listener: Listener, first: int = 0) -> None:
        self._listener, self.sent = listener, first
        self._rng = np.random.default_rng(first)
        self._centres = 3.0 * np.random.default_rng(9).normal(size=(3, 4))

    def send(self, n: int, *, lies: bool = False) -> None:
        """`n` samples, each predicted before its label comes."""
        answered = self._listener.messages["predictions"]
        truth = self._rng.integers(0, 3, n)
        names = [f"s{self.sent + i}" for i in range(n)]
        before = len(answered)
        for name, label in zip(names, truth, strict=True):
            x = (self._centres[label] + self._rng.normal(0, 0.5, 4)).round(4).tolist()
            self._listener.send("sensors/m", {"x": x, "id": name})
        self._listener.wait(lambda: len(answered) >= before + n, PATIENCE)
        for i, (name, label) in enumerate(zip(names, truth, strict=True)):
            who = "bob" if i % 2 else "ann"
            said = 0 if lies and who == "bob" and label == 1 else label
            self._listener.send(f"labels/{who}", {"id": name, "label": CLASSES[said]})
        self.sent += n


def well(listener: Listener) -> bool:
    """Whether the newest metrics have no problem."""
    return bool(listener.messages["metrics"]) and listener.messages["metrics"][-1]["problem"] is None


def sure(listener: Listener) -> bool:
    """Whether the newest answers are sure."""
    newest = [said["confidence"] for said in listener.messages["predictions"][-60:]]
    return len(newest) == 60 and float(np.median(newest)) > 0.8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_source_that_lies_is_told_set_aside_over_a_restart_and_released(
    broker: Broker, tmp_path: Path
) -> None:
    device = Device(
        tmp_path, broker.port, STREAM, training={"new_labels": 30},
        gate={"min_holdout": 5, "holdout": 0.1, "probation": 0},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        machine = Machine(listener)
        for run in range(1, 11):
            machine.send(60)
            listener.wait(lambda: len(listener.events("training_finished")) >= run, PATIENCE)  # noqa: B023
            if sure(listener):
                break
        assert sure(listener), listener.summary()
        assert listener.events("labels_disputed") == []
        for _ in range(10):
            machine.send(60, lies=True)
            if listener.events("labels_disputed"):
                break
        listener.wait(lambda: listener.events("labels_disputed"), PATIENCE)
        (told,) = listener.events("labels_disputed")
        assert (told["source"], told["predicted"], told["said"]) == ("labels/bob", "worn", "ok")
        assert told["labels"] == "all"
        listener.wait(lambda: not well(listener), PATIENCE)
        (reason,) = listener.request("status")["data"]["health"]["reasons"]
        assert "all labels of labels/bob are set aside (ok where the model says worn)" in reason
    with running(device, broker.port) as listener:
        listener.wait(lambda: listener.messages["metrics"] and not well(listener), PATIENCE)
        refused = listener.request("accept", labels="labels/ann")
        assert (refused["status"], refused["reason"]) == ("error", "refused")
        assert "this source is not in dispute (in dispute: labels/bob)" in refused["error"]
        assert "labels: 3 is no string" in listener.request("accept", labels=3)["error"]
        assert listener.request("accept", labels="labels/bob")["data"]["accepted"] >= 20
        listener.wait(lambda: well(listener), PATIENCE)
        again = json.dumps(listener.request("accept", labels="labels/bob"))
        assert "this source is not in dispute (in dispute: none)" in again
