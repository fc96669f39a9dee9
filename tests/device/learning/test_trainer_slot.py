"""Whose trainer runs next where streams wait for the one slot: who came first, with a start for some."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from edged.config import loader
from edged.device.learning.trainer_client import TrainerClient
from edged.device.learning.trainer_slot import AHEAD_SECONDS, TrainerSlot
from tests.running_device import wait_until


class Waiters:
    """Streams that take one turn each on threads of their own; `order` is in which they had it."""

    def __init__(self, folder: Path) -> None:
        self.slot, self.order = TrainerSlot(), list[str]()
        self._folder = folder
        self._threads: list[threading.Thread] = []

    def client(self, name: str) -> TrainerClient:
        """The client of one stream, whose process has not begun."""
        values = {
            "device": {"id": "rig"},
            "stream": {"features": 1},
            "storage": {"dir": str(self._folder / name)},
        }
        return TrainerClient(loader.from_values(values), durable=False)

    def wait(self, name: str, trigger: str) -> None:
        """Let a stream wait for its turn; returns once it does."""
        client = self.client(name)

        def take() -> None:
            with self.slot.turn(client, name, AHEAD_SECONDS.get(trigger, 0.0)):
                self.order.append(name)

        thread = threading.Thread(target=take)
        thread.start()
        self._threads.append(thread)
        wait_until(lambda: client in self.slot._waiting)  # noqa: SLF001  nothing tells of it

    def join(self) -> None:
        """Until all had their turns."""
        for thread in self._threads:
            thread.join(10)


def test_a_command_goes_first_then_a_drift_then_who_came_first(tmp_path: Path) -> None:
    streams = Waiters(tmp_path)
    with streams.slot.turn(streams.client("first"), "first", 0.0):
        streams.wait("labels", "labels")
        streams.wait("more", "labels")
        streams.wait("drifted", "drift")
        streams.wait("asked", "command")
        assert streams.order == []
    streams.join()
    assert streams.order == ["asked", "drifted", "labels", "more"]


def test_who_has_waited_long_enough_goes_before_all_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Waiters(tmp_path)
    with streams.slot.turn(streams.client("first"), "first", 0.0):
        streams.wait("poor", "labels")
        later = time.monotonic() + max(AHEAD_SECONDS.values()) + 1.0
        monkeypatch.setattr("edged.device.learning.trainer_slot.time.monotonic", lambda: later)
        streams.wait("asked", "command")
        monkeypatch.undo()
    streams.join()
    assert streams.order == ["poor", "asked"]
