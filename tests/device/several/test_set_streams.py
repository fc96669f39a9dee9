"""Streams that `config.set` adds, changes and removes, while another stream is fed without a pause."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.config.loader import OVERLAY
from edged.storage.journal.audit_log import read_audit
from tests.device.several.plant import Plant, ask, feed, ids, plant_running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto
    from tests.running_device import Listener


def set_stream(listener: Listener, name: str, change: Any) -> dict[str, Any]:
    """Set one stream; the answer."""
    return ask(listener, "config.set", **{f"streams.{name}": change})


def names(listener: Listener) -> set[str]:
    """The streams that the device tells of."""
    return set(listener.messages["state/streams"][-1]["streams"])


@contextmanager
def fed_throughout(listener: Listener, name: str) -> Iterator[list[int]]:
    """Samples go to one stream all the time; how many were sent."""
    sent, over, go = [0], threading.Event(), threading.Event()

    def send() -> None:
        while not over.wait(0.002):
            feed(listener, name, 1, first=sent[0])
            sent[0] += 1
            go.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert go.wait(10)
    try:
        yield sent
    finally:
        over.set()
        thread.join()


def test_streams_are_added_changed_and_removed_by_command_while_another_goes_on(
    tmp_path: Path, broker: Mosquitto
) -> None:
    plant = Plant(tmp_path, broker.port)
    with plant_running(plant, broker.port) as listener:
        feed(listener, "b", 10)
        listener.wait(lambda: len(ids(listener, "b")) == 10)
        with fed_throughout(listener, "a") as sent:
            added = set_stream(listener, "d", {"stream": {"topic": "sensors/d"}, "gate": {"min_gain": 0.3}})
            assert added["status"] == "ok", added
            assert added["data"]["reported"]["streams.d"] == {
                "stream": {"topic": "sensors/d"},
                "gate": {"min_gain": 0.3},
            }
            feed(listener, "d", 10)
            listener.wait(lambda: len(ids(listener, "d")) == 10)
            assert set_stream(listener, "b", {"serving": {"coverage": 0.8}})["status"] == "ok"
            feed(listener, "b", 5, first=10)
            listener.wait(lambda: len(ids(listener, "b")) == 15)
            assert set_stream(listener, "c", False)["status"] == "ok"
            listener.wait(lambda: names(listener) == {"a", "b", "d"})
        assert "set" in listener.messages["b/predictions"][-1]
        assert "c/state/model" not in listener.messages  # taken back
        # The stream that was fed has answered each sample once, in order, over one connection.
        listener.wait(lambda: len(ids(listener, "a")) >= sent[0])
        assert ids(listener, "a") == [f"a-{n}" for n in range(sent[0])]
        assert [e["event"] for e in listener.messages["a/events"]].count("started") == 1
        assert [s["state"] for s in listener.messages["status"]].count("online") == 1
        got = ask(listener, "config.get")["data"]
        assert set(got["values"]["streams"]) == {"a", "b", "d"}
        assert got["desired"]["streams.c"] is False
    # Nothing of it is lost at the next start; null goes back to the file.
    assert set(json.loads((plant.state / OVERLAY).read_bytes())) == {"streams.b", "streams.c", "streams.d"}
    with plant_running(plant, broker.port) as listener:
        assert names(listener) == {"a", "b", "d"}
        for name in "bcd":
            assert set_stream(listener, name, None)["status"] == "ok"
        listener.wait(lambda: names(listener) == {"a", "b", "c"})
        feed(listener, "c", 3)
        listener.wait(lambda: len(ids(listener, "c")) == 3)
        feed(listener, "b", 3, first=20)
        listener.wait(lambda: ids(listener, "b")[-1:] == ["b-22"])
        assert "set" not in listener.messages["b/predictions"][-1]
    log = [logged.entry for logged in read_audit(plant.state, running=False)[0]]
    first = next(entry for entry in log if entry.command == "config.set")
    assert first.request == {"streams.d": added["data"]["desired"]["streams.d"]}
    assert (first.before, first.after) == ({"streams.d": None}, first.request)


def test_what_cannot_be_changes_nothing(tmp_path: Path, broker: Mosquitto) -> None:
    plant = Plant(tmp_path, broker.port, "ab")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "bundle.json").write_text("{")
    with plant_running(plant, broker.port) as listener:
        with fed_throughout(listener, "a") as sent:
            for key, change, told in (
                ("streams.b", {"gate": {"min_gain": "lots"}}, "config.set: streams.b.gate.min_gain"),
                ("streams.b", {"storage": {"max_bytes": "1MB"}}, "cannot be set from afar"),
                ("streams.z", False, "no such stream (there are a, b)"),
                ("streams.d", {"web": {}}, "config.set: streams.d.web: unknown key"),
                (
                    "streams.d",
                    {"model": {"bundle": "broken"}, "stream": {"topic": "d"}},
                    "nothing was changed",
                ),
                ("streams.b", {"model": {"bundle": "broken"}}, "nothing was changed"),
            ):
                answer = ask(listener, "config.set", **{key: change})
                assert answer["status"] == "error", (key, change, answer)
                assert told in answer["error"]
                assert "\n" not in answer["error"]
            assert (
                "a stream is set alone"
                in ask(listener, "config.set", **{"streams.b": False, "log.level": "info"})["error"]
            )
            told = ask(listener, "config.set", "b", **{"streams.a": False})["error"]
            assert "send it to edged/rig/request/config.set" in told
        feed(listener, "b", 5)
        listener.wait(lambda: len(ids(listener, "b")) == 5)
        listener.wait(lambda: len(ids(listener, "a")) >= sent[0])
        assert ids(listener, "a") == [f"a-{n}" for n in range(sent[0])]
        assert listener.messages["state/streams"][-1]["streams"] == {
            name: {"state": "online", "problem": None} for name in "ab"
        }
        assert ask(listener, "config.get")["data"]["desired"] == {}
