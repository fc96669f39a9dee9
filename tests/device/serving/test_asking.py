"""Rows that want a prediction and are no samples: answered by the same champion, and nothing more happens."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.device.serving.worker import FEW
from edged.errors import ModelError, RefusedError
from tests.device.linear import BAD, BROKEN, GOOD, inputs, samples, served
from tests.device.serving.test_failures import particular, with_outlier
from tests.device.serving.test_predictor import labels, make_server, serving
from tests.running_device import wait_until


def test_rows_are_answered_by_the_champion(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 3, GOOD))
    x = inputs(5)
    with serving(server) as outlet:
        made = outlet.loop.ask(x)
    assert made.version == 3
    np.testing.assert_array_equal(made.answers, labels(x))
    assert server.predictions == 5
    assert outlet.loop.latencies.p99_since(0)[1] == 5


def test_nothing_is_published_watched_or_remembered(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, GOOD))
    before = server.drift_state()
    with serving(server) as outlet:
        outlet.loop.ask(inputs(16))
        assert outlet.published == []
        assert outlet.answers == []
    assert server.drift_state() == before
    assert server.label(np.zeros(1, np.int64), np.zeros((1, 1), np.float32)) is None
    assert server.live_quality().to_json()["labelled"] == 0


def test_each_answer_is_of_one_version_while_models_are_swapped(tmp_path: Path) -> None:
    good, bad = served(tmp_path, 1, GOOD), served(tmp_path, 2, BAD)
    server = make_server(good)
    with serving(server) as outlet, ThreadPoolExecutor(1) as thread:
        for number in range(200):
            x = inputs(3, number)
            asked = thread.submit(outlet.loop.ask, x)
            server.swap((bad, good)[number % 2], watch=False)
            made = asked.result(20)
            assert (made.answers == labels(x)).all() == (made.version == 1)


def test_another_loaded_version_can_be_asked_and_no_other(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, BAD))
    server.swap(served(tmp_path, 2, GOOD), watch=False)
    with serving(server) as outlet:
        made = [outlet.loop.ask(inputs(2), version).version for version in (None, 2, 1)]
        assert made == [2, 2, 1]
        with pytest.raises(RefusedError, match="version 7"):
            outlet.loop.ask(inputs(2), 7)


def test_a_champion_that_fails_is_replaced_and_reported(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, GOOD))
    server.swap(served(tmp_path, 2, BROKEN), watch=False)
    with serving(server) as outlet:
        assert outlet.loop.ask(inputs(2)).version == 1
    assert outlet.failed[0][0] == 2


@pytest.mark.parametrize("raises", [True, False])
def test_a_row_that_the_predecessor_does_not_take_spoils_no_other(tmp_path: Path, raises: bool) -> None:
    server = make_server(particular(tmp_path, 1, raises=raises))
    server.swap(served(tmp_path, 2, GOOD), watch=False)
    with serving(server) as outlet:
        made = outlet.loop.ask(with_outlier(3, 1), 1)
    assert np.isnan(made.output).any(axis=1).tolist() == [False, True, False]
    assert server.unanswerable == 0  # it counts what the champion could not answer


def test_an_infinite_output_is_no_answer_of_the_predecessor(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, 100.0))
    server.swap(served(tmp_path, 2, GOOD), watch=False)
    x = inputs(3)
    x[1, 0] = 3e38
    with serving(server) as outlet:
        made = outlet.loop.ask(x, 1)
    assert np.isnan(made.output).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(made.answers[:, 0]).tolist() == [False, True, False]


def test_without_any_model_that_works_it_is_an_error(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, BROKEN))
    with serving(server) as outlet, pytest.raises(ModelError, match="not finite"):
        outlet.loop.ask(inputs(1))


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


def test_an_answer_waits_for_the_batch_that_is_being_served(tmp_path: Path) -> None:
    with serving(make_server(served(tmp_path, 1, GOOD))) as outlet, ThreadPoolExecutor(1) as thread:
        outlet.answers = busy = Occupied()
        outlet.submit(samples(1, inputs(6)))  # too many for this thread
        assert busy.there.wait(20)
        assert not outlet.loop.is_quick(1)
        asked = thread.submit(outlet.loop.ask, inputs(2))
        wait_until(asked.running)
        assert not asked.done()
        busy.go_on.set()
        assert asked.result(20).version == 1


def test_only_few_rows_of_a_quick_model_are_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(make_server(served(tmp_path, 1, GOOD))) as outlet:
        assert not outlet.loop.is_quick(1)  # nothing is known yet
        monkeypatch.setattr("edged.device.serving.worker.SHORT_SECONDS", 20.0)
        outlet.loop.ask(inputs(1))
        assert outlet.loop.is_quick(FEW)
        assert not outlet.loop.is_quick(FEW + 1)
        monkeypatch.setattr("edged.device.serving.worker.SHORT_SECONDS", 0.0)
        assert not outlet.loop.is_quick(1)
