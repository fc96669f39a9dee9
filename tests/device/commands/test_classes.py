"""Classes come with labels and by command, go, and become one: on a real device, over crashes too."""

from __future__ import annotations

import json
import signal
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from edged.signing import new_pair, sign_command
from edged.storage.samples.log import SampleLog
from tests.device.commands.test_audit import log_of
from tests.running_device import Device, running
from tests.steered import ask, conform, data

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

OPEN: dict[str, Any] = {"features": 2, "classes": "open", "max_classes": 6, "label": "state"}
RESTS = {"every": None, "new_labels": 0, "engine": "portable"}
# The middle of each class in the plane of both features.
PLACES = {"idle": (0, 0), "low": (4, 0), "high": (0, 4), "odd": (-4, -4)}


def feed(listener: Listener, names: list[str], count: int, seed: int, *, labelled: bool = True) -> list[str]:
    """Samples of these classes in turn, and what was answered to them."""
    rng, before = np.random.default_rng(seed), len(listener.messages["predictions"])
    for i in range(count):
        name = names[i % len(names)]
        x = (np.array(PLACES[name]) + rng.normal(0, 0.5, 2)).round(3).tolist()
        listener.send("sensors/m", {"x": x} | ({"state": name} if labelled else {}))
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, 60)
    return [p["label"] for p in listener.messages["predictions"][before : before + count]]


def share(said: list[str], names: list[str]) -> float:
    """How often the answer was the class."""
    return float(np.mean([label == names[i % len(names)] for i, label in enumerate(said)]))


def train(listener: Listener) -> None:
    told = data(listener, "train", steps=300)
    assert told["verdict"]["accepted"], told


