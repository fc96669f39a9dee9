"""Home Assistant itself reads what a device announces: `make test-homeassistant`.

`EDGED_HOMEASSISTANT` names the interpreter (CPython 3.13) of an environment with the package `homeassistant`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

HOME = Path(__file__).with_name("home.py")


class Home:
    """A Home Assistant in a child process."""

    def __init__(self, port: int, folder: Path) -> None:
        python = os.environ.get("EDGED_HOMEASSISTANT")
        if python is None:
            pytest.fail("EDGED_HOMEASSISTANT names no interpreter: run `make test-homeassistant`")
        folder.mkdir()
        self.log = folder / "log"
        # Neither our packages nor our path are its business.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, str(HOME), str(port), str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=environment, cwd=folder,
            )  # fmt: skip

    def ask(self, **order: Any) -> dict[str, Any]:
        """One order and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.log.read_text()[-2000:]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def state(self, name: str) -> str | None:
        """Of one entity; None without it."""
        entity = self.ask(do="states")["entities"].get(f"edged_rig_{name}")
        return None if entity is None else entity["state"]

    def stop(self) -> None:
        """In good order, or not."""
        if self._process.poll() is None:
            self.ask(do="stop")
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(20)


@pytest.fixture
def home(make_broker: MakeBroker, tmp_path: Path) -> Iterator[tuple[Home, int]]:
    """With the port of its broker."""
    broker = make_broker()
    home = Home(broker.port, tmp_path / "home")
    yield home, broker.port
    home.stop()


def test_home_assistant_knows_the_device(home: tuple[Home, int], tmp_path: Path) -> None:
    """Its entities have the values that the device has; a button trains it; switched off, they are gone."""
    assistant, port = home
    stream = {"features": ["a", "b"], "label": "y", "classes": 2}
    discovery = {"enabled": True, "name": "Presse 7 µ"}
    device = Device(tmp_path, port, stream, discovery=discovery, training={"new_labels": 0})
    with running(device, port) as listener:
        listener.wait(lambda: listener.messages["state/model"])
        first = str(listener.messages["state/model"][0]["version"])
        wait_until(lambda: assistant.state("version") == first, 30)
        for a, b in np.random.default_rng(0).normal(size=(120, 2)):
            listener.send("sensors/all", {"a": a, "b": b, "y": int(a > 0)})
        wait_until(lambda: assistant.state("buffer") == "120", 60)
        wait_until(lambda: assistant.state("quality") not in ("unknown", None), 60)
        assert assistant.state("last_training") == "unknown"
        button = assistant.ask(do="states")["entities"]["edged_rig_train"]["entity"]
        assistant.ask(do="press", entity=button)
        wait_until(lambda: assistant.state("last_training") != "unknown", 60)
        listener.wait(lambda: listener.messages["state/training"][-1].get("last"))
        known = assistant.ask(do="states")
        assert [entry["name"] for entry in known["devices"]] == ["Presse 7 µ"]
        told = {name.removeprefix("edged_rig_"): e for name, e in known["entities"].items()}
        model = str(listener.messages["state/model"][-1]["version"])
        assert told["version"]["state"] == model
        assert told["model"]["state"] == "off"  # no update: the newest is installed
        assert told["model"]["attributes"]["installed_version"] == model
        assert told["drift"]["state"] in ("none", "warning", "drift")
        assert 0 <= float(told["quality"]["state"]) <= 100
        assert told["outbox"]["state"].isdecimal()
        assert {"train", "rollback"} <= set(told)
        assert known["problems"] == [], assistant.log.read_text()
        assert device.stop() == 0
        wait_until(lambda: assistant.state("version") == "unavailable", 30)
    values = yaml.safe_load(device.path.read_text()) | {"discovery": {"enabled": False}}
    device.path.write_text(yaml.safe_dump(values))
    with running(device, port):
        wait_until(lambda: assistant.ask(do="states")["entities"] == {}, 30)
    assert assistant.ask(do="states")["problems"] == []
