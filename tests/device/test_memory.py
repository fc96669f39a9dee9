"""What a daemon holds in memory that has run: nothing that it never uses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.running_device import Device, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

AT_EXIT = """
import atexit, os, sys
from pathlib import Path
names = Path({folder!r}) / str(os.getpid())
atexit.register(lambda: names.write_text(" ".join(m for m in sys.modules if sys.modules[m] is not None)))
"""
SAMPLES = 1700  # until drift of the inputs is looked for
NEVER = {"numpy.ma", "_ssl", "asyncio.events", "email", "rich"}


@pytest.mark.slow
def test_a_daemon_that_has_learned_holds_no_library_that_it_never_uses(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """Libraries import them in passing: `np.quantile` imports `numpy.ma`, paho `ssl`."""
    told = tmp_path / "modules"
    told.mkdir()
    (told / "sitecustomize.py").write_text(AT_EXIT.format(folder=str(told)))
    device = Device(
        tmp_path,
        broker.port,
        {"features": 2, "classes": 2, "label": "y"},
        training={"every": None, "new_labels": 0, "resident": 0},
        gate={"min_gain": -1, "max_regret": 1},
    )
    paths = os.pathsep.join([str(told), os.environ.get("PYTHONPATH", "")])
    with running(device, broker.port, PYTHONPATH=paths) as listener:
        for number in range(SAMPLES):
            listener.send("sensors/a", {"x": [number % 7, number % 5], "y": number % 2})
        listener.wait(lambda: len(listener.messages["predictions"]) >= SAMPLES)
        listener.request("train", steps=20)
        listener.wait(lambda: listener.events("model_promoted"))
        listener.wait(lambda: any(m["latency"]["p99_ms"] for m in listener.messages["metrics"]))
    assert device.process is not None
    held = set((told / str(device.process.pid)).read_text().split())
    assert "edged.device.serving" in held, "the check looks at the right process"
    assert not held & NEVER
