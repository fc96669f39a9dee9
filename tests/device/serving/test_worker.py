"""Who answers: the thread that submits a few samples while nothing waits, otherwise the serving thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.device.serving import worker
from edged.device.serving.head_teacher import HeadTeacher
from edged.device.serving.worker import FEW
from edged.domain.judging.ridge_head import RidgeHead
from edged.domain.stream.sample import LabelUpdate
from edged.storage.samples.log import SampleLog
from tests.device.linear import GOOD, SCHEMA, inputs, samples, served
from tests.device.serving.test_predictor import Outlet, make_server
from tests.running_device import wait_until

if TYPE_CHECKING:
    import pytest


class Answered(list[Any]):
    """What was answered, and by which thread; the first batch on another thread than `here` waits."""

    def __init__(self) -> None:
        super().__init__()
        self.here = threading.get_ident()
        self.threads: list[bool] = []
        self.there, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def append(self, item: Any) -> None:
        super().append(item)
        self.threads.append(threading.get_ident() == self.here)
        self.there.set()
        assert self.go_on.wait(20)

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.threads) >= count)

    @property
    def offsets(self) -> list[int]:
        return [int(offset) for made, *_ in self for offset in made.offsets]


@contextmanager
def quick(tmp_path: Path) -> Iterator[tuple[Outlet, Answered]]:
    """A loop that is known to be quick, and what it answers from then on."""
    outlet = Outlet(make_server(served(tmp_path, 1, GOOD)))
    outlet.loop.start()
    outlet.submit(samples(1000, inputs(FEW + 1)))
    wait_until(lambda: len(outlet.answers) == 1)
    answered = Answered()
    outlet.answers = answered
    yield outlet, answered
    answered.go_on.set()
    outlet.loop.stop()


def answered_here(outlet: Outlet, answered: Answered, first: int) -> None:
    """Submit single samples until this thread answers one; the machine may be slow now and then."""

    def here() -> bool:
        nonlocal first
        known = len(answered.threads)
        outlet.submit(samples(first, inputs(1)))
        first += 1
        answered.wait_for(known + 1)
        return answered.threads[-1]

    wait_until(here)


def test_a_few_samples_are_answered_where_they_come_from(tmp_path: Path) -> None:
    with quick(tmp_path) as (outlet, answered):
        answered_here(outlet, answered, 1)


def test_many_samples_are_left_to_the_serving_thread(tmp_path: Path) -> None:
    with quick(tmp_path) as (outlet, answered):
        for number in range(5):
            outlet.submit(samples(1 + 10 * number, inputs(FEW + 1)))
            answered.wait_for(number + 1)
    assert not any(answered.threads)


def test_slow_answers_are_left_to_the_serving_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SHORT_SECONDS", 0.0)
    with quick(tmp_path) as (outlet, answered):
        for number in range(5):
            outlet.submit(samples(1 + number, inputs(1)))
            answered.wait_for(number + 1)
    assert not any(answered.threads)


def test_a_sample_never_overtakes_one_that_waits(tmp_path: Path) -> None:
    with quick(tmp_path) as (outlet, answered):
        answered.go_on.clear()
        outlet.submit(samples(1, inputs(FEW + 1)))  # held by the serving thread
        assert answered.there.wait(20)
        for offset in range(FEW + 2, FEW + 12):
            outlet.submit(samples(offset, inputs(1)))
        assert outlet.loop.waiting == 10
        answered.go_on.set()
        answered.wait_for(11)
    assert answered.offsets == list(range(1, FEW + 12))
    assert not any(answered.threads)


def test_a_label_finds_the_answer_that_was_made_elsewhere(tmp_path: Path) -> None:
    with quick(tmp_path) as (outlet, answered):
        answered_here(outlet, answered, 1)
        before = outlet.predictor.quality.count
        outlet.loop.label([LabelUpdate(answered.offsets[-1], 1.0, 0.0)])
        wait_until(lambda: outlet.predictor.quality.count == before + 1)


def test_a_head_that_must_learn_anew_is_left_to_the_serving_thread(tmp_path: Path) -> None:
    with SampleLog.open(tmp_path / "samples.db", SCHEMA) as log:
        outlet = Outlet(make_server(served(tmp_path, 1, GOOD)))
        teacher = HeadTeacher(RidgeHead.of(SCHEMA), log, SCHEMA, 0.1)
        outlet.predictor.teacher = teacher
        outlet.loop.start()
        outlet.answers = answered = Answered()
        answered_here(outlet, answered, 1)
        known = len(answered)
        teacher.forget()
        outlet.submit(samples(100, inputs(1)))
        answered.wait_for(known + 1)
        outlet.loop.stop()
    assert not answered.threads[-1]
    assert not teacher.behind


def test_an_answer_that_cannot_be_published_spoils_nothing_for_who_submits(tmp_path: Path) -> None:
    class Broken(Answered):
        def append(self, item: Any) -> None:
            super().append(item)
            if self.threads[-1]:
                raise OSError("gone")

    with quick(tmp_path) as (outlet, _):
        outlet.answers = answered = Broken()
        answered_here(outlet, answered, 1)
        errors = outlet.loop.errors
        assert errors >= 1
        outlet.submit(samples(500, inputs(1)))
        wait_until(lambda: answered.offsets[-1] == 500)
    np.testing.assert_array_equal(answered.offsets, sorted(answered.offsets))
