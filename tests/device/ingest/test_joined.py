"""Samples of several messages: durable one by one, joined once, whatever fails or restarts in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edged.errors import CorruptError
from edged.mqtt.client.message import ReceivedMessage
from tests.device.dock import Dock, again

PUMP: dict[str, Any] = {
    "topic": "z/pump",
    "key": {"fixed": "pump"},
    "ts": "ts",
    "classes": ["ok", "worn"],
    "features": [
        "temperature",
        {"name": "power", "topic": "tele/plug/SENSOR", "path": "ENERGY.Power", "max_age": "10min"},
        {"name": "room", "topic": "ha/room/state"},
        {"name": "door", "topic": "z/door", "path": "contact", "values": {True: 0, False: 1}},
    ],
    "sample": "temperature",
    "missing": {"fill": "last", "flags": True},
    "label": {"topic": "labels/pump", "hold": True},
}


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    with closing(Dock(tmp_path, PUMP)) as made:
        yield made


def message(mid: int, topic: str, payload: Any) -> ReceivedMessage:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return ReceivedMessage(topic, body, mid, 1, False, False, 1, 1000.0)


def temperature(mid: int, value: Any, **fields: Any) -> ReceivedMessage:
    return message(mid, "z/pump", {"temperature": value, **fields})


def columns(dock: Dock) -> list[list[float]]:
    return [row for batch in dock.batches for row in batch.x.tolist()]


def labels(dock: Dock) -> list[Any]:
    return [label for batch in dock.batches for label in batch.labels]


def restart(dock: Dock) -> None:
    dock.close()
    dock.open()


def test_values_of_four_topics_make_one_sample(dock: Dock) -> None:
    dock.work(
        [
            message(1, "tele/plug/SENSOR", {"ENERGY": {"Power": 12, "Total": 3.1}}),
            message(2, "ha/room/state", b"21.5"),
            message(3, "z/door", {"contact": False, "linkquality": 120}),
            temperature(4, 60.25, vibration=None),
        ]
    )
    (batch,) = dock.batches
    assert (batch.keys, batch.x.tolist()) == (["pump"], [[60.25, 12.0, 21.5, 1.0, 0, 0, 0, 0]])
    assert dock.schema.names[-1] == "door.missing"
    assert (dock.rejected, len(dock.acknowledged), dock.stored()) == ([], 4, 1)


def test_messages_that_make_no_sample_are_durable_before_they_are_acknowledged(dock: Dock) -> None:
    dock.work([message(1, "ha/room/state", b"21.5")])
    assert (len(dock.acknowledged), dock.stored()) == (1, 0)
    restart(dock)
    dock.work([temperature(2, 60.0)])
    assert columns(dock) == [[60.0, 0.0, 21.5, 0.0, 0, 1, 0, 1]]


def test_a_message_that_comes_again_after_a_restart_changes_nothing(dock: Dock) -> None:
    first = temperature(1, 60.0)
    dock.work([first])
    restart(dock)
    dock.work([again(first)])
    assert (dock.stored(), dock.committer.redelivered) == (1, 1)


def test_after_a_commit_that_failed_the_join_goes_on_with_what_is_stored(dock: Dock) -> None:
    dock.log.failing = frozenset({1})
    dock.work([message(1, "ha/room/state", b"21.5")])
    assert dock.acknowledged == []
    dock.committer.commit()
    restart(dock)
    dock.work([temperature(2, 60.0)])
    assert columns(dock)[-1][2] == 21.5


@pytest.mark.parametrize("word", [b"unavailable", b"unknown", b"nan", b"None", b""])
def test_a_sensor_that_says_it_has_no_value_is_filled_in_and_not_refused(dock: Dock, word: bytes) -> None:
    dock.work([message(1, "ha/room/state", b"21.5"), message(2, "ha/room/state", word), temperature(3, 60.0)])
    assert columns(dock) == [[60.0, 0.0, 21.5, 0.0, 0, 1, 1, 1]]
    assert dock.rejected == []


@pytest.mark.parametrize(
    "payload", [{"linkquality": 5}, {"temperature": {"tC": 5}}, [1], "on", b"\xff", b"{"]
)
def test_what_brings_nothing_usable_is_quarantined(dock: Dock, payload: Any) -> None:
    dock.work([message(1, "z/pump", payload)])
    assert [item.topic for item in dock.rejected] == ["z/pump"]
    assert len(dock.acknowledged) == 1


def test_the_usable_part_of_a_message_counts(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, {**PUMP, "features": ["temperature", "humidity"], "sample": None})) as dock:
        dock.work([temperature(1, 60.0, humidity="wet"), temperature(2, 61.0, humidity=float("nan"))])
        assert columns(dock) == [[60.0, 0.0, 0.0, 1.0], [61.0, 0.0, 0.0, 1.0]]
        assert dock.rejected == []


def test_a_label_holds_until_it_changes_or_ends_also_over_a_restart(dock: Dock) -> None:
    dock.work([temperature(1, 1.0), message(2, "labels/pump", b"worn"), temperature(3, 2.0)])
    restart(dock)
    dock.work([temperature(4, 3.0), message(5, "labels/pump", b"OK"), temperature(6, 4.0)])
    dock.work([message(7, "labels/pump", b"off"), temperature(8, 5.0)])
    assert labels(dock) == [None, 1.0, 1.0, 0.0, None]
    assert dock.log.counters().labels == 3


def test_a_label_that_is_no_class_is_quarantined_and_what_held_goes_on(dock: Dock) -> None:
    dock.work([message(1, "labels/pump", b"worn"), message(2, "labels/pump", b"wet"), temperature(3, 1.0)])
    assert [(item.topic, item.reason) for item in dock.rejected] == [("labels/pump", "label")]
    assert labels(dock) == [1.0]


def test_labels_that_hold_are_for_whole_messages_too(tmp_path: Path) -> None:
    section = {
        "topic": "s/+", "features": 2, "classes": ["ok", "worn"], "key": "topic:1",
        "label": {"topic": "labels/+", "hold": True},
    }  # fmt: skip
    with closing(Dock(tmp_path, section)) as dock:
        dock.work([message(1, "labels/m1", b"worn")])
        dock.work([message(2, "s/m1", {"x": [1, 2]}), message(3, "s/m2", {"x": [3, 4]})])
        assert (labels(dock), [batch.keys for batch in dock.batches]) == ([1.0, None], [["m1", "m2"]])


def test_a_bare_label_that_does_not_hold_is_for_the_sample_nearest_in_time(tmp_path: Path) -> None:
    section = {**PUMP, "label": {"topic": "labels/pump"}}
    with closing(Dock(tmp_path, section)) as dock:
        dock.work([temperature(1, 1.0)])
        dock.work([message(2, "labels/pump", b"worn")])
        assert [(update.offset, update.label) for update in dock.labels] == [(1, 1.0)]


def test_samples_by_the_clock_need_no_message(tmp_path: Path) -> None:
    section = {**PUMP, "sample": "10s", "label": None}
    with closing(Dock(tmp_path, section)) as dock:
        dock.work([temperature(1, 60.0, ts=dock.clock.now()), message(2, "ha/room/state", b"21.5")])
        assert dock.batches == []
        dock.clock.advance_to(dock.clock.now() + 10.0)
        dock.ingestor._ingest_due()  # noqa: SLF001  what the ingest thread does between two messages
        dock.committer.commit()
        assert [row[:3] for row in columns(dock)] == [[60.0, 0.0, 21.5]]
        assert dock.stored() == 1


def test_samples_by_the_clock_join_messages_that_wait_for_their_commit(tmp_path: Path) -> None:
    section = {**PUMP, "sample": "10s", "label": None}
    with closing(Dock(tmp_path, section)) as dock:
        dock.work([message(1, "ha/room/state", b"21.5")])
        dock.ingestor.ingest_messages([temperature(2, 60.0, ts=dock.clock.now())])
        dock.clock.advance_to(dock.clock.now() + 10.0)
        dock.ingestor._ingest_due()  # noqa: SLF001  what the ingest thread does between two messages
        dock.committer.commit()
        assert dock.stored() == 1
        assert [delivery.mid for delivery in dock.acknowledged] == [1, 2]


@pytest.mark.parametrize("column", ["key", "ts", "state"])
def test_a_damaged_row_is_left_out_and_the_join_goes_on(dock: Dock, column: str) -> None:
    values = {"key": "CAST(x'ff' AS TEXT)", "ts": "ts + 1", "state": "zeroblob(length(state))"}
    dock.work([message(1, "ha/room/state", b"21.5"), message(2, "labels/pump", b"worn")])
    dock.log._db.execute(f"UPDATE joined_values SET {column} = {values[column]}")  # noqa: S608, SLF001  constants
    dock.log._db.execute("UPDATE held_labels SET since = since - 1")  # noqa: SLF001
    assert (dock.log.joined_values(), dock.log.held_labels()) == ({}, {})
    dock.close()
    dock.open()
    dock.work([message(3, "ha/room/state", b"22.5"), temperature(4, 60.0)])
    assert list(dock.log.joined_values()) == ["pump"]


def test_what_cannot_be_read_at_all_is_damage_of_the_log(dock: Dock) -> None:
    row = "('k', 1, x'00', NULL, 1, 1, 0, 0, NULL)"
    dock.log._db.execute(f"INSERT INTO open_windows VALUES {row}")  # noqa: S608, SLF001  constants
    assert dock.log.damage is None
    with pytest.raises(CorruptError, match="open window is damaged") as raised:
        dock.log.open_windows()
    assert dock.log.damage is raised.value


def test_what_is_erased_is_erased_here_too(dock: Dock) -> None:
    dock.work([message(1, "ha/room/state", b"21.5"), message(2, "labels/pump", b"worn")])
    dock.log.erase(labels=True)
    assert (list(dock.log.joined_values()), dock.log.held_labels()) == (["pump"], {})
    dock.log.erase(samples=True)
    assert dock.log.joined_values() == {}


def test_an_unknown_label_beside_features_is_quarantined_and_its_sample_stays(tmp_path: Path) -> None:
    section = {**PUMP, "features": ["temperature"], "label": {"path": "state", "hold": True}}
    with closing(Dock(tmp_path, section)) as dock:
        dock.work(
            [temperature(1, 60.0, state="worn"), temperature(2, 61.0, state="wet"), temperature(3, 62.0)]
        )
        assert [row[0] for row in columns(dock)] == [60.0, 61.0, 62.0]
        assert labels(dock) == [1.0, 1.0, 1.0], "what held goes on"
        assert [(item.reason, item.topic) for item in dock.rejected] == [("label", "z/pump")]


def test_a_stream_without_samples_says_what_it_waits_for(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, {**PUMP, "missing": {"fill": "last"}})) as dock:
        dock.work([temperature(1, 60.0), message(2, "ha/room/state", b"21.5"), temperature(3, 60.0)])
        told = dock.ingestor.joiner.problem
        assert told == "no samples yet: no value of power, door has come"
        dock.work(
            [
                message(4, "tele/plug/SENSOR", {"ENERGY": {"Power": 12}}),
                message(5, "z/door", {"contact": True}),
            ]
        )
        dock.work([temperature(6, 60.0)])
        assert (dock.ingestor.joiner.problem, dock.stored()) == (None, 1)


def test_a_sensor_that_stays_away_is_an_event(dock: Dock) -> None:
    dock.work([temperature(mid, 60.0) for mid in range(1, 21)])
    dock.clock.advance_to(dock.clock.now() + 10.0)
    dock.ingestor._ingest_due()  # noqa: SLF001  what the ingest thread does between two messages
    told = {"more": 0, "key": "pump", "features": ["power", "room", "door"]}
    assert dock.notices == [("sensor_missing", told)]
