"""Labels that hold because a command says so: durable, once, and taken back exactly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.domain.commits.commit_group import Submission
from edged.domain.stream.sample import HeldChange, HeldLabel, HoldReading
from edged.storage.samples.label_actions import held_label
from edged.storage.samples.label_history import LabelHistory
from tests.device.dock import CLASSIFY, Dock, delivery, running

if TYPE_CHECKING:
    from edged.errors import EdgedError

BY_TOPIC = CLASSIFY | {"label": {"topic": "labels/+", "hold": True, "key": "topic:1"}}


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    with closing(Dock(tmp_path)) as made:
        yield made


def say(dock: Dock, *readings: HoldReading) -> list[EdgedError]:
    """Submit them one after the other, with the ingest thread running; the refusals."""
    problems: list[EdgedError] = []
    with running(dock) as ingestor:
        for reading in readings:
            done = threading.Event()

            def refused(problem: EdgedError, done: threading.Event = done) -> None:
                problems.append(problem)
                done.set()

            def stored(_: int, done: threading.Event = done) -> None:
                done.set()

            ingestor.submit(Submission([reading], dock.clock.monotonic(), stored, refused))
            assert done.wait(20)
    return problems


def hold(dock: Dock, label: float | None, command: str, key: str = "m1") -> None:
    assert say(dock, HoldReading(key, label, command=command)) == []


def restart(dock: Dock) -> None:
    dock.close()
    dock.open()


def taken_back(dock: Dock, command: str) -> HoldReading:
    """What the command `label.undo` submits for the newest action."""
    action = LabelHistory(dock.log, dock.schema, 1 << 20).newest()
    change = HeldChange(
        command, "m1", dock.clock.now(), held_label(action.now_held), held_label(action.held), action.number
    )
    return HoldReading("m1", None, undoing=change)


def numbers(dock: Dock) -> list[tuple[str, str | None]]:
    with dock.log.looking() as db:
        return db.execute("SELECT command, undone_by FROM label_actions ORDER BY number").fetchall()


def labels(dock: Dock) -> list[Any]:
    return [label for batch in dock.batches for label in batch.labels]


def test_it_counts_for_whole_messages_from_its_time_on_over_a_restart(dock: Dock) -> None:
    dock.work([delivery(1)])
    hold(dock, 1.0, "first")
    restart(dock)
    dock.work([delivery(2), delivery(3, ts=900.0), delivery(4, y="ok", label="ok"), delivery(5, "s/other")])
    assert labels(dock) == [None, 1.0, None, 0.0, None]
    hold(dock, None, "second")
    restart(dock)
    dock.work([delivery(6)])
    assert labels(dock)[-1] is None
    assert numbers(dock) == [("first", None), ("second", None)]


def test_readings_of_windows_get_it_too(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, CLASSIFY | {"window": {"size": 2, "stride": 2}})) as dock:
        hold(dock, 1.0, "it")
        restart(dock)
        dock.work([delivery(1), delivery(2)])
        assert labels(dock) == [1.0]


def test_a_commit_that_came_through_with_an_error_counts_once(dock: Dock) -> None:
    dock.log.failing, dock.log.late = frozenset({1}), frozenset({2})
    hold(dock, 1.0, "it")
    assert dock.log.commits == 3
    assert numbers(dock) == [("it", None)]
    assert dock.log.held_labels() == {"m1": HeldLabel(1.0, 1000.0)}


def test_undo_brings_back_what_held_before(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, BY_TOPIC)) as dock:
        dock.work([delivery(1, "labels/m1", payload=b"ok")])
        dock.clock.advance_to(1005.0)
        hold(dock, 1.0, "it")
        assert dock.log.held_labels() == {"m1": HeldLabel(1.0, 1005.0)}
        restart(dock)
        say(dock, taken_back(dock, "back"))
        assert dock.log.held_labels() == {"m1": HeldLabel(0.0, 1000.0)}
        assert numbers(dock) == [("it", "back")]
        restart(dock)
        dock.work([delivery(2)])
        assert labels(dock) == [0.0]


def test_undo_does_not_touch_a_label_that_came_since(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, BY_TOPIC)) as dock:
        hold(dock, 1.0, "it")
        restart(dock)
        back = taken_back(dock, "back")
        dock.work([delivery(1, "labels/m1", payload=b"ok")])
        say(dock, back)
        assert dock.log.held_labels() == {"m1": HeldLabel(0.0, 1000.0)}
        assert numbers(dock) == [("it", None)]


def test_what_was_erased_holds_no_longer(dock: Dock) -> None:
    hold(dock, 1.0, "it")
    dock.close()
    dock.open()
    with running(dock) as ingestor:
        ingestor.receive(delivery(1))
        ingestor.flush()
        dock.log.erase(labels=True)
        ingestor.forget()
        ingestor.receive(delivery(2))
    assert labels(dock) == [1.0, None]
    assert (dock.log.held_labels(), numbers(dock)) == ({}, [])


def test_a_command_counts_though_a_label_of_later_holds(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, BY_TOPIC | {"ts": "ts"})) as dock:
        dock.work([delivery(1, "labels/m1", payload=b'{"label": "ok", "ts": 1500}')])
        hold(dock, 1.0, "it")
        assert dock.log.held_labels() == {"m1": HeldLabel(1.0, 1500.0)}
