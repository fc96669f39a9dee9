"""A device with several streams, on a bundle that all of them share."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from tests.building import build
from tests.running_device import START_SECONDS, Device, Listener

WIDTH = 2


class Plant(Device):
    """The streams `a`, `b` and `c` (or those named) of the device `rig`; `sensors/<stream>` feeds each."""

    def __init__(self, folder: Path, port: int, names: str = "abc", **sections: Any) -> None:
        super().__init__(folder, port, {})
        if not (folder / "bundle").exists():
            model = mlp(WIDTH, 2, (8,))
            build(model, folder / "bundle", loss="cross_entropy", standardise=Statistics.identity(WIDTH))
        del self.values["stream"]
        self.values |= {
            "stream": {"features": WIDTH, "classes": ["low", "high"], "label": "y", "id": "id"},
            "model": {"bundle": "bundle"},
            "training": {"new_labels": 10**6, "every": None, "engine": "portable"},
            "storage": {"commit_delay": "20ms"},
        } | sections
        self.values["streams"] = [{"name": name, "stream": {"topic": f"sensors/{name}"}} for name in names]
        self.write()

    def write(self) -> None:
        """Write the file of configuration."""
        self.path.write_text(yaml.safe_dump(self.values), encoding="utf-8")

    def reload(self) -> None:
        """Write the file of configuration, and have the running daemon read it."""
        self.write()
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def stream(self, name: str) -> dict[str, Any]:
        """The entry of one stream, to be changed."""
        found: dict[str, Any] = next(one for one in self.values["streams"] if one["name"] == name)
        return found

    def state_of(self, name: str) -> Path:
        """The state directory of one stream."""
        return self.state / "streams" / name


@contextmanager
def plant_running(plant: Plant, port: int) -> Iterator[Listener]:
    """The daemon up and connected, all streams told of; stopped in any case."""
    listener = Listener(port, "edged/rig")
    plant.start()
    try:
        listener.wait(lambda: listener.messages["state/streams"], START_SECONDS)
        yield listener
    finally:
        if plant.process is not None and plant.process.poll() is None:
            plant.stop()
        listener.close()


def ask(listener: Listener, command: str, stream: str = "", /, **fields: Any) -> dict[str, Any]:
    """Send a command to one stream, or to the device, and wait for its answer."""
    place = f"{stream}/" if stream else ""
    before = len(listener.messages[f"{place}response/{command}"])
    listener.publish(f"edged/rig/{place}request/{command}", json.dumps(fields))
    listener.wait(lambda: len(listener.messages[f"{place}response/{command}"]) > before)
    return listener.messages[f"{place}response/{command}"][-1]


def feed(listener: Listener, name: str, count: int, *, seed: int = 0, first: int = 0) -> None:
    """Send labelled samples to one stream, with the ids `<name>-<n>`."""
    x = np.random.default_rng(seed).normal(size=(count, WIDTH))
    for n, row in enumerate(x, first):
        values = {"id": f"{name}-{n}", "x": row.tolist(), "y": "high" if row[0] > 0 else "low"}
        listener.send(f"sensors/{name}", values)


def ids(listener: Listener, name: str) -> list[str]:
    """The ids of the samples that one stream has predicted."""
    return [told["id"] for told in listener.messages[f"{name}/predictions"]]
