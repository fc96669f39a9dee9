"""Rounds for a program on this machine, over the Unix socket of a daemon with its trainer and gate."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from edged.engines.model_parameters import initial_parameters
from edged.workbench.demo.broker import free_port
from tests.device.web.client import TOKENS, Answer, Client, token_files
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.storage.models.bundles import Bundle
    from tests.device.web.conftest import Site
    from tests.mosquitto import Mosquitto

    Weights = dict[str, NDArray[np.float32]]

pytestmark = pytest.mark.slow

PATHS = ("/api/fleet/train", "/api/fleet/evaluate")
SETTINGS: dict[str, Any] = {
    "epochs": None, "steps": 60, "learning_rate": 0.01, "batch_size": 32, "proximal_mu": 0.0, "round": 7,
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A network for the stream, built once."""
    from tests.building import small_classifier

    return small_classifier(tmp_path_factory.mktemp("bundles") / "classifier")


@dataclass
class Member:
    """A daemon with `fleet.flower`, and a client at its Unix socket."""

    device: Device
    listener: Listener
    unix: Client
    tcp: Client

    def ask(self, what: str, fields: dict[str, Any], weights: Weights | None = None) -> Answer:
        sent = b"" if weights is None else save(weights)
        return self.unix("POST", f"/api/fleet/{what}", json.dumps(fields).encode() + b"\n" + sent)

    def train(self, weights: Weights, **fields: Any) -> tuple[dict[str, Any], Weights]:
        answer = self.ask("train", SETTINGS | fields, weights)
        assert answer.status == 200, answer
        about, _, trained = answer.body.partition(b"\n")
        return json.loads(about), load(trained)

    def serving(self) -> Any:
        """Version of the model that is served."""
        return self.device.cli("status", str(self.device.path))["model"]["version"]

    def declined(self) -> list[str]:
        """Reasons of the events `fleet_declined` so far."""
        return [event["reason"] for event in self.listener.events("fleet_declined")]

    def evaluate(self, weights: Weights, *, offer: bool) -> dict[str, Any]:
        answer = self.ask("evaluate", {"offer": offer, "round": 7}, weights)
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json
        return found


@pytest.fixture
def member(broker: Mosquitto, bundle: Bundle, tmp_path: Path) -> Iterator[Member]:
    port, socket = free_port(), tmp_path / "s"
    device = Device(
        tmp_path, broker.port, {"features": 6, "classes": 3, "label": "y"},
        model={"bundle": str(bundle.path)}, fleet={"flower": True},
        training={"every": None, "new_labels": 0, "engine": "portable", "learning_rate": 0.01},
        gate={"probation": 0, "min_holdout": 10},
        web={
            "listen": f"127.0.0.1:{port}", "unix_socket": str(socket),
            "tokens": token_files(tmp_path, ("control",)),
        },
    )  # fmt: skip
    with running(device, broker.port) as listener:
        yield Member(device, listener, Client(port, socket), Client(port).using(TOKENS["control"]))


def feed(member: Member, count: int) -> None:
    """Send labelled samples of a rule that a small network learns at once."""
    x = np.random.default_rng(0).normal(size=(count, 6))
    for row in x:
        member.listener.send("sensors/a", {"x": row.tolist(), "y": int(np.argmax(row[:3]))})
    device = member.device
    wait_until(lambda: device.cli("status", str(device.path))["samples"] == count, 60)


def distance(one: Weights, other: Weights) -> float:
    return float(np.sqrt(sum(np.square(one[name] - other[name]).sum() for name in one)))


@pytest.mark.parametrize("path", PATHS)
def test_there_is_no_endpoint_without_flower(site: Site, path: str) -> None:
    assert site.unix("POST", path).status == 404
    assert site.using("control")("POST", path).status == 404


@pytest.mark.timeout(180)
def test_weights_are_trained_judged_and_served_through_the_gate_alone(member: Member, bundle: Bundle) -> None:
    answer = member.ask("train", SETTINGS)
    initial = load(answer.body.partition(b"\n")[2])
    expected = initial_parameters(bundle)
    assert initial.keys() == set(bundle.trainable)
    assert all(np.array_equal(value, expected[name]) for name, value in initial.items())

    assert [member.tcp("POST", path, b"{}\n").status for path in PATHS] == [403, 403]
    early = member.ask("train", SETTINGS, initial)
    assert (early.status, "no labelled sample" in early.json["error"]) == (409, True)
    assert member.ask("evaluate", {"offer": False, "round": 7}, initial).status == 409

    feed(member, 500)
    check_malformed_requests(member, initial)
    about, trained = member.train(initial)
    assert (about["steps"], about["samples"] > 400, about["accuracy"] > 0.5) == (60, True, True)
    member.listener.wait(lambda: member.listener.events("fleet_trained"))
    (event,) = member.listener.events("fleet_trained")
    assert (event["round"], event["steps"]) == (7, 60)
    assert event["norm"] == pytest.approx(distance(trained, initial), rel=1e-4)

    _, held = member.train(initial, proximal_mu=100.0)
    assert distance(held, initial) < 0.5 * distance(trained, initial)

    champion = member.serving()
    judged = member.evaluate(trained, offer=False)
    assert (judged["taken"], judged["accuracy"] > 0.5, judged["samples"] > 10) == (False, True, True)
    assert member.serving() == champion
    assert member.listener.events("fleet_model") == []

    better = trained
    for _ in range(5):
        _, better = member.train(better, steps=200)
    offered = member.evaluate(better, offer=True)
    assert offered["taken"], offered
    assert member.serving() != champion
    member.listener.wait(lambda: member.listener.events("fleet_model"))
    assert not list((member.device.state / "fleet").glob("trained*"))

    member.listener.request("pause", what="training")
    paused = member.ask("train", SETTINGS, initial)
    assert (paused.status, "training is paused" in paused.json["error"]) == (409, True)
    member.listener.wait(lambda: "fleet: training is paused" in member.declined())


def check_malformed_requests(member: Member, initial: Weights) -> None:
    for fields, told in (
        (SETTINGS | {"epochs": 1}, "either epochs or steps"),
        (SETTINGS | {"steps": 0}, "whole number from 1"),
        (SETTINGS | {"proximal_mu": -1.0}, "finite number from 0"),
        ({"steps": 1}, "either epochs or steps"),
    ):
        answer = member.ask("train", fields, initial)
        assert (answer.status, told in answer.json["error"]) == (400, True), answer
    name = next(iter(initial))
    for weights, status, told in (
        (initial | {name: initial[name].astype(np.float64)}, 400, "not float32"),
        ({key: value for key, value in initial.items() if key != name}, 409, "leaves it out"),
        (initial | {name: initial[name] * np.float32(np.nan)}, 409, "not finite"),
    ):
        answer = member.ask("train", SETTINGS, weights)
        assert (answer.status, told in answer.json["error"]) == (status, True), answer
    assert member.unix("POST", PATHS[1], b'{"offer": false, "round": 1}\nno weights').status == 400


@pytest.mark.timeout(120)
def test_a_daemon_that_stops_answers_so(member: Member, bundle: Bundle) -> None:
    feed(member, 100)
    initial = {name: initial_parameters(bundle)[name] for name in bundle.trainable}
    answers: list[Answer] = []

    def ask() -> None:
        answers.append(member.ask("train", SETTINGS | {"steps": 10**7}, initial))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: member.device.cli("status", str(member.device.path))["training"]["runs"], 30)
    assert member.device.stop() == 0
    thread.join(20)
    assert [answer.status for answer in answers] == [503]
    assert "stop" in answers[0].json["error"]
