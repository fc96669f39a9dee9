"""A newcomer's slips: what the daemon and `edged status` say of them, and what is not lost by them."""

from __future__ import annotations

import html
import signal
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.workbench.demo.broker import free_port
from tests.commands import edged
from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

STREAM: dict[str, Any] = {
    "features": 2, "classes": ["ok", "worn"], "label": {"topic": "labels/#", "path": "y", "join": "id"},
}  # fmt: skip
UNKNOWN = "label 'zzz' is none of the 2 classes ok, worn"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_unknown_labels_cost_no_sample_and_are_no_health(broker: Broker, tmp_path: Path) -> None:
    web = f"127.0.0.1:{free_port()}"
    device = Device(tmp_path, broker.port, STREAM, report={"every": "200ms"}, web={"listen": web})
    with running(device, broker.port) as listener:
        for number in range(20):
            listener.send("sensors/a", {"x": [number, 1], "y": "zzz"})
        listener.wait(lambda: len(listener.messages["predictions"]) == 20)
        problem = f"most labels are refused, the newest: sensors/a: {UNKNOWN}"
        listener.wait(lambda: listener.messages["state/buffer"][-1]["problem"] == problem)
        listener.wait(lambda: listener.events("sample_quarantined"))
        event = listener.events("sample_quarantined")[0]
        assert (event["reason"], event["detail"]) == ("label", UNKNOWN)

        wait_until(lambda: device.cli("status", str(device.path))["state"] == "degraded")
        told = device.cli("status", str(device.path))
        assert told["health"] == {"state": "degraded", "reasons": [problem]}
        assert (told["samples"], told["labels"], told["quarantined"]) == (20, 0, 20)
        assert problem in edged("status", device.path, "--json").json["problem"]
        healthy = edged("status", device.path, "--healthy")
        assert (healthy.code, healthy.out) == (1, f"degraded: {problem}\n")
        asked = listener.request("status")["data"]
        assert (asked["state"], asked["health"]) == ("degraded", told["health"])

        with urllib.request.urlopen(f"http://{web}/") as page:
            assert html.escape(problem) in page.read().decode()

        shown = [message["id"] for message in listener.messages["predictions"]]
        for name in shown:
            listener.publish("labels/l", f'{{"id": "{name}", "y": "worn"}}')
        listener.send("sensors/a", {"x": [1, 1], "y": "ok"})
        listener.wait(lambda: listener.messages["state/buffer"][-1]["problem"] is None)
        wait_until(lambda: edged("status", device.path, "--healthy").code == 0)
        told = device.cli("status", str(device.path))
        assert (told["labels"], told["health"]) == (21, {"state": "ok", "reasons": []})


@pytest.mark.slow
def test_a_killed_daemon_has_crashed_until_the_next_one_stops(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM, report={"every": "200ms"})
    with running(device, broker.port) as listener:
        listener.wait(lambda: listener.messages["metrics"])
        device.stop(signal.SIGKILL)
        told = device.cli("status", str(device.path))
        assert (told["state"], told["health"]["state"]) == ("crashed", "crashed")
        (reason,) = told["health"]["reasons"]
        assert reason.startswith("the daemon ended without a stop; its last status is of 20")
        assert reason in " ".join(edged("status", device.path).out.split())
        assert edged("status", device.path, "--healthy").out.startswith("crashed: ")
        device.start()
        listener.wait(lambda: [e["boot_reason"] for e in listener.events("started")][1:] == ["crash"])
    assert device.cli("status", str(device.path))["state"] == "stopped"


@pytest.mark.slow
def test_a_start_that_failed_is_no_crash(broker: Broker, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "cbor2.py").write_text("raise ModuleNotFoundError('cbor2')\n", encoding="utf-8")
    device = Device(tmp_path, broker.port, {**STREAM, "codec": "cbor"})
    device.start(PYTHONPATH=f"{blocked}:{Path(__file__).parents[2]}")
    assert device.process is not None
    assert device.process.wait(60) == 4, device.log.read_text()
    device = Device(tmp_path, broker.port, STREAM)
    assert device.cli("status", str(device.path))["state"] == "stopped"
    with running(device, broker.port) as listener:
        listener.wait(lambda: listener.events("started"))
        (started,) = listener.events("started")
        assert started["boot_reason"] == "start_failed"
