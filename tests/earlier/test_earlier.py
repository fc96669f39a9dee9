"""What earlier versions left on a disk is opened, and gone on with."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from edged.domain.protocols import LearningRate
from edged.engines.portable.engine import PortableEngine
from edged.host.time_sync import boot_id
from edged.storage.files.checksummed_json import read_sealed
from edged.storage.journal.last_shutdown import FILE
from edged.storage.models.bundle_archive import unpack_to
from edged.storage.models.bundles import Bundle
from tests.earlier import EVERY, FIXED, batches, learned
from tests.running_device import Device, running, wait_until
from tests.steered import data

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

RECORDINGS = sorted(path.parent for path in Path(__file__).parent.glob("*/recorded.json"))


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.name)
def recording(request: pytest.FixtureRequest) -> Path:
    """The folder of one recording."""
    folder: Path = request.param
    return folder


@pytest.fixture
def recorded(recording: Path, tmp_path: Path) -> dict[str, Any]:
    """What was true when it was recorded; its files lie in `tmp_path` then."""
    with tarfile.open(recording / "files.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    told: dict[str, Any] = json.loads((recording / "recorded.json").read_text(encoding="utf-8"))
    return told


@pytest.mark.slow
def test_a_killed_daemon_is_gone_on_with(
    broker: Broker, recording: Path, recorded: dict[str, Any], tmp_path: Path
) -> None:
    values = yaml.safe_load((recording / "edged.yaml").read_text(encoding="utf-8"))
    values["mqtt"]["port"] = broker.port
    device = Device(tmp_path, broker.port, **values)
    # The kernel that it was killed under is another one on every machine but that of the recording.
    killed_under = read_sealed(tmp_path / "state" / FILE)["boot_id"]
    reason = "crash" if killed_under == boot_id() else "power_cut"
    with running(device, broker.port) as listener:
        started(listener, recorded, reason)
        delivered(listener, recorded)
        predicts(listener, recorded)
        joins_the_late_label(listener, recorded)
        goes_on_training(listener, device, recorded)
    assert device.stop() == 0


def started(listener: Listener, recorded: dict[str, Any], reason: str) -> None:
    listener.wait(lambda: listener.events("started"))
    start = listener.events("started")[0]
    then, now = recorded["status"], data(listener, "status")
    assert (start["model"], start["boot_reason"]) == (recorded["champion"], reason)
    expected = then | {"boot": then["boot"] + 1}
    assert {name: now[name] for name in then} == expected
    assert data(listener, "config.get", keys=list(recorded["settings"]))["values"] == recorded["settings"]


def delivered(listener: Listener, recorded: dict[str, Any]) -> None:
    def late(topic: str, field: str) -> list[Any]:
        before = recorded["status"]["boot"]  # what this start tells may wait for the connection, too
        return [m[field] for m in listener.messages[topic] if m.get("historical") and m["boot"] <= before]

    waited = recorded["waiting"]
    assert all(waited.values())
    listener.wait(lambda: len(late("metrics", "seq")) >= len(waited["metrics"]))
    assert {"events": late("events", "event"), "metrics": late("metrics", "seq")} == waited


def predicts(listener: Listener, recorded: dict[str, Any]) -> None:
    listener.publish("sensors/a", json.dumps({"id": "again", "x": FIXED}))
    listener.wait(lambda: listener.messages["predictions"])
    (prediction,) = listener.messages["predictions"]
    assert (prediction["id"], prediction["model"]) == ("again", recorded["champion"])
    assert prediction["output"] == pytest.approx(recorded["output"], abs=1e-5)


def joins_the_late_label(listener: Listener, recorded: dict[str, Any]) -> None:
    listener.publish("labels/a", json.dumps({"id": "late", "label": "high"}))
    wait_until(lambda: data(listener, "status")["labels"] == recorded["status"]["labels"] + 1)


def goes_on_training(listener: Listener, device: Device, recorded: dict[str, Any]) -> None:
    """After the pause the run that was cut off goes on from its checkpoint, and then comes another."""
    run = recorded["run"]
    assert data(listener, "resume") == {"paused": []}
    listener.wait(lambda: [e for e in listener.events("training_finished") if "historical" not in e], 60)
    last = listener.events("training_finished")[-1]
    assert (last["trigger"], last["outcome"], last["steps"]) == ("resume", "done", run["steps"])
    left = run["steps"] - run["step"]
    generation, learner = learned(device.state)
    assert generation == run["generation"] + left // EVERY, "none of its steps is made twice"
    assert learner["total_steps"] == run["total"] + left
    another = data(listener, "train", steps=100)
    assert (another["outcome"], another["run"]) == ("done", last["run"] + 1)
    assert learned(device.state)[1]["total_steps"] == run["total"] + left + 100


@pytest.mark.parametrize("form", ["bundle", "bundle.edged", "signed.edged"])
def test_its_bundle_trains_as_it_did_in_every_form(
    form: str, recorded: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / form
    if path.is_file():
        keys = [tmp_path / "key.pub"] if form.startswith("signed") else []
        unpack_to(path, tmp_path / "unpacked", keys)
        path = tmp_path / "unpacked"
    engine = PortableEngine(Bundle.open(path))
    engine.begin(LearningRate(0.05))
    losses = [engine.step(x, y).loss for x, y in batches(len(recorded["losses"]))]
    assert losses == pytest.approx(recorded["losses"], abs=1e-5)
