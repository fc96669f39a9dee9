"""People label: answers to requests, intervals, labels that hold; all of it once, and taken back exactly."""

from __future__ import annotations

import json
import re
import signal
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.signing import new_pair, sign_command
from edged.storage.samples.log import SampleLog
from edged.workbench.demo.broker import free_port
from tests.device.commands.test_audit import log_of
from tests.device.web.client import TOKENS, Client, token_files
from tests.running_device import Device, running
from tests.steered import ask, conform, data

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener


@pytest.mark.slow
def test_answered_label_requests_lead_to_a_training_run(broker: Broker, tmp_path: Path) -> None:
    device = Device(
        tmp_path, broker.port, {"features": 2, "classes": ["low", "high"]},
        labels={"request_share": 0.5}, training={"new_labels": 20},
        gate={"min_holdout": 1, "holdout": 0.2},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    with running(device, broker.port) as listener:
        for x in rng.normal(size=(200, 2)).round(4).tolist():
            listener.send("sensors/a", {"x": x})
        listener.wait(lambda: len(listener.messages["predictions"]) >= 200)
        listener.wait(lambda: len(listener.events("label_requested")) >= 40)
        asked = listener.events("label_requested")[:40]
        assert {"id", "key", "values", "answer", "confidence", "model"} <= set(asked[0])
        entries = [{"id": r["id"], "label": "high" if r["values"][0] > 0 else "low"} for r in asked]
        one = listener.request("label", **entries[0])
        assert one["status"] == "ok", one
        assert one["data"] == {
            "labelled": 1, "unknown": 0, "number": 1,
            "before": {"labelled": 0, "unlabelled": 1}, "after": {"labelled": 1, "unlabelled": 0},
        }  # fmt: skip
        many = listener.request("label", labels=[*entries[1:], {"id": "1-999999", "label": "low"}])
        told = {name: many["data"][name] for name in ("labelled", "unknown", "number")}
        assert told == {"labelled": len(entries) - 1, "unknown": 1, "number": 2}
        listener.wait(lambda: listener.events("training_finished"), 60)
        run = listener.events("training_finished")[0]
        assert run["outcome"] == "done"
        assert device.cli("status", str(device.path))["labels"] == len(entries)
        refused = listener.request("label", id="nobody", label="low")
        assert refused["status"] == "error"
        assert refused["reason"] == "refused"
        for odd in ({"key": "a", "ts": int("1" * 400)}, {"id": "\ud800"}, {"id": "1-1", "more": ["\udfff"]}):
            answer = listener.request("label", label="low", **odd)
            assert (answer["status"], "JSON" in answer["error"]) == ("error", True), answer
        assert "Traceback" not in device.log.read_text()
        wrong = listener.request("label", id=entries[0]["id"], label="purple")
        assert "purple" in wrong["error"]


PUMPS: dict[str, Any] = {"features": 2, "classes": ["ok", "worn"], "ts": "ts", "id": "id"}
RESTS = {"every": None, "new_labels": 0, "engine": "portable"}
START = 1_700_000_000


def pump(listener: Listener, seconds: range, name: str = "p1", **fields: Any) -> None:
    """Samples of a pump, one a second; their predictions have come."""
    before = len(listener.messages["predictions"])
    for second in seconds:
        listener.send(f"sensors/{name}", {"x": [second, 1.0], "ts": START + second, **fields})
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + len(seconds), 60)


def labels(device: Device) -> dict[tuple[str, int], float | None]:
    """Of every stored sample by key and second."""
    schema = device_schema()
    with SampleLog.open(device.state / "samples.db", schema, readonly=True) as log, log.looking() as db:
        return {(key, int(ts - START)): y for key, ts, y in db.execute("SELECT key, ts, y FROM samples")}


def device_schema() -> Any:
    """What the pumps' log was written for."""
    from edged.config import StreamConfig

    return StreamConfig(**PUMPS, topic="sensors/#", key="topic:1").to_schema()


