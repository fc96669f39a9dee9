"""Several streams in one daemon: each on its own, from its samples to its commands; the device for all."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.device.several.plant import Plant, ask, feed, ids, plant_running
from tests.running_device import Listener, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto


def finished(listener: Listener) -> list[dict[str, Any]]:
    """The ends of training runs of all streams."""
    events = [event for name in "abc" for event in listener.messages[f"{name}/events"]]
    return [event for event in events if event["event"] == "training_finished"]


def waiting(listener: Listener, name: str) -> int:
    """The messages that one stream has not acknowledged, as it said last."""
    told = listener.messages[f"{name}/metrics"]
    return int(told[-1]["ingest"]["waiting"]) if told else 0


def states_of(listener: Listener) -> dict[str, str]:
    """What the device says of its streams."""
    streams = listener.messages["state/streams"][-1]["streams"]
    return {name: line["state"] for name, line in streams.items()}


def test_each_stream_has_its_samples_its_commands_and_its_settings(tmp_path: Path, broker: Mosquitto) -> None:
    plant = Plant(tmp_path, broker.port)
    with plant_running(plant, broker.port) as listener:
        for name, count in (("a", 30), ("b", 20), ("c", 10)):
            feed(listener, name, count)
        listener.wait(lambda: [len(ids(listener, name)) for name in "abc"] == [30, 20, 10])
        assert [ids(listener, name)[-1] for name in "abc"] == ["a-29", "b-19", "c-9"]
        wait_until(lambda: ask(listener, "status", "b")["data"]["samples"] == 20)
        told = ask(listener, "status")["data"]
        assert {name: line["samples"] for name, line in told["streams"].items()} == {
            "a": 30,
            "b": 20,
            "c": 10,
        }
        assert ask(listener, "ping")["status"] == "ok"
        # Settings: of one stream, and of all.
        ask(listener, "config.set", "b", **{"gate.min_gain": 0.3})
        every = ask(listener, "config.set", **{"training.steps": 77})
        assert every["status"] == "ok", every
        values = {name: ask(listener, "config.get", name)["data"]["values"] for name in "abc"}
        assert [values[name]["training"]["steps"] for name in "abc"] == [77, 77, 77]
        assert [values[name]["gate"]["min_gain"] for name in "abc"] == [0.0, 0.3, 0.0]
        # A command of one stream is none of another, nor of the device.
        assert ask(listener, "train")["status"] == "error"
        assert "ping" in ask(listener, "capabilities")["data"]["commands"]
        assert ask(listener, "capabilities")["data"]["streams"] == ["a", "b", "c"]
    assert (plant.state_of("b") / "samples.db").exists()
    assert not (plant.state / "samples.db").exists()
    assert listener.messages["status"][-1]["state"] == "offline"
    assert "a/status" not in listener.messages
    with plant_running(plant, broker.port) as listener:
        told = ask(listener, "status")["data"]
        assert {name: line["samples"] for name, line in told["streams"].items()} == {
            "a": 30,
            "b": 20,
            "c": 10,
        }


def test_streams_train_one_after_the_other_and_never_at_once(tmp_path: Path, broker: Mosquitto) -> None:
    plant = Plant(tmp_path, broker.port)
    with plant_running(plant, broker.port) as listener:
        for name in "abc":
            feed(listener, name, 60)
        wait_until(lambda: [ask(listener, "status", n)["data"]["labels"] for n in "abc"] == [60] * 3)
        for name in "abc":
            listener.publish(f"edged/rig/{name}/request/train", json.dumps({"transaction": name}))
        listener.wait(lambda: len(finished(listener)) == 3, 120)
        assert [event["outcome"] for event in finished(listener)] == ["done"] * 3
        spans = []
        for name in "abc":
            events = {e["event"]: e["ts"] for e in listener.messages[f"{name}/events"]}
            spans.append((events["training_started"], events["training_finished"]))
        spans.sort()
        assert all(end <= begin + 0.05 for (_, end), (begin, _) in pairwise(spans)), spans


@pytest.mark.parametrize("what", ["bundle", "directory", "database"])
def test_a_damaged_stream_does_not_keep_the_others_from_starting(
    tmp_path: Path, broker: Mosquitto, what: str
) -> None:
    plant = Plant(tmp_path, broker.port)
    if what == "bundle":
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "bundle.json").write_text("{")
        plant.stream("b")["model"] = {"bundle": "broken"}
        plant.write()
    elif what == "directory":
        plant.state_of("b").parent.mkdir(parents=True)
        plant.state_of("b").write_text("not a directory")
    else:
        plant.state_of("b").mkdir(parents=True)
        (plant.state_of("b") / "state.db").write_bytes(b"SQLite format 3\0" + b"x" * 9000)
    with plant_running(plant, broker.port) as listener:
        states = {"a": "online", "b": "failed" if what == "bundle" else "online", "c": "online"}
        listener.wait(lambda: states_of(listener) == states)
        streams = listener.messages["state/streams"][-1]["streams"]
        feed(listener, "a", 5)
        listener.wait(lambda: len(ids(listener, "a")) == 5)
        if what == "bundle":
            assert "broken" in streams["b"]["problem"]
            del plant.stream("b")["model"]
            plant.reload()
            listener.wait(lambda: states_of(listener)["b"] == "online")
        feed(listener, "b", 5)
        listener.wait(lambda: len(ids(listener, "b")) == 5)


def test_streams_are_added_changed_and_removed_while_the_others_go_on(
    tmp_path: Path, broker: Mosquitto
) -> None:
    plant = Plant(tmp_path, broker.port)
    with plant_running(plant, broker.port) as listener:
        sent = dict.fromkeys("abcd", 0)

        def send(name: str, count: int) -> None:
            feed(listener, name, count, first=sent[name])
            sent[name] += count

        for name in "abc":
            send(name, 10)
        plant.stream("b")["serving"] = {"coverage": 0.8}
        plant.values["streams"] = [one for one in plant.values["streams"] if one["name"] != "c"]
        plant.values["streams"].append({"name": "d", "stream": {"topic": "sensors/d"}})
        plant.reload()
        while set(states_of(listener)) != {"a", "b", "d"}:
            send("a", 5)
            send("b", 1)
            listener.wait(lambda: len(ids(listener, "a")) == sent["a"])
            assert sent["a"] < 50_000
        send("d", 10)
        send("b", 5)
        listener.wait(lambda: [len(set(ids(listener, name))) for name in "abd"] == [sent[n] for n in "abd"])
        assert "c/state/model" not in listener.messages  # taken back
        assert ids(listener, "b")[-1] == f"b-{sent['b'] - 1}"
        assert "set" in listener.messages["b/predictions"][-1]
        boots = [event["boot"] for event in listener.messages["a/events"] if event["event"] == "started"]
        assert boots == [1]


def test_streams_may_share_topics(tmp_path: Path, broker: Mosquitto) -> None:
    plant = Plant(tmp_path, broker.port)
    plant.stream("b")["stream"]["topic"] = "sensors/a"
    plant.write()
    with plant_running(plant, broker.port) as listener:
        feed(listener, "a", 20)
        listener.wait(lambda: len(ids(listener, "a")) == len(ids(listener, "b")) == 20)
        wait_until(lambda: ask(listener, "status", "b")["data"]["samples"] == 20)
    with plant_running(plant, broker.port) as listener:  # all were acknowledged
        assert ask(listener, "status", "a")["data"]["samples"] == 20


def test_kill_9_loses_and_doubles_nothing_in_any_stream(tmp_path: Path, broker: Mosquitto) -> None:
    plant = Plant(tmp_path, broker.port)
    with plant_running(plant, broker.port) as listener:
        for part in range(4):
            for name in "abc":
                feed(listener, name, 100, first=100 * part)
            listener.wait(lambda part=part: len(ids(listener, "b")) > 100 * part + 20)  # type: ignore[misc]
            assert plant.process is not None
            plant.process.send_signal(signal.SIGKILL)
            plant.process.wait(20)
            before = len(listener.messages["status"])
            plant.start()
            listener.wait(lambda before=before: listener.messages["status"][before:][-1:], 120)  # type: ignore[misc]
        wait_until(lambda: [ask(listener, "status", n)["data"]["samples"] for n in "abc"] == [400] * 3, 60)
        for name in "abc":  # answers go out at QoS 0: those that a kill found on their way are not sent again
            assert set(ids(listener, name)) <= {f"{name}-{n}" for n in range(400)}
            feed(listener, name, 20, first=400)
        listener.wait(
            lambda: all(
                {f"{name}-{n}" for n in range(400, 420)} <= set(ids(listener, name)) for name in "abc"
            )
        )
        wait_until(lambda: [ask(listener, "status", n)["data"]["samples"] for n in "abc"] == [420] * 3, 60)


def test_streams_that_are_slowed_down_hold_up_no_other(tmp_path: Path, broker: Mosquitto) -> None:
    plant = Plant(tmp_path, broker.port, report={"every": "200ms"})
    for name in "ac":  # as many as there are threads for commits, and each is slow to acknowledge
        plant.stream(name)["stream"]["max_rate"] = 1
    plant.write()
    with plant_running(plant, broker.port) as listener:
        for name in "ac":
            feed(listener, name, 120)
        listener.wait(lambda: all(waiting(listener, name) >= 20 for name in "ac"))
        feed(listener, "b", 5)
        listener.wait(lambda: len(ids(listener, "b")) == 5)
        wait_until(lambda: ask(listener, "status", "b")["data"]["samples"] == 5)
        # They may all be predicted by now: it is acknowledgements that are held back, for two minutes.
        known = len(listener.messages["a/metrics"]), len(listener.messages["c/metrics"])
        listener.wait(lambda: len(listener.messages["a/metrics"]) > known[0] + 1)
        listener.wait(lambda: len(listener.messages["c/metrics"]) > known[1] + 1)
        assert all(waiting(listener, name) > 0 for name in "ac")
