"""A daemon among bad sensors, wrong clocks and quarrelling labels: all of it is told, none of it stops it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from tests.building import build
from tests.commands import edged
from tests.running_device import Device, Listener, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

STREAM: dict[str, Any] = {
    "features": 2, "classes": ["ok", "worn"], "id": "id", "ts": "ts",
    "label": {"topic": "labels/#", "path": "y", "join": "id"},
    "key_rate": 1, "key_burst": 100, "stuck_after": 20, "max_relabels": 1,
}  # fmt: skip


PATIENCE = 90.0


def ingest(listener: Listener) -> dict[str, Any]:
    """The newest counters of what came in."""
    metrics = listener.messages["metrics"]
    return dict(metrics[-1]["ingest"]) if metrics else {}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_bad_data_is_told_and_nothing_is_erased_while_it_runs(broker: Broker, tmp_path: Path) -> None:
    bundle = build(
        mlp(2, 2, (8,)), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(2)
    )
    device = Device(
        tmp_path, broker.port, STREAM, model={"bundle": str(bundle.path)},
        storage={"secure": True, "max_age": "1d"},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        for number in range(70):
            listener.send("sensors/still", {"x": [min(number, 40), number], "id": f"s{number}"})
        listener.wait(lambda: listener.events("sensor_stuck"), PATIENCE)
        listener.send("sensors/still", {"x": [41, 70]})
        listener.wait(lambda: listener.events("sensor_moves"), PATIENCE)
        (stuck,) = listener.events("sensor_stuck")
        assert (stuck["key"], stuck["features"]) == ("still", [0])

        for number in range(300):
            listener.send("sensors/loud", {"x": [number, 1]})
        listener.wait(lambda: listener.events("sensor_flooding"), PATIENCE)
        assert listener.events("sensor_flooding")[0]["key"] == "loud"
        listener.wait(lambda: ingest(listener).get("flooded", 0) >= 150, PATIENCE)

        listener.send("sensors/clock", {"x": [1, 1], "ts": "2100-01-01T00:00:00Z"})
        for label in ("ok", "worn", "ok", "worn"):
            listener.publish("labels/l", f'{{"id": "s7", "y": "{label}"}}')
        listener.wait(
            lambda: (ingest(listener)["skewed"], ingest(listener)["contradicted"]) == (1, 2), PATIENCE
        )

        refused = edged("wipe", device.path, "--all", "--yes")
        assert refused.code == 3
        assert "another edged is using this state directory" in refused.problem
        assert listener.request("status")["data"]["samples"] == ingest(listener)["samples"]
    wiped = edged("wipe", device.path, "--all", "--yes", "--json")
    assert wiped.json["kept"] == [
        "audit-1.jsonl",
        "audit.head",
        "boot.json",
        "edged.lock",
        "trust.copy.json",
        "trust.json",
    ]
    assert device.cli("status", str(device.path))["samples"] == 0
