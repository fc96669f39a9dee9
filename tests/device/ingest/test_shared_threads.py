"""Ingest of several streams on threads that they share: the disk of some holds up no message of another."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.host.turns import TurnThreads
from tests.device.dock import delivery, gathering
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.device.dock import Dock

PATIENCE = 20.0


class Disk:
    """Holds up who commits until it is let go on."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.waiting: list[Dock] = []

    def hold(self, dock: Dock) -> None:
        def commits(_: Sequence[Any]) -> None:
            self.waiting.append(dock)
            assert self.goes_on.wait(PATIENCE)

        dock.on_acknowledge = commits


@pytest.fixture
def docks(tmp_path: Path) -> Iterator[list[Dock]]:
    """Four streams whose samples wait a moment for each other, on the threads of a device."""
    threads = TurnThreads("ingest", 3, kept=1)
    with ExitStack() as opened:
        made = [opened.enter_context(closing(gathering(tmp_path / name, delay=0.02))) for name in "abcd"]
        for dock in made:
            dock.ingestor.start(threads)
            opened.callback(dock.ingestor.stop)
        yield made


def test_messages_do_not_wait_for_commits_of_others(
    docks: list[Dock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edged.device.ingest.committer.PUT_OFF_SECONDS", 60.0)
    disk = Disk()
    for dock in docks:
        disk.hold(dock)
        dock.ingestor.receive(delivery(1))
    try:
        wait_until(lambda: len(disk.waiting) == 2)
        free = [dock for dock in docks if dock not in disk.waiting]
        for mid in range(2, 12):
            for dock in free:
                dock.ingestor.receive(delivery(mid))
            wait_until(lambda: all(sum(map(len, dock.batches)) == mid for dock in free))  # noqa: B023
        assert len(disk.waiting) == 2
    finally:
        disk.goes_on.set()
    wait_until(lambda: all(dock.ingestor.waiting == 0 for dock in docks))
    assert sorted(dock.stored() for dock in docks) == [1, 1, 11, 11]


def test_a_commit_is_not_put_off_for_ever(docks: list[Dock]) -> None:
    dock, mid = docks[0], 0
    while not dock.acknowledged:
        mid += 1
        dock.ingestor.receive(delivery(mid))
        wait_until(lambda: dock.ingestor.received == mid)  # noqa: B023
    wait_until(lambda: dock.ingestor.waiting == 0)
    assert dock.stored() == mid
