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

from edged.signing import new_pair, sign_command
from tests.device.commands.test_commands import ON_COMMAND, STREAM
from tests.requester import Requester
from tests.running_device import Device, running

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.running_device import Listener

pytestmark = pytest.mark.slow

RULES = """
topic readwrite #

user rig
topic read edged/rig/request/#
topic read sensors/#
topic write edged/rig/status
topic write edged/rig/state/#
topic write edged/rig/metrics
topic write edged/rig/predictions
topic write edged/rig/events
topic write edged/rig/response/#
topic deny edged/rig/response/closed
topic write plant/answers/#
"""
ELSEWHERE = "homeassistant/device/stove/config"


class Plant:
    """A device with a key, and everybody else."""

    def __init__(self, folder: Path, device: Device, listener: Listener, port: int) -> None:
        self.key, self.device, self.listener, self.port = folder / "key", device, listener, port

    def signed(self, command: str, root: str = "edged", **fields: Any) -> bytes:
        moment, transaction = time.time(), os.urandom(8).hex()
        return sign_command(command, "rig", fields, self.key, now=moment, transaction=transaction, root=root)

    @property
    def connections(self) -> int:
        return self.device.log.read_text(encoding="utf-8").count("mqtt_connected")


@pytest.fixture(scope="module")
def plant(make_brokers: MakeBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder = tmp_path_factory.mktemp("plant")
    rules = folder / "rules.acl"
    rules.write_text(RULES, encoding="utf-8")
    broker = make_brokers("allow_anonymous true", f"acl_file {rules}")
    new_pair(folder / "key")
    device = Device(
        folder,
        broker.port,
        STREAM,
        training=ON_COMMAND,
        mqtt={"host": "127.0.0.1", "port": broker.port, "username": "rig", "reconnect_max": "1s"},
        commands={"keys": ["key.pub"], "answer_to": ["plant/answers/+"]},
    )
    with running(device, broker.port) as listener:
        yield Plant(folder, device, listener, broker.port)


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
            requester.send("edged/rig/request/wipe", b"{}", answer_to="edged/rig/response/closed")
        requester.send("edged/rig/request/ping", b"{}")
        requester.wait(lambda: requester.came, 30)
    assert plant.connections - before <= 1


def test_a_flood_of_unsigned_commands_keeps_no_signed_one_waiting(plant: Plant) -> None:
    done = threading.Event()
    with Requester(plant.port) as flood, Requester(plant.port, "edged/rig/response/#") as requester:

        def shout() -> None:
            began, sent = time.monotonic(), 0
            while not done.is_set():
                while sent < 500 * (time.monotonic() - began):
                    flood.shout("edged/rig/request/train", b'{"steps": 1}')
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
    plant.listener.wait(lambda: plant.listener.messages["metrics"][-1]["commands"]["limited"] > 500)


def test_a_copied_command_does_not_crowd_out_those_of_its_signer(plant: Plant) -> None:
    copied = plant.signed("logs.level", level="info")
    with Requester(plant.port, "edged/rig/response/#") as requester:
        for _ in range(600):
            requester.shout("edged/rig/request/logs.level", copied)
        mine = plant.signed("logs.level", level="warning")
        requester.send("edged/rig/request/logs.level", mine)
        requester.wait(lambda: json.loads(mine)["transaction"] in requester.transactions("successful"), 10)


def test_unsigned_weights_are_refused(plant: Plant) -> None:
    chunk = {"bytes": 1, "sha256": "0" * 64}
    weights = {"transfer": "t", "manifest": {**chunk, "chunks": [chunk]}}
    asked: dict[str, dict[str, Any]] = {"weights.apply": weights, "label": {"id": "1", "label": 1}}
    for command in ("weights.apply", "weights.get", "pause", "export", "label", "evaluate"):
        answer = plant.listener.request(command, **asked.get(command, {}))
        assert (answer["state"], "must be signed" in answer["error"]) == ("refused", True), command
    assert plant.listener.request("status")["status"] == "ok"


def test_a_command_signed_for_another_plant_is_refused(plant: Plant) -> None:
    with Requester(plant.port, "edged/rig/response/+") as requester:
        for root, state in (("plant-b", "refused"), ("edged", "successful")):
            payload = plant.signed("pause", root, what="training")
            requester.send("edged/rig/request/pause", payload)
            transaction = json.loads(payload)["transaction"]
            requester.wait(lambda: transaction in requester.transactions(state))  # noqa: B023  waited for here


def test_a_command_with_a_slash_for_its_dot_is_answered_where_it_was_asked(plant: Plant) -> None:
    with Requester(plant.port, "edged/rig/response/#") as requester:
        requester.send("edged/rig/request/config/get", b'{"keys": ["training.steps"]}')
        requester.send("edged/rig/request/logs/level", plant.signed("logs.level", level="info"))
        requester.wait(lambda: len(requester.came) == 2)
        answered = {topic: json.loads(payload) for topic, payload, _ in requester.came}
    assert set(answered) == {"edged/rig/response/config/get", "edged/rig/response/logs/level"}
    assert all(answer["status"] == "ok" for answer in answered.values())
