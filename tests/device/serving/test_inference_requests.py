"""Rows that are asked for and are no samples: by the same champion, in the same batches, and nothing more."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.device.serving.worker import FEW
from edged.domain.judging.inference_requests import InferenceRequest, InferenceRequests
from edged.errors import RefusedError
from tests.device.linear import BAD, BROKEN, GOOD, inputs, samples, served
from tests.device.serving.test_failures import particular, with_outlier
from tests.device.serving.test_predictor import Outlet, labels, make_server
from tests.device.serving.test_predictor import serving as running
from tests.running_device import wait_until

if TYPE_CHECKING:
    from edged.device.serving import Predictor


class Desk:
    """Asks a running loop, and takes its answers."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.groups: queue.Queue[list[InferenceRequest]] = queue.Queue()
        self._questions = InferenceRequests()
        self.threads: list[int] = []
        """Who has made each group of answers."""
        self._call = outlet.loop.accept_requests(self._questions, self._answered)

    def _answered(self, asked: list[InferenceRequest]) -> None:
        self.threads.append(threading.get_ident())
        self.groups.put(asked)

    def ask(self, *questions: InferenceRequest) -> list[InferenceRequest]:
        """The questions with their answers, and how they were grouped."""
        self.send(*questions)
        return self.take(len(questions))

    def send(self, *questions: InferenceRequest) -> None:
        self._questions.add(questions)
        self._call()

    def take(self, count: int) -> list[InferenceRequest]:
        answered: list[InferenceRequest] = []
        while len(answered) < count:
            answered += self.groups.get(timeout=20)
        return answered


