"""Three daemons, three SuperNodes with TLS and keys, and a SuperLink that runs Flower's own strategies.

`make test-flower`. EDGED_FLOWER names the interpreter of the environment that has Flower.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from edged.engines.model_parameters import initial_parameters
from edged.workbench.demo.broker import free_port
from tests.docs.test_tutorials import blocks
from tests.fleet.flower.site import APP, SILENT, FlowerSite
from tests.mosquitto import Mosquitto
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.storage.models.bundles import Bundle

    Weights = dict[str, NDArray[np.float32]]

ROOT = Path(__file__).parents[3]
NAMES = ("a", "b", "c")
STREAM: dict[str, Any] = {"features": 6, "classes": 3, "label": "y"}
QUIET: dict[str, Any] = {"every": None, "new_labels": 0, "engine": "portable", "learning_rate": 0.01}
RUN: dict[str, Any] = {
    "num_server_rounds": 2, "min_nodes": 3, "learning_rate": 0.01, "epochs": 2, "timeout": 60.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    from tests.building import small_classifier

    return small_classifier(tmp_path_factory.mktemp("bundles") / "classifier")


@dataclass
class Fleet:
    """Three daemons with samples, their listeners, and Flower's programs."""

    devices: dict[str, Device]
    listeners: dict[str, Listener]
    site: FlowerSite
    folder: Path
    bundle: Bundle

    def run(self, **config: Any) -> tuple[str, Weights]:
        """Run the app; return what it logs and the final weights."""
        model = self.folder / "model.safetensors"
        model.unlink(missing_ok=True)
        logged = self.site.run_app(**{**RUN, "model": str(model), **config})
        assert model.exists(), logged
        return logged, load_file(model)

    def distance(self, weights: Weights) -> float:
        """L2 distance to the weights that all bundles begin with."""
        initial = initial_parameters(self.bundle)
        assert weights.keys() == set(self.bundle.trainable)
        return float(np.sqrt(sum(np.square(value - initial[name]).sum() for name, value in weights.items())))

    def runs(self, name: str) -> int:
        """Number of runs of a device: own ones, rounds and evaluations."""
        one = self.devices[name]
        return int(one.cli("status", str(one.path))["training"]["runs"])


def device(folder: Path, name: str, broker: Mosquitto, bundle: Bundle) -> Device:
    folder.mkdir()
    return Device(
        folder, broker.port, STREAM | {"topic": f"sensors/{name}/#"}, device={"id": name},
        model={"bundle": str(bundle.path)}, training=QUIET, gate={"probation": 0, "min_holdout": 10},
        fleet={"flower": True}, web={"listen": None, "unix_socket": str(folder / "s")},
    )  # fmt: skip


def feed(device: Device, listener: Listener, name: str, count: int) -> None:
    x = np.random.default_rng(ord(name)).normal(size=(count, 6))
    for row in x:
        listener.send(f"sensors/{name}/x", {"x": row.tolist(), "y": int(np.argmax(row[:3]))})
    wait_until(lambda: device.cli("status", str(device.path))["samples"] == count, 60)


