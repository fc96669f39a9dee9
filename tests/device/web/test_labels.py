"""Labels over HTTP: open requests in the order of their worth, labels to check, the map, one sample of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest

from edged.workbench.demo.broker import free_port
from tests.device.commands.test_label_reviews import MARK, STREAM, feed, seen
from tests.device.web.client import Client
from tests.device.web.test_page import sections
from tests.mosquitto import Mosquitto
from tests.running_device import Device, Listener, running, wait_until
from tests.steered import data

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

Rig = tuple[Client, Listener, set[str]]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A device that has learned, has reviewed its labels, and asks for some; the ids of the wrong ones."""
    folder: Path = tmp_path_factory.mktemp("labels")
    broker, port = (
        Mosquitto(tmp_path_factory.mktemp("broker"), free_port(), ("allow_anonymous true",)),
        free_port(),
    )
    broker.start()
    device = Device(
        folder, broker.port, STREAM, training={"new_labels": 0, "every": None},
        web={"listen": f"127.0.0.1:{port}", "unix_socket": str(folder / "edged.sock")},
        labels={"request_share": 0.4, "request_random": 0.5}, log={"level": "info"},
    )  # fmt: skip
    try:
        with running(device, broker.port) as listener:
            wrong = feed(listener, 300)
            data(listener, "train", steps=20)
            listener.wait(lambda: seen(device, MARK), 60)
            yield Client(port, folder / "edged.sock"), listener, wrong
    finally:
        broker.stop()


def test_open_requests_are_ordered_by_what_the_model_says_now(rig: Rig) -> None:
    client, listener, _ = rig
    x = np.random.default_rng(5).normal(size=(120, 2)).round(4).tolist()
    before = len(listener.messages["predictions"])
    for temp, vib in x:
        listener.send("sensors/asked", {"temp": temp, "vib": vib})
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + len(x), 60)

    def shown() -> list[tuple[str, float]]:
        found = sections(client, "requests")["requests"]
        ids = re.findall(r'aria-label="low, sample ([^"]+)"', found)
        return list(zip(ids, map(float, re.findall(r"Predicted: \w+ \(([0-9.]+) %\)", found)), strict=True))

    def asked() -> dict[str, Any]:
        return {said["id"]: said for said in listener.events("label_requested")}

    wait_until(lambda: len(shown()) == 5)
    first = shown()
    listener.wait(lambda: {name for name, _ in first} <= asked().keys())
    assert {said["random"] for said in asked().values()} == {True, False}
    assert all(not asked()[name]["random"] for name, _ in first[:2])
    chosen = [sure for name, sure in first if not asked()[name]["random"]]
    assert chosen == sorted(chosen), "those of which the model is least sure come first"
    assert max(chosen) < 100
    drawn = [asked()[name]["random"] for name, _ in first]
    assert drawn == sorted(drawn), "those drawn at random come after them"
    name = first[0][0]
    data(listener, "label", id=name, label="low")  # not over HTTP: the page sees it all the same
    assert name not in [one for one, _ in shown()]
    assert "label wanted" not in sections(client, "events")["events"]


def test_suspects_and_their_samples(rig: Rig) -> None:
    client, _, wrong = rig
    found = client("GET", "/api/labels/suspects?limit=45").json
    assert found["labels"] == 300
    ids = [one["id"] for one in found["suspects"]]
    assert len(set(ids) & wrong) >= 0.8 * len(wrong)
    only = client("GET", "/api/labels/suspects?key=b&limit=2").json["suspects"]
    assert [one["key"] for one in only] == ["b", "b"]
    page = sections(client, "suspects")["suspects"]
    assert re.findall(r'name="suspect" [^>]*value="([^"]+)"', page) == ids[:20]
    for wrong_limit in ("0", "301", "x", "-1", "1" * 400, "١"):
        assert client("GET", f"/api/labels/suspects?limit={quote(wrong_limit)}").status == 400, wrong_limit


def test_the_map_shows_labels_as_they_are_now(rig: Rig) -> None:
    client, listener, wrong = rig
    told = client("GET", "/api/labels/map").json
    points: dict[str, list[Any]] = told["points"]
    assert told["classes"] == told["known"] == ["low", "high"]
    assert {len(column) for column in points.values()} == {300}
    assert all(-1 <= place <= 1 for name in ("x", "y") for place in points[name])
    suspects = [one["id"] for one in client("GET", "/api/labels/suspects").json["suspects"]]
    offset = int(next(one for one in suspects if one in wrong).split("-")[1])
    at = points["offset"].index(offset)
    assert points["label"][at] != points["answer"][at]
    one = client("GET", f"/api/labels/samples/{offset}").json
    assert one["features"] == ["temp", "vib"]
    assert (one["label"], len(one["values"])) == (told["classes"][points["label"][at]], 2)
    right = told["classes"][points["answer"][at]]
    number = data(listener, "label", id=one["id"], label=right)["number"]
    assert client("GET", f"/api/labels/samples/{offset}").json["label"] == right
    assert client("GET", "/api/labels/map").json["points"]["label"][at] == points["answer"][at]
    data(listener, "label.undo", number=number)
    assert client("GET", "/api/labels/map").json["points"] == points
    assert client("GET", "/api/labels/samples/999999").status == 404
    assert client("GET", "/api/labels/samples/x").status == 400
