"""Whose trainer runs next where streams wait for the one slot: what its run would gain decides."""

from __future__ import annotations

import threading
from pathlib import Path

from edged.config import loader
from edged.device.learning.trainer_client import TrainerClient
from edged.device.learning.trainer_slot import RunGain, TrainerSlot
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

    def wait(self, name: str, gain: RunGain) -> None:
        """Let a stream wait for its turn; returns once it does."""
        client = self.client(name)

        def take() -> None:
            with self.slot.turn(client, name, gain):
                self.order.append(name)

        thread = threading.Thread(target=take)
        thread.start()
        self._threads.append(thread)
        wait_until(lambda: client in self.slot._waiting)  # noqa: SLF001  nothing tells of it

    def join(self) -> None:
        """Until all had their turns."""
        for thread in self._threads:
            thread.join(10)


def test_what_a_run_would_gain_decides_who_is_next(tmp_path: Path) -> None:
    streams = Waiters(tmp_path)
    with streams.slot.turn(streams.client("first"), "first", RunGain()):
        streams.wait("few", RunGain(1.0))
        streams.wait("many", RunGain(5.0))
        streams.wait("drifted", RunGain(1.0, drifted=True))
        streams.wait("asked", RunGain(0.0, asked=True))
        assert streams.order == []
    streams.join()
    assert streams.order == ["asked", "drifted", "many", "few"]