@pytest.mark.slow
def test_what_people_say_is_stored_learned_audited_and_taken_back(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, PUMPS, training=RESTS)
    with running(device, broker.port) as listener:
        pump(listener, range(3000))
        first = data(listener, "label", **{"from": START + 100, "to": START + 2599, "label": "WORN"})
        assert (first["labelled"], first["before"]) == (2500, {"labelled": 0, "unlabelled": 2500})
        assert sum(y == 1.0 for y in labels(device).values()) == 2500
        pump(listener, range(10), "p2")
        unnamed = ask(listener, "label", **{"from": START, "to": START + 9, "label": "ok"})
        assert "key: none is named" in unnamed["error"]
        until = (START + 199) * 1000
        second = data(
            listener, "label", **{"from": "2023-11-14T22:13:20Z", "to": until, "key": "p1", "label": "ok"}
        )
        assert second["before"] == {"labelled": 100, "unlabelled": 100}
        known = labels(device)
        assert [known["p1", at] for at in (0, 99, 100, 199, 200)] == [0.0, 0.0, 0.0, 0.0, 1.0]
        cleared = data(listener, "label", **{"from": START, "to": START + 49, "key": "p1", "label": None})
        assert cleared["after"] == {"labelled": 0, "unlabelled": 50}
        stacked = ask(listener, "label.undo", number=first["number"])
        assert re.search("undo [23] first", stacked["error"])
        assert data(listener, "label.undo")["number"] == cleared["number"]
        assert data(listener, "label.undo", number=second["number"])["after"] == second["before"]
        one = data(listener, "label", key="p1", ts=START + 100, label="Ok")
        assert one["before"] == {"labelled": 1, "unlabelled": 0}
        assert data(listener, "label.undo")["number"] == one["number"]
        assert data(listener, "label.undo", transaction="all")["undone"] == 2500
        assert data(listener, "label.undo", transaction="all")["undone"] == 2500, "the answer comes again"
        assert set(labels(device).values()) == {None}
        for odd, what in (
            ({"from": START}, "to"), ({"from": "soon", "to": 1, "label": 1}, "from"),
            ({"from": 5, "to": 1, "label": 1}, "after"), ({"from": 1, "to": 5, "key": "p1"}, "no label"),
            ({"from": 1, "to": 5, "key": "p1", "label": "purple"}, "purple"),
            ({"from": 1, "to": 5, "key": "p1", "label": "ok"}, "no sample of"),
        ):  # fmt: skip
            answer = ask(listener, "label", **odd)
            assert (answer["status"], what in answer["error"]) == ("error", True), answer
        assert "nothing to undo" in ask(listener, "label.undo")["error"]
        pump(listener, range(2), "7")
        assert data(listener, "label", key=7, ts=START + 1, label="ok")["labelled"] == 1
        assert data(listener, "label", **{"from": START, "to": START, "key": 7, "label": 1})["labelled"] == 1
        assert "response/label.undo" in conform(listener)
    said = [e for e in log_of(device) if e["what"] == "command"]
    assert [e["command"] for e in said if e["state"] == "successful"][:2] == ["label", "label"]
    assert said[0]["request"] == {"from": START + 100, "to": START + 2599}
    assert said[0]["result"] == {
        "number": 1, "labelled": 2500,
        "before": {"labelled": 0, "unlabelled": 2500}, "after": {"labelled": 2500, "unlabelled": 0},
    }  # fmt: skip
    assert "worn" not in json.dumps(said).lower(), "no labels in the audit log"


@pytest.mark.slow
def test_a_label_holds_from_the_command_on(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, PUMPS | {"ts": None}, training=RESTS)
    with running(device, broker.port) as listener:
        pump(listener, range(3))
        held = data(listener, "label", label="worn", hold=True)
        assert (held["held"], held["before"]) == (True, {"held": False})
        device.stop(signal.SIGKILL)
        device.start()
        listener.wait(lambda: [s["state"] for s in listener.messages["status"]].count("online") > 1, 60)
        pump(listener, range(4))
        pump(listener, range(2), "p2")
        other = data(listener, "label", key="p1", label="Ok", hold=True)
        pump(listener, range(5))
        assert data(listener, "label.undo") == {
            "number": other["number"], "undone": 1, "before": {"held": True}, "after": {"held": True}
        }  # fmt: skip
        pump(listener, range(6))
        assert data(listener, "label", key="p1", hold=True)["after"] == {"held": False}
        pump(listener, range(7))
    assert counted(device) == {None: 3 + 2 + 7, 1.0: 4 + 6, 0.0: 5}


@pytest.mark.slow
def test_a_wipe_ends_what_holds_and_leaves_nothing_to_undo(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, PUMPS, training=RESTS)
    with running(device, broker.port) as listener:
        pump(listener, range(3))
        data(listener, "label", **{"from": START, "to": START + 1, "label": "ok"})
        data(listener, "label", key="p1", label="worn", hold=True)
        data(listener, "wipe", confirm="rig", what=["labels"])
        assert "nothing to undo" in ask(listener, "label.undo")["error"]
        listener.send("sensors/p1", {"x": [1, 2]})
        listener.wait(lambda: len(listener.messages["predictions"]) > 3)
    assert counted(device) == {None: 4}


def counted(device: Device) -> dict[float | None, int]:
    """How many samples have which label."""
    with (
        SampleLog.open(device.state / "samples.db", device_schema(), readonly=True) as log,
        log.looking() as db,
    ):
        return dict(db.execute("SELECT y, count(*) FROM samples GROUP BY y").fetchall())


