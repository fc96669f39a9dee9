"""The profile for small boards, run as it stands: what daemon and trainer need together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml

from tests.running_device import Device, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

PROFILE = Path(__file__).parents[2] / "configs" / "low-memory.yaml"
LIMIT = 256 * 2**20


def proportional(pid: int) -> int:
    """The Pss in bytes of a process and its children; 0 for one that is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        # A child is listed with the thread that started it.
        lists = [path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return 0
    own = next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return own + sum(proportional(int(child)) for several in lists for child in several.split())


@pytest.mark.slow
def test_daemon_and_trainer_of_the_profile_fit_a_small_board(broker: Broker, tmp_path: Path) -> None:
    values = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))
    sections = {
        key: part for key, part in values.items() if key not in ("device", "mqtt", "stream", "storage")
    }
    stream = values["stream"] | {"topic": "sensors/#"}
    device = Device(tmp_path, broker.port, stream, **sections, storage={"max_bytes": "128MiB"})
    device.interpreter = True
    peaks, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            if device.process is not None:
                peaks.append(proportional(device.process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with running(device, broker.port) as listener:
            rng = np.random.default_rng(0)
            for temp, x, y in rng.normal(size=(800, 3)):
                state = "worn" if temp > 0 else "ok"
                listener.send("sensors/a", {"temp": temp, "vib": {"x": x, "y": y}, "state": state})
            listener.wait(lambda: listener.events("model_promoted"), 60)
            assert listener.events("training_finished")[0]["outcome"] == "done"
    finally:
        done.set()
        watcher.join()
    assert 2 * 50e6 < max(peaks) < LIMIT, "both processes were seen"
