"""Waiting for a loop of another thread: one whole turn, never for ever."""

from __future__ import annotations

import threading
import time

from edged.domain.commits.commit_delay import FlushRequests


class Loop:
    """A thread that goes round whenever it is woken."""

    def __init__(self, *, settles: bool = True) -> None:
        self.settling = FlushRequests()
        self.wake = threading.Event()
        self.turns = 0
        self._settles = settles
        self._ending = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending:
            self.wake.wait()
            self.wake.clear()
            asked = self.settling.start_turn()
            self.turns += 1
            self.settling.finish_turn(asked, flushed=self._settles)
        self.settling.close()

    def end(self) -> None:
        self._ending = True
        self.wake.set()
        self._thread.join()


def test_each_who_asks_waits_for_a_whole_turn() -> None:
    loop, found = Loop(), list[bool]()
    try:
        for asked in range(1, 51):
            before = loop.turns
            assert loop.settling.wait(loop.wake.set, 10)
            assert loop.turns > before, asked
        threads = [
            threading.Thread(target=lambda: found.append(loop.settling.wait(loop.wake.set, 10)))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        loop.end()
    assert found == [True] * 16


def test_what_a_turn_could_not_settle_is_said() -> None:
    loop = Loop(settles=False)
    try:
        assert not loop.settling.wait(loop.wake.set, 10)
    finally:
        loop.end()


def test_a_loop_that_hangs_is_not_waited_for_and_one_that_is_over_neither() -> None:
    settling = FlushRequests()
    began = time.monotonic()
    assert not settling.wait(lambda: None, 0.05)
    assert time.monotonic() - began < 5
    settling.close()
    assert settling.wait(lambda: None, 60)
