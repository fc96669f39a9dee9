"""A daemon that may not train now, and what it still knows after a restart."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.storage.models.registry import Registry
from tests.running_device import Device, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

STREAM = {"features": ["x.0", "x.1", "x.2"], "label": "y", "classes": 2}


def around_now(hours: float = 1.0) -> str:
    """A span of local time with this moment in its middle."""
    ends = (time.localtime(time.time() + side * hours * 3600) for side in (-1, 1))
    return "-".join(f"{end.tm_hour:02d}:{end.tm_min:02d}" for end in ends)


def gathered(state: Path) -> int:
    """Rows that the watch over the inputs had seen when the daemon ended."""
    with Registry.open(state, readonly=True) as registry:
        kept = registry.get_value("drift")["inputs"]
    return len(np.frombuffer(base64.b64decode(kept["reference"]), "<f4")) // 3


@pytest.mark.slow
def test_quiet_hours_are_told_and_detectors_go_on_after_a_restart(broker: Broker, tmp_path: Path) -> None:
    training = {"quiet": around_now(), "new_labels": 20}
    device = Device(tmp_path, broker.port, STREAM, training=training)
    rng = np.random.default_rng(0)
    for start in (0, 100):
        with running(device, broker.port) as listener:
            for row in range(100):
                listener.send(
                    "sensors/a", {"id": f"{start + row}", "x": rng.normal(size=3).tolist(), "y": row % 2}
                )
            listener.wait(lambda got=listener: len(got.messages["predictions"]) == 100)  # type: ignore[misc]
            listener.wait(
                lambda got=listener: any(  # type: ignore[misc]
                    reason.startswith("quiet hours")
                    for state in got.messages["state/training"]
                    for reason in state["waiting_for"]
                )
            )
        assert gathered(device.state) == start + 100
        assert listener.events("training_started") == []
