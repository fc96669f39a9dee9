"""A person answers label requests over MQTT: request, command, training, another model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.running_device import Device, running

if TYPE_CHECKING:
    from edged.workbench.demo.broker import Mosquitto as Broker


@pytest.mark.slow
def test_answered_label_requests_lead_to_a_training_run(broker: Broker, tmp_path: Path) -> None:
    device = Device(
        tmp_path, broker.port, {"features": 2, "classes": ["low", "high"]},
        labels={"request_share": 0.5}, training={"min_new_samples": 20},
        gate={"min_holdout": 1, "holdout": 0.2},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    with running(device, broker.port) as listener:
        for x in rng.normal(size=(200, 2)).round(4).tolist():
            listener.send("sensors/a", {"x": x})
        listener.wait(lambda: len(listener.messages["predictions"]) >= 200)
        listener.wait(lambda: len(listener.events("label_requested")) >= 40)
        asked = listener.events("label_requested")[:40]
        assert {"id", "key", "values", "answer", "confidence", "model"} <= set(asked[0])
        entries = [{"id": r["id"], "label": "high" if r["values"][0] > 0 else "low"} for r in asked]
        one = listener.request("label", **entries[0])
        assert one["status"] == "ok", one
        assert one["data"] == {"labelled": 1, "unknown": 0}
        many = listener.request("label", labels=[*entries[1:], {"id": "1-999999", "label": "low"}])
        assert many["data"] == {"labelled": len(entries) - 1, "unknown": 1}
        listener.wait(lambda: listener.events("training_finished"), 60)
        run = listener.events("training_finished")[0]
        assert run["outcome"] == "done"
        assert device.cli("status", str(device.path))["labels"] == len(entries)
        refused = listener.request("label", id="nobody", label="low")
        assert refused["status"] == "error"
        assert refused["reason"] == "refused"
        for odd in ({"key": "a", "ts": int("1" * 400)}, {"id": "\ud800"}, {"id": "1-1", "more": ["\udfff"]}):
            answer = listener.request("label", label="low", **odd)
            assert (answer["status"], "JSON" in answer["error"]) == ("error", True), answer
        assert "Traceback" not in device.log.read_text()
        wrong = listener.request("label", id=entries[0]["id"], label="purple")
        assert "purple" in wrong["error"]
