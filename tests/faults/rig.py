"""A daemon under trial: numbered samples in, and what has become of each of them."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.errors import StorageError
from edged.storage.samples.log import SampleLog
from tests.running_device import Device, Listener, wait_until
from tests.storage.stream import stored_inputs

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

STREAM: dict[str, Any] = {"features": 3, "classes": 2, "label": "y", "id": "id", "context": [3, 12, 48]}


def payload(number: int) -> str:
    """The sample of this number."""
    rng = np.random.default_rng(number)
    a, b = rng.normal(size=2).round(6).tolist()
    return json.dumps({"id": f"s{number}", "x": [number, a, b], "y": int(a > 0)})


def restart(broker: Mosquitto, seconds: float) -> None:
    """End a broker while it may have messages for us, which it keeps on its disk, and start it again."""
    os.kill(broker.pid, signal.SIGTERM)
    state = Path(f"/proc/{broker.pid}/stat")
    # It takes its time.
    wait_until(lambda: state.read_text(encoding="ascii").rpartition(") ")[2].startswith("Z"), seconds)
    broker.stop()
    broker.start()


class Rig:
    """One daemon and a listener; `publish` sends the samples that follow."""

    def __init__(self, folder: Path, port: int, **sections: Any) -> None:
        sections = {
            "serving": {"qos": 1},
            "training": {"every": None, "new_labels": 0},
            "storage": {"dir": str(folder / "state"), "max_bytes": "2MiB"},
        } | sections
        folder.mkdir(exist_ok=True)
        self.device = Device(folder, port, STREAM, **sections)
        self.state = folder / "state"
        self.sent = 0

    def publish(self, listener: Listener, count: int) -> None:
        """Send the next samples at QoS 1."""
        for number in range(self.sent, self.sent + count):
            listener.publish("sensors/a", payload(number))
        self.sent += count

    def answered(self, listener: Listener, seconds: float = 90.0) -> None:
        """Wait for the predictions of all samples sent so far."""
        listener.wait(lambda: len(listener.messages["predictions"]) >= self.sent, seconds)

    def stored(self) -> list[int]:
        """Numbers of the samples that are durable, in the order of the log."""
        schema = self.schema()
        with closing(SampleLog.open(self.state / "samples.db", schema, readonly=True)):
            return [int(x) for x in stored_inputs(self.state / "samples.db", schema.width)[:, 0]]

    def schema(self) -> Any:
        """What the stream carries."""
        from edged.config import StreamConfig

        return StreamConfig(topic="sensors/#", **STREAM).to_schema()

    def count(self) -> int:
        """How many samples are durable; -1 while nobody can tell."""
        try:
            return len(self.stored())
        except StorageError:
            return -1

    def all_stored(self, seconds: float) -> None:
        """Wait until everything sent is durable: each sample once, in order."""
        wait_until(lambda: self.count() >= self.sent, seconds)
        assert self.stored() == list(range(self.sent))

    def check_predictions(self, listener: Listener) -> None:
        """Each sample was predicted once."""
        ids = [p["id"] for p in listener.messages["predictions"]]
        assert ids == [f"s{number}" for number in range(self.sent)]
