"""Daemons, SuperNodes with TLS and keys, and a SuperLink whose ServerApp coordinates: `make test-flower`.

EDGED_FLOWER names the interpreter of the environment that has Flower.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from edged.domain.training.weight_coding import decode
from edged.fleet.coordinator.journal import RoundRecord, read_lineage
from edged.mqtt import weight_encoding
from edged.storage.files.atomic import verify_directory
from edged.storage.models.fleet import SentUpdates
from tests.fleet.flower.site import FlowerSite
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.mosquitto import Mosquitto

ROOT = Path(__file__).parents[3]
NAMES = ("a", "b", "c")
STREAM: dict[str, Any] = {"features": 6, "classes": 3, "label": "y"}
QUIET: dict[str, Any] = {"every": None, "new_labels": 0, "engine": "portable", "learning_rate": 0.01}
ROUND_SECONDS = 40


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics
    from tests.building import build

    path = tmp_path_factory.mktemp("bundles") / "classifier"
    return build(
        mlp(6, 3, (16,)), path, loss="cross_entropy", standardise=Statistics.identity(6), engine="portable"
    )


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[FlowerSite]:
    site = FlowerSite(tmp_path / "flower", Path(os.environ["EDGED_FLOWER"]))
    yield site
    site.close()


def device(folder: Path, name: str, broker: Mosquitto, bundle: Bundle) -> Device:
    folder.mkdir()
    return Device(
        folder, broker.port, STREAM | {"topic": f"sensors/{name}/#"}, device={"id": name},
        model={"bundle": str(bundle.path)}, training=QUIET, gate={"probation": 0, "min_holdout": 10},
        fleet={"name": "plant", "flower": True},
        web={"listen": None, "unix_socket": str(folder / "s")},
    )  # fmt: skip


def feed(listener: Listener, name: str, count: int) -> None:
    x = np.random.default_rng(ord(name)).normal(size=(count, 6))
    for row in x:
        listener.send(f"sensors/{name}/x", {"x": row.tolist(), "y": int(np.argmax(row[:3]))})
    listener.wait(lambda: len(listener.messages["predictions"]) >= count, 60)


@contextmanager
def trickle(listeners: dict[str, Listener]) -> Iterator[None]:
    """Send every device a sample a second: a device joins no round without a new one."""
    stop = threading.Event()

    def run() -> None:
        random = np.random.default_rng(0)
        while not stop.wait(1.0):
            for name, listener in listeners.items():
                row = random.normal(size=6)
                listener.send(f"sensors/{name}/x", {"x": row.tolist(), "y": int(np.argmax(row[:3]))})

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def coordinator(folder: Path, bundle: Bundle, rounds: int) -> Path:
    path = folder / "fleet.yaml"
    values = {
        "fleet": "plant", "model": str(bundle.path), "dir": "state",
        "round": {
            "devices": 3, "over": 1.0, "quorum": 0.5, "deadline": f"{ROUND_SECONDS}s", "window": 0,
            "rounds": rounds,
        },
        "choose": {"min_samples": 0, "patience": "90s"}, "train": {"epochs": 2, "clip_norm": 100.0},
        "gate": {"stages": [1.0], "wait": f"{ROUND_SECONDS}s", "worst": 10.0, "mean": 10.0},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(values))
    return path


def model(state: Path, digest: str) -> Any:
    folder = state / "models" / digest
    verify_directory(folder)
    return weight_encoding.unpack((folder / weight_encoding.FILE).read_bytes())[0]


def status(state: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / "status.json").read_bytes())
    return found


def check_mean(state: Path, devices: dict[str, Device], entry: RoundRecord) -> None:
    """A model is the mean of what devices have sent, by numpy alone."""
    base = model(state, entry.parent)
    total, sums = 0, {name: np.zeros(value.shape, np.float64) for name, value in base.items()}
    count = 0
    for one in devices.values():
        for sent in SentUpdates(one.state).all():
            if sent.about.round == entry.round:
                change = decode(weight_encoding.unpack_coded(sent.blob))
                for name, value in change.items():
                    sums[name] += sent.about.samples * value.astype(np.float64)
                total, count = total + sent.about.samples, count + 1
    change = {name: (value / total).astype(np.float32) for name, value in sums.items()}
    expected = {name: value + change.get(name, np.float32(0)) for name, value in base.items()}
    found = model(state, entry.model)
    assert count == len(devices)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6)


@pytest.mark.timeout(900)
def test_three_supernodes_learn_and_a_dead_one_holds_up_one_round_alone(
    broker: Mosquitto, bundle: Bundle, flower: FlowerSite, tmp_path: Path
) -> None:
    made = {name: device(tmp_path / name, name, broker, bundle) for name in NAMES}
    state, path = tmp_path / "state", coordinator(tmp_path, bundle, 3)
    with (
        running(made["a"], broker.port, "edged/a") as first,
        running(made["b"], broker.port, "edged/b") as second,
        running(made["c"], broker.port, "edged/c") as third,
        trickle(dict(zip(NAMES, (first, second, third), strict=True))),
    ):
        for name, listener in zip(NAMES, (first, second, third), strict=True):
            feed(listener, name, 150)
        flower.superlink()
        for name in NAMES:
            flower.supernode(name, made[name].folder / "s")
        flower.supernode("unknown", made["a"].folder / "s", registered=False)
        wait_until(lambda: flower.processes["unknown"].poll() not in (None, 0), 60)
        assert "2004" in flower.log("unknown")
        wait_until(lambda: flower.flwr("supernode", "list", "site").stdout.count("online") == 3, 60)

        began = time.monotonic()
        flower.run_app(path)
        wait_until(lambda: len(read_lineage(state)) == 3, 240)
        print("three rounds with trials:", round(time.monotonic() - began, 1), "s")  # noqa: T201  a figure
        for entry in read_lineage(state):
            assert entry.accepted, entry
            check_mean(state, made, entry)
        assert any(listener.events("fleet_model") for listener in (first, second, third))

        # A run ends with its process; the next goes on from the journal. One node dies in its first round.
        path.write_text(path.read_text().replace("rounds: 3", "rounds: 5"))
        flower.supernode("twin", made["a"].folder / "s")  # registered, but says that it is another's device
        wait_until(lambda: flower.flwr("supernode", "list", "site").stdout.count("online") == 4, 60)
        flower.run_app(path)
        wait_until(lambda: status(state)["round"] == 4 and status(state)["asked"] == 3, 60)
        flower.kill("c")
        wait_until(lambda: len(read_lineage(state)) == 5, 240)
        fourth, fifth = read_lineage(state)[3:]
        print("with a dead node:", [round(e.seconds, 1) for e in (fourth, fifth)])  # noqa: T201
        assert fourth.seconds >= ROUND_SECONDS
        assert fifth.seconds < ROUND_SECONDS
        assert [e.version for e in (fourth, fifth)] == [4, 5]
        about = verify_directory(state / "models" / fourth.model).extra
        assert about["refused"].keys() == {"identity"}
        assert (fourth.model != fifth.model, about["devices"]) == (True, 2)
    assert flower.strangers() == []


@pytest.mark.parametrize("unit", ["edged-superlink", "edged-supernode"])
def test_options_of_the_units_are_the_programs(unit: str) -> None:
    text = (ROOT / "deploy" / "flower" / f"{unit}.service").read_text(encoding="utf-8")
    command = text.partition("ExecStart=")[2].partition("LoadCredential")[0]
    given = re.findall(r"(--[a-z-]+)", command)
    program = Path(os.environ["EDGED_FLOWER"]).parent / f"flower-{unit.removeprefix('edged-')}"
    known = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert given
    assert [option for option in given if option not in known] == []


def test_commands_of_the_tutorial_are_flowers() -> None:
    page = (ROOT / "docs" / "tutorial-flower.md").read_text(encoding="utf-8")
    flwr = Path(os.environ["EDGED_FLOWER"]).parent / "flwr"
    given = {tuple(words.split()) for words in re.findall(r"\bflwr ((?:supernode )?[a-z]+)", page)}
    assert given >= {("supernode", "register"), ("supernode", "list"), ("run",)}
    for words in given:
        subprocess.run([flwr, *words, "--help"], capture_output=True, check=True, timeout=60)
