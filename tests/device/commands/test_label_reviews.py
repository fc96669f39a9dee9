"""After a run the device knows which labels may be wrong; a person corrects or confirms them, for good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.signing import new_pair
from edged.workbench.demo.broker import free_port
from tests.device.commands.test_audit import log_of
from tests.device.web.client import TOKENS, Client, token_files
from tests.running_device import Device, running
from tests.steered import ask, conform, data

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

STREAM: dict[str, Any] = {"features": ["temp", "vib"], "classes": ["low", "high"], "label": "state"}
WRONG = 20  # of 200 labels
MARK = "labels_reviewed"


def feed(listener: Listener, count: int, seed: int = 0) -> set[str]:
    """Labelled samples, a tenth of them with the wrong label; the ids of those."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2)).round(4)
    x[:, 0] += np.sign(x[:, 0])
    before = len(listener.messages["predictions"])
    wrong = set(rng.permutation(count)[: count // 10].tolist())
    for i, (temp, vib) in enumerate(x.tolist()):
        state = ["low", "high"][(temp > 0) != (i in wrong)]
        listener.send(f"sensors/{'ab'[i % 2]}", {"temp": temp, "vib": vib, "state": state})
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, 60)
    told = listener.messages["predictions"][before:]
    return {one["id"] for i, one in enumerate(told) if i in wrong}


def reviewed(device: Device, listener: Listener, times: int) -> dict[str, Any]:
    """Train, and wait until the labels were reviewed so many times; what is suspected then."""
    data(listener, "train", steps=20)
    listener.wait(lambda: len(seen(device, MARK)) >= times, 60)
    found: dict[str, Any] = data(listener, "labels.suspects", limit=300)
    return found


def seen(device: Device, event: str) -> list[str]:
    return [line for line in device.log.read_text().splitlines() if event in line]


def rig(folder: Path, broker: Broker, *, max_classes: int = 0, **sections: Any) -> Device:
    more = {"max_classes": max_classes} if max_classes else {}
    return Device(
        folder, broker.port, STREAM | more, training={"new_labels": 0, "every": None},
        gate={"holdout": 0.2}, log={"level": "info"}, **sections,
    )  # fmt: skip


@pytest.mark.slow
def test_suspect_labels_are_told_corrected_and_confirmed(broker: Broker, tmp_path: Path) -> None:
    device = rig(tmp_path, broker)
    with running(device, broker.port) as listener:
        nothing = data(listener, "labels.suspects")
        assert nothing == {"reviewed": None, "labels": 0, "suspects": []}
        wrong = feed(listener, 10 * WRONG)
        found = reviewed(device, listener, 1)
        assert found["labels"] == 10 * WRONG, "those kept for judging, too"
        ids = [one["id"] for one in found["suspects"]]
        assert set(ids[: round(1.5 * WRONG)]) >= wrong, "all wrong labels are among the first 15 %"
        first = found["suspects"][0]
        assert first["label"] != first["answer"]
        assert first["label_confidence"] < 0.5 < first["confidence"]
        assert (first["answer"] == "high") == (first["values"][0] > 0)
        assert len(data(listener, "labels.suspects", limit=3)["suspects"]) == 3
        of_a = data(listener, "labels.suspects", key="a")["suspects"]
        assert {one["key"] for one in of_a} == {"a"}

        corrected = [{"id": one["id"], "label": one["answer"]} for one in found["suspects"][:5]]
        number = data(listener, "label", labels=corrected)["number"]
        left = [one["id"] for one in data(listener, "labels.suspects", limit=300)["suspects"]]
        assert left == ids[5:], "what was corrected is suspected no more"
        data(listener, "label.undo", number=number)
        assert [o["id"] for o in data(listener, "labels.suspects", limit=300)["suspects"]] == ids
        data(listener, "label", labels=corrected)

        done = data(listener, "labels.confirm", ids=[*ids[5:8], "7-999999"])
        assert done == {"confirmed": 3, "unknown": 1}
        assert "no sample" in ask(listener, "labels.confirm", ids=["nobody"])["error"]
        assert "ids" in ask(listener, "labels.confirm", ids=[])["error"]
    with running(device, broker.port) as listener:
        left = data(listener, "labels.suspects", limit=300)["suspects"]
        told = [one["id"].split("-")[1] for one in left]
        assert told == [one.split("-")[1] for one in ids[8:]], "over a restart, too"
        feed(listener, 40, seed=1)
        again = {o["id"].split("-")[1] for o in reviewed(device, listener, 2)["suspects"]}
        assert again.isdisjoint(one.split("-")[1] for one in ids[5:8]), "confirmed is confirmed"
        back = ids[5].split("-")[1]
        data(listener, "labels.confirm", ids=[f"1-{back}"], right=False)
        feed(listener, 40, seed=2)
        assert back in {o["id"].split("-")[1] for o in reviewed(device, listener, 3)["suspects"]}
        assert {"response/labels.suspects", "response/labels.confirm"} <= conform(listener)
        data(listener, "wipe", confirm="rig", what=["labels"])
        assert data(listener, "labels.suspects") == nothing, "nothing of the labels is left"
    said = [entry for entry in log_of(device) if entry.get("command", "").startswith("labels.")]
    assert {entry["command"] for entry in said} == {"labels.confirm"}


@pytest.mark.slow
def test_who_may_ask_and_who_may_confirm(broker: Broker, tmp_path: Path) -> None:
    port = free_port()
    public = new_pair(tmp_path / "key.pem")
    device = rig(
        tmp_path, broker, commands={"keys": [str(public)]},
        web={"listen": f"127.0.0.1:{port}", "tokens": token_files(tmp_path)},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        assert data(listener, "labels.suspects")["labels"] == 0, "it only reads"
        assert "sign" in ask(listener, "labels.confirm", ids=["1-1"])["error"]
        control = Client(port).using(TOKENS["control"])
        answer = control("POST", "/api/commands/labels.confirm", {"ids": ["1-1"]})
        assert "no sample" in answer.json["error"], "the token stands for a signature"


@pytest.mark.slow
def test_a_class_that_is_gone_is_no_answer(broker: Broker, tmp_path: Path) -> None:
    device = rig(tmp_path, broker, max_classes=3)
    with running(device, broker.port) as listener:
        feed(listener, 10 * WRONG)
        assert reviewed(device, listener, 1)["suspects"]
        assert data(listener, "class.remove", **{"class": "high"})["classes"] == ["low"]
        assert data(listener, "labels.suspects")["suspects"] == []
