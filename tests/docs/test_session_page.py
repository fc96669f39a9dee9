"""The session of docs/session.md: its lines are run as they are, on a running device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.storage.models.registry import Registry
from tests.building import build
from tests.commands import edged
from tests.device.linear import GOOD, write
from tests.running_device import Device, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

PAGE = Path(__file__).parents[2] / "docs" / "session.md"
STREAM = {"topic": "sensors/rig/#", "id": "id", "features": 3, "classes": 2, "label": "y"}
QUIET = {"every": None, "new_labels": 0, "engine": "portable"}


def lines() -> str:
    """All shell blocks of the page, one after the other."""
    return "\n".join(
        re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    )


@pytest.mark.slow
def test_the_session_in_the_documentation_runs_as_it_stands(broker: Mosquitto, tmp_path: Path) -> None:
    assert edged("keys", "new", "-o", tmp_path / "maker").code == 0
    first = build(mlp(3, 2, (8,), seed=3), tmp_path / "bundle", loss="cross_entropy")
    build(write(tmp_path / "good.onnx", GOOD), tmp_path / "new-bundle", loss="cross_entropy")
    assert edged("artifacts", "sign", first.path, "--key", tmp_path / "maker").code == 0
    device = Device(
        tmp_path, broker.port, STREAM, training=QUIET, install={},
        model={"bundle": str(first.path), "keys": [str(tmp_path / "maker.pub")]},
    )  # fmt: skip
    script = tmp_path / "session.sh"
    script.write_text(f"set -euo pipefail\ncd {tmp_path}\n{lines()}", encoding="utf-8")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with running(device, broker.port) as listener:
        for i, row in enumerate(np.random.default_rng(0).normal(size=(900, 3))):
            listener.send("sensors/rig/a", {"id": str(i), "x": row.tolist(), "y": int(row[0] > 0)})
        listener.wait(lambda: len(listener.messages["predictions"]) >= 900, 60)
        done = subprocess.run(
            ["bash", script], capture_output=True, text=True, check=False, timeout=110,
            env=os.environ | {"BROKER": f"-h 127.0.0.1 -p {broker.port}", "DEVICE": "edged/rig"} | path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        listener.wait(lambda: listener.events("bundle_installed"))
        rolled_back = listener.events("model_rolled_back")[0]
        told = [listener.events(name)[0] for name in ("weights_applied", "bundle_installed")]
    assert (rolled_back["from"], rolled_back["to"]) == (2, 1)
    assert [event["state"] for event in told] == ["promoted", "promoted"], told
    assert [
        answer["data"]["labelled"] for answer in listener.messages["response/label"] if "data" in answer
    ] == [1]
    registry = Registry.open(device.state)
    sources = {record.version: record.source for record in registry.records()}
    serving = registry.champion()
    registry.close()
    assert sources[2] == "training"
    assert sources[told[0]["version"]] == "weights"
    assert sources[told[1]["version"]] == "bundle_install"
    assert serving == told[1]["version"]
