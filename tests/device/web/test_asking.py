"""Requests that are given up leave nothing behind, whenever that is."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from edged.device.web.bridge import PendingRows, ServingBridge
from edged.domain.stream.sample import Reading

if TYPE_CHECKING:
    from edged.domain.commits.commit_group import Submission


class Stages:
    """Serving and ingest, as far as they receive rows from here."""

    def __init__(self) -> None:
        self.submitted: list[Submission] = []

    def submit(self, submission: Submission) -> None:
        self.submitted.append(submission)


class Place(int):
    """An offset that stops the thread `placing` where that counts on from it, until it may go on."""

    reached: threading.Event
    may_go_on: threading.Event

    def __add__(self, other: int) -> int:
        if threading.current_thread().name == "placing":
            self.reached.set()
            assert self.may_go_on.wait(20)
        return int(self) + other


def test_what_is_given_up_while_it_is_placed_is_forgotten() -> None:
    stages, place = Stages(), Place(10)
    place.reached, place.may_go_on = threading.Event(), threading.Event()
    bridge: Any = ServingBridge(stages, stages, ThreadPoolExecutor(1))  # type: ignore[arg-type]

    async def run() -> None:
        bridge.start()
        asked = asyncio.ensure_future(bridge.record([Reading("k", [1.0])] * 3))
        await asyncio.sleep(0)
        thread = threading.Thread(target=stages.submitted.pop().placed, args=(place,), name="placing")
        thread.start()
        assert await asyncio.to_thread(place.reached.wait, 20)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        place.may_go_on.set()
        await asyncio.to_thread(thread.join)

    asyncio.run(run())
    gc.collect()
    assert [one for one in gc.get_objects() if isinstance(one, PendingRows)] == []
    assert bridge.waiting == 0
