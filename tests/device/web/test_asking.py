"""Requests under way: they are bounded, and those that are given up leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from edged.device.web.bridge import PendingRows, ServingBridge
from edged.device.web.http.bodies import HttpError
from edged.device.web.limits import MAX_REQUESTS
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


def test_requests_under_way_are_bounded() -> None:
    stages = Stages()
    bridge: Any = ServingBridge(stages, stages, ThreadPoolExecutor(1))  # type: ignore[arg-type]
    reading = Reading("k", [1.0])

    async def run() -> None:
        bridge.start()
        asked = [asyncio.ensure_future(bridge.record([reading])) for _ in range(MAX_REQUESTS)]
        await asyncio.sleep(0)
        assert len(stages.submitted) == MAX_REQUESTS
        with pytest.raises(HttpError, match="requests are under way") as caught:
            await bridge.record([reading])
        assert caught.value.status == 503
        given_up = asked.pop()
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        asked.append(asyncio.ensure_future(bridge.record([reading])))
        await asyncio.sleep(0)
        assert len(stages.submitted) == MAX_REQUESTS + 1
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(run())
    assert bridge.waiting == 0
