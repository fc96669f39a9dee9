"""Commands of strangers to a running device behind a broker with access rules: what they cannot do."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.bundles.graph.templates import mlp
from edged.signing import new_pair, sign_command
from edged.storage.models.signatures import sign_bundle
from edged.workbench.demo.broker import free_port
from tests.building import build
from tests.device.commands.test_commands import ON_COMMAND, STREAM
from tests.device.web.client import TOKENS, Client, token_files
from tests.requester import Requester
from tests.running_device import Device, running
from tests.steered import answers

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.running_device import Listener

pytestmark = pytest.mark.slow

RULES = """
topic readwrite #

user rig
topic read edged/rig/request/#
topic read edged/rig/weights/in/#
topic read sensors/#
topic write edged/rig/status
topic write edged/rig/state/#
topic write edged/rig/metrics
topic write edged/rig/predictions
topic write edged/rig/events
topic write edged/rig/response/#
topic deny edged/rig/response/closed
topic write plant/answers/#
topic write homeassistant/device/rig/+/config
topic read homeassistant/status
topic readwrite spBv1.0/#
"""
ELSEWHERE = "homeassistant/device/stove/config"
ANNOUNCED, BIRTH = "homeassistant/device/rig/main-edged/config", "spBv1.0/plant/NBIRTH/rig"
CHUNK = {"bytes": 1, "sha256": "0" * 64}
WEIGHTS: dict[str, Any] = {"transfer": "t", "manifest": {**CHUNK, "chunks": [CHUNK]}}


class Plant:
    """A device with keys for commands and for models, everybody else, and what other systems hear of it."""

    def __init__(self, folder: Path, device: Device, listener: Listener, hosts: Requester) -> None:
        self.folder, self.device, self.listener, self.hosts = folder, device, listener, hosts
        self.port = int(device.values["mqtt"]["port"])

    def signed(self, command: str, root: str = "edged", key: str = "key", **fields: Any) -> bytes:
        now, transaction = time.time(), os.urandom(8).hex()
        path = self.folder / key
        return sign_command(command, "rig", fields, path, now=now, transaction=transaction, root=root)

    def ask(self, command: str, payload: bytes) -> dict[str, Any]:
        """Send a signed command; its answer."""
        transaction = json.loads(payload)["transaction"]
        self.listener.publish(f"edged/rig/request/{command}", payload)
        self.listener.wait(lambda: answers(self.listener, command, transaction))
        return answers(self.listener, command, transaction)[-1]

    @property
    def limited(self) -> int:
        """Commands that were too many so far, as the device tells."""
        newest = self.listener.messages["metrics"][-1:]
        return int(newest[0]["commands"]["limited"]) if newest else 0

    @property
    def connections(self) -> int:
        """How often the device has connected so far."""
        return self.device.log.read_text(encoding="utf-8").count("mqtt_connected")


@pytest.fixture(scope="module")
def plant(make_brokers: MakeBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder = tmp_path_factory.mktemp("plant")
    rules = folder / "rules.acl"
    rules.write_text(RULES, encoding="utf-8")
    broker = make_brokers("allow_anonymous true", f"acl_file {rules}")
    for name in ("key", "maker", "stranger"):
        new_pair(folder / name)
    sign_bundle(build(mlp(3, 2, [8]), folder / "bundle", loss="cross_entropy").path, folder / "maker")
    device = Device(
        folder,
        broker.port,
        STREAM,
        training=ON_COMMAND,
        mqtt={"host": "127.0.0.1", "port": broker.port, "username": "rig", "reconnect_max": "1s"},
        model={"bundle": "bundle", "keys": ["maker.pub"]},
        commands={"keys": ["key.pub"], "answer_to": ["plant/answers/+"]},
        web={"listen": f"127.0.0.1:{free_port()}", "tokens": token_files(folder)},
        discovery={},
        sparkplug={"group": "plant"},
    )
    with (
        Requester(broker.port, "spBv1.0/#", "homeassistant/#") as hosts,
        running(device, broker.port) as listener,
    ):
        hosts.wait(lambda: {ANNOUNCED, BIRTH} <= {topic for topic, _, _ in hosts.came}, 60)
        yield Plant(folder, device, listener, hosts)


# ---- where answers go --------------------------------------------------------------------------


def test_a_forbidden_response_topic_costs_no_connection(plant: Plant) -> None:
    before = plant.connections
    with Requester(plant.port, "edged/rig/response/+") as requester:
        for number in range(20):
            requester.send("edged/rig/request/pause", b"{}", answer_to=ELSEWHERE, correlation=str(number))
        requester.wait(lambda: len(requester.came) == 20)
        assert {topic for topic, _, _ in requester.came} == {"edged/rig/response/pause"}
        assert {correlation for _, _, correlation in requester.came} == {str(n).encode() for n in range(20)}
        assert all("must be signed" in payload for _, payload, _ in requester.came)
    assert plant.connections == before
    assert "mqtt_publish_refused" not in plant.device.log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("edged/rig/response/mine/too", "edged/rig/response/mine/too"),
        ("plant/answers/mine", "plant/answers/mine"),
        ("plant/answers/mine/too", "edged/rig/response/ping"),
        ("edged/rig/response/+", "edged/rig/response/ping"),
        ("edged/rig/state/model", "edged/rig/response/ping"),
        ("edged/rig/responses", "edged/rig/response/ping"),
    ],
)
def test_answers_go_below_the_own_response_or_where_the_configuration_allows(
    plant: Plant, asked: str, answered: str
) -> None:
    with Requester(plant.port, "edged/rig/response/#", "edged/rig/responses", "plant/#") as requester:
        requester.send("edged/rig/request/ping", b"{}", answer_to=asked, correlation="x")
        requester.wait(lambda: requester.came)
        assert [(topic, correlation) for topic, _, correlation in requester.came] == [(answered, b"x")]


def test_a_topic_that_the_broker_forbids_costs_one_connection_at_most(plant: Plant) -> None:
    before = plant.connections
    with Requester(plant.port, "edged/rig/response/+") as requester:
        for _ in range(20):
            requester.send("edged/rig/request/pause", b"{}", answer_to="edged/rig/response/closed")
        requester.send("edged/rig/request/ping", b"{}")
        requester.wait(lambda: requester.came, 30)
    assert plant.connections - before <= 1


def test_a_command_with_a_slash_for_its_dot_is_answered_where_it_was_asked(plant: Plant) -> None:
    with Requester(plant.port, "edged/rig/response/#") as requester:
        requester.send("edged/rig/request/config/get", b'{"keys": ["training.steps"]}')
        requester.send("edged/rig/request/logs/level", plant.signed("logs.level", level="info"))
        requester.wait(lambda: len(requester.came) == 2)
        answered = {topic: json.loads(payload) for topic, payload, _ in requester.came}
    assert set(answered) == {"edged/rig/response/config/get", "edged/rig/response/logs/level"}
    assert all(answer["status"] == "ok" for answer in answered.values())


# ---- whose commands are carried out ------------------------------------------------------------


def test_unsigned_commands_are_refused_unless_they_only_read(plant: Plant) -> None:
    asked: dict[str, dict[str, Any]] = {"weights.apply": WEIGHTS, "label": {"id": "1", "label": 1}}
    for command in ("weights.apply", "weights.get", "pause", "export", "label", "evaluate"):
        answer = plant.listener.request(command, **asked.get(command, {}))
        assert (answer["state"], "must be signed" in answer["error"]) == ("refused", True), command
    assert plant.listener.request("status")["status"] == "ok"


def test_weights_come_in_by_the_keys_of_models_alone(plant: Plant) -> None:
    refused = plant.ask("weights.apply", plant.signed("weights.apply", **WEIGHTS))
    assert (refused["state"], "model.keys" in refused["error"]) == ("refused", True)
    taken = plant.ask("weights.apply", plant.signed("weights.apply", key="maker", **WEIGHTS))
    assert taken["data"]["state"] == "receiving"
    assert plant.ask("pause", plant.signed("pause", key="maker"))["state"] == "refused"


@pytest.mark.parametrize(("root", "state"), [("plant-b", "refused"), ("edged", "successful")])
def test_a_command_counts_below_the_root_that_it_was_signed_for(plant: Plant, root: str, state: str) -> None:
    assert plant.ask("resume", plant.signed("resume", root, what="training"))["state"] == state


def test_over_http_the_scope_control_stands_for_a_signature(plant: Plant) -> None:
    client = Client(int(plant.device.values["web"]["listen"].rpartition(":")[2]))
    control, infer = client.using(TOKENS["control"]), client.using(TOKENS["infer"])
    assert control("POST", "/api/commands/resume", {"what": "training"}).status == 200
    refused = infer("POST", "/api/commands/label", {"id": "1", "label": 1})
    assert (refused.status, "must be signed" in refused.json["error"]) == (409, True)


def test_other_systems_are_offered_only_what_needs_no_signature(plant: Plant) -> None:
    told = {topic: payload for topic, payload, _ in plant.hosts.came}
    announced = json.loads(told[ANNOUNCED])["components"].values()
    assert "button" not in {component["platform"] for component in announced}
    assert "Node Control/Rebirth" in told[BIRTH]
    assert "Node Control/Train" not in told[BIRTH]


# ---- floods ------------------------------------------------------------------------------------


@pytest.mark.parametrize("forged", [False, True])
def test_a_flood_keeps_no_signed_command_waiting(plant: Plant, *, forged: bool) -> None:
    """500 a second of somebody without a key, unsigned or signed with another, beside 40 signed ones."""
    done, limited = threading.Event(), plant.limited
    noise = plant.signed("train", key="stranger", steps=1) if forged else b'{"steps": 1}'
    with Requester(plant.port) as flood, Requester(plant.port, "edged/rig/response/#") as requester:

        def shout() -> None:
            began, sent = time.monotonic(), 0
            while not done.is_set():
                while sent < 500 * (time.monotonic() - began):
                    flood.shout("edged/rig/request/train", noise)
                    sent += 1
                done.wait(0.01)

        shouting = threading.Thread(target=shout)
        shouting.start()
        try:
            wanted = set()
            for number in range(40):
                payload = plant.signed("logs.level", level=("info", "warning")[number % 2])
                wanted.add(json.loads(payload)["transaction"])
                requester.send("edged/rig/request/logs.level", payload)
                done.wait(0.1)
            requester.wait(lambda: wanted <= requester.transactions("successful"), 20)
        finally:
            done.set()
            shouting.join()
    plant.listener.wait(lambda: plant.limited > limited + 500)


def test_copies_of_a_command_do_not_crowd_out_its_signer(plant: Plant) -> None:
    copied = plant.signed("logs.level", level="info")
    mine = plant.signed("logs.level", level="warning")
    with Requester(plant.port, "edged/rig/response/#") as requester:
        for _ in range(600):
            requester.shout("edged/rig/request/logs.level", copied)
        requester.send("edged/rig/request/logs.level", mine)
        requester.wait(lambda: json.loads(mine)["transaction"] in requester.transactions("successful"), 10)
