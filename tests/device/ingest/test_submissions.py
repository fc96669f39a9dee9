"""Samples that come by another way than the broker: stored before they are confirmed, or refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edged.device.ingest import committer as module
from edged.domain.commits.commit_group import Submission
from edged.domain.stream.admission import AdmissionRules
from edged.domain.stream.sample import Reading
from edged.errors import EdgedError, RefusedError, StorageError
from tests.device.dock import Dock, delivery, running
from tests.running_device import wait_until
from tests.storage.stream import find


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    with closing(Dock(tmp_path)) as made:
        yield made


class Sender:
    """What became of one submission; `durable` is how many samples were stored at that moment."""

    def __init__(self, dock: Dock, *readings: Reading) -> None:
        self.durable: int | None = None
        self.problem: EdgedError | None = None
        self.done = threading.Event()
        self._dock = dock
        self.submission = Submission(list(readings), 0.0, self._stored, self._refused)

    def _stored(self, _: int) -> None:
        self.durable = self._dock.stored()
        self.done.set()

    def _refused(self, problem: EdgedError) -> None:
        self.problem = problem
        self.done.set()


def readings(*values: float, key: str = "k") -> list[Reading]:
    return [Reading(key, [value, 0.5], id=f"own-{value:g}") for value in values]


def test_samples_are_confirmed_when_they_are_durable(dock: Dock) -> None:
    senders = [Sender(dock, *readings(1, 2)), Sender(dock, *readings(3))]
    with running(dock) as ingestor:
        ingestor.receive(delivery(7))
        for sender in senders:
            ingestor.submit(sender.submission)
        assert all(sender.done.wait(20) for sender in senders)
    assert all(sender.durable is not None and sender.durable >= 3 for sender in senders)
    assert sorted(dock.inputs()) == [1.0, 2.0, 3.0, 7.0]
    assert find(dock.log, id="own-3") is not None


def test_a_commit_that_fails_is_confirmed_once_it_comes_through(dock: Dock) -> None:
    dock.log.failing = frozenset({1})
    first, refused = Sender(dock, *readings(1)), Sender(dock, *readings(2))
    with running(dock) as ingestor:
        ingestor.submit(first.submission)
        wait_until(lambda: dock.committer.problem is not None or first.done.is_set())
        if dock.committer.problem is not None:
            with pytest.raises(StorageError):
                ingestor.submit(refused.submission)
        assert first.done.wait(20)
    assert first.durable == 1
    assert len(dock.batches) == 1, "predicted once"


def test_a_key_that_floods_is_refused_as_a_whole(dock: Dock) -> None:
    dock.rules = AdmissionRules(key_rate=0.001, key_burst=2)
    dock.close()
    dock.open()
    sender, other = Sender(dock, *readings(1, 2, 3)), Sender(dock, *readings(4, key="other"))
    with running(dock) as ingestor:
        ingestor.submit(sender.submission)
        ingestor.submit(other.submission)
        assert sender.done.wait(20)
        assert other.done.wait(20)
    assert isinstance(sender.problem, RefusedError)
    assert dock.inputs() == [4.0]


def fails_once(act: Callable[..., None]) -> Callable[..., None]:
    """The same, but for an error that nobody foresaw at its first call."""
    calls = iter([True])

    def perhaps(*arguments: Any) -> None:
        if next(calls, False):
            raise RuntimeError("nobody foresaw this")
        act(*arguments)

    return perhaps


@pytest.mark.parametrize("part", ["on_batch", "on_acknowledge"])
def test_an_error_that_nobody_foresaw_refuses_what_it_leaves_open(
    dock: Dock, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_RETRY", 0.1)
    setattr(dock, part, fails_once(getattr(dock, part)))
    senders = [Sender(dock, *readings(1, 2)), Sender(dock, *readings(3))]
    for sender in senders:
        dock.ingestor.submit(sender.submission)
    with running(dock) as ingestor:
        assert all(sender.done.wait(5) for sender in senders)
        assert [type(sender.problem) for sender in senders] == [StorageError] * 2
        later = Sender(dock, *readings(4))
        ingestor.submit(later.submission)
        assert later.done.wait(20)
    assert later.problem is None
    assert later.durable


def test_those_that_wait_are_bounded_and_stored_at_the_end(dock: Dock) -> None:
    senders = [Sender(dock, *readings(number)) for number in range(256)]
    for sender in senders:
        dock.ingestor.submit(sender.submission)
    with pytest.raises(RefusedError, match="256"):
        dock.ingestor.submit(senders[0].submission)
    with running(dock):
        assert all(sender.done.wait(20) for sender in senders)
    assert dock.stored() == 256
