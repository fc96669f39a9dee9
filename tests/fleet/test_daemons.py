"""Daemons and a coordinator as processes at a real broker: two rounds, with kills in the first."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import initial_parameters
from edged.errors import StorageError
from edged.fleet.config import load
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.coordinator.status import status_of
from edged.mqtt.weight_encoding import FILE, unpack
from edged.signing import new_pair
from tests.building import build
from tests.commands import edged
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from tests.fleet.conftest import MakeSite, Site
    from tests.mosquitto import Mosquitto

STREAM: dict[str, Any] = {"features": 6, "classes": 3, "label": "y"}
SECTIONS: dict[str, Any] = {
    "training": {"every": None, "new_labels": 0, "engine": "portable", "learning_rate": 0.01},
    "gate": {"probation": 0, "min_holdout": 10},
    "fleet": {"name": "plant"},
}
ROUNDS: dict[str, Any] = {
    "round": {"devices": 2, "quorum": 1.0, "deadline": "40s", "window": "1s", "every": "1s", "rounds": 2},
    "choose": {"everyone": True},
    "train": {"epochs": 10, "learning_rate": 0.01, "batch_size": 32, "clip_norm": 5.0},
    "reduce": {"how": "mean"},
    "gate": {"evaluate": True, "stages": [1.0], "wait": "30s"},
}  # fmt: skip


def feed(listener: Listener, count: int, seed: int) -> None:
    """Labelled samples, one in twenty of a class that this device hardly ever sees."""
    random = np.random.default_rng(seed)
    before, sent, rare = len(listener.messages["predictions"]), 0, seed % 3
    while sent < count:
        row = random.normal(size=6)
        label = int(np.argmax(row[:3]))
        if label == rare and random.random() > 0.05:
            continue
        listener.send("sensors/a", {"x": row.tolist(), "y": label})
        sent += 1
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, 60)


def updates(site: Site) -> int:
    """How many of the round that is open are durable."""
    try:
        return status_of(load(site.path).dir).status.updates
    except StorageError:  # no coordinator has written anything
        return 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_daemons_learn_from_each_other_though_coordinator_and_device_are_killed(
    broker: Mosquitto, make_site: MakeSite, tmp_path: Path
) -> None:
    bundle = build(
        mlp(6, 3, (32,)), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(6),
        engine="portable",
    )  # fmt: skip
    site = make_site(broker.port, initial_parameters(bundle), model=str(bundle.path), **ROUNDS)
    with ExitStack() as stack:
        devices, listeners = [], []
        for seed, name in enumerate(("left", "right"), 1):
            folder = tmp_path / name
            folder.mkdir()
            made = Device(
                folder,
                broker.port,
                STREAM,
                device={"id": name},
                model={"bundle": str(bundle.path)},
                **SECTIONS,
            )
            devices.append(made)
            listeners.append(stack.enter_context(running(made, broker.port, f"edged/{name}")))
            feed(listeners[-1], 300, seed)
        listeners[1].request("pause", what="training")  # the round waits for it
        coordinator = site.spawn()
        wait_until(lambda: updates(site) == 1, 60)
        coordinator.kill()
        coordinator.wait(10)
        devices[0].stop(signal.SIGKILL)
        devices[0].start()
        coordinator = site.spawn()
        listeners[1].request("resume", what="training")
        for seed, listener in enumerate(listeners, 11):
            # Of the first round; labels that come before are learned in it, and the second has none.
            listener.wait(lambda listener=listener: listener.events("model_promoted"), 90)  # type: ignore[misc]
            feed(listener, 100, seed)
        assert coordinator.wait(120) == 0, (site.folder / "log").read_text()
        rounds = read_lineage(site.dir)
        assert [(entry.round, entry.version, entry.accepted) for entry in rounds] == [
            (1, 1, True),
            (2, 2, True),
        ]
        made_of = [
            json.loads((site.dir / "models" / entry.model / "manifest.json").read_bytes()) for entry in rounds
        ]
        assert [(about["devices"], about["refused"]) for about in made_of] == [(2, {}), (2, {})]
        for listener in listeners:
            listener.wait(lambda listener=listener: len(listener.events("fleet_model")) >= 2, 60)  # type: ignore[misc]
            assert listener.events("model_promoted")[0]["origin"] == "weights"
            assert not listener.events("fleet_failed")


def fleet(site: Site, *words: str) -> str:
    """What a command of `edged fleet` says."""
    action, *more = words
    done = edged("fleet", *action.split(), site.path, *more)
    return done.out + done.err


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_canary_tries_a_model_and_an_operator_approves_it(
    broker: Mosquitto, make_site: MakeSite, tmp_path: Path
) -> None:
    bundle = build(
        mlp(6, 3, (16,)), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(6),
        engine="portable",
    )  # fmt: skip
    sections = ROUNDS | {
        "round": ROUNDS["round"] | {"rounds": 1},
        "choose": {"min_samples": 50, "patience": "1s", "idle": False},
        "rollout": {"canaries": {"tags": ["canary"]}, "approval": "first"},
    }
    site = make_site(broker.port, initial_parameters(bundle), model=str(bundle.path), **sections)
    with ExitStack() as stack:
        listeners: dict[str, Listener] = {}
        for seed, (name, tags) in enumerate({"bird": ["canary"], "miner": []}.items(), 1):
            folder = tmp_path / name
            folder.mkdir()
            own = SECTIONS | {"fleet": SECTIONS["fleet"] | {"tags": tags}}
            made = Device(
                folder, broker.port, STREAM, device={"id": name}, model={"bundle": str(bundle.path)}, **own
            )
            listeners[name] = stack.enter_context(running(made, broker.port, f"edged/{name}"))
            feed(listeners[name], 300, seed)
        coordinator = site.spawn()
        listeners["bird"].wait(lambda: listeners["bird"].events("fleet_model"), 120)
        wait_until(lambda: status_of(load(site.path).dir).status.phase == "approval", 60)
        assert "waits for approval" in fleet(site, "status")
        tried = [event["model"] for event in listeners["bird"].events("fleet_model")]
        assert tried[-1] not in [event["model"] for event in listeners["miner"].events("fleet_model")]
        assert fleet(site, "round approve") == "approve: round 1, approval\n"
        wait_until(lambda: len(read_lineage(site.dir)) == 1, 60)
        assert coordinator.wait(60) == 0, (site.folder / "log").read_text()
    (entry,) = read_lineage(site.dir)
    assert (entry.accepted, entry.approved_by, entry.model) == (True, getuser(), tried[-1])
    assert f"approved by {getuser()}" in fleet(site, "status")
    out = tmp_path / "fleet.onnx"
    assert entry.model[:12] in fleet(site, "export", str(out))
    expected = unpack((site.dir / "models" / entry.model / FILE).read_bytes())
    model = onnx.load(out)
    found = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    assert InferenceModel(out).predict(np.zeros((2, 6), np.float32)).shape == (2, 3)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_daemons_learn_from_signed_rounds_and_seal_what_they_send(
    broker: Mosquitto, make_site: MakeSite, tmp_path: Path
) -> None:
    bundle = build(
        mlp(6, 3, (32,)), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(6),
        engine="portable",
    )  # fmt: skip
    names = ("left", "right", "third")
    new_pair(tmp_path / "fleet.key")
    sections = ROUNDS | {
        "round": ROUNDS["round"] | {"rounds": 1, "devices": len(names)},
        "key": str(tmp_path / "fleet.key"),
    }
    own = SECTIONS["fleet"] | {"keys": [str(tmp_path / "fleet.key.pub")]}
    site = make_site(broker.port, initial_parameters(bundle), model=str(bundle.path), **sections)
    with ExitStack() as stack:
        listeners = []
        for seed, name in enumerate(names, 1):
            folder = tmp_path / name
            folder.mkdir()
            more = {"device": {"id": name}, "model": {"bundle": str(bundle.path)}, "fleet": own}
            made = Device(folder, broker.port, STREAM, **SECTIONS | more)
            listeners.append(stack.enter_context(running(made, broker.port, f"edged/{name}")))
            listeners[-1].request("pause", what="training")
            feed(listeners[-1], 300, seed)
        coordinator = site.spawn()
        for listener in listeners:
            listener.request("resume", what="training")
        assert coordinator.wait(120) == 0, (site.folder / "log").read_text()
        assert [entry.accepted for entry in read_lineage(site.dir)] == [True]
        for listener in listeners:
            listener.wait(lambda listener=listener: listener.events("fleet_model"), 60)  # type: ignore[misc]
            assert listener.events("fleet_model")[-1]["taken"]
            assert not listener.events("fleet_failed")