@pytest.mark.slow
def test_classes_come_with_their_labels_and_go_by_command(broker: Broker, tmp_path: Path) -> None:
    device = Device(
        tmp_path, broker.port, OPEN, training=RESTS, gate={"min_holdout": 1, "significance": 1e-9}
    )
    names = ["idle", "low", "high"]
    with running(device, broker.port) as listener:
        assert data(listener, "capabilities")["classes"] == []
        assert feed(listener, ["idle"], 1, 0, labelled=False) == [None], "there is no class yet"
        feed(listener, names[:2], 200, 1)
        train(listener)
        two = data(listener, "status")["model"]["version"]
        assert share(feed(listener, names[:2], 40, 2, labelled=False), names[:2]) > 0.9
        feed(listener, names, 300, 3)
        assert data(listener, "capabilities")["classes"] == names
        train(listener)
        assert share(feed(listener, names, 60, 4, labelled=False), names) > 0.9
        # An earlier model stays usable: of the class that it never saw it knows nothing.
        data(listener, "rollback", version=two)
        assert share(feed(listener, names[:2], 40, 5, labelled=False), names[:2]) > 0.9
        train(listener)
        assert data(listener, "class.merge", **{"from": "high", "to": "low"}) == {
            "classes": ["idle", "low"], "free": 3,
        }  # fmt: skip
        said = feed(listener, names, 60, 6, labelled=False)
        assert set(said) == {"idle", "low"}
        assert share(said, ["idle", "low", "low"]) > 0.9
        assert listener.messages["predictions"][-1]["output"][2:] == [0, 0, 0, 0]
        before = data(listener, "status")["quarantined"]
        assert data(listener, "class.remove", **{"class": "low"})["classes"] == ["idle"]
        assert set(feed(listener, names, 30, 7)) == {"idle"}
        listener.wait(lambda: [m for m in listener.messages["metrics"] if m["quarantine"] >= before + 20])
        assert "'low' was removed" in ask(listener, "label", key="m", ts=time.time(), label="low")["error"]
        assert data(listener, "class.add", **{"class": "odd"}) == {"classes": ["idle", "odd"], "free": 2}
        feed(listener, ["idle", "odd"], 200, 8)
        train(listener)
        assert share(feed(listener, ["idle", "odd"], 40, 9, labelled=False), ["idle", "odd"]) > 0.9
        assert {"response/class.merge", "response/class.add"} <= conform(listener)
    told = [e for e in log_of(device) if e.get("command", "").startswith("class.")]
    changes = [(e["command"], e["request"]) for e in told]
    assert changes == [
        ("class.merge", {"from": "high", "to": "low"}), ("class.remove", {"class": "low"}),
        ("class.add", {"class": "odd"}),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_network_without_a_free_output_grows_with_the_next_start(broker: Broker, tmp_path: Path) -> None:
    """The model of the narrow network serves on, and never answers the class that came after it."""
    gate = {"min_holdout": 1, "significance": 1e-9}
    stream, alone = OPEN | {"max_classes": 2}, {"head": "none"}  # the head would answer every class
    device = Device(tmp_path, broker.port, stream, training=RESTS, gate=gate, model=alone)
    names = ["idle", "low", "high"]
    with running(device, broker.port) as listener:
        feed(listener, names[:2], 200, 0)
        train(listener)
        narrow = data(listener, "status")["model"]["version"]
        assert "max_classes" in ask(listener, "class.add", **{"class": "high"})["error"]
        device.stop()
        device.values["stream"]["max_classes"] = 4
        device.path.write_text(yaml.safe_dump(device.values))
        device.start()
        listener.wait(lambda: [s["state"] for s in listener.messages["status"]].count("online") > 1, 60)
        assert data(listener, "status")["model"]["version"] == narrow
        assert share(feed(listener, names[:2], 40, 1, labelled=False), names[:2]) > 0.9
        feed(listener, names, 300, 2)
        assert listener.messages["predictions"][-1]["output"][2:] == [0, 0]
        train(listener)
        assert share(feed(listener, names, 60, 3, labelled=False), names) > 0.9
        data(listener, "rollback", version=narrow)
        said = feed(listener, names, 60, 4, labelled=False)
        assert set(said) == {"idle", "low"}


CHANGES: dict[str, tuple[dict[str, str], list[str]]] = {
    "class.add": ({"class": "c"}, ["a", "b", "c"]),
    "class.remove": ({"class": "a"}, ["b"]),
    "class.merge": ({"from": "b", "to": "a"}, ["a"]),
}
# Where the daemon kills itself.
CUTS = {
    "before the change": ("edged.storage.samples.log", "SampleLog", "changing_classes"),
    "before the answer": ("edged.device.commands.answers", "CommandAnswers", "finish"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "point"),
    [
        ("class.add", "before the change"),
        ("class.merge", "before the answer"),
        pytest.param("class.add", "before the answer", marks=pytest.mark.full),
        pytest.param("class.merge", "before the change", marks=pytest.mark.full),
        *(pytest.param("class.remove", point, marks=pytest.mark.full) for point in CUTS),
    ],
)
def test_each_change_is_made_once_over_a_crash(
    command: str, point: str, broker: Broker, tmp_path: Path
) -> None:
    fields, left = CHANGES[command]
    stream = {"features": 2, "classes": ["a", "b"], "max_classes": 4}
    device = Device(tmp_path, broker.port, stream, training=RESTS)
    module, kind, method = CUTS[point]
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
        import os, signal
        from {module} import {kind}
        def cut(*arguments, **named):
            os.kill(os.getpid(), signal.SIGKILL)
        {kind}.{method} = cut
        """)
    )
    asked = {"transaction": "t", **fields}
    with running(
        device, broker.port, PYTHONPATH=f"{tmp_path / 'site'}:{Path(__file__).parents[3]}"
    ) as listener:
        listener.publish(f"edged/rig/request/{command}", json.dumps(asked))
        assert device.process is not None
        assert device.process.wait(60) == -signal.SIGKILL
        device.start()
        listener.wait(lambda: listener.messages[f"response/{command}"], 60)
        answer = listener.messages[f"response/{command}"][-1]
        assert (answer["state"], answer["data"]["classes"]) == ("successful", left), answer
        assert ask(listener, command, **asked)["data"] == answer["data"]
        assert ask(listener, command, **fields)["reason"] == "refused", "it was made"
        device.stop(signal.SIGKILL)
        device.start()
        listener.wait(lambda: [s["state"] for s in listener.messages["status"]].count("online") > 2, 60)
        assert data(listener, "capabilities")["classes"] == left


@pytest.mark.slow
def test_stored_labels_count_as_their_class_counts_now(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, OPEN, training=RESTS)
    with running(device, broker.port) as listener:
        feed(listener, ["idle", "low", "high"], 60, 0)
        listener.wait(lambda: [m for m in listener.messages["metrics"] if m["labels"]["count"] == 60])
        answered = listener.messages["predictions"][-1]["id"]
        data(listener, "label", id=answered, label="odd")
        device.stop(signal.SIGKILL)
        device.start()
        listener.wait(lambda: [s["state"] for s in listener.messages["status"]].count("online") > 1, 60)
        assert data(listener, "capabilities")["classes"] == ["idle", "low", "high", "odd"]
        data(listener, "class.merge", **{"from": "high", "to": "low"})
        data(listener, "class.remove", **{"class": "idle"})
    from edged.config import StreamConfig

    schema = StreamConfig(**OPEN, topic="sensors/#", key="topic:1").to_schema()
    with SampleLog.open(device.state / "samples.db", schema, readonly=True) as log:
        y = np.concatenate([log.training_window(0, 100).y, log.holdout_window(100).y])
    assert (len(y), set(y[:, 0].tolist())) == (40, {1.0, 3.0})
    assert schema.known_classes == ("low", "odd")


@pytest.mark.slow
def test_changes_are_signed_where_there_are_keys_and_refused_where_classes_are_fixed(
    broker: Broker, tmp_path: Path
) -> None:
    public = new_pair(tmp_path / "boss.key")
    device = Device(tmp_path, broker.port, OPEN, training=RESTS, commands={"keys": [str(public)]})
    with running(device, broker.port) as listener:
        assert "sign" in ask(listener, "class.add", **{"class": "a"})["error"]
        signed = sign_command(
            "class.add", "rig", {"class": "a"}, tmp_path / "boss.key", now=time.time(), transaction="s"
        )
        listener.publish("edged/rig/request/class.add", signed)
        listener.wait(lambda: listener.messages["response/class.add"][-1].get("transaction") == "s")
        assert listener.messages["response/class.add"][-1]["data"]["classes"] == ["a"]
    (tmp_path / "fixed").mkdir()
    fixed = Device(tmp_path / "fixed", broker.port, {"features": 2, "classes": ["a", "b"]}, training=RESTS)
    with running(fixed, broker.port) as listener:
        refused = ask(listener, "class.add", **{"class": "c"})
        assert (refused["reason"], "max_classes" in refused["error"]) == ("refused", True), refused