# Where the daemon is killed, and at which of the calls.
CUTS = {
    "before anything": ("edged.device.commands.labelling", "LabelCommands.label", 1),
    "between two parts": ("edged.storage.samples.label_history", "LabelHistory.go_on", 3),
    "before the answer": ("edged.device.commands.answers", "CommandAnswers.finish", 1),
    "in the undoing": ("edged.storage.samples.label_history", "LabelHistory._undo_part", 2),
}


def cut_at(folder: Path, point: str) -> str:
    """A module search path with which the daemon kills itself at a point."""
    module, method, call = CUTS[point]
    kind, _, name = method.partition(".")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
        import os, signal
        from {module} import {kind}
        usual, calls = {kind}.{name}, iter(range({call} - 1))
        def cut(*arguments, **named):
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return usual(*arguments, **named)
        {kind}.{name} = cut
        """)
    )
    return f"{folder / 'site'}:{Path(__file__).parents[3]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "hold"),
    [
        ("before the answer", True),
        *((point, False) for point in list(CUTS)[:2]),
        *(pytest.param(point, False, marks=pytest.mark.full) for point in list(CUTS)[2:]),
        pytest.param("before anything", True, marks=pytest.mark.full),
    ],
)
def test_each_command_is_carried_out_once_over_a_crash(
    point: str, broker: Broker, tmp_path: Path, *, hold: bool
) -> None:
    undoing = point == "in the undoing"
    device = Device(tmp_path, broker.port, PUMPS, training=RESTS)
    fields: dict[str, Any] = {"key": "p1", "label": "worn", "transaction": "t"}
    fields |= {"hold": True} if hold else {"from": START, "to": START + 3999}
    name, asked = ("label.undo", {"transaction": "t"}) if undoing else ("label", fields)
    with running(device, broker.port) as listener:
        pump(listener, range(4000))
        if undoing:
            data(listener, "label", **fields | {"transaction": "first"})
        device.stop()
        device.start(PYTHONPATH=cut_at(tmp_path, point))
        listener.publish(f"edged/rig/request/{name}", json.dumps(asked))
        assert device.process is not None
        assert device.process.wait(60) == -signal.SIGKILL
        device.start()
        listener.wait(lambda: listener.messages[f"response/{name}"][-1:] and
                      listener.messages[f"response/{name}"][-1]["transaction"] == "t", 60)  # fmt: skip
        answer = listener.messages[f"response/{name}"][-1]
        assert answer["state"] == "successful", answer
        assert ask(listener, name, **asked)["data"] == answer["data"]
        if not hold:
            assert answer["data"]["undone" if undoing else "labelled"] == 4000
            assert counted(device) == ({None: 4000} if undoing else {1.0: 4000})
        if not undoing:
            data(listener, "label.undo")
        assert "nothing to undo" in ask(listener, "label.undo")["error"], "it was there once"


@pytest.mark.slow
def test_over_http_and_with_keys(broker: Broker, tmp_path: Path) -> None:
    public = new_pair(tmp_path / "boss.key")
    port = free_port()
    device = Device(
        tmp_path, broker.port, PUMPS, training=RESTS, commands={"keys": [str(public)]},
        web={"listen": f"127.0.0.1:{port}", "tokens": token_files(tmp_path)},
    )  # fmt: skip
    infer, control = (Client(port).using(TOKENS[scope]) for scope in ("infer", "control"))
    with running(device, broker.port) as listener:
        pump(listener, range(20))
        asked: dict[str, Any] = {"from": START, "to": START + 9, "label": "worn"}
        assert "sign" in ask(listener, "label", **asked)["error"]
        assert "sign" in ask(listener, "label.undo")["error"]
        signed = sign_command("label", "rig", asked, tmp_path / "boss.key", now=time.time(), transaction="s")
        listener.publish("edged/rig/request/label", signed)
        listener.wait(lambda: listener.messages["response/label"][-1].get("transaction") == "s")
        assert listener.messages["response/label"][-1]["data"]["labelled"] == 10
        held = control("POST", "/api/commands/label", {"label": "ok", "hold": True})
        assert (held.status, held.json["data"]["held"]) == (200, True)
        assert infer("POST", "/api/commands/label.undo", {}).status == 403
        for undone in (1, 10):
            assert control("POST", "/api/commands/label.undo", {}).json["data"]["undone"] == undone
    said = [e for e in log_of(device) if e.get("command") in ("label", "label.undo")]
    told = [(e["command"], e["who"]["via"], "key" in e["who"], e["state"]) for e in said]
    assert told == [
        ("label", "mqtt", True, "successful"), ("label", "http", False, "successful"),
        *[("label.undo", "http", False, "successful")] * 2,
    ]  # fmt: skip
