"""What the page remembers: bounded, and telling silence from slowness."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from edged.device.reports import Report
from edged.device.web.page.history import EVENTS, MARKS, MOST_KEYS, POINTS, REQUESTS, History, PageState
from edged.domain.events import (
    Event,
    LabelRequested,
    ModelPromoted,
    ModelRolledBack,
    SensorMoves,
    SensorStuck,
)
from edged.domain.judging.prediction_sets import Promise
from edged.domain.judging.predictions import Predictions


def made(n: int, version: int = 1, *, classes: int = 2) -> Predictions:
    output = np.full((n, classes), 1 / classes, np.float32)
    return Predictions(
        version, np.arange(n), np.zeros((n, 1), np.float32), output, output.max(axis=1)
    )  # fmt: skip


def answer(board: PageState, keys: list[str], monotonic: float) -> None:
    board.answered(keys, np.arange(len(keys), dtype=np.float64), made(len(keys)), monotonic)


def event(happened: Event, ts: float = 0.0) -> Report:
    return Report("events", happened, ts, seq=1, boot=1)


def request(name: str) -> Report:
    return event(LabelRequested(name, "k", 0.0, (), 1, random=False, answer="ok"))


def test_history_keeps_both_ends_and_is_coarser_where_it_is_old() -> None:
    history = History()
    for ts in range(20 * POINTS):
        history.add((float(ts), 0.5, None))
    times = [ts for ts, _, _ in history.points]
    assert POINTS // 2 <= len(times) <= POINTS
    assert times == sorted(times)
    assert times[-1] == 20 * POINTS - 1
    assert times[0] == 0
    assert times[1] - times[0] > times[-1] - times[-2] == 1


def test_history_goes_on_after_a_restart() -> None:
    board = PageState(None)
    board.measured(1.0, 0.5, None)
    board.reported(event(ModelRolledBack(3, 2, "command", ""), 2.0))
    again = PageState(json.loads(json.dumps(board.dump())))
    assert again.history.points == [(1.0, 0.5, None)]
    assert list(again.history.marks) == [(2.0, "back", "Rollback to version 2")]


def test_a_sensor_is_silent_by_its_own_measure() -> None:
    board = PageState(None)
    for i in range(100):
        answer(board, ["fast", "fast"], float(i))
        if i % 30 == 0:
            answer(board, ["slow"], float(i))
    fast, slow = board.sensors["fast"], board.sensors["slow"]
    assert (fast.count, fast.gaps, slow.count) == (200, 0, 4)
    assert fast.pause is not None
    assert 0.4 < fast.pause < 0.6
    assert slow.pause == 30.0
    at = 99.0 + 20.0
    assert (fast.is_silent(at), slow.is_silent(at)) == (True, False)
    assert slow.is_silent(90.0 + 151.0)
    answer(board, ["fast"], at)
    assert (fast.gaps, fast.is_silent(at)) == (1, False)
    assert 0.4 < fast.pause < 0.6  # the gap is no usual pause


def test_all_of_it_is_bounded() -> None:
    board = PageState(None)
    for i in range(3 * MOST_KEYS):
        answer(board, [f"key-{i}"], float(i))
        board.reported(request(f"1-{i}"))
        board.reported(event(SensorStuck(0, f"key-{i}", ("a",))))
        board.reported(event(ModelPromoted(i, 0, "", "")))
    assert not [said for said in board.events if isinstance(said.event, LabelRequested)]  # they bury no other
    assert (len(board.sensors), board.forgotten) == (MOST_KEYS, 2 * MOST_KEYS)
    assert f"key-{3 * MOST_KEYS - 1}" in board.sensors
    assert len(board.stuck) == MOST_KEYS
    assert (len(board.requests), len(board.events), len(board.history.marks)) == (REQUESTS, EVENTS, MARKS)


def test_what_is_over_is_forgotten() -> None:
    board = PageState(None)
    for name in ("1-1", "1-2"):
        board.reported(request(name))
    board.command_succeeded("label", {"labels": [{"id": "1-1"}, {"id": "unknown"}]}, {})
    assert list(board.requests) == ["1-2"]
    board.reported(event(SensorStuck(0, "k", ("a", "b"))))
    board.reported(event(SensorMoves(0, "k", ("a",))))
    assert board.stuck == {"k": {"b"}}
    board.reported(event(SensorMoves(0, "k", ("b",))))
    assert board.stuck == {}


def test_a_row_without_an_answer_has_none() -> None:
    board = PageState(None)
    predictions = made(1)
    predictions.answers[0, 0] = np.nan
    board.answered(["k"], np.zeros(1), predictions, 0.0)
    assert board.sensors["k"].label is None


def test_the_newest_set_of_a_key_is_remembered() -> None:
    board, sets = PageState(None), np.array([[True, True], [False, True]])
    promise = Promise(0.9, sets, np.full((2, 1), 0.1, np.float32))
    for rows in (slice(0, 1), slice(1, 2)):
        board.answered(["k"], np.zeros(1), replace(made(1), promise=promise.rows(rows)), 0.0)
        assert board.sensors["k"].choices == np.flatnonzero(sets[rows][0]).tolist()
    board.answered(["k"], np.zeros(1), made(1), 0.0)
    assert board.sensors["k"].choices is None
