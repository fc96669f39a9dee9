"""The timeline of real devices: pictures, counts, and what a person teaches by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.device.web.api.timeline import MOST_FEATURES, MOST_WIDTH, USUAL_WIDTH
from edged.workbench.demo.broker import free_port
from tests.device.web.client import Client
from tests.device.web.conftest import Site, untrained
from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

pytestmark = pytest.mark.slow

HOUR = 1_700_000_000.0
STREAM = {"topic": "plant/#", "features": ["temp", "vib", "amp", "rpm"], "units": ["°C", "g", "A", "1/min"],
          "classes": "open", "ts": "at", "label": "state"}  # fmt: skip


@pytest.fixture(scope="module")
def plant(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Classes that come and go; 120 samples of a pump, one a second, and one of a fan."""
    folder, port = tmp_path_factory.mktemp("plant"), free_port()
    device = Device(
        folder, site.broker.port, STREAM, device={"id": "plant"}, training={"new_labels": 0, "every": None},
        web={"listen": None, "unix_socket": str(folder / "edged.sock")},
    )  # fmt: skip
    with running(device, site.broker.port, "edged/plant") as listener:
        made = Site(site.broker, device, listener, port, site.client, Client(port, folder / "edged.sock"))
        for i in range(120):
            listener.send("plant/pump", sample(i))
        listener.send("plant/fan", {**sample(0), "at": HOUR + 500})
        wait_until(lambda: get(made)["keys"] == ["fan", "pump"])
        wait_until(lambda: get(made, key="pump")["samples"] == 120)
        yield made


def sample(i: int) -> dict[str, float]:
    state = 5.0 if i >= 60 else 0.0
    return {"temp": state + i % 2, "vib": -state, "amp": i / 10, "rpm": 1e6 + i, "at": HOUR + i}


def get(site: Site, path: str = "/api/timeline", **query: object) -> Any:
    given = "&".join(f"{name.rstrip('_')}={value}" for name, value in query.items())
    answer = site.unix("GET", f"{path}?{given}")
    assert answer.status == 200, answer
    assert answer.headers["cache-control"] == "no-store"
    return answer.json


def command(site: Site, name: str, **fields: object) -> Any:
    answer = site.unix("POST", f"/api/commands/{name}", fields)
    assert answer.status == 200, answer
    return answer.json["data"]


def test_a_picture_has_what_was_measured(plant: Site) -> None:
    told = get(plant, key="pump", from_=HOUR, to=HOUR + 119, width=60)
    assert [one["name"] for one in told["features"]] == ["temp", "vib", "amp"]
    assert told["names"] == STREAM["features"]
    assert (told["samples"], told["every"], told["width"]) == (120, 1, 60)
    assert (told["first"], told["last"]) == (told["from"], told["to"]) == (HOUR, HOUR + 119)
    assert told["at"] == list(range(60))
    temp = told["features"][0]
    assert (temp["unit"], temp["low"][0], temp["high"][0]) == ("°C", 0.0, 1.0)
    assert (temp["low"][-1], temp["high"][-1]) == (5.0, 6.0)
    assert (told["labels"], told["marks"], told["held"]) == ([], [], None)


def test_its_ends_its_key_and_its_curves_are_chosen(plant: Site) -> None:
    assert get(plant)["key"] == "fan", "that of the newest sample"
    part = get(plant, key="pump", from_="2023-11-14T22:13:30Z", to=HOUR + 19, feature="rpm")
    assert (part["from"], part["samples"], part["width"]) == (HOUR + 10, 10, USUAL_WIDTH)
    assert "names" not in part
    assert part["features"] == [
        {
            "name": "rpm",
            "unit": "1/min",
            "low": part["features"][0]["high"],
            "high": part["features"][0]["high"],
        }
    ]
    assert part["features"][0]["low"][0] == pytest.approx(1e6 + 10, rel=1e-5)
    assert get(plant, key="pump", to=HOUR + 9)["samples"] == 10
    assert get(plant, key="pump", from_=HOUR + 10**6)["samples"] == 0
    alone = get(plant, key="fan")
    assert (alone["first"], alone["last"], alone["at"]) == (HOUR + 500, HOUR + 500, [0])


def test_a_stretch_is_counted(plant: Site) -> None:
    count = "/api/timeline/count"
    assert get(plant, count, key="pump", from_=HOUR + 9.5, to=HOUR + 12) == {"key": "pump", "samples": 3}
    assert get(plant, count, key="pump", from_=HOUR + 0.1, to=HOUR + 0.9)["samples"] == 0
    assert get(plant, count) == {"key": "fan", "samples": 1}