class Occupied(list[Any]):
    """Keeps the serving thread with what it has answered until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.go_on = threading.Event(), threading.Event()

    def append(self, item: Any) -> None:
        """On the serving thread."""
        super().append(item)
        self.there.set()
        assert self.go_on.wait(20)


@contextmanager
def serving(server: Predictor, batch: int = 16) -> Iterator[Desk]:
    with running(server, batch=batch) as outlet:
        yield Desk(outlet)


def question(n: int = 1, seed: int = 0, version: int | None = None) -> InferenceRequest:
    return InferenceRequest(inputs(n, seed), time.monotonic(), version)


def test_questions_get_their_own_rows_of_one_run(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 3, GOOD))
    with serving(server) as desk:
        asked = desk.ask(*(question(n, seed=n) for n in (1, 5, 2)))
    assert {id(one.made) for one in asked} == {id(asked[0].made)}
    for one in asked:
        assert one.made is not None
        assert one.made.version == 3
        np.testing.assert_array_equal(one.made.answers[one.rows], labels(one.x))
    assert server.predictions == 8


def test_nothing_is_published_watched_or_remembered(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, GOOD))
    before = server.drift_state()
    with serving(server) as desk:
        desk.ask(question(16))
        assert desk.outlet.published == []
        assert desk.outlet.answers == []
    assert server.drift_state() == before
    assert server.label(np.zeros(1, np.int64), np.zeros((1, 1), np.float32)) is None
    assert server.live_quality().to_json()["labelled"] == 0


def test_more_than_a_micro_batch_takes_several_runs_with_samples_in_between(tmp_path: Path) -> None:
    with serving(make_server(served(tmp_path, 1, GOOD)), batch=4) as desk:
        asked = desk.ask(*(question() for _ in range(10)))
        desk.outlet.submit(samples(1, inputs(6)))
        wait_until(lambda: len(desk.outlet.published) == 6)
    assert len({id(one.made) for one in asked}) >= 3
    assert desk.outlet.loop.latencies.p99_since(0)[1] == 16


def test_each_answer_is_of_one_version_while_models_are_swapped(tmp_path: Path) -> None:
    good, bad = served(tmp_path, 1, GOOD), served(tmp_path, 2, BAD)
    server = make_server(good)
    with serving(server) as desk:
        for number in range(200):
            server.swap((bad, good)[number % 2], watch=False)
            for one in desk.ask(question(3, number), question(2, number)):
                assert one.made is not None
                right = (one.made.answers[one.rows] == labels(one.x)).all()
                assert right == (one.made.version == 1)


def test_another_loaded_version_can_be_asked_and_no_other(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, BAD))
    server.swap(served(tmp_path, 2, GOOD), watch=False)
    with serving(server) as desk:
        champion, named, previous, gone = desk.ask(*(question(2, 0, version) for version in (None, 2, 1, 7)))
    assert [one.made.version for one in (champion, named, previous) if one.made] == [2, 2, 1]
    assert gone.made is None
    assert isinstance(gone.problem, RefusedError)


def test_a_champion_that_fails_is_replaced_and_reported(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, GOOD))
    server.swap(served(tmp_path, 2, BROKEN), watch=False)
    with serving(server) as desk:
        (asked,) = desk.ask(question(2))
        wait_until(lambda: desk.outlet.failed)
    assert asked.made is not None
    assert asked.made.version == 1
    assert desk.outlet.failed[0][0] == 2


@pytest.mark.parametrize("raises", [True, False])
def test_a_row_that_the_predecessor_does_not_take_spoils_no_other(tmp_path: Path, raises: bool) -> None:
    server = make_server(particular(tmp_path, 1, raises=raises))
    server.swap(served(tmp_path, 2, GOOD), watch=False)
    asked = [InferenceRequest(x, time.monotonic(), 1) for x in (inputs(2), with_outlier(3, 1), inputs(2))]
    with serving(server) as desk:
        answered = desk.ask(*asked)
    missing = [np.isnan(one.made.output[one.rows]).any(axis=1).tolist() for one in answered if one.made]
    assert missing == [[False] * 2, [False, True, False], [False] * 2]
    assert server.unanswerable == 0  # it counts what the champion could not answer


def test_an_infinite_output_is_no_answer_of_the_predecessor(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, 100.0))
    server.swap(served(tmp_path, 2, GOOD), watch=False)
    x = inputs(3)
    x[1, 0] = 3e38
    with serving(server) as desk:
        (one,) = desk.ask(InferenceRequest(x, time.monotonic(), 1))
    assert one.made is not None
    assert np.isnan(one.made.output).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(one.made.answers[:, 0]).tolist() == [False, True, False]


def test_without_any_model_that_works_the_question_has_a_problem(tmp_path: Path) -> None:
    with serving(make_server(served(tmp_path, 1, BROKEN))) as desk:
        (asked,) = desk.ask(question())
    assert asked.made is None
    assert asked.problem is not None
    assert "not finite" in asked.problem.line()


def test_quick_answers_are_made_at_once_and_never_beside_a_sample(tmp_path: Path) -> None:
    with serving(make_server(served(tmp_path, 1, GOOD))) as desk:
        wait_until(lambda: desk.ask(question()) and desk.threads[-1] == threading.get_ident())
        desk.outlet.answers = busy = Occupied()
        desk.outlet.submit(samples(1, inputs(FEW + 1)))  # too many for this thread
        assert busy.there.wait(20)
        desk.send(question(), question())  # it does not wait either
        assert desk.groups.empty()
        busy.go_on.set()
        assert all(one.made is not None for one in desk.take(2))
    assert desk.threads[-1] != threading.get_ident()


def test_slow_answers_are_left_to_the_serving_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.device.serving.worker.SHORT_SECONDS", 0.0)
    with serving(make_server(served(tmp_path, 1, GOOD))) as desk:
        for _ in range(5):
            desk.ask(question())
    assert threading.get_ident() not in desk.threads


def test_asking_never_waits_although_the_queue_is_full(tmp_path: Path) -> None:
    outlet = Outlet(make_server(served(tmp_path, 1, GOOD)))
    desk = Desk(outlet)
    for first in range(64):
        outlet.submit(samples(first + 1, inputs(1)))
    began = time.monotonic()
    desk.send(question(), question())
    assert time.monotonic() - began < 1.0
    outlet.loop.start()
    assert len(desk.take(2)) == 2
    outlet.loop.stop()
    assert len(outlet.published) == 64
