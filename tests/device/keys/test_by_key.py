"""`model: {per: key}` with a real broker, daemon and trainer: keys that contradict each other."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.storage.models.key_folders import FOLDER, KeyFolders
from tests.commands import edged
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from edged.workbench.demo.broker import Mosquitto

pytestmark = pytest.mark.slow

STREAM = {"features": 3, "task": "classify", "classes": ["low", "high"], "label": "y", "id": "id"}
SECTIONS: dict[str, Any] = {
    "model": {"per": "key", "own_after": 60, "keep": 2},
    "training": {"every": None, "min_new_samples": 40, "max_write_rate": None, "threads": 1},
    "gate": {"probation": 0, "suspect_labels": False},
}
RNG = np.random.default_rng(5)


def truth(key: str, x: list[float]) -> str:
    """What holds for the inputs of a key: for `b` the opposite of what holds for the others."""
    return "high" if (x[0] > 0) != (key == "b") else "low"


def feed(listener: Listener, keys: str, count: int, start: int) -> None:
    """So many labelled samples of each key, in turns."""
    for at in range(count):
        for key in keys:
            x = RNG.normal(0.0, 1.0, 3).tolist()
            listener.send(f"sensors/{key}", {"id": f"{key}{start + at}", "x": x, "y": truth(key, x)})


def answers(listener: Listener, key: str, count: int, start: int) -> list[dict[str, Any]]:
    """Predictions of samples without labels; `right` says whether each was true."""
    asked = {}
    for at in range(count):
        x = RNG.normal(0.0, 1.0, 3).tolist()
        asked[f"{key}?{start + at}"] = truth(key, x)
        listener.send(f"sensors/{key}", {"id": f"{key}?{start + at}", "x": x})
    told: dict[str, dict[str, Any]] = {}

    def all_there() -> bool:
        told.update({p["id"]: p for p in listener.messages["predictions"] if p["id"] in asked})
        return len(told) == len(asked)

    listener.wait(all_there)
    return [told[name] | {"right": told[name]["label"] == right} for name, right in asked.items()]


def share(found: list[dict[str, Any]], name: str) -> float:
    """In which share of predictions a field holds."""
    return sum(bool(one.get(name)) for one in found) / len(found)


def own_answers(listener: Listener, *keys: str) -> bool:
    """Whether these keys have been answered by models of their own."""
    told = {e["key"] for e in listener.events("key_model") if e["answers"] == "own"}
    return set(keys) <= told


def data(listener: Listener, command: str, **fields: Any) -> dict[str, Any]:
    """The answer to a command that was carried out."""
    answer = last_answer(listener, command, **fields)
    assert answer["status"] == "ok", answer
    return dict(answer["data"])


def last_answer(listener: Listener, command: str, **fields: Any) -> dict[str, Any]:
    """The last answer to a command."""
    before = len(listener.messages[f"response/{command}"])
    listener.request(command, **fields)
    listener.wait(
        lambda: any(
            one["state"] in ("successful", "failed", "refused")
            for one in listener.messages[f"response/{command}"][before:]
        ),
        60,
    )
    return listener.messages[f"response/{command}"][-1]


def test_keys_that_contradict_each_other_learn_apart(broker: Mosquitto, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM, **SECTIONS)
    with running(device, broker.port) as listener:
        feed(listener, "ab", 200, 0)
        listener.wait(lambda: own_answers(listener, "a", "b"), 120)
        feed(listener, "ab", 200, 200)
        feed(listener, "c", 20, 0)
        for key in "ab":
            found = answers(listener, key, 40, 0)
            assert share(found, "own") == 1.0
            assert share(found, "right") >= 0.85
        assert share(answers(listener, "c", 5, 0), "own") == 0.0
        keys = data(listener, "status")["keys"]
        assert keys["own"] == 2
        assert keys["loaded"] == 2
        assert {one["key"]: (one["loaded"], one["answers"]) for one in keys["worst"]} == {
            "a": (True, True),
            "b": (True, True),
        }
        wait_until(
            lambda: all(350 < one["labels"] <= 400 for one in key_lines(listener))
        )  # some are held out
        _shown(device, listener)
        _commands(listener)
        device.stop(signal.SIGKILL)

    with running(device, broker.port) as listener:  # b goes on as it was; a was told to share
        _until_own(listener, "b")
        assert share(answers(listener, "b", 20, 200), "right") >= 0.85
        device.stop()

    database = KeyFolders(device.state).of("b") / "state.db"
    database.write_bytes(b"no database at all" * 100)
    with running(device, broker.port) as listener:
        answers(listener, "b", 1, 300)
        listener.wait(lambda: any("reason" in e for e in listener.events("key_model")))
        assert share(answers(listener, "b", 5, 400), "own") == 0.0
        assert list((device.state / FOLDER).glob("*.damaged-*"))
        feed(listener, "a", 10, 900)
        assert data(listener, "wipe", confirm="rig")["keys"] == 1
        assert not (device.state / FOLDER).exists()
        assert data(listener, "status")["keys"]["own"] == 0


def key_lines(listener: Listener) -> list[dict[str, Any]]:
    """What the status says of each key."""
    return list(data(listener, "status")["keys"]["worst"])


def _shown(device: Device, listener: Listener) -> None:
    """What the command line shows of keys, and how one of their models is chosen."""
    path = str(device.path)
    data(listener, "pause", what="training")  # no run of its own is to promote another model meanwhile
    wait_until(lambda: len((device.cli("status", path).get("keys") or {"worst": ()})["worst"]) == 2)
    listed = device.cli("models", path, "list", "--key", "b")
    assert [one["champion"] for one in listed].count(True) == 1
    serving = next(one["version"] for one in listed if one["champion"])
    back = data(listener, "rollback", key="b")["to"]
    assert back != serving
    assert data(listener, "promote", key="b", version=serving)["to"] == serving
    for arguments, told in (
        (("rollback", "--key", "b"), "edged ctl rig rollback key=b"),
        (("list", "--key", "c"), "this key has no own model"),
    ):
        refused = edged("models", path, *arguments)
        assert refused.code != 0
        assert told in refused.err
    table = edged("status", path).out
    assert "2 with models of their own" in table
    assert "own model" in table
    data(listener, "resume", what="training")


def _until_own(listener: Listener, key: str) -> None:
    """Ask until the key's own model was loaded."""
    rounds = iter(range(1000, 100_000, 10))
    wait_until(lambda: share(answers(listener, key, 1, next(rounds)), "own") == 1.0, 60)


def _commands(listener: Listener) -> None:
    """Commands about one key."""
    assert data(listener, "evaluate", key="b")["figures"]["accuracy"] >= 0.7
    refused = last_answer(listener, "evaluate", key="c")
    assert refused["status"] == "error"
    assert "no own model" in refused["error"]
    assert data(listener, "train", key="b", epochs=1, transaction="t1")["outcome"] == "done"
    pinned = data(listener, "pin", key="b")["pinned"]
    assert data(listener, "unpin", key="b")["unpinned"] == [pinned]
    assert "=b-model-" in data(listener, "export", key="b")["file"]
    data(listener, "drift.reset", key="b")
    data(listener, "rollback", key="a", version=0)
    assert share(answers(listener, "a", 5, 700), "own") == 0.0
    assert [e["key"] for e in listener.events("model_rolled_back")] == ["b", "a"]
