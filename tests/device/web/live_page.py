"""The page in Chromium: `make test-web`. `EDGED_WEB` names an environment with playwright and axe."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.workbench.demo.broker import Mosquitto, free_port
from tests.device.web.client import TOKENS, token_files
from tests.device.web.live import program, run
from tests.running_device import Device, running
from tests.steered import data

if TYPE_CHECKING:
    from tests.running_device import Listener

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).with_name("chromium.py")
SOON = 1.0  # seconds from a person's yes to what comes of it on the page
CONTRAST = 3.0


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
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("page"), free_port()
    broker = Mosquitto(tmp_path_factory.mktemp("broker"), free_port(), ("allow_anonymous true",))
    broker.start()
    device = Device(
        folder, broker.port, {"features": ["temp", "vib"], "classes": ["low", "high"], "label": "state"},
        web={"listen": f"127.0.0.1:{port}", "tokens": token_files(folder, ("control",))},
        training={"min_new_samples": 30, "new_labels": 0, "every": None},
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
            yield f"http://127.0.0.1:{port}/"
            plant.ending.set()
            plant.join(10)
    finally:
        broker.stop()


def look(check: str, url: str) -> Any:
    """What one of the checks of `chromium.py` has found."""
    done = run(program("python"), str(SCRIPT), check, url, TOKENS["control"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("said") == []  # neither errors nor breaches of the policy of content
    return found


def test_each_action_changes_what_is_shown_within_a_second(url: str) -> None:
    found = look("actions", url)
    assert found.pop("declined") is True
    assert found.pop("report") == "edged-rig.html"
    assert set(found) == {"label", "pause", "resume", "train", "rollback", "pin", "evaluate"}
    assert {name: seconds for name, seconds in found.items() if seconds > SOON} == {}


def test_it_is_used_with_the_keyboard_alone(url: str) -> None:
    assert look("keyboard", url) == {"focus": "train"}


def test_suspect_labels_are_corrected_in_bulk(url: str) -> None:
    found = look("labels", url)
    assert found.pop("points") > 100
    assert found.pop("classes") == 2
    assert found == dict.fromkeys(("changed", "others", "undone", "kept", "confirmed", "corrected"), True)


def test_it_can_be_read_by_everybody(url: str) -> None:
    found = look("looks", url)
    assert found["axe"] == []
    assert found["wide"] == []
    assert len(found["contrast"]) == 4
    for ratios in found["contrast"].values():
        assert len(ratios) > 4
        assert {name: ratio for name, ratio in ratios.items() if ratio < CONTRAST} == {}


def test_seven_tabs_stay_live_over_one_stream(url: str) -> None:
    found = look("tabs", url)
    assert found["seconds"] < 2 * SOON
    assert (found["tabs"], found["streams"]) == (7, 1.0)