@pytest.mark.parametrize("path", ["/api/timeline", "/api/timeline/count"])
@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("from=yesterday", 400, "from: 'yesterday' is no time (Unix seconds"),
        ("to=nan", 400, "to: 'nan' is no time"),
        ("from=-1", 400, "from: '-1' is no time"),
        ("from=20&to=10", 400, "from: 20 is after to, 10"),
        ("key=" + "x" * 300, 400, "key: longer than 256 characters"),
        ("key=nobody", 404, "no sample of 'nobody' is stored"),
        ("key=%00%27--", 404, "no sample of"),
    ],
)
def test_wrong_stretches_are_refused(plant: Site, path: str, query: str, status: int, said: str) -> None:
    answer = plant.unix("GET", f"{path}?{query}")
    assert answer.status == status
    assert said in answer.json["error"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("width=0", f"width: '0' is no number of pixels from 1 to {MOST_WIDTH}"),
        ("width=2001", "width: '2001'"),
        ("width=1e3", "width: '1e3'"),
        ("width=", "width: ''"),
        ("feature=colour", "feature: 'colour' is no feature of the stream"),
        ("&".join(["feature=temp"] * (MOST_FEATURES + 1)), "feature: 9 of them"),
    ],
)
def test_wrong_pictures_are_refused(plant: Site, query: str, said: str) -> None:
    answer = plant.unix("GET", f"/api/timeline?{query}")
    assert answer.status == 400
    assert answer.json["error"].startswith(said)


def test_what_is_named_is_in_the_next_picture_and_the_model_answers_by_it(plant: Site) -> None:
    before = get(plant, key="pump")
    assert (before["classes"], before["free"], before["missing"]) == ([], 16, "0 of 4 labels")
    assert before["predictions"] == []
    idle = command(plant, "label", key="pump", **{"from": HOUR, "to": HOUR + 29}, label="idle")
    assert idle["labelled"] == 30
    works = command(plant, "label", key="pump", **{"from": HOUR + 70, "to": HOUR + 89}, label="works")
    wait_until(lambda: get(plant, key="pump")["missing"] is None, 5)  # no sample comes meanwhile
    told = get(plant, key="pump")
    assert told["labels"] == [[HOUR, HOUR + 29, "idle"], [HOUR + 70, HOUR + 89, "works"]]
    assert told["classes"] == ["idle", "works"]
    said = {ts: (answer, sure) for ts, answer, sure in told["predictions"]}
    assert len(said) == 120
    assert [said[HOUR + at][0] for at in (40, 59, 60, 119)] == ["idle", "idle", "works", "works"]
    assert all(0.5 < sure <= 1.0 for _, sure in said.values())
    assert command(plant, "label.undo", number=works["number"])["undone"] == 20
    assert get(plant, key="pump")["labels"] == [[HOUR, HOUR + 29, "idle"]]
    command(plant, "label", key="pump", **{"from": HOUR + 10, "to": HOUR + 19}, label=None)
    assert get(plant, key="pump")["labels"] == [[HOUR, HOUR + 9, "idle"], [HOUR + 20, HOUR + 29, "idle"]]


def test_what_holds_is_told(plant: Site) -> None:
    command(plant, "label", key="fan", label="idle", hold=True)
    held = get(plant, key="fan")["held"]
    assert held["label"] == "idle"
    assert held["since"] > HOUR
    assert get(plant, key="pump")["held"] is None
    command(plant, "label", key="fan", label=None, hold=True)
    assert get(plant, key="fan")["held"] is None


def test_before_the_first_sample_it_says_where_samples_come_from(site: Site, tmp_path: Path) -> None:
    with untrained(site, tmp_path, "empty") as empty:
        told = get(empty)
        assert (told["key"], told["samples"], told["topics"]) == (None, 0, ["sensors/#"])
        assert get(empty, "/api/timeline/count") == {"key": None, "samples": 0}
        assert empty.unix("GET", "/api/timeline?key=a").status == 404


def test_a_log_of_windows_of_values_shows_their_range_and_what_the_model_says(
    broker: Mosquitto, tmp_path: Path
) -> None:
    socket = tmp_path / "edged.sock"
    stream = {
        "features": ["temp"],
        "window": {"size": 4, "stride": 4},
        "task": "regress",
        "label": "load",
        "ts": "at",
    }
    device = Device(tmp_path, broker.port, stream, web={"listen": None, "unix_socket": str(socket)})
    with running(device, broker.port) as listener:
        for i in range(40):
            listener.send("sensors/a", {"temp": i, "load": 2.0, "at": HOUR + i})
        site = Site(broker, device, listener, 0, Client(0), Client(0, socket))
        wait_until(lambda: get(site)["samples"] == 10)
        told = get(site, width=2000)
        assert len(told["features"][0]["low"]) <= 10
        spans = list(zip(told["features"][0]["low"], told["features"][0]["high"], strict=True))
        assert spans[0][0] == 0.0
        assert spans[-1] == (36.0, 39.0)
        assert {value for _, _, value in told["labels"]} == {2.0}
        assert told["classes"] == []
        assert json.dumps(told["predictions"])
