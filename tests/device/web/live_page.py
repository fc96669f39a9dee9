"""The page in Chromium: `make test-web`. `EDGED_WEB` names an environment with playwright and axe."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.clock import SystemClock
from edged.storage.web_access import Pairing
from edged.workbench.demo.broker import free_port
from tests.device.web.client import token_files
from tests.device.web.live import program, run
from tests.mosquitto import Mosquitto
from tests.running_device import Device, running
from tests.steered import data
from tests.streams import recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.running_device import Listener

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).with_name("chromium.py")
SOON = 1.0  # seconds from a person's yes to what comes of it on the page
CONTRAST = 3.0
BROWSERS = 4  # that one check pairs
TAUGHT = 300.0  # seconds until the model answers rightly by what a person has named
LIVE = 2.0  # ... until a new class is answered


class Plant(threading.Thread):
    """Samples of three machines all the time, most with labels, of which some are wrong."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(daemon=True)
        self._listener = listener
        self._rng = np.random.default_rng(0)
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.wait(0.05):
            for key in ("press-1", "press-2", "press-3"):
                temp, vib = self._rng.normal(size=2).round(4).tolist()
                high = (temp > 0) != (self._rng.random() < 0.05)
                state = {} if self._rng.random() < 0.3 else {"state": "high" if high else "low"}
                self._listener.send(f"sensors/{key}", {"temp": temp, "vib": vib, **state})


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    folder, port = tmp_path_factory.mktemp("page"), free_port()
    broker = Mosquitto(tmp_path_factory.mktemp("broker"), free_port(), ("allow_anonymous true",))
    broker.start()
    device = Device(
        folder, broker.port, {"features": ["temp", "vib"], "classes": ["low", "high"], "label": "state"},
        web={"listen": f"127.0.0.1:{port}", "tokens": token_files(folder, ("control",))},
        training={"new_labels": 0, "every": None},
        gate={"min_gain": -1, "max_regret": 1, "min_holdout": 1, "holdout": 0.2, "probation": 0},
        labels={"request_share": 0.02},
    )  # fmt: skip
    try:
        with running(device, broker.port) as listener:
            plant = Plant(listener)
            plant.start()
            listener.wait(lambda: len(listener.messages["predictions"]) > 450, 60)
            data(listener, "train")  # no run begins by itself: it would come between what a test does
            listener.wait(lambda: listener.events("model_promoted"), 60)
            listener.wait(lambda: listener.events("label_requested"), 60)
            listener.wait(lambda: "labels_reviewed" in device.log.read_text(), 60)
            yield device
            plant.ending.set()
            plant.join(10)
    finally:
        broker.stop()


class Lesson:
    """A device that knows no class, the activities that it has measured, and when.

    Three blocks of rows can be named; three shorter ones come later. A row a second, up to now.
    """

    NAMES = ("walking", "sitting", "lying")
    ROWS, LATER = 40, 20

    def __init__(self, folder: Path, broker: int) -> None:
        with np.load(recording("hapt_feat", folder, _activities)) as data:
            x, y = data["X"], data["y"]
        self._x = [x[y == place] for place in (0, 3, 5)]
        self.begins = time.time() - 3 * (self.ROWS + self.LATER) - 10
        self.port = free_port()
        self.device = Device(
            folder, broker, {"features": x.shape[1], "classes": "open", "label": "activity", "ts": "at"},
            web={"listen": f"127.0.0.1:{self.port}", "tokens": token_files(folder, ("control",))},
        )  # fmt: skip

    def send(self, listener: Listener) -> None:
        """Send all of it, and wait until it is predicted."""
        rows = [one[: self.ROWS] for one in self._x]
        rows += [one[self.ROWS : self.ROWS + self.LATER] for one in self._x]
        for i, row in enumerate(np.concatenate(rows)):
            listener.send("sensors/anna", {"x": row.tolist(), "at": self.begins + i})
        count = sum(map(len, rows))
        listener.wait(lambda: len(listener.messages["predictions"]) == count)

    def stretches(self, rows: tuple[int, int, int]) -> list[tuple[float, float, str]]:
        """A part of each block, so many rows in its middle, with its name."""
        starts = [self.begins + place * self.ROWS + 4.5 for place in range(3)]
        return [(at, at + n, name) for at, n, name in zip(starts, rows, self.NAMES, strict=True)]

    def later(self) -> list[tuple[float, str]]:
        """A moment in each of the later blocks, and what it is."""
        first = self.begins + 3 * self.ROWS + self.LATER / 2
        return [(first + place * self.LATER, name) for place, name in enumerate(self.NAMES)]


