"""A device's state leaves in one file while it works, and another machine goes on from it."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.config import loader
from edged.device.admin.backup import back_up, restore
from edged.errors import EdgedError
from edged.signing import new_pair
from edged.storage.files.atomic import DirectoryLock
from tests.commands import edged, write_config
from tests.running_device import Device, running
from tests.storage.backup.test_backup import fill

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

STREAM: dict[str, Any] = {"features": 3, "classes": 2, "label": "y"}
PATIENCE = 120.0


def feed(listener: Listener, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        x = rng.normal(size=3)
        listener.send("sensors/a", {"x": x.tolist(), "y": int(x[0] > 0)})


def until_promoted(listener: Listener) -> None:
    """Samples, until a model that was trained from them serves."""
    for round_ in range(12):
        feed(listener, 100, round_)
        listener.wait(lambda: len(listener.events("training_finished")) > round_, PATIENCE)  # noqa: B023
        if listener.events("model_promoted"):
            return
    pytest.fail(listener.summary())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_device_goes_on_elsewhere_from_a_backup_taken_while_it_worked(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    public, file = new_pair(tmp_path / "key"), tmp_path / "press.zip"
    first = Device(tmp_path / "a", broker.port, STREAM)
    with running(first, broker.port) as listener:
        until_promoted(listener)
        feed(listener, 30, 1)
        told = first.cli("backup", str(first.path), str(file), "--key", str(tmp_path / "key"))
        runs = len(listener.events("training_finished"))
    assert (told["device"], told["signed"]) == ("rig", True)
    assert told["samples"] > 100
    with zipfile.ZipFile(file) as archive:
        weights = hashlib.sha256(archive.read(f"models/{told['champion']}/model.onnx")).hexdigest()

    second = Device(tmp_path / "b", broker.port, STREAM)
    assert (
        second.cli("restore", str(second.path), str(file), "--key", str(public))["champion"]
        == told["champion"]
    )
    model = second.state / "models" / str(told["champion"]) / "model.onnx"
    assert hashlib.sha256(model.read_bytes()).hexdigest() == weights
    with running(second, broker.port) as listener:
        listener.wait(lambda: listener.events("started"), PATIENCE)
        (started,) = listener.events("started")
        assert started["model"] == told["champion"]
        # The other device was training: what the backup has met halfway is undone or completed.
        halfway = r"the swap between models \d+ and \d+ was |training run \d+ was cut off"
        assert [what for what in started["repaired"] if not re.match(halfway, what)] == []
        assert started["boot"] > 1000
        # The first that comes may be what the other device has left at the broker.
        listener.wait(lambda: any(b["rows"] >= told["samples"] for b in listener.messages["state/buffer"]))
        feed(listener, 200, 2)
        listener.wait(lambda: listener.events("training_finished"), PATIENCE)
        finished = listener.events("training_finished")[0]
        assert (finished["outcome"], finished["run"] > runs - 1) == ("done", True)


def test_refusals_and_their_exit_codes(tmp_path: Path) -> None:
    stream = {"features": 2, "classes": ["ok", "worn"], "label": "label"}
    config = loader.load(write_config(tmp_path, stream))
    file, state = tmp_path / "b.zip", tmp_path / "state"
    (tmp_path / "other").mkdir()
    other = loader.load(write_config(tmp_path / "other", {"features": 5, "classes": 2}))

    def refused(code: int, what: str, act: Callable[[], object]) -> None:
        with pytest.raises(EdgedError, match=what) as caught:
            act()
        assert caught.value.exit_code == code

    refused(1, "there is no state here", lambda: back_up(config, file))
    fill(state)
    assert back_up(config, file).about.champion == 1
    refused(3, "--replace", lambda: restore(config, file))
    with DirectoryLock(state):
        refused(3, "stop it first", lambda: restore(config, file, replace=True))
        back_up(config, file)
    public = new_pair(tmp_path / "key")
    refused(3, "not signed", lambda: restore(config, file, replace=True, keys=[public]))
    refused(1, "the configuration says '5'", lambda: restore(other, file))
    assert [path.name for path in (tmp_path / "other" / "state").iterdir()] == ["edged.lock"]
    refused(1, "nowhere", lambda: restore(config, tmp_path / "nowhere", replace=True))
    file.write_bytes(file.read_bytes()[:-1])
    answer = edged("restore", tmp_path / "edged.yaml", file, "--replace")
    assert (answer.code, "damaged at its end" in answer.problem) == (1, True)
