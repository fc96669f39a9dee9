"""Somebody needs what was delivered on the disk now, while it waits for company there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edged.domain.commits.commit_group import Submission
from edged.domain.stream.sample import Reading
from tests.device.dock import delivery, gathering, running
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.device.dock import Dock


@pytest.fixture
def dock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dock]:
    """Ingest whose samples wait a minute for each other, also when nothing follows at once."""
    monkeypatch.setattr("edged.domain.commits.commit_delay.QUIET", 60.0)
    with closing(gathering(tmp_path, delay=60.0)) as made:
        yield made


def predicted(dock: Dock, count: int) -> None:
    wait_until(lambda: sum(map(len, dock.batches)) >= count)


def test_what_was_predicted_is_durable_and_acknowledged(dock: Dock) -> None:
    with running(dock) as ingestor:
        for mid in range(1, 4):
            ingestor.receive(delivery(mid))
        predicted(dock, 3)
        assert dock.stored() == 0
        assert ingestor.flush()
        assert (dock.stored(), ingestor.waiting) == (3, 0)
        assert dock.log.commits == 1
        assert ingestor.flush(), "there is nothing to settle"
        assert dock.log.commits == 1


def test_what_waits_before_it_was_predicted_is_settled_too(dock: Dock) -> None:
    with running(dock) as ingestor:
        for mid in range(1, 200):
            ingestor.receive(delivery(mid))
        assert ingestor.flush()
        assert dock.stored() == 199


def test_many_may_ask_at_once_while_messages_come(dock: Dock) -> None:
    found = list[bool]()
    with running(dock) as ingestor:
        threads = [threading.Thread(target=lambda: found.append(ingestor.flush())) for _ in range(8)]
        for mid, thread in enumerate(threads, 1):
            ingestor.receive(delivery(mid))
            thread.start()
        for thread in threads:
            thread.join()
        assert dock.stored() == 8
    assert found == [True] * 8


def test_a_disk_that_refuses_is_told_of_at_once_and_not_tried_more_often(dock: Dock) -> None:
    dock.log.broken = True
    with running(dock) as ingestor:
        ingestor.receive(delivery(1))
        predicted(dock, 1)
        assert not ingestor.flush()
        wait_until(lambda: dock.log.commits >= 3)
        began, tried = time.monotonic(), dock.log.commits
        assert not any(ingestor.flush() for _ in range(50))
        assert dock.log.commits <= tried + 2 + (time.monotonic() - began) / 0.2
        dock.log.broken = False
        wait_until(ingestor.flush)
        assert dock.stored() == 1


def test_before_it_runs_and_after_it_has_ended_nobody_waits(dock: Dock) -> None:
    began = time.monotonic()
    assert dock.ingestor.flush(60)
    with running(dock) as ingestor:
        ingestor.receive(delivery(1))
    assert dock.ingestor.flush(60)
    assert dock.stored() == 1
    assert time.monotonic() - began < 30


def test_who_asks_while_it_ends_is_answered(dock: Dock) -> None:
    found = list[bool]()
    dock.ingestor.start()
    dock.ingestor.receive(delivery(1))
    threads = [threading.Thread(target=lambda: found.append(dock.ingestor.flush(60))) for _ in range(8)]
    for place, thread in enumerate(threads):
        thread.start()
        if place == 3:
            dock.ingestor.stop()
    for thread in threads:
        thread.join(20)
    assert found == [True] * 8
    assert dock.stored() == 1


def test_what_somebody_waits_for_does_not_wait_for_company(dock: Dock) -> None:
    """Over HTTP: the answer says that the samples are stored, so it would come as late."""
    stored = threading.Event()
    with running(dock) as ingestor:
        ingestor.receive(delivery(1))
        predicted(dock, 1)
        began = time.monotonic()
        ingestor.submit(Submission([Reading("k", [1.0, 2.0])], began, lambda _: stored.set(), lambda _: None))
        assert stored.wait(20)
        assert time.monotonic() - began < 30
        assert dock.stored() == 2