def _activities() -> dict[str, NDArray[Any]]:
    rng, y = np.random.default_rng(0), np.repeat([0, 3, 5], 200)
    x = np.where(y[:, None] == [0, 0, 3, 3, 5, 5, 5, 5], 2.0, 0.0) + rng.normal(0, 0.4, (600, 8))
    return {"X": x.astype(np.float32), "y": y}


@pytest.fixture
def lesson(broker: Mosquitto, tmp_path: Path) -> Iterator[Lesson]:
    made = Lesson(tmp_path, broker.port)
    with running(made.device, broker.port) as listener:
        made.send(listener)
        yield made


def look(check: str, device: Device, *more: str) -> Any:
    """What one of the checks of `chromium.py` has found."""
    pairing = Pairing(device.state, SystemClock())
    codes = ",".join(pairing.new_code(["read", "infer", "control"]) for _ in range(BROWSERS))
    url = f"http://{device.values['web']['listen']}/"
    done = run(program("python"), str(SCRIPT), check, url, codes, *more)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("said") == []  # neither errors nor breaches of the policy of content
    return found


def test_each_action_changes_what_is_shown_within_a_second(desk: Device) -> None:
    found = look("actions", desk)
    assert found.pop("declined") is True
    assert found.pop("report") == "edged-rig.html"
    assert set(found) == {"label", "pause", "resume", "train", "rollback", "pin", "evaluate"}
    assert {name: seconds for name, seconds in found.items() if seconds > SOON} == {}


def test_it_is_used_with_the_keyboard_alone(desk: Device) -> None:
    assert look("keyboard", desk) == {"focus": "train"}


def test_suspect_labels_are_corrected_in_bulk(desk: Device) -> None:
    found = look("labels", desk)
    assert found.pop("points") > 100
    assert found.pop("classes") == 2
    assert found == dict.fromkeys(("changed", "others", "undone", "kept", "confirmed", "corrected"), True)


def test_it_can_be_read_by_everybody(desk: Device) -> None:
    found = look("looks", desk)
    assert found["axe"] == []
    assert found["wide"] == []
    assert len(found["contrast"]) == 4
    for ratios in found["contrast"].values():
        assert len(ratios) > 4
        assert {name: ratio for name, ratio in ratios.items() if ratio < CONTRAST} == {}


def test_of_seven_tabs_the_one_that_is_seen_has_a_stream(desk: Device) -> None:
    found = look("tabs", desk)
    assert found["seconds"] < 2 * SOON
    assert (found["tabs"], found["streams"]) == (7, 1.0)


@pytest.mark.parametrize(("rows", "version"), [((8, 8, 8), 1), ((30, 30, 8), 2)])
def test_a_person_teaches_three_activities_without_a_terminal(
    lesson: Lesson, rows: tuple[int, int, int], version: int
) -> None:
    """By the head alone, and once a network serves that has never seen the third of them."""
    more = json.dumps([lesson.stretches(rows), lesson.later(), version])
    found = look("teach", lesson.device, more)
    assert found["samples"] == list(rows)
    assert found["right"] < TAUGHT
    assert found["new"] < LIVE


def test_a_stretch_is_named_by_keyboard_alone_and_on_a_phone(lesson: Lesson) -> None:
    assert look("teach_by_hand", lesson.device) == {"zoomed": True}