@pytest.fixture(scope="module")
def fleet(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    broker = Mosquitto(folder, free_port(), ("allow_anonymous true",))
    broker.start()
    devices = {name: device(folder / name, name, broker, bundle) for name in NAMES}
    site = FlowerSite(folder / "flower", Path(os.environ["EDGED_FLOWER"]))
    with ExitStack() as stack:
        stack.callback(broker.stop)
        stack.callback(site.close)
        listeners = {}
        for name, one in devices.items():
            listeners[name] = stack.enter_context(running(one, broker.port, f"edged/{name}"))
            feed(one, listeners[name], name, 500)
        site.superlink()
        for name, one in devices.items():
            site.supernode(name, one.folder / "s")
        wait_until(lambda: site.online() == 3, 60)
        yield Fleet(devices, listeners, site, folder, bundle)


@pytest.mark.timeout(600)
def test_federated_averaging_trains_and_offers_its_model_after_the_last_round(fleet: Fleet) -> None:
    logged, weights = fleet.run(strategy="FedAvg", epochs=40)
    assert fleet.distance(weights) > 0.1
    for name, listener in fleet.listeners.items():
        listener.wait(partial(listener.events, "fleet_model"))
        assert [event["round"] for event in listener.events("fleet_trained")] == [1, 2], name
        assert [event["round"] for event in listener.events("fleet_model")] == [2], "offered once"
    assert any(event["taken"] for one in fleet.listeners.values() for event in one.events("fleet_model"))
    assert len(re.findall("Received 3 results and 0 failures", logged)) == 4, logged
    assert all(key in logged for key in ("'loss'", "'accuracy'", "'taken'"))


@pytest.mark.timeout(600)
def test_a_proximal_term_holds_the_weights_of_fedprox(fleet: Fleet) -> None:
    moved = [fleet.distance(fleet.run(strategy="FedProx", proximal_mu=mu)[1]) for mu in (0.0, 100.0)]
    print("distance from the start with mu = 0 and 100:", moved)  # noqa: T201  a figure
    assert 0 < moved[1] < 0.5 * moved[0]


@pytest.mark.timeout(600)
def test_krum_runs_and_a_device_that_declines_does_not_stop_the_round(fleet: Fleet) -> None:
    fleet.listeners["c"].request("pause", what="training")
    logged, weights = fleet.run(strategy="Krum", malicious_nodes=0)
    fleet.listeners["c"].request("resume", what="training")
    assert fleet.distance(weights) > 0.01
    assert len(re.findall("aggregate_train: Received 2 results and 1 failures", logged)) == 2, logged
    assert "training is paused" in logged


@pytest.mark.timeout(600)
def test_central_differential_privacy_adds_its_noise(fleet: Fleet) -> None:
    logged, weights = fleet.run(strategy="FedAvg", noise_multiplier=1.0, clipping_norm=0.5, offer="never")
    stated = re.findall(r"central DP noise with ([0-9.]+) stdev added", logged)
    assert [float(value) for value in stated] == [pytest.approx(0.5 / 3, abs=1e-3)] * 2
    count = sum(value.size for value in weights.values())
    assert fleet.distance(weights) == pytest.approx(np.sqrt(2 * count) * 0.5 / 3, rel=0.3)


@pytest.mark.timeout(900)
def test_secure_aggregation_ends_its_rounds_though_a_node_dies(fleet: Fleet) -> None:
    before = {name: fleet.runs(name) for name in NAMES}
    model = fleet.folder / "sum.npz"
    logs: list[str] = []
    run = threading.Thread(
        target=lambda: logs.append(
            fleet.site.run_app(
                APP / "secagg", num_server_rounds=2, steps=20_000, learning_rate=0.01, model=str(model),
                timeout=45.0,
            )
        )
    )  # fmt: skip
    run.start()
    wait_until(lambda: fleet.runs("c") >= before["c"] + 3, 240)  # round 1: training and evaluation
    fleet.site.kill("c")
    run.join(300)
    (logged,) = logs
    assert logged.count("Secure aggregation completed.") == 2, logged
    arrays = np.load(model)
    found = {name: arrays[f"arr_{at}"] for at, name in enumerate(sorted(fleet.bundle.trainable))}
    assert 0.1 < fleet.distance(found) < 100


@pytest.mark.timeout(120)
def test_nothing_leaves_the_machine_and_unknown_nodes_are_refused(fleet: Fleet) -> None:
    fleet.site.supernode("unknown", fleet.devices["a"].folder / "s", registered=False)
    wait_until(lambda: fleet.site.processes["unknown"].poll() not in (None, 0), 60)
    assert "2004" in fleet.site.log("unknown")
    assert fleet.site.strangers() == []


@pytest.mark.parametrize("unit", ["edged-superlink", "edged-supernode"])
def test_options_of_the_units_are_the_programs(unit: str) -> None:
    text = (ROOT / "deploy" / "flower" / f"{unit}.service").read_text(encoding="utf-8")
    command = text.partition("ExecStart=")[2].partition("LoadCredential")[0]
    given = re.findall(r"(--[a-z-]+)", command)
    program = Path(os.environ["EDGED_FLOWER"]).parent / f"flower-{unit.removeprefix('edged-')}"
    known = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert given
    assert [option for option in given if option not in known] == []


@pytest.mark.timeout(400)
def test_the_tutorial_lets_fifty_simulated_devices_learn(tmp_path: Path) -> None:
    bin_, ports = Path(os.environ["EDGED_FLOWER"]).parent, [free_port(), free_port()]
    (tmp_path / "fifty").mkdir()
    script = ["set -eo pipefail", f"cd {tmp_path}"]
    for mark, language, text in blocks("tutorial-flower.md"):
        if mark.startswith("save: "):
            (tmp_path / mark.removeprefix("save: ")).write_text(text, encoding="utf-8")
        elif language == "sh" and not mark:
            script.append(text)
    own = {
        "PATH": f"{bin_}:{os.environ['PATH']}", "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]), "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1]),
    }  # fmt: skip
    superlink = subprocess.Popen(
        [bin_ / "flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess", "--host",
         "127.0.0.1", "--port", str(ports[0]), "--control-api-address", f"127.0.0.1:{ports[1]}"],
        env=os.environ | SILENT | own, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=False, timeout=360,
            env=os.environ | SILENT | own,
        )  # fmt: skip
    finally:
        superlink.terminate()
        superlink.wait(20)
    whole = "aggregate_train: Received 50 results and 0 failures"
    assert done.stdout.count(whole) == 5, done.stdout + done.stderr
    evaluated = done.stdout.partition("ClientApp-side Evaluate Metrics")[2]
    losses = [float(loss) for loss in re.findall(r"'loss': '([0-9.e+-]+)'", evaluated)]
    assert len(losses) == 5
    assert losses[-1] < 0.8 * losses[0]
